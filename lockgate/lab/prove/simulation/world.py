"""One schedule from its seed to its verdict: which part moves next, what happens to requests, what holds at the end.

One part moves at a time: a driver up to its next request, a task attempt, a delayed request, the end of a transaction
that the broker still has to write. In the first phase faults happen. Then it is calm, and the job must finish within a
bounded number of steps; a driver is started if none is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lockgate.commit.permits import Place
from lockgate.connectors.kafka.errorcodes import Code
from lockgate.connectors.kafka.ledgertopic import ledger_topic, transactional_id
from lockgate.connectors.kafka.wire import Fetched, Producer, TransactionView, Unanswered
from lockgate.errors import EpochFailed, EpochTooLong, Fenced, LedgerMismatch
from lockgate.lab.prove.simulation.broker import Broker
from lockgate.lab.prove.simulation.checkpoint import Checkpoint, ConcurrentUpdate
from lockgate.lab.prove.simulation.checks import Broken, Checks
from lockgate.lab.prove.simulation.connection import SETTINGS, TIMEOUT_MS
from lockgate.lab.prove.simulation.driver import Crash, Driver
from lockgate.lab.prove.simulation.journal import Left
from lockgate.lab.prove.simulation.schedule import Fault, draw
from lockgate.lab.prove.simulation.tasks import Attempt, SparkJob

T = TypeVar("T")

JOB = "simulated"
DRIVERS = 3
"""So many live at a time, at most."""

STEPS = 4000
"""A job that is not finished so many steps after the last fault never is."""

STARTS = 25
"""Nor one whose drivers had to be started so often after it."""

_CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
_OUTAGE_SECONDS = 8.0


class World:
    """Everything there is in one simulation."""

    job = JOB

    def __init__(self, seed: int, *, mutant: str | None = None, is_told: bool = False) -> None:
        self.schedule, self.rng = draw(seed)
        self.mutant = mutant
        self.name = transactional_id(JOB)
        self.outputs: list[Place] = [("out", partition) for partition in range(self.schedule.partitions)]
        self.broker = Broker(is_lax=self.schedule.is_lax, is_fencing=mutant != "fencing")
        self.checkpoint = Checkpoint()
        self.checks = Checks((ledger_topic(JOB), 0), self.outputs)
        self.clock = 0.0
        self.steps = 0
        self.told: list[str] | None = [] if is_told else None
        self._drivers: list[Driver] = []
        self._attempts: list[Attempt] = []
        self._delayed: list[tuple[str, Callable[[], object]]] = []
        self._names = 0
        self._numbers = 0
        self._down_until = -1.0
        self._is_calm = False
        self._calm_starts = 0
        self._next: Driver | None = None

    # ---- the schedule

    def run(self) -> None:
        """Live through the schedule; raises Broken where a promise does not hold."""
        while len(self.checkpoint.done) < self.schedule.epochs:
            if not self._drivers:
                self._start()
            driver, self._next = self._next or self.rng.choice(self._drivers), None
            self._move(driver)
        self._settle()
        self.checks.finish(self.broker, self.checkpoint.ends)

    def _move(self, driver: Driver) -> None:
        try:
            driver.move()
            self.tell(driver.name, "has nothing left to do")
        except Left:
            return
        except Crash:
            self.tell(driver.name, "is gone")
        except EpochFailed as error:
            self.tell(driver.name, f"fails: {error.what}")
            if self.rng.random() < 0.5:  # in the same process; else by a new one
                self._count_start()
                driver.start_query()
                return
        except (Fenced, EpochTooLong, LedgerMismatch, ConcurrentUpdate) as error:
            told = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            self.tell(driver.name, f"stops: {told}")
            if driver.is_alone:
                raise Broken(f"{driver.name} stops although nothing goes wrong and it is alone: {told}") from error
        except Exception as error:
            raise Broken(f"{driver.name} ends as none should: {type(error).__name__}: {error}") from error
        driver.is_alive = False
        self._drivers.remove(driver)
        # Some of its tasks die with it; the others live on, and do not know.
        self._attempts = [one for one in self._attempts if one.job.permits() is not None or self.rng.random() < 0.7]

    def _start(self) -> Driver:
        self._count_start()
        self._names += 1
        is_alone = self._is_calm and not self._drivers  # when it is calm, no driver starts beside a living one
        driver = Driver(self, f"driver {self._names}", is_alone=is_alone)
        self._drivers.append(driver)
        self.tell(driver.name, f"starts at epoch {self.checkpoint.next}, run {driver.run}")
        return driver

    def _count_start(self) -> None:
        self._calm_starts += self._is_calm
        if self._calm_starts > STARTS:
            raise Broken(f"no progress: after the last fault drivers were started {STARTS} times")

    def _settle(self) -> None:
        """All is done: let everything in flight arrive, and let all living parts come to an end."""
        self._is_calm = True
        while self._drivers:
            self._move(self._drivers[0])
        while self._attempts or self._delayed or self.broker.unwritten:
            self._tick()
            self._let_others_move()
        self.clock += TIMEOUT_MS / 1000 + 1
        self._give_up_late()
        while self.broker.unwritten:
            self._write_end()

    # ---- what drivers ask of the world

    def carry(self, driver: Driver, what: str, effect: Callable[[], T], *, is_change: bool) -> T:
        """Bring a driver's request to the broker, and the reply back."""
        self._turn(driver)
        fault = self._fault()
        if fault in _CRASHES:
            if fault is Fault.CRASH_AFTER:
                self._take_effect(driver.name, what, effect)
            raise Crash
        return self._transmit(driver.name, what, effect, fault, is_change=is_change)

    def step(self, driver: Driver, what: str, effect: Callable[[], None]) -> None:
        """Something that a driver does on its own, with a crash on either side."""
        self._turn(driver)
        fault = self._fault()
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        self.tell(driver.name, what)
        effect()
        if fault is Fault.CRASH_AFTER:
            raise Crash

    def wait(self, driver: Driver, is_over: Callable[[], bool]) -> None:
        """A driver waits until something is over."""
        while not is_over():
            self._let_others_move()
            self._turn(driver)
            if self._fault() in _CRASHES:
                raise Crash

    def sleep(self, driver: Driver, seconds: float) -> None:
        """A driver lets time pass."""
        self._turn(driver)
        self.clock += seconds
        self._let_others_move()

    def lacking(self) -> int:
        """How many batches the broker that answers a look at the ledger lacks."""
        if self._is_calm or Fault.DEPOSED not in self.schedule.faults or self.rng.random() > self.schedule.rate:
            return 0
        self.tell("a broker", "does not know that it was deposed")
        return self.rng.randint(1, 4)

    def new_name(self) -> str:
        """A name for a run or a try, of which there is no second one."""
        self._numbers += 1
        return f"name-{self._numbers}"

    # ---- what tasks ask of the world

    def begin_attempt(self, job: SparkJob, task: int) -> Attempt:
        """Another process that moves."""
        self._numbers += 1
        attempt = Attempt(job, task, self._numbers)
        self._attempts.append(attempt)
        return attempt

    def post(self, attempt: Attempt, what: str, effect: Callable[[], int]) -> int | None:
        """Bring a task's request to the broker: the code, or None where no reply comes."""
        try:
            return self._transmit(attempt.name, what, effect, self._fault(), is_change=True)
        except Unanswered:
            return None

    def is_reply_lost(self) -> bool:
        """Does the answer of the driver get lost?"""
        return self._fault() is Fault.LOST_REPLY

    def tell(self, who: str, what: str) -> None:
        """A line of the time line."""
        if self.told is not None:
            self.told.append(f"{self.steps:5d}  {self.clock:8.2f} s  {who:22s} {what}")

    # ---- requests

    def _transmit(self, who: str, what: str, effect: Callable[[], T], fault: Fault | None, *, is_change: bool) -> T:
        if fault is Fault.PAUSE:
            self.tell(who, f"stands still before: {what}")
            self.clock += TIMEOUT_MS / 1000 + 1
            if self.rng.random() < 0.7:
                self._give_up_late()
        elif fault is Fault.OUTAGE:
            self.tell("the broker", "restarts")
            self._down_until = self.clock + _OUTAGE_SECONDS
            self._delayed = [one for one in self._delayed if self.rng.random() < 0.5]
        if fault is Fault.LOST_REQUEST or self.clock < self._down_until:
            self.tell(who, f"{what}: lost")
            raise self._unanswered()
        if fault is Fault.DELAY and is_change:
            self.tell(who, f"{what}: delayed")
            self._delayed.append((f"{what}, of {who}", effect))
            raise self._unanswered()
        answer = self._take_effect(who, what, effect)
        if fault is Fault.DUPLICATE and is_change:
            self._delayed.append((f"{what}, again, of {who}", effect))
        if fault is Fault.LOST_REPLY:
            self.tell(who, "... and the reply is lost")
            raise self._unanswered()
        return answer

    def _take_effect(self, who: str, what: str, effect: Callable[[], T]) -> T:
        self.broker.now = self.clock
        answer = effect()
        if self.told is not None:
            self.tell(who, f"{what}: {_shown(answer)}")
        return answer

    def _unanswered(self) -> Unanswered:
        self.clock += SETTINGS.request_timeout_ms / 1000
        return Unanswered("no reply")

    def _fault(self) -> Fault | None:
        if self._is_calm or not self.schedule.faults or self.rng.random() > self.schedule.rate:
            return None
        return self.rng.choice(self.schedule.faults)

    # ---- turns

    def _turn(self, driver: Driver) -> None:
        """Before a driver goes on, others may move; raises Left where one of them is a driver."""
        self._tick()
        random = self.rng.random
        while random() < 0.2:
            self._let_others_move()
        can_start = not self._is_calm and Fault.RIVAL in self.schedule.faults and len(self._drivers) < DRIVERS
        if can_start and random() < self.schedule.rate / 2:
            self._next = self._start()
            raise Left
        if len(self._drivers) > 1 and random() < self.schedule.switching:
            others = [one for one in self._drivers if one is not driver]
            self._next = self.rng.choice(others)
            raise Left

    def _tick(self) -> None:
        self.steps += 1
        if not self._is_calm and self.steps > self.schedule.storm:
            self.tell("the storm", "is over: nothing goes wrong from here on")
            self._is_calm = True
            self._down_until = -1.0
        if self.steps > self.schedule.storm + STEPS:
            raise Broken(f"no progress: {STEPS} steps after the last fault the job is not finished")

    def _let_others_move(self) -> None:
        """One step of a task, of the broker, or of a request that was delayed."""
        choice = self.rng.random()
        if self._attempts and choice < 0.75:
            self._step_attempt(self.rng.randrange(len(self._attempts)))
        elif self.broker.unwritten and choice < 0.9:
            self._write_end()
        elif self._delayed and (choice > 0.95 or self._is_calm):
            what, effect = self._delayed.pop(self.rng.randrange(len(self._delayed)))
            self._take_effect("the network", f"brings {what}", effect)
        elif choice > 0.98:
            self._give_up_late()

    def _step_attempt(self, index: int) -> None:
        attempt = self._attempts[index]
        fault = self._fault()
        if fault is Fault.FORSAKEN:
            self.tell("Spark", f"takes {attempt.name} for dead")
            attempt.job.fail(attempt, EpochFailed("executor lost", where=attempt.name, fix="none"))
        elif fault in _CRASHES:
            self.tell(attempt.name, "is gone")
            del self._attempts[index]
            attempt.job.fail(attempt, EpochFailed("executor lost", where=attempt.name, fix="none"))
            return
        if not attempt.step():
            self._attempts.remove(attempt)

    def _write_end(self) -> None:
        ends = self.rng.choice(self.broker.unwritten)
        place = ends.places[0]
        self.broker.write_end(ends)
        self.tell(
            "the broker",
            f"writes the {'commit' if ends.is_commit else 'abort'} of epoch {ends.producer.epoch} to {place}",
        )
        self.checks.look(self.broker, self.checkpoint.ends)

    def _give_up_late(self) -> None:
        self.broker.now = self.clock
        if self.broker.time_out():
            self.tell("the broker", "gives up a transaction that timed out")


def _shown(answer: object) -> str:
    if isinstance(answer, Code):
        return "ok" if answer is Code.NONE else answer.name
    if isinstance(answer, tuple) and answer and isinstance(answer[0], Code):
        return f"{_shown(answer[0])}, {_shown(answer[1])}"
    if isinstance(answer, Fetched):
        return f"stable up to {answer.last_stable_offset} of {answer.high_watermark}"
    if isinstance(answer, TransactionView):
        return answer.state
    if isinstance(answer, Producer):
        return f"producer epoch {answer.epoch}"
    return str(answer)
