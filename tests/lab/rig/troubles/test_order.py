"""Faults are done in the way that fits them, and a driver is armed for all of them at once."""

import random
from pathlib import Path
from typing import Any

import pytest

from lockgate.faultpoints import VARIABLE
from lockgate.lab.rig.drivers import Drivers
from lockgate.lab.rig.faults import ANY_MOMENT, Kind, Strike
from lockgate.lab.rig.history import Fault
from lockgate.lab.rig.troubles import armed, databases
from lockgate.lab.rig.troubles.armed import Armed
from lockgate.lab.rig.troubles.databases import Crashes
from lockgate.lab.rig.troubles.order import troubles_of
from lockgate.lab.rig.troubles.outside import Outside
from lockgate.lab.rig.troubles.pauses import Pauses
from lockgate.lab.rig.troubles.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    drivers = Drivers(tmp_path / "job.py", {}, tmp_path, tmp_path / "checkpoint", labels={})
    return Scene("job", drivers, "h:1", random.Random(1), sent=lambda: 0, postgres=Server())  # type: ignore[arg-type]


class Server:
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda: self.done.append(name)


def test_each_fault_finds_its_trouble_and_a_poisoned_event_needs_none(scene: Scene) -> None:
    strikes = [
        Strike(Kind.KILL_BROKER, ANY_MOMENT),
        Strike(Kind.POISON, ANY_MOMENT),
        Strike(Kind.KILL_POSTGRES, "STAGED"),
        Strike(Kind.KILL_POSTGRES, ANY_MOMENT),
        Strike(Kind.PAUSE_MACHINE, "ADD"),
        Strike(Kind.PAUSE_DRIVER, "VOTES"),
        Strike(Kind.KILL_WORKER, "HALF"),
        Strike(Kind.KILL_EXECUTOR, "EMIT"),
    ]
    troubles = troubles_of(strikes, scene, lambda fault: None)
    assert [(type(one), one.count) for one in troubles] == [(Armed, 2), (Pauses, 2), (Crashes, 1), (Outside, 2)]
    texts = {one.environment()[VARIABLE] for one in troubles}
    assert len(texts) == 1
    assert all(point in texts.pop() for point in ("ADD",))
    actions = [fault.action for fault in troubles[0].of_all]
    assert actions == ["kill", "kill-jvm", "stop", "stop", "stop"]


def test_without_faults_at_points_a_driver_is_not_armed(scene: Scene) -> None:
    (outside,) = troubles_of([Strike(Kind.KILL_JOB, ANY_MOMENT)], scene, lambda fault: None)
    assert outside.environment() == {}


def test_an_armed_fault_strikes_once_when_its_mark_is_there(scene: Scene) -> None:
    told: list[Fault] = []
    (trouble,) = troubles_of([Strike(Kind.KILL_DRIVER, "VOTES", 2)] * 2, scene, told.append)
    trouble.step()
    assert not told
    for fault in trouble.faults:
        Path(str(fault.mark)).write_text("123\n")
    trouble.step()
    trouble.step()
    assert [(fault.kind, fault.point, fault.process) for fault in told] == [("kill driver", "VOTES", "process 123")] * 2
    assert trouble.is_over


@pytest.mark.parametrize("stays_away", [False, True])
def test_postgres_dies_while_a_process_stands_still_and_is_back_when_it_should(
    stays_away: bool, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = scene.postgres.done  # type: ignore[union-attr]
    monkeypatch.setattr(armed, "victim_of", lambda fault: 123)
    monkeypatch.setattr(databases, "is_stopped", lambda pid: True)
    monkeypatch.setattr(databases, "send", lambda pid, number: done.append(number.name))
    monkeypatch.setattr(Crashes, "_wake_and_await_word", lambda self, victim: done.append("awaited"))
    away = {"STAGED"} if stays_away else set()
    (trouble,) = troubles_of([Strike(Kind.KILL_POSTGRES, "STAGED")], scene, lambda fault: None, stays_away=away)
    trouble.step()
    assert trouble.is_over
    assert done == (["kill", "awaited", "start", "wait"] if stays_away else ["kill", "start", "wait", "SIGCONT"])
