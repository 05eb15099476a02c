"""A model of Spark's tasks: attempts that ask for a permit, add their partitions, write batches and vote.

An attempt that Spark believes dead may live on, and so may all of them when their driver dies: each is a process of its
own, whose next step may come at any later time. Another attempt of the same task has the same rows, but in another
order and cut into other batches, as a replayed shuffle gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lockgate.commit.permits import Permits, Place
from lockgate.commit.protocol import Vote
from lockgate.connectors.kafka.errorcodes import FENCED, RETRIABLE, Code, name_of
from lockgate.connectors.kafka.wire import Producer
from lockgate.errors import EpochFailed

if TYPE_CHECKING:
    from lockgate.lab.prove.simulation.world import World

Rows = Mapping[Place, Sequence[int]]

SENDS = 4
"""How often a task sends a request that stays without an answer."""

IN_FLIGHT = 2
"""So many batches of a partition are on their way at a time."""

FAILURES = 2
"""So many failed attempts of one task fail the job."""


class NotAlike(EpochFailed):
    """Two tasks have rows of one partition."""


class SparkJob:
    """The tasks of one try of an epoch."""

    def __init__(
        self, world: World, name: str, permits: Callable[[], Permits | None], producer: Producer, tasks: Sequence[Rows]
    ) -> None:
        self.world = world
        self.name = name  # of the try
        self.permits = permits  # the driver's permits; None where the driver is gone
        self.producer = producer
        self.tasks = tasks
        self.votes: list[Vote] = []
        self.error: EpochFailed | None = None
        self._current: dict[int, Attempt] = {}
        self._failures = 0
        for task in range(len(tasks)):
            self.start(task)

    @property
    def is_over(self) -> bool:
        """Has the driver anything to hear?"""
        return self.error is not None or not self._current

    def start(self, task: int) -> None:
        """Start an attempt; one before it counts no more, whether it is dead or not."""
        self._current[task] = self.world.begin_attempt(self, task)

    def succeed(self, attempt: Attempt, votes: Sequence[Vote]) -> None:
        """An attempt is done: Spark takes the result of the one that it knows of."""
        if self._current.get(attempt.task) is attempt:
            del self._current[attempt.task]
            self.votes += votes

    def fail(self, attempt: Attempt, error: EpochFailed) -> None:
        """An attempt failed: Spark starts another one, but not forever."""
        if self._current.get(attempt.task) is not attempt or self.error is not None:
            return
        self._failures += 1
        if self._failures >= FAILURES or isinstance(error, Refused):
            self.error = error.cause if isinstance(error, Refused) else error
        else:
            self.start(attempt.task)


class Refused(EpochFailed):
    """A permit was refused, which is the result of the task and not its failure."""

    def __init__(self, cause: EpochFailed) -> None:
        super().__init__(cause.what, cause.where, cause.fix)
        self.cause = cause


class Attempt:
    """One attempt of a task; `step` is the next thing that it does."""

    def __init__(self, job: SparkJob, task: int, number: int) -> None:
        self.job = job
        self.task = task
        self.number = number
        self.name = f"attempt {number} of task {task}"
        rng = job.world.rng
        self._rows = {place: rng.sample(rows, len(rows)) for place, rows in job.tasks[task].items()}
        self._cut = rng.randint(1, 2)
        self._steps = self._run()

    def step(self) -> bool:
        """Go on; is there more to do?"""
        try:
            next(self._steps)
        except StopIteration:
            return False
        except EpochFailed as error:
            self.job.fail(self, error)
            return False
        return True

    def _run(self) -> Iterator[None]:
        world, producer = self.job.world, self.job.producer
        places = sorted(self._rows)
        self._ask(places)
        yield
        yield from self._send("add", lambda: world.broker.add_partitions(world.name, producer, places))
        votes = []
        for place in places:
            rows = self._rows[place]
            yield
            yield from self._write(place, rows)
            votes.append(Vote(self.number, *place, len(rows), len(rows) - 1))
        yield
        world.tell(self.name, "votes")
        self.job.succeed(self, votes)

    def _write(self, place: Place, rows: Sequence[int]) -> Iterator[None]:
        """Send the batches of a partition in order, some at a time; what is not acknowledged goes out again."""
        waiting = [(start, tuple(rows[start : start + self._cut])) for start in range(0, len(rows), self._cut)]
        sends = 0
        while waiting:
            codes = [
                self.job.world.post(self, f"write {batch} to {place[1]}", self._append(place, sequence, batch))
                for sequence, batch in waiting[:IN_FLIGHT]
            ]
            if codes[0] == Code.NONE:
                done = next((index for index, code in enumerate(codes) if code != Code.NONE), len(codes))
                del waiting[:done]
                sends = 0
            else:
                # Those behind it came out of order, which belongs to this failure.
                self._judge("a batch", codes[0])
                sends += 1
                if sends == SENDS:
                    raise EpochFailed("no answer to a batch", where=self.name, fix="none")
            if waiting:
                yield

    def _ask(self, places: Sequence[Place]) -> None:
        """Ask the driver for permits, which the same attempt may do again where the answer is lost."""
        permits = self.job.permits()
        if permits is None:
            raise EpochFailed("the driver is gone", where=self.name, fix="none")
        refusal = permits.ask(self.job.name, task=self.task, attempt=self.number, places=places)
        if refusal is None and self.job.world.is_reply_lost():
            refusal = permits.ask(self.job.name, task=self.task, attempt=self.number, places=places)
        self.job.world.tell(self.name, "has its permit" if refusal is None else f"no permit: {refusal.reason}")
        if refusal is not None:
            kind = NotAlike if refusal.is_clash else EpochFailed
            raise Refused(kind(refusal.reason, where=self.name, fix="none"))

    def _append(self, place: Place, sequence: int, batch: tuple[int, ...]) -> Callable[[], int]:
        world, producer = self.job.world, self.job.producer
        return lambda: world.broker.produce(
            world.name, place, producer, sequence=sequence, count=len(batch), payload=batch
        )[0]

    def _send(self, what: str, effect: Callable[[], int]) -> Iterator[None]:
        """Send exactly the same request until it has a final answer."""
        for _ in range(SENDS):
            code = self.job.world.post(self, what, effect)
            if code == Code.NONE:
                return
            self._judge(what, code)
            yield
        raise EpochFailed(f"no answer to {what}", where=self.name, fix="none")

    def _judge(self, what: str, code: int | None) -> None:
        """Raise where sending the request again does not help."""
        if code in FENCED:
            raise EpochFailed(f"{what} came too late: {name_of(code)}", where=self.name, fix="none")
        if code is not None and code not in RETRIABLE:
            raise EpochFailed(f"{what} was refused: {name_of(code)}", where=self.name, fix="none")
