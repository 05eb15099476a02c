"""A driver in the simulation: the real coordinator, transactions, ledger and permits, and around them what Spark does.

plan     log the offsets of the next epoch
commit   the coordinator's own work; its journal leaves and reenters it while others move
log      log that the epoch is done
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from lockgate.commit.causes import find_cause
from lockgate.commit.coordinator import Coordinator, Work
from lockgate.commit.followers import Followers
from lockgate.commit.permits import Permits, Place
from lockgate.commit.protocol import Cause, Vote
from lockgate.connectors.kafka.transaction import Transactions
from lockgate.connectors.kafka.wire import Producer
from lockgate.lab.prove.simulation.connection import TIMEOUT_MS, ModelConnection, ModelLedger
from lockgate.lab.prove.simulation.journal import Journal
from lockgate.lab.prove.simulation.tasks import NotAlike, Rows, SparkJob

if TYPE_CHECKING:
    from lockgate.lab.prove.simulation.world import World

T = TypeVar("T")

_BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)


class Crash(BaseException):
    """The process is gone."""


class Driver:
    """One process; what it does is a call of `move` at a time."""

    def __init__(self, world: World, name: str, *, is_alone: bool) -> None:
        self.world = world
        self.name = name
        self.is_alone = is_alone  # has it no excuse to stop?
        self.is_alive = True
        self._journal = Journal(lambda: world.clock)
        self._starts = 0  # of the query, in this process
        self._phase = "plan"
        self.permits = _Permits(self._journal, world)
        connection = ModelConnection(
            world.broker,
            self._carry,
            _Clock(self._journal, world, self),
            is_waiting=world.mutant != "stable-offset",
            lacking=world.lacking,
        )
        self._ledger = ModelLedger(connection, world.job, where=name)
        self._coordinator = Coordinator(
            world.job,
            transactions=Transactions(connection, world.name, timeout_ms=TIMEOUT_MS, where=name),
            ledger=self._ledger,
            permits=self.permits,
            followers=Followers(world.job, {}),
            now=lambda: _BEGINNING + timedelta(seconds=self._journal.now),
            new_name=world.new_name,
        )
        self.start_query()

    @property
    def run(self) -> str:
        """The run id, by which the ledger knows it."""
        return self._coordinator.run

    def start_query(self) -> None:
        """Start the query, or start it again in the same process: it goes on from its checkpoint."""
        self._starts += 1
        self._coordinator.enter(f"{self.name}, start {self._starts}")
        self._number = self.world.checkpoint.next
        self._begin_epoch()

    def move(self) -> None:
        """Go on until all epochs are done; ends early by Left, by Crash, or by what the coordinator raises."""
        world, checkpoint = self.world, self.world.checkpoint
        while self._number < world.schedule.epochs:
            if self._phase == "plan":
                world.step(self, f"logs offsets/{self._number}", self._plan)
                self._journal.begin()
                self._before = [_copied(part) for part in (self._coordinator, self._ledger)]
                self._phase = "commit"
            if self._phase == "commit":
                self._commit()
                self._phase = "log"
            world.step(self, f"logs commits/{self._number}", lambda: checkpoint.finish(self._number))
            self._number += 1
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._phase = "plan"
        self._is_planned = self._number < len(self.world.checkpoint.ends)

    def _plan(self) -> None:
        if not self._is_planned:
            self.world.checkpoint.plan(self._number, self.world.rng.choice((0, 1, 2, 3, 4, 6)))

    def _commit(self) -> None:
        for part, facts in zip((self._coordinator, self._ledger), self._before, strict=True):
            vars(part).update({name: _apart(value) for name, value in facts.items()})
        self._journal.rewind()
        rows = self.world.checkpoint.rows(self._number)
        self._coordinator.commit(
            self.world.checkpoint.epoch(self._number),
            Work(
                write=lambda producer, name, is_exchanging: self._write(producer, name, is_exchanging, rows),
                skip=lambda: None,
                check=lambda: None,
                cause_of=_cause_of,
                stage=dict,
                can_repeat=self.world.schedule.can_repeat,
            ),
        )

    def _write(self, producer: Producer, name: str, is_exchanging: bool, rows: range) -> tuple[Sequence[Vote], int]:
        """Let the tasks write, and wait for them."""
        tasks = self._tasks(rows, is_exchanging=is_exchanging)
        job = self._journal.once(
            "start a Spark job", lambda: SparkJob(self.world, name, self._listen_again, producer, tasks)
        )
        self._journal.once("end of the Spark job", lambda: self.world.wait(self, lambda: job.is_over))
        if job.error is not None:
            raise job.error
        return job.votes, len(rows)

    def _listen_again(self) -> Permits | None:
        return self.permits if self.is_alive else None

    def _tasks(self, rows: range, *, is_exchanging: bool) -> list[Rows]:
        """The rows of each task: of one partition where they are exchanged or alike, else half of all rows."""
        if is_exchanging or self.world.schedule.is_alike:
            return [{place: mine} for place, mine in self._by_place(rows).items()]
        half = (len(rows) + 1) // 2
        return [self._by_place(piece) for piece in (rows[:half], rows[half:]) if piece]

    def _by_place(self, rows: range) -> dict[Place, list[int]]:
        # In the order of the rows, never in that of a set, which is another one in each process.
        places, found = self.world.outputs, dict[Place, list[int]]()
        for row in rows:
            found.setdefault(places[row % len(places)], []).append(row)
        return found

    def _carry(self, what: str, effect: Callable[[], T], *, is_change: bool) -> T:
        return self._journal.once(what, lambda: self.world.carry(self, what, effect, is_change=is_change))


class _Permits(Permits):
    """The driver's own side of the permits goes through the journal; tasks ask directly."""

    def __init__(self, journal: Journal, world: World) -> None:
        super().__init__(now=lambda: world.clock, new_name=world.new_name)
        self._journal = journal

    def open(self) -> str:
        return self._journal.once("open a try", super().open)

    def close(self) -> None:
        self._journal.once("close a try", super().close)

    @property
    def granted(self) -> dict[Place, int]:
        return self._journal.once("permits", lambda: super(_Permits, self).granted)

    def held_seconds(self) -> float:
        return self._journal.once("seconds", super().held_seconds)


class _Clock:
    """The simulation's time, as a driver sees it; while it sleeps, others move."""

    def __init__(self, journal: Journal, world: World, driver: Driver) -> None:
        self._journal = journal
        self._world = world
        self._driver = driver

    def time(self) -> float:
        return self.monotonic()

    def monotonic(self) -> float:
        return self._journal.now

    def sleep(self, seconds: float, /) -> None:
        self._journal.once("sleep", lambda: self._world.sleep(self._driver, seconds))


def _cause_of(error: Exception) -> Cause:
    return Cause.NOT_ALIKE if isinstance(error, NotAlike) else find_cause(error)[0]


def _copied(part: object) -> dict[str, Any]:
    return {name: _apart(value) for name, value in vars(part).items()}


def _apart(value: Any) -> Any:
    """The parts change their own fields, and what is in their dictionaries."""
    return dict(value) if isinstance(value, dict) else value
