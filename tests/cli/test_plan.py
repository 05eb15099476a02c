"""`lockgate plan`, as it is typed: exit 0 where the job holds, exit 2 and one paragraph where it does not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lockgate.cli.main import main

HOLDS = """\
from datetime import timedelta
from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream, windows

def job(servers: str = "localhost:9092", lateness: timedelta = timedelta(seconds=10)) -> Job:
    counts = (
        stream("requests", KafkaSource(topic="requests", servers=servers, value="ip STRING, url STRING, at TIMESTAMP"))
        .event_time("at", lateness=lateness)
        .key_by("ip")
        .window(windows.tumbling(timedelta(minutes=1)))
        .aggregate(requests="count(*)")
        .to("counts", KafkaSink(topic="counts", servers=servers, key="ip"))
    )
    return Job("requests-per-ip", counts, guarantee=Guarantee.AT_LEAST_ONCE)
"""
AS_DESIGNED = """\
# requests_per_ip.py
from datetime import timedelta
from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Late, stream, windows

def job(servers: str = "localhost:9092") -> Job:
    requests = stream("requests", KafkaSource(topic="requests", servers=servers, value="ip STRING, url STRING, at TIMESTAMP"))
    counts = (
        requests.event_time("at", lateness=timedelta(seconds=10), late=Late.TO_SIDE_OUTPUT)
        .key_by("ip")
        .window(windows.tumbling(timedelta(minutes=1)))
        .aggregate(requests="count(*)")
    )
    return Job(
        "requests-per-ip",
        counts.to("counts", KafkaSink(topic="counts", servers=servers, key="ip")),
        counts.late.to("late", KafkaSink(topic="late-requests", servers=servers, key="ip")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )
"""  # noqa: E501 - as it is printed there

OVER_CLAIM = (
    HOLDS.replace("AT_LEAST_ONCE", "END_TO_END_EXACTLY_ONCE")
    .replace("KafkaSink,", "ConsoleSink,")
    .replace('KafkaSink(topic="counts", servers=servers, key="ip")', "ConsoleSink()")
)

PlanIt = Callable[..., int]


@pytest.fixture
def plan_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlanIt]:
    """Write a job file and plan it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "100")

    def run(text: str, *options: str) -> int:
        (tmp_path / "requests_per_ip.py").write_text(text)
        return main(["plan", str(tmp_path / "requests_per_ip.py"), *options])

    yield run
    sys.modules.pop("requests_per_ip", None)


