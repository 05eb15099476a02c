"""A job on trial: feed it, keep it running, let faults strike, and read what it delivers.

    with Trial(drivers, readers, feed, limit) as trial:   readers read along
        trial.disturb(troubles)                           until every fault has struck
        trial.run(is_over); trial.catch_up()              until the job has done its work
        trial.history()                                   what was observed

A trial knows nothing of where its job comes from: `drivers` has the job file with its parameters and its checkpoint,
`feed` the inputs, `readers` the outputs. It ends in a history, or it fails; it never judges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from lockgate.errors import Failed
from lockgate.lab.rig.drivers import CAUGHT_UP, Driver, Drivers
from lockgate.lab.rig.feed import Feed
from lockgate.lab.rig.history import Fault, History
from lockgate.lab.rig.readers.group import Readers
from lockgate.lab.rig.troubles.trouble import Calm, Trouble

PATIENCE_SECONDS = 420.0
"""How long nothing may happen before a trial fails; the machine may be busy with other things."""

GoOn = Callable[[], None]
"""Called many times a second; what it raises ends the trial."""


@dataclass
class Trial:
    """One job, over all its starts.

    Args:
        limit: how many events may be sent by now.
        tell: receives progress in words.
    """

    drivers: Drivers
    readers: Readers
    feed: Feed
    limit: Callable[[Driver], float]
    go_on: GoOn = lambda: None
    tell: Callable[[str], None] = lambda line: None
    look_seconds: float = 0.05
    trouble: Trouble = field(default_factory=Calm)
    still_since: float = 0.0  # when something happened last, by the monotonic clock

    def __enter__(self) -> Trial:
        self.readers.clear()
        self.readers.start_along(self.drivers.clock)
        return self

    def __exit__(self, *error: object) -> None:
        with ExitStack() as ends:
            ends.callback(self.readers.clear)
            ends.callback(self.feed.close)
            ends.callback(self.drivers.kill)

    def note(self, fault: Fault) -> None:
        """Note a fault that has struck."""
        self.drivers.facts.append(fault)
        self.tell(f"{fault.kind} at {fault.point}, epoch {fault.epoch}, {fault.process}")

    @property
    def struck(self) -> int:
        """How many faults have struck so far."""
        return sum(isinstance(fact, Fault) for fact in self.drivers.facts)

    def looks(self, is_over: Callable[[], bool]) -> Iterator[Driver]:
        """Keep the job running, do what is due and send what may be sent, until it is over; yields after each look."""
        standing: object = None
        while not is_over():
            self.go_on()
            driver = self.drivers.tend(self.trouble.environment())
            self.trouble.step()
            self.feed.send(self.limit(driver))
            here = self.struck, self.drivers.epochs(), len(self.drivers.all), driver.is_up
            if here != standing:
                self.still_since, standing = time.monotonic(), here
            elif time.monotonic() - self.still_since > PATIENCE_SECONDS:
                raise Failed(
                    f"nothing has happened for {PATIENCE_SECONDS:.0f} s: {self.feed.sent:,} events are sent,"
                    f" {self.drivers.consumed():,} are in epochs that are done,"
                    f" {self.trouble.struck} of {self.trouble.count} faults have struck\n{driver.tail()}",
                    where=str(driver.words),
                    fix="see what the job waits for",
                )
            yield driver

    def run(self, is_over: Callable[[], bool]) -> None:
        """Look again and again until it is over."""
        for _ in self.looks(is_over):
            time.sleep(self.look_seconds)

    def disturb(self, troubles: Sequence[Trouble], *, is_in_vain: Callable[[], bool] = lambda: False) -> None:
        """Let one trouble strike after the other, each until it is over, or until nothing is left to strike at."""
        for trouble in troubles:
            self.trouble = trouble
            trouble.begin()
            last = self.drivers.running
            if last is not None and last.environment != trouble.environment():
                last.kill()  # a driver is armed when it starts
            self.run(lambda: self.trouble.is_over or is_in_vain())
            trouble.end()
        self.trouble = Calm()

    def catch_up(self, *options: str) -> None:
        """Run the job undisturbed until it has caught up; Failed if it ends otherwise."""
        driver = self.drivers.start({}, CAUGHT_UP, *options)
        while driver.is_running:
            self.go_on()
            self.drivers.look(driver)
            time.sleep(self.look_seconds)
        self.drivers.look(driver)
        if not driver.has_caught_up:
            raise Failed(
                f"the job ended with {driver.process.returncode} when nothing disturbed it:\n{driver.tail(20)}",
                where=str(driver.words),
                fix="see that `lockgate run --until-caught-up` runs it",
            )

    def history(self) -> History:
        """Read every output to its end; all that was observed."""
        clock = self.drivers.clock
        self.drivers.note_commits()
        facts = [*self.drivers.facts, *self.readers.finish_along(clock), *self.readers.after(clock)]
        return History((*facts, *self.readers.log(clock), *self.readers.standing(clock)))
