"""A job that has got through an epoch before is waited for by a new supervisor, too, wherever its checkpoint lies."""

import argparse
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockgate import Guarantee, Job, MemorySink, MemorySource, stream
from lockgate.cli import job as command
from lockgate.cli.main import make_parser
from lockgate.cli.supervisor import Report
from lockgate.errors import Unreachable
from lockgate.runtime import starting
from lockgate.runtime.options import Options

HDFS = "hdfs://name:8020/checkpoint"


class Heard(Report):
    """A way to a supervisor that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(stop=lambda: None)
        self.has_past = False

    @property
    def is_supervised(self) -> bool:
        return True

    def send_past(self) -> None:
        self.has_past = True


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(guarantee: Guarantee = Guarantee.AT_LEAST_ONCE) -> Job:
    rows = stream("in", MemorySource([("a",)], value="k STRING"))
    return Job("waited-for", rows.to("out", MemorySink()), guarantee=guarantee)


def options(*more: str) -> argparse.Namespace:
    return make_parser().parse_args(["run", "waited_for.py", *more])


def is_told(monkeypatch: pytest.MonkeyPatch, asked: argparse.Namespace, of: Job) -> bool:
    """Is the supervisor told of a past, before a source is found to be away?"""

    def refuse(job: Job, options: Options, **settings: Any) -> None:
        raise Unreachable("no broker answers", "there", "wait")

    monkeypatch.setattr(starting, "launch", refuse)
    report = Heard()
    with pytest.raises(Unreachable):
        command._run(of, asked, report, None, None)
    return report.has_past


def get_through_an_epoch(monkeypatch: pytest.MonkeyPatch, asked: argparse.Namespace, of: Job) -> None:
    started = SimpleNamespace(
        plan=SimpleNamespace(declared=of.guarantee, reached=of.guarantee),
        checkpoint="there",
        log_file=Path("log"),
        accepted=(),
        unended=0,
        goes_on="from epoch 1",
        epochs_done=1,
        final="",
        wait=lambda on_progress: on_progress(SimpleNamespace(line=lambda: "", events_total=1)),
    )
    monkeypatch.setattr(starting, "launch", lambda job, options, **settings: started)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    asked.until_caught_up = True
    command._run(of, asked, Heard(), None, None)


def test_an_epoch_in_a_checkpoint_on_this_disk_is_a_past(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_told(monkeypatch, options(), job())
    commits = home / ".lockgate" / "checkpoints" / "waited-for" / "commits"
    commits.mkdir(parents=True)
    assert not is_told(monkeypatch, options(), job())
    (commits / "0").touch()
    assert is_told(monkeypatch, options(), job())
    assert not is_told(monkeypatch, options("--checkpoint", "another"), job())


def test_a_checkpoint_elsewhere_has_a_past_once_an_epoch_was_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = options("--checkpoint", HDFS)
    assert not is_told(monkeypatch, elsewhere, job())
    get_through_an_epoch(monkeypatch, options("--checkpoint", HDFS), job())
    assert is_told(monkeypatch, elsewhere, job())
    assert not is_told(monkeypatch, options("--checkpoint", f"{HDFS}-2"), job())


@pytest.mark.parametrize("more", ["--until-caught-up", "--new-life"])
def test_a_wait_for_the_end_and_a_restart_get_the_error_at_once(monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    get_through_an_epoch(monkeypatch, options("--checkpoint", HDFS), job())
    assert not is_told(monkeypatch, options("--checkpoint", HDFS, more), job())


def test_an_at_most_once_job_keeps_nothing_and_has_no_past(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get_through_an_epoch(monkeypatch, options(), job(Guarantee.AT_MOST_ONCE))
    assert not is_told(monkeypatch, options(), job(Guarantee.AT_MOST_ONCE))
    assert not (home / ".lockgate" / "ran").exists()