def test_a_job_that_holds_is_shown_and_exits_0(plan_it: PlanIt, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_it(HOLDS) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out.startswith("Job requests-per-ip, micro-batch, epochs of 1 second\n")
    for text in ("Logical graph", "Physical graph", "tumbling 1 minute by ip", "by key (ip)"):
        assert text in told.out
    assert "Guarantee declared: at-least-once\nGuarantee reached:  exactly-once (state)\n" in told.out
    assert max(map(len, told.out[: told.out.index("\nSteps")].splitlines())) <= 100


def test_an_over_claim_is_shown_refused_in_one_paragraph_and_exits_2(
    plan_it: PlanIt, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan_it(OVER_CLAIM) == 2
    told = capsys.readouterr()
    assert "Guarantee reached:  exactly-once (state)" in told.out
    what, where, fix = told.err.splitlines()
    assert what.startswith("Job 'requests-per-ip' declares end-to-end exactly-once but reaches exactly-once (state): ")
    assert where.startswith("  where: sink 'counts', declared at requests_per_ip.py:")
    assert fix.startswith("  fix:   ")
    assert fix.endswith("or declare Guarantee.EXACTLY_ONCE")


def test_the_job_of_the_design_holds(plan_it: PlanIt, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_it(AS_DESIGNED) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "Guarantee reached:  end-to-end exactly-once" in told.out


def test_a_late_output_of_a_stream_that_drops_late_events_exits_2_with_the_line(
    plan_it: PlanIt, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan_it(AS_DESIGNED.replace("Late.TO_SIDE_OUTPUT", "Late.DROP")) == 2
    told = capsys.readouterr().err
    assert told.startswith("late events are asked for, but late=Late.DROP for them\n")
    assert "declared at requests_per_ip.py:16" in told


def test_a_column_that_does_not_exist_exits_2_with_the_line(
    plan_it: PlanIt, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan_it(HOLDS.replace('.key_by("ip")', '.where("urll is not null").key_by("ip")')) == 2
    told = capsys.readouterr().err
    assert told.startswith("column 'urll' in 'urll is not null' does not exist\n")
    assert "requests_per_ip.py:8" in told
    assert "did you mean 'url'?" in told


def test_parameters_reach_the_job(plan_it: PlanIt, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_it(HOLDS, "-p", "servers=k:1", "-p", "lateness=2 minutes") == 0
    assert "lateness 2 minutes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["-p", "server=k:1"], "job() has no parameter 'server'"),
        (["-p", "lateness=soon"], "parameter lateness='soon' is not of type timedelta"),
        (["-p", "servers"], "-p 'servers' is not name=value"),
    ],
)
def test_parameters_that_do_not_fit_exit_2(
    plan_it: PlanIt, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    assert plan_it(HOLDS, *options) == 2
    assert capsys.readouterr().err.startswith(told)


def test_a_syntax_error_exits_2_with_its_line(plan_it: PlanIt, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_it(HOLDS.replace("-> Job:", "-> Job")) == 2
    told = capsys.readouterr().err
    assert "requests_per_ip.py cannot be loaded: SyntaxError" in told
    assert "  where: requests_per_ip.py:4\n" in told


def test_a_file_that_is_not_there_exits_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", str(tmp_path / "nowhere.py")]) == 2
    assert "there is no job file" in capsys.readouterr().err


def test_a_job_that_declares_transactions_reaches_them(plan_it: PlanIt, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_it(HOLDS.replace("AT_LEAST_ONCE", "END_TO_END_EXACTLY_ONCE")) == 0
    assert "Guarantee reached:  end-to-end exactly-once\n" in capsys.readouterr().out


@pytest.mark.parametrize("is_kept", [True, False])
def test_json_is_all_that_is_printed_and_the_exit_is_the_same(
    plan_it: PlanIt, capsys: pytest.CaptureFixture[str], is_kept: bool
) -> None:
    assert plan_it(HOLDS if is_kept else OVER_CLAIM, "--json") == (0 if is_kept else 2)
    told = json.loads(capsys.readouterr().out)
    declared = "AT_LEAST_ONCE" if is_kept else "END_TO_END_EXACTLY_ONCE"
    assert (told["declared"], told["reached"], told["holds"]) == (declared, "EXACTLY_ONCE", is_kept)
    assert [step["name"] for step in told["logical"]["steps"]] == ["requests", "event_time", "window", "counts"]
    assert told["physical"]["edges"][1]["keys"] == ["ip"]


def test_svg_is_a_picture_in_a_file(plan_it: PlanIt, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    assert plan_it(HOLDS, "--svg", str(picture), "--json") == 0
    told = capsys.readouterr()
    assert told.err == f"drawn into {picture}\n"
    assert json.loads(told.out)["holds"]
    assert ElementTree.fromstring(picture.read_text(encoding="utf-8")).tag.endswith("svg")


def test_a_picture_is_drawn_of_an_over_claim_too(plan_it: PlanIt, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    assert plan_it(OVER_CLAIM, "--svg", str(picture)) == 2
    assert "end-to-end exactly-once" in picture.read_text(encoding="utf-8")


def test_a_picture_that_cannot_be_written_exits_2(
    plan_it: PlanIt, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert plan_it(HOLDS, "--svg", str(tmp_path / "no" / "such" / "plan.svg")) == 2
    assert "plan.svg cannot be written" in capsys.readouterr().err
