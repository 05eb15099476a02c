"""The protocol against a model of the broker, under every crash, lost answer and rival that a schedule can name.

This tests the logic of the protocol and not the guarantee: the model believes what we believe of Kafka (producer epochs
fence, an open transaction is aborted by InitProducerId or by its time-out, a ledger value is seen only when committed).
Whether Kafka does so is for the system tests; whether a job keeps its promise is for the proofs.

Drivers run in threads, one at a time: each call to the outside hands the turn back, and the schedule says who goes on
and what befalls the call. After each crash a fresh coordinator goes on from the checkpoint (offsets/N is logged before
an epoch, commits/N after it). What is checked, after every run:

    a committed reader sees each event once and in order, of all epochs, in every partition and in every store
    an epoch is committed only by the run that holds the claim, and never by one that has lost it
    every call of the coordinator ends after a bounded number of steps, and a run left alone finishes

Mutants of the protocol show that the checks can fail.
"""

import random
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockgate.commit import coordinator as coordinators
from lockgate.commit import followers as follow
from lockgate.commit import protocol
from lockgate.commit.coordinator import Coordinator, Ledger, Outcome, Transactions, Work
from lockgate.commit.followers import Followers
from lockgate.commit.lastresource import LastResource
from lockgate.commit.ledger import Entry
from lockgate.commit.permits import Permits, Place
from lockgate.commit.protocol import TRIES, Cause, Epoch, Step, Vote
from lockgate.commit.resource import Resource
from lockgate.connectors.kafka.transaction import EndUnknown, TransactionLost
from lockgate.errors import EpochFailed, EpochTooLong, Fenced, InvariantBroken, LedgerMismatch, Moved
from lockgate.faultpoints import FaultPoint

T = TypeVar("T")

LAST_EPOCH = 3
LEDGER: Place = ("ledger", 0)
PLACES: tuple[Place, ...] = (("out", 0), ("out", 1))
STEPS_PER_COMMIT = 250
"""More calls than this to the outside, for one epoch: it would go on for ever."""

STARTS = 60
"""A driver that is started more often than this gets nowhere."""


class Crash(BaseException):
    """The driver's process is gone."""


class Fault(Enum):
    """What befalls one call to the outside."""

    NONE = auto()
    CRASH_BEFORE = auto()  # the process dies, the request was not sent
    CRASH_AFTER = auto()  # the process dies, the request took effect
    REFUSED = auto()  # no answer, and no effect
    LOST_ANSWER = auto()  # no answer, but it took effect
    DELAYED = auto()  # no answer, and it may take effect at any later time
    TIME_OUT = auto()  # the broker gives the open transaction up before the call
    DELIVERY = auto()  # before the call, everything that was delayed arrives


class Endless(BaseException):
    """An epoch takes too many steps, or a driver too many starts.

    Not an Exception, since the coordinator would repeat the try.
    """


# ---- the model of the broker


@dataclass(frozen=True)
class Writer:
    """A producer id's epoch."""

    epoch: int


@dataclass
class OpenTransaction:
    """What is written and not decided."""

    epoch: int
    places: set[Place] = field(default_factory=set)
    rows: list[tuple[Place, int]] = field(default_factory=list)
    entry: Entry | None = None


