"""`lockgate prove`: what it refuses, and a small proof on real services."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from lockgate.cli.main import main
from support.process import LOCKGATE, run
from support.waiting import PATIENCE_SECONDS

JOB = """
    from lockgate import FileSink, Guarantee, Job, KafkaSink, KafkaSource, SocketSource, stream


    def job(guarantee: str = "END_TO_END_EXACTLY_ONCE", sink: str = "topic", source: str = "topic") -> Job:
        if source == "socket":
            read = SocketSource(host="far.example", port=1, value="id BIGINT, cents INT", format="json")
        else:
            read = KafkaSource(topic="payments", servers="far.example:9092", value="id BIGINT, cents INT")
        rows = stream("payments", read).where("cents >= 200")
        out = KafkaSink(topic="large", servers="far.example:9092") if sink == "topic" else FileSink(path="/far/away")
        return Job("large", rows.to("large", out), guarantee=Guarantee[guarantee])
"""


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "job.py"
    file.write_text(textwrap.dedent(JOB))
    return file


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--faults", "kill driver,kill time"], "'kill time' is none of"),
        (["--points", "NOWHERE"], "'NOWHERE' is none of"),
        (["--faults", "pause driver", "--points", "HALF"], "no such fault can strike this job"),
        (["--kills", "0"], "0 kills prove nothing"),
        (["--events", "0"], "0 events leave nothing to lose"),
        (["--rows-per-epoch", "-1"], "-1 rows an epoch never end"),
        (["--trial", "-1"], "-1 is no trial"),
        (["--given", "payments"], "'payments' names no file"),
        (["--faults", "kill leader", "--brokers", "1"], "kill leader: needs three brokers"),
        (["--faults", "kill machine"], "kill machine: needs a cluster"),
        (["-p", "sink=file", "--spark-sink"], "is no topic"),
        (["-p", "source=socket", "-p", "guarantee=AT_LEAST_ONCE"], "reaches at-most-once"),
    ],
)
def test_what_cannot_be_proven_is_refused_before_anything_runs(
    job_file: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["prove", str(job_file), *words]) in (1, 2)
    assert told in capsys.readouterr().err
    assert not (job_file.parent / ".lockgate" / "prove").exists()


@pytest.mark.parametrize("option", ["--results", "--html"])
def test_what_cannot_be_written_is_refused_before_a_proof_of_an_hour(
    job_file: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    for place in (job_file / "below-a-file", job_file.parent):
        assert main(["prove", str(job_file), option, str(place)]) == 2
        assert f"{place} cannot be written: " in capsys.readouterr().err
    assert not (job_file.parent / ".lockgate" / "prove").exists()


def prove(job_file: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """The status, the facts, and what was said meanwhile."""
    command = [*LOCKGATE, "prove", job_file, *words, "--json"]
    done = run(*command, cwd=job_file.parent, seconds=6 * PATIENCE_SECONDS)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.system
@pytest.mark.process
def test_a_proof_holds_and_continues_where_it_was_interrupted(job_file: Path) -> None:
    words = ("--events", "300", "--faults", "kill driver,kill worker", "--points", "MARKER,HALF")
    status, facts, said = prove(job_file, "--kills", "2", *words)
    assert status == 0, said
    assert (facts["verdict"], facts["lost"], facts["duplicated"], facts["kills"]) == ("holds", 0, 0, 2)
    assert (job_file.parent / ".lockgate" / "prove" / "large" / "proof.html").exists()
    status, again, said = prove(job_file, "--kills", "2", *words)
    assert status == 0
    assert "1 of 1 trials were run before" in said
    assert again["kills"] == 2


@pytest.mark.prove
@pytest.mark.process
def test_the_same_job_through_sparks_own_sink_is_broken_and_the_duplicates_are_reported(job_file: Path) -> None:
    words = ("--kills", "2", "--events", "300", "--faults", "kill driver", "--points", "SENT", "--spark-sink")
    status, facts, said = prove(job_file, *words)
    assert status == 1, said
    assert facts["verdict"] == "broken"
    assert facts["duplicated"] > 0
    assert facts["lost"] == 0
    assert "--spark-sink" in json.dumps(facts["counterexample"])


@pytest.mark.prove
@pytest.mark.process
@pytest.mark.parametrize(("guarantee", "never"), [("AT_MOST_ONCE", "duplicated"), ("AT_LEAST_ONCE", "lost")])
def test_less_than_exactly_once_keeps_what_it_promises(job_file: Path, guarantee: str, never: str) -> None:
    words = ("--kills", "4", "--events", "600", "--faults", "kill driver,kill job,kill worker")
    status, facts, said = prove(job_file, "-p", f"guarantee={guarantee}", *words)
    assert status == 0, said
    assert (facts["verdict"], facts[never]) == ("holds", 0)
