"""The show around its processes: where it lives, what it ends, what it says; without the services."""

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fraud import show as module
from fraud.measured import Measured, Phase, Stamps
from fraud.show import Settings, show
from fraud.topics import Topics
from lockgate.lab.services.stack import Stack
from support.waiting import PATIENCE_SECONDS

FILE = Path(__file__).parents[3] / "examples" / "fraud_detection" / "job.py"
SLEEP = ["timeit", "-n", "1", "-r", "1", "import time; time.sleep(120)"]


class Idle(Stack):
    """Services of which only the directory is there."""

    def up(self, **_: Any) -> bool:
        with self._alone():
            self._claim()
        return True


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is asked of Kafka and PostgreSQL."""
    asked: dict[str, Any] = {"topics": set(), "deleted": [], "tables": []}
    monkeypatch.setattr(module, "existing_topics", lambda servers, where: asked["topics"])
    monkeypatch.setattr(module, "delete_topics", lambda servers, names, where: asked["deleted"].append({*names}))
    monkeypatch.setattr(module, "_drop_tables", lambda dsn, pattern: asked["tables"].append(pattern))
    monkeypatch.setattr(Topics, "make", lambda self, partitions: None)
    return asked


@pytest.fixture
def left(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of this test, to be ended whatever happens."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def begin(stack: Stack) -> Measured:
    return show(FILE, stack, settings=Settings(), now=datetime(2026, 1, 2, 3, 4, 5), tell=lambda line: None)


def stage_of(home: Path) -> Any:
    return module._Stage(FILE, home, Topics("", "fraud-"), "", Settings(), lambda line: None)


def test_it_runs_on_a_fresh_clone_and_leaves_the_services_usable(
    told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module._Stage, "play", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    root = tmp_path / ".lockgate" / "services"
    with pytest.raises(KeyboardInterrupt):
        begin(Idle(root))
    assert (tmp_path / ".lockgate" / "fraud" / "lock").is_file()
    assert Idle(root).up(), "it is refused where anything else lies in the directory of the services"


@pytest.mark.process
def test_it_ends_what_it_has_started_when_a_signal_asks_for_the_end(
    told: dict[str, Any],
    left: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def play(stage: Any) -> None:
        for name in ("blacklist", "sender"):
            stage._start(name, SLEEP)
            left.append(stage._processes[name])
        left[0].send_signal(signal.SIGSTOP)
        stage._processes.pop("sender")  # it is just being asked to end
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Stage, "play", play)
    with pytest.raises(KeyboardInterrupt):
        begin(Idle(tmp_path / "services"))
    assert [process.wait(timeout=PATIENCE_SECONDS) for process in left] == [-signal.SIGKILL] * 2
    assert told["deleted"] == [{*Topics("", "fraud-20260102-030405-").names}]
    assert told["tables"][-1] == "^fraud_20260102_030405_(results|letters)$"


@pytest.mark.process
def test_it_ends_and_deletes_what_a_show_that_was_killed_has_left(
    told: dict[str, Any],
    left: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = module._mark_of(tmp_path / "fraud", "amount")
    command = [sys.executable, "-m", *SLEEP]
    left.append(subprocess.Popen(command, env={**os.environ, mark.name: mark.value}))
    old = {"fraud-20250102-030405-payments", "fraud-20250102-030405-scores-place"}
    told["topics"] = {*old, "payments", "fraud-alerts", "fraud-2025-payments"}

    def play(stage: Any) -> None:
        assert left[0].wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
        assert told["deleted"] == [old]
        assert told["tables"] == [r"^fraud_\d{8}_\d{6}_(results|letters)$"]
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Stage, "play", play)
    with pytest.raises(KeyboardInterrupt):
        begin(Idle(tmp_path / "services"))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("WARNING: slow\ntopic 'a' is gone\n  where: source 'a'\n  fix:   make it\n", "topic 'a' is gone"),
        ("topic 'a' is gone\n  where: source 'a'\n  fix:   make it\njava: bye\n", "topic 'a' is gone"),
        ('Traceback (most recent call last):\n  File "x.py"\nValueError: odd\n', "ValueError: odd"),
        ("", "it said nothing"),
    ],
)
def test_a_part_that_has_ended_is_reported_with_its_cause(said: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "place.err").write_text(said)
    lines = str(stage_of(tmp_path)._failed("place")).splitlines()
    assert lines[:2] == ["place has ended:", f"    | {words}"]
    assert ("    |   fix:   make it" in lines) == ("make it" in said)
    assert lines[-2] == f"  where: {tmp_path / 'place.err'}"


def test_what_was_measured_is_text_or_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = Stamps({}, {"place": {}}, {}, {}, [Phase("undisturbed", 0, 1)], deadline_ms=20)
    measured = Measured(stamps, {"rows": 0, "whole": 0}, timed=0)
    monkeypatch.setattr(module, "show", lambda *_, **__: measured)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the signals of this process are pytest's
    functions = runpy.run_path(str(FILE))

    def printed(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["job.py", *words])
        with pytest.raises(SystemExit) as end:
            functions["run_main"](functions["main"])
        assert end.value.code == 0
        return capsys.readouterr().out

    assert printed() == measured.text() + "\n"
    assert json.loads(printed("--json")) == measured.facts()
    assert "Is this card payment a fraud?" in printed("--help")