@dataclass
class Broker:
    """One transactional id: its producer epochs, its open transaction, and what readers see."""

    is_fencing: bool = True
    epoch: int = -1
    open: OpenTransaction | None = None
    decided: OpenTransaction | None = None  # committed, the end not yet written everywhere
    rows: list[tuple[Place, int]] = field(default_factory=list)
    entry: Entry | None = None
    history: list[Entry] = field(default_factory=list)
    delayed: list[Callable[[], object]] = field(default_factory=list)

    def begin(self) -> Writer:
        self.complete()
        if self.is_fencing:
            self.open = None
            self.epoch += 1
        else:
            self.epoch = 0
        return Writer(self.epoch)

    def time_out(self) -> None:
        self.complete()
        if self.open is not None:
            self.open = None
            self.epoch += 1 if self.is_fencing else 0

    def add(self, writer: Writer, places: Sequence[Place]) -> None:
        self._check(writer)
        if self.decided is not None:
            raise TransactionLost("the transaction is over (51)", where="model", fix="none")
        self.open = self.open or OpenTransaction(writer.epoch)
        self.open.places.update(places)

    def append(self, writer: Writer, place: Place, rows: Sequence[int]) -> None:
        self._part(writer, place).rows.extend((place, row) for row in rows)

    def write_entry(self, writer: Writer, entry: Entry) -> None:
        self._part(writer, LEDGER).entry = entry

    def end(self, writer: Writer, *, is_commit: bool) -> None:
        self._check(writer)
        if self.open is None:
            raise TransactionLost("no open transaction (48)", where="model", fix="none")
        if is_commit:
            self.decided = self.open
        self.open = None

    def complete(self) -> None:
        """Write the end of what is decided: readers see it from now on."""
        done, self.decided = self.decided, None
        if done is not None:
            self.rows += done.rows
            if done.entry is not None:
                self.entry = done.entry
                self.history.append(done.entry)

    def read(self) -> Entry | None:
        self.complete()  # a reader waits until the last stable offset has caught up
        return self.entry

    def deliver(self) -> None:
        late, self.delayed = self.delayed, []
        for effect in late:
            try:
                effect()
            except EpochFailed:
                continue

    def _check(self, writer: Writer) -> None:
        if writer.epoch != self.epoch:
            raise TransactionLost("fenced (47)", where="model", fix="none")

    def _part(self, writer: Writer, place: Place) -> OpenTransaction:
        self._check(writer)
        if self.open is None or place not in self.open.places:
            raise TransactionLost("not part of the transaction (120)", where="model", fix="none")
        return self.open


# ---- the model of a system that stages and publishes


