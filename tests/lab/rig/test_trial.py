"""The loop of a trial: a job is kept running and fed, faults strike in turn, and what stands still fails."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lockgate.errors import Failed
from lockgate.lab.rig import trial as trials
from lockgate.lab.rig.history import Fact, Fault
from lockgate.lab.rig.readers.group import Readers
from lockgate.lab.rig.trial import Trial
from lockgate.lab.rig.troubles.trouble import Trouble


@dataclass
class OneDriver:
    """A driver that runs until it is killed."""

    environment: Mapping[str, str]
    number: int = 0
    is_running: bool = True
    is_up: bool = True
    words: Path = Path("words")

    def kill(self) -> None:
        self.is_running = False

    def tail(self) -> str:
        return "last words"


@dataclass
class Starts:
    """Starts a driver whenever none runs; an epoch is done with every look."""

    all: list[OneDriver] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    is_stuck: bool = False
    looks: int = 0

    @property
    def running(self) -> OneDriver | None:
        return self.all[-1] if self.all and self.all[-1].is_running else None

    def tend(self, environment: Mapping[str, str]) -> OneDriver:
        if self.running is None:
            self.all.append(OneDriver(environment, len(self.all)))
        self.looks += 1
        return self.all[-1]

    def epochs(self) -> int:
        return 0 if self.is_stuck else self.looks

    def consumed(self) -> int:
        return 0


@dataclass
class Sends:
    """Sends all that it may."""

    sent: int = 0

    def send(self, limit: int) -> None:
        self.sent = max(self.sent, limit)


class Strikes(Trouble):
    """Strikes with every second look."""

    def __init__(self, name: str, count: int, told: list[str]) -> None:
        self.name, self.count, self._told, self._looks = name, count, told, 0

    def environment(self) -> Mapping[str, str]:
        return {"armed": self.name}

    def begin(self) -> None:
        self._told.append(f"{self.name} begins")

    def end(self) -> None:
        self._told.append(f"{self.name} ends")

    def step(self) -> None:
        self._looks += 1
        self.struck += self._looks % 2 == 0


def make(drivers: Any, **more: Any) -> Trial:
    return Trial(drivers, Readers(()), Sends(), look_seconds=0, **more)  # type: ignore[arg-type]


def test_one_trouble_comes_after_the_other_and_each_finds_a_driver_that_is_armed_for_it() -> None:
    drivers, told = Starts(), list[str]()
    trial = make(drivers, limit=lambda driver: 10 * drivers.looks)
    trial.disturb([Strikes("first", 2, told), Strikes("second", 1, told)])
    assert told == ["first begins", "first ends", "second begins", "second ends"]
    assert [driver.environment for driver in drivers.all] == [{"armed": "first"}, {"armed": "second"}]
    assert [driver.is_running for driver in drivers.all] == [False, True]
    assert trial.feed.sent == 10 * drivers.looks == 60
    assert trial.trouble.environment() == {}


def test_a_trouble_that_strikes_in_vain_is_over_too() -> None:
    drivers = Starts()
    trouble = Strikes("never", 1000, [])
    make(drivers, limit=lambda driver: 0).disturb([trouble], is_in_vain=lambda: drivers.looks > 5)
    assert not trouble.is_over
    assert drivers.looks == 6


def test_a_trial_in_which_nothing_happens_fails_with_the_last_words_of_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "PATIENCE_SECONDS", 0.05)
    trial = make(Starts(is_stuck=True), limit=lambda driver: 7)
    with pytest.raises(Failed, match=r"(?s)7 events are sent.*last words"):
        trial.run(lambda: False)


def test_several_trials_can_be_run_at_once_look_by_look() -> None:
    one, two = Starts(), Starts()
    looks = [make(drivers, limit=lambda driver: 0).looks(lambda: False) for drivers in (one, two)]
    for _ in range(3):
        for look in looks:
            next(look)
    assert (one.looks, two.looks) == (3, 3)


def test_a_fault_is_noted_and_reported() -> None:
    drivers, told = Starts(), list[str]()
    trial = make(drivers, limit=lambda driver: 0, tell=told.append)
    fault = Fault("kill driver", "VOTES", "process 7", 1.0, epoch=3)
    trial.note(fault)
    assert (drivers.facts, trial.struck) == ([fault], 1)
    assert told == ["kill driver at VOTES, epoch 3, process 7"]