@dataclass
class Store:
    """What is staged by name, what readers see, and a ledger that is replaced only by who has seen it."""

    is_comparing: bool = True
    staged: dict[str, list[int]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    entry: Entry | None = None
    history: list[Entry] = field(default_factory=list)
    names: int = 0

    def stage(self, rows: Sequence[int]) -> str:
        self.names += 1
        self.staged[f"staged-{self.names}"] = list(rows)
        return f"staged-{self.names}"

    def publish(self, staged: str | None, entry: Entry, after: Entry | None) -> None:
        if self.is_comparing and self.entry != after:
            raise Moved("the ledger moved", where="model", fix="none")
        if staged is not None and staged not in self.staged:
            raise EpochFailed(f"{staged} is not there", where="model", fix="none")
        self.rows += self.staged[staged] if staged is not None else []
        self.entry = entry
        self.history.append(entry)

    def remove(self, names: Collection[str]) -> None:
        self.staged = {name: rows for name, rows in self.staged.items() if name not in names}


# ---- the world: drivers that take turns


@dataclass(frozen=True)
class Turn:
    """What a schedule says for one step: who goes on, what befalls the call, and how large an epoch is planned."""

    who: int = 0
    fault: Fault = Fault.NONE
    size: int = 2


@dataclass
class Checkpoint:
    """The query's own log: the end of each epoch planned, and which epochs are done."""

    ends: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def epoch(self, number: int) -> Epoch:
        return Epoch(number, self._digest(number) or "", self._digest(number - 1), "query")

    def rows(self, number: int) -> range:
        return range(self.ends.get(number - 1, 0), self.ends[number])

    def _digest(self, number: int) -> str | None:
        return f"{number}:{self.ends[number]}" if number in self.ends else None


@dataclass
class World:
    """One broker, one checkpoint, some drivers, and the schedule of what happens to them."""

    turns: Iterator[Turn]
    broker: Broker = field(default_factory=Broker)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    stores: dict[str, Store] = field(default_factory=dict)
    is_kafka_deciding: bool = True  # else the first of the stores decides
    drivers: int = 2
    can_repeat: bool = True
    is_reading_first: bool = False  # mutant: the ledger is read before older writers are fenced
    claimed: list[tuple[str, int]] = field(default_factory=list)  # a run, and the length of history when it was told
    clock: float = 0.0
    is_faulty: bool = True
    reached: set[FaultPoint] = field(default_factory=set)
    steps: int = 0

    def run(self) -> None:
        """Let the drivers take turns until all have ended; then one that is left alone finishes the job."""
        actors = [Actor(self, number) for number in range(self.drivers)]
        with mock.patch.object(coordinators, "reach", self._reach), mock.patch.object(follow, "reach", self._reach):
            try:
                while alive := [actor for actor in actors if not actor.is_over]:
                    turn = next(self.turns, Turn())
                    alive[turn.who % len(alive)].go_on(turn)
                    self.steps += 1
            finally:
                for actor in actors:
                    actor.kill()
            for actor in actors:
                if not isinstance(actor.end, EpochFailed | EpochTooLong | Fenced | LedgerMismatch | None):
                    raise AssertionError(f"a driver ended as none should: {actor.end!r}") from actor.end
            self.is_faulty = False
            self.broker.deliver()
            last = Actor(self, self.drivers)
            while not last.is_over:
                last.go_on(Turn())
        if last.end is not None:
            raise AssertionError(f"a driver that is left alone does not finish: {last.end!r}") from last.end
        self.require_promises()

    def _reach(self, point: FaultPoint) -> None:
        self.reached.add(point)
        actor = threading.current_thread()
        assert isinstance(actor, Actor)
        actor.pass_point()

    def require_promises(self) -> None:
        """They hold for everything that was ever visible."""
        expected = list(range(self.checkpoint.ends[LAST_EPOCH]))
        for name, store in self.stores.items():
            assert store.rows == expected, f"what a reader of store {name!r} sees"
        for place in PLACES if self.is_kafka_deciding else ():
            seen = [row for where, row in self.broker.rows if where == place]
            wanted = [row for row in expected if PLACES[row % 2] == place]
            assert seen == wanted, f"what a reader of {place} sees"
        history = self.broker.history if self.is_kafka_deciding else next(iter(self.stores.values())).history
        for run, at in self.claimed:
            after = [entry.run for entry in history[at:]]
            while after and after[0] == run:
                after.pop(0)
            assert run not in after, f"run {run} lost its claim and committed afterwards"
        for before, now in zip([None, *history], history, strict=False):
            out = None if before is None else before.epoch
            if now.epoch == out:
                continue
            has_claim = before is not None and before.run == now.run
            assert has_claim, f"run {now.run} committed epoch {now.epoch} without the claim: {before}"
            assert now.epoch == (0 if out is None else out + 1), f"committed after epoch {out}"


class Actor(threading.Thread):
    """A driver with its supervisor: started again after a crash or a failed epoch, not after it was told to stop."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(name=f"driver-{number}", daemon=True)
        self.world = world
        self.is_over = False
        self.end: BaseException | None = None
        self.starts = 0
        self._turn = Turn()
        self._steps = 0
        self._is_killed = False
        # Locks that one thread takes and the other frees: a semaphore costs several times as much at each turn.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()

    # in the thread of the world

    def go_on(self, turn: Turn) -> None:
        self._turn = turn
        if self.ident is None:
            self.start()
        else:
            self._go.release()
        self._back.acquire()

    def kill(self) -> None:
        self._is_killed = True
        while self.ident is not None and not self.is_over:
            self.go_on(Turn())

    # in the thread of the driver

    def run(self) -> None:
        try:
            while self._live_once():
                pass
        except BaseException as error:  # noqa: BLE001 - the world looks at it
            self.end = error
        finally:
            self.is_over = True
            self._back.release()

    def _live_once(self) -> bool:
        """One process of the driver; is it to be started again?"""
        self.starts += 1
        if self.starts > STARTS:
            raise Endless
        try:
            self._drive()
        except Crash:
            return not self._is_killed
        except EpochFailed as error:
            self.end = error
            return self.world.is_faulty  # else it has no excuse
        except (EpochTooLong, Fenced, LedgerMismatch) as error:
            self.end = error
            return False
        self.end = None
        return False

    def _drive(self) -> None:
        world, checkpoint = self.world, self.world.checkpoint
        permits = Permits(now=lambda: world.clock)
        resources: dict[str, Resource] = {name: ModelResource(self, store) for name, store in world.stores.items()}
        transactions, ledger, work = self._deciding(resources, permits)
        followers = Followers("job", resources)
        driver = Coordinator("job", transactions=transactions, ledger=ledger, permits=permits, followers=followers)
        planned = max(checkpoint.ends, default=-1)
        first = planned + (planned in checkpoint.done or planned < 0)
        for number in range(first, LAST_EPOCH + 1):
            if number > planned:
                self._log(lambda number=number: self._plan(number))
            self._steps = 0
            epoch = checkpoint.epoch(number)
            rows = checkpoint.rows(number)
            by_resource: Any = {name: {"out": rows} for name in resources}
            stage = partial(followers.stage, by_resource, number)
            driver.commit(epoch, replace(work(rows), stage=stage))
            self._log(lambda number=number: checkpoint.done.add(number))

    def _plan(self, number: int) -> None:
        if number in self.world.checkpoint.ends:  # Spark's log refuses to be written by two
            raise LedgerMismatch("another query writes this checkpoint", where="model", fix="none")
        self.world.checkpoint.ends[number] = self.world.checkpoint.ends.get(number - 1, 0) + self._turn.size

    def _deciding(
        self, resources: dict[str, Resource], permits: Permits
    ) -> tuple[Transactions, Ledger, Callable[[range], Work]]:
        """Who decides, taken out of the resources where it is one of them, and how an epoch is written there."""
        if self.world.is_kafka_deciding:
            transactions = ModelTransactions(self, self.world)
            ledger = ModelLedger(self, self.world, transactions)
            return transactions, ledger, lambda rows: self._work(rows, transactions, permits)
        last = LastResource(resources.pop(next(iter(resources))))

        def write_to(rows: Any) -> Work:
            def write(*_: object) -> tuple[Sequence[Vote], int]:
                last.stage({"out": rows}, 0)
                return (), 0

            return self._as_work(write)

        return last, last, write_to

    def _work(self, rows: range, transactions: "ModelTransactions", permits: Permits) -> Work:
        def write(writer: Writer, name: str, is_exchanging: bool) -> tuple[Sequence[Vote], int]:
            votes = []
            for task, place in enumerate(PLACES):
                mine = [row for row in rows if PLACES[row % 2] == place]
                if not mine:
                    continue
                assert permits.ask(name, task=task, attempt=task, places=[place]) is None
                transactions.add(writer, [place])
                for half in (mine[:1], mine[1:]):
                    self.step(lambda place=place, half=half: self.world.broker.append(writer, place, half))
                votes.append(Vote(task, *place, len(mine), len(mine) - 1))
            return votes, len(rows)

        return self._as_work(write)

    def _as_work(self, write: Callable[[Any, str, bool], tuple[Sequence[Vote], int]]) -> Work:
        return Work(
            write=write,
            skip=lambda: None,
            check=lambda: None,
            cause_of=_cause_of,
            stage=dict,
            can_repeat=self.world.can_repeat,
        )

    def _log(self, effect: Callable[[], object]) -> None:
        """Write to the checkpoint: done or not, with a crash on either side."""
        self.pass_point()
        effect()
        self.pass_point()

    def pass_point(self) -> None:
        self._hand_over()
        if self._turn.fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            raise Crash

    def step(self, effect: Callable[[], T], failure: type[EpochFailed] = EpochFailed) -> T:
        """One call to the outside."""
        self._hand_over()
        fault, broker = self._turn.fault, self.world.broker
        if fault is Fault.TIME_OUT:
            self.world.clock += 1000
            broker.time_out()
        if fault is Fault.DELIVERY:
            broker.deliver()
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        if fault is Fault.DELAYED:
            broker.delayed.append(effect)
        if fault in (Fault.REFUSED, Fault.DELAYED):
            raise failure("no answer", where="model", fix="none")
        answer = effect()
        if fault is Fault.CRASH_AFTER:
            raise Crash
        if fault is Fault.LOST_ANSWER:
            raise failure("the answer was lost", where="model", fix="none")
        return answer

    def _hand_over(self) -> None:
        self._back.release()
        self._go.acquire()
        if self._is_killed:
            raise Crash
        self._steps += 1
        if self._steps > STEPS_PER_COMMIT:
            raise Endless


def _cause_of(error: Exception) -> Cause:
    return Cause.LOST if isinstance(error, EpochFailed) else Cause.FINAL


class ModelTransactions:
    """What the coordinator asks of transactions, each call one step."""

    timeout_ms = 1000

    def __init__(self, actor: Actor, world: World) -> None:
        self._actor = actor
        self._world = world
        self.early: Entry | None = None
        self.entry: Entry | None = None

    def begin(self) -> Writer:
        if self._world.is_reading_first:
            self.early = self._actor.step(self._world.broker.read)
        return self._actor.step(self._world.broker.begin)

    def add(self, producer: Writer, places: Sequence[Place]) -> None:
        self._actor.step(lambda: self._world.broker.add(producer, places))

    def add_offsets(self, producer: Writer, group: str, offsets: Mapping[Place, int]) -> str | None:
        return None

    def end(self, producer: Writer, *, is_commit: bool) -> None:
        broker, entry = self._world.broker, self.entry
        self._actor.step(lambda: broker.end(producer, is_commit=is_commit), failure=EndUnknown)
        if is_commit and entry is not None:
            self._world.claimed.append((entry.run, len(broker.history)))

    def wait_until_complete(self) -> None:
        self._actor.step(self._world.broker.complete, failure=EndUnknown)


class ModelLedger:
    """What the coordinator asks of the ledger, each call one step."""

    where = "model"
    place = LEDGER

    def __init__(self, actor: Actor, world: World, transactions: ModelTransactions) -> None:
        self._actor = actor
        self._world = world
        self._transactions = transactions

    def read(self) -> Entry | None:
        found = self._actor.step(self._world.broker.read)
        return self._transactions.early if self._world.is_reading_first else found

    def peek(self) -> Entry | None:
        return self._actor.step(lambda: self._world.broker.entry)

    def write(self, entry: Entry, producer: Writer) -> None:
        self._transactions.entry = entry
        self._actor.step(lambda: self._world.broker.write_entry(producer, entry))


class ModelResource(Resource):
    """What is asked of a store, each call one step."""

    where = "model"

    def __init__(self, actor: Actor, store: Store) -> None:
        self._actor = actor
        self._store = store

    def read(self) -> Entry | None:
        return self._actor.step(lambda: self._store.entry)

    def stage(self, rows: Any, epoch: int) -> str:
        return self._actor.step(lambda: self._store.stage(rows["out"]))

    def publish(self, staged: str | None, entry: Entry, *, after: Entry | None) -> None:
        self._actor.step(lambda: self._store.publish(staged, entry, after))

    def leftovers(self) -> Collection[str]:
        return self._actor.step(lambda: [*self._store.staged])

    def remove(self, leftovers: Collection[str]) -> None:
        self._actor.step(lambda: self._store.remove(leftovers))


# ---- one epoch, step by step, without a schedule


class Script:
    """One driver alone with the model; each try of an epoch raises what the script says, or writes."""

    def __init__(self, *tries: Exception | None, can_repeat: bool = True, timeout_ms: int = 1000) -> None:
        self.world = World(turns=iter(()), clock=0.0)
        actor: Any = SimpleNamespace(step=lambda effect, failure=None: effect())
        self.transactions = ModelTransactions(actor, self.world)
        self.transactions.timeout_ms = timeout_ms
        self.permits = Permits(now=lambda: self.world.clock)
        ledger = ModelLedger(actor, self.world, self.transactions)
        self.driver = Coordinator(
            "orders",
            transactions=self.transactions,
            ledger=ledger,
            permits=self.permits,
            followers=Followers("orders", {}),
        )
        self.driver.enter("first")
        self.tries = list(tries)
        self.exchanged: list[bool] = []
        self.skipped = 0
        self.votes = [Vote(5, *PLACES[0], 1, 0)]
        self.causes: dict[type[Exception], Cause] = {EpochFailed: Cause.LOST, KeyError: Cause.NOT_ALIKE}
        self.work = Work(
            write=self._write,
            skip=self._skip,
            check=lambda: None,
            cause_of=self._cause_of,
            stage=dict,
            can_repeat=can_repeat,
            offsets={("in", 0): 3},
        )

    def commit(self, number: int = 0) -> Outcome:
        return self.driver.commit(Epoch(number, f"digest-{number}", None, "query"), self.work)

    def _write(self, writer: Writer, name: str, is_exchanging: bool) -> tuple[Sequence[Vote], int]:
        self.exchanged.append(is_exchanging)
        assert self.permits.ask(name, task=0, attempt=5, places=[PLACES[0]]) is None
        self.transactions.add(writer, [PLACES[0]])
        self.world.broker.append(writer, PLACES[0], [len(self.exchanged)])
        error = self.tries.pop(0) if self.tries else None
        if error is not None:
            raise error
        return self.votes, 1

    def _skip(self) -> None:
        self.skipped += 1

    def _cause_of(self, error: Exception) -> Cause:
        return self.causes.get(type(error), Cause.FINAL)


def lost(what: str = "a worker died") -> EpochFailed:
    return EpochFailed(what, where="there", fix="that")


def test_an_epoch_that_is_committed_is_computed_and_not_written() -> None:
    script = Script()
    assert script.commit() == Outcome(Step.WRITE, records=1)
    assert script.commit() == Outcome(Step.SKIP)
    assert (script.skipped, script.exchanged) == (1, [False])


def test_a_try_that_failed_is_repeated_and_only_the_last_one_is_seen() -> None:
    script = Script(lost(), lost())
    assert script.commit() == Outcome(Step.WRITE, records=1, tries=3)
    script.world.broker.complete()
    assert script.world.broker.rows == [(PLACES[0], 3)]


def test_after_the_last_try_the_first_error_is_shown_and_nothing_is_left_open() -> None:
    script = Script(lost("the first"), *[lost(f"number {number}") for number in range(2, 9)])
    with pytest.raises(EpochFailed, match="the first"):
        script.commit()
    assert len(script.exchanged) == TRIES
    assert script.world.broker.open is None


def test_rows_that_come_out_of_state_are_not_computed_twice() -> None:
    script = Script(ValueError("odd"), can_repeat=False)
    script.causes[ValueError] = Cause.LOST
    with pytest.raises(EpochFailed, match="depend on state: ValueError: odd") as caught:
        script.commit()
    assert "restarts from its checkpoint" in caught.value.fix
    assert len(script.exchanged) == 1


def test_a_stateful_epoch_whose_answer_was_lost_is_done_without_computing_it_again() -> None:
    script = Script(can_repeat=False)
    wait = script.transactions.wait_until_complete

    def lose_once() -> None:
        script.transactions.wait_until_complete = wait  # type: ignore[method-assign]
        raise EndUnknown("no answer", where="there", fix="that")

    script.causes[EndUnknown] = Cause.LOST
    script.transactions.wait_until_complete = lose_once  # type: ignore[method-assign]
    assert script.commit() == Outcome(Step.SKIP, tries=2)
    assert (script.skipped, len(script.exchanged)) == (0, 1)


def test_rows_that_are_not_alike_are_exchanged_from_then_on() -> None:
    script = Script(KeyError("clash"))
    assert script.commit(0).tries == 2
    assert script.commit(1).tries == 1
    assert script.exchanged == [False, True, True]


@pytest.mark.parametrize("error", [ValueError("a bad row"), InvariantBroken("odd", where="here", fix="none")])
def test_what_no_retry_fixes_aborts_at_once(error: Exception) -> None:
    script = Script(error)
    with pytest.raises(type(error)):
        script.commit()
    assert len(script.exchanged) == 1
    assert script.world.broker.open is None


def test_votes_that_do_not_add_up_are_never_committed() -> None:
    script = Script()
    script.votes = [Vote(6, *PLACES[0], 1, 0)]
    with pytest.raises(InvariantBroken, match="do not add up"):
        script.commit()
    script.world.broker.complete()
    assert script.world.broker.rows == []


def test_an_epoch_that_outlives_its_transaction_twice_names_the_fix() -> None:
    script = Script(lost("slow"), lost("slow again"), lost("never reached"))
    write = script.work.write

    def slowly(*facts: Any) -> Any:
        try:
            return write(*facts)
        finally:
            script.world.clock += 2.0

    script.work = replace(script.work, write=slowly)
    with pytest.raises(EpochTooLong, match=r"longer than the transaction may \(1 s\), twice; first: slow") as caught:
        script.commit()
    assert "lockgate checkpoints rollback orders --uncommitted" in caught.value.fix
    assert len(script.exchanged) == 2


def test_a_restarted_query_claims_the_ledger_again() -> None:
    script = Script()
    script.commit(0)
    before = script.driver.run
    script.driver.enter("again")
    script.commit(1)
    runs = [entry.run for entry in script.world.broker.history]
    assert runs == [before, before, script.driver.run, script.driver.run]
    assert before != script.driver.run


def test_another_checkpoint_is_refused_without_fencing_the_right_driver() -> None:
    script = Script()
    script.commit(0)
    script.driver.enter("again")
    fenced = script.world.broker.epoch
    with pytest.raises(LedgerMismatch, match="another checkpoint"):
        script.driver.commit(Epoch(1, "digest-1", None, "another query"), script.work)
    assert script.world.broker.epoch == fenced


def test_offsets_that_cannot_be_shown_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    script.transactions.add_offsets = lambda *_: "GROUP_AUTHORIZATION_FAILED"  # type: ignore[method-assign]
    script.commit(0)
    script.commit(1)
    assert caplog.text.count("not shown to lag tools: GROUP_AUTHORIZATION_FAILED") == 1


# ---- the promises hold


@dataclass(frozen=True)
class Plan:
    """A schedule of random turns, as the bytes that a seed or Hypothesis gives; the first says how much goes wrong."""

    data: bytes

    def __iter__(self) -> Iterator[Turn]:
        faults = list(Fault)
        calm, now = self.data[0] | 0xC0, 0
        for who, what in zip(self.data[1::2], self.data[2::2], strict=False):
            fault = faults[1 + what % (len(faults) - 1)] if what > calm else Fault.NONE
            now = who % 4 if who > 0xD0 else now  # a driver mostly goes on for a while, or they only fence each other
            yield Turn(who=now, fault=fault, size=1 + who // 4 % 4)


def rivals(at: int, length: int, fault: Fault = Fault.NONE) -> Iterator[Turn]:
    """A second driver starts at a step, goes on for some, and leaves the rest to the first one."""
    yield from [*[Turn()] * at, Turn(fault=fault), *[Turn(who=1)] * length, Turn(fault=Fault.DELIVERY)]


SYSTEMS = {
    "kafka": ((), True),
    "kafka and two stores": (("database", "files"), True),
    "two stores": (("database", "files"), False),
}


def require_promises(turns: Iterator[Turn], *, systems: str = "kafka", **how: Any) -> World:
    """Let drivers run by a schedule; whatever happens in it, the promises hold."""
    names, is_kafka_deciding = SYSTEMS[systems]
    how = {"stores": {name: Store() for name in names}, "is_kafka_deciding": is_kafka_deciding} | how
    world = World(turns=turns, **how)
    world.run()
    return world


def test_an_epoch_without_faults_passes_every_point_of_the_driver() -> None:
    world = require_promises(iter(()), drivers=1, systems="kafka and two stores")
    # Before the coordinator is called, what tasks put aside is counted, and outputs without a transaction are sent.
    before = {FaultPoint.ASIDE, FaultPoint.SENT}
    assert world.reached == {point for point in FaultPoint if not point.is_in_task} - before


@pytest.mark.parametrize("systems", SYSTEMS)
@pytest.mark.parametrize("can_repeat", [True, False], ids=["stateless", "stateful"])
@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE], ids=lambda one: str(one.name))
def test_any_one_fault_at_any_step_changes_nothing_that_a_reader_sees(
    fault: Fault, can_repeat: bool, systems: str
) -> None:
    steps = require_promises(iter(()), drivers=1, systems=systems).steps
    assert steps > 60
    for at in range(steps):
        require_promises(iter([*[Turn()] * at, Turn(fault=fault)]), drivers=1, can_repeat=can_repeat, systems=systems)


@pytest.mark.parametrize("systems", SYSTEMS)
@pytest.mark.parametrize("can_repeat", [True, False], ids=["stateless", "stateful"])
@pytest.mark.parametrize("fault", [Fault.NONE, Fault.DELAYED, Fault.LOST_ANSWER], ids=lambda one: str(one.name))
def test_a_second_driver_may_start_and_continue_at_any_step(fault: Fault, can_repeat: bool, systems: str) -> None:
    steps = require_promises(iter(()), drivers=1, systems=systems).steps
    for at in range(0, steps, 3 if systems == "kafka" else 7):  # the others take more steps, each of the same kinds
        for length in (1, 6, 13, 30, 200):
            require_promises(rivals(at, length, fault), can_repeat=can_repeat, systems=systems)


@settings(
    max_examples=400, derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.data_too_large]
)
@given(
    data=st.binary(min_size=160, max_size=500),
    drivers=st.integers(1, 3),
    can_repeat=st.booleans(),
    systems=st.sampled_from(sorted(SYSTEMS)),
)
def test_under_any_schedule_each_epoch_is_seen_once_and_in_order(
    data: bytes, drivers: int, can_repeat: bool, systems: str
) -> None:
    require_promises(iter(Plan(data)), drivers=drivers, can_repeat=can_repeat, systems=systems)


# ---- and the checks can fail


def _decide_to_write(*_: Any, **__: Any) -> Step:
    return Step.WRITE


def _decide_without_a_claim(entry: Entry | None, epoch: Epoch, *, run: str, where: str, job: str) -> Step:
    if entry is None and epoch.number == 0:
        return Step.WRITE
    return _decide(None if entry is None else replace(entry, run=run), epoch, run=run, where=where, job=job)


_decide = protocol.decide


def _remove_all(store: Store, _: Collection[str]) -> None:
    store.staged.clear()


def _publish_again(_: Followers, name: str, resource: Resource, seen: Entry | None, decided: Entry) -> Entry | None:
    if name in decided.staged:
        resource.publish(decided.staged[name], replace(decided, staged={}), after=seen)
    return seen


@contextmanager
def mutated(name: str) -> Iterator[dict[str, Any]]:
    """The protocol, or the model, with one of its laws broken; what a world needs for it."""
    with ExitStack() as patches:
        if name == "the ledger is not asked":
            patches.enter_context(mock.patch.object(protocol, "decide", _decide_to_write))
        if name == "nobody claims the ledger":
            patches.enter_context(mock.patch.object(protocol, "decide", _decide_without_a_claim))
            patches.enter_context(mock.patch.object(Coordinator, "_claim"))
        if name == "what a store holds is removed by who comes late":
            patches.enter_context(mock.patch.object(Store, "remove", _remove_all))
        if name == "a store's ledger is not asked":
            patches.enter_context(mock.patch.object(Followers, "_finish", _publish_again))
        if "store" in name:
            yield {
                "systems": "kafka and two stores",
                "stores": {one: Store(is_comparing="removed" in name) for one in ("database", "files")},
            }
            return
        yield {
            "broker": Broker(is_fencing=name != "older writers are not fenced"),
            "is_reading_first": name == "the ledger is read before older writers are fenced",
        }


@pytest.mark.parametrize(
    ("mutant", "told"),
    [
        ("the ledger is not asked", "a reader of"),
        ("nobody claims the ledger", "lost its claim and committed afterwards"),
        ("older writers are not fenced", "a reader of"),
        ("the ledger is read before older writers are fenced", "a reader of"),
        ("the ledger is read before older writers are fenced", "without the claim|lost its claim"),
        ("a store's ledger is not asked", "a reader of store"),
        ("a store is written by whoever comes", "a reader of store"),
        ("what a store holds is removed by who comes late", "ended as none should"),
    ],
)
def test_the_checks_catch_a_protocol_in_which(mutant: str, told: str) -> None:
    schedules = (iter(Plan(random.Random(seed).randbytes(300))) for seed in range(2000))
    if "claim" in mutant:  # two drivers that are both well
        schedules = (rivals(at, length) for at in range(0, 60, 2) for length in range(1, 40, 2))
    for schedule in schedules:
        with mutated(mutant) as how:
            try:
                require_promises(schedule, **how)
            except AssertionError as broken:
                if re.search(told, str(broken)):
                    return
    pytest.fail(f"no schedule showed that {mutant}")
