"""Make an epoch visible once: carry out the steps of the protocol in order.

    0  claim      once per run: the ledger's value unchanged, with my run id
    1  begin      fence every older writer; a fresh producer
    2  look       the ledger decides: write, skip, or stop
    3  write      other systems stage; tasks write under permits, and vote
    4  decide     offsets and marker into the same transaction, then its end: the one decision
    5  publish    other systems publish what the marker names
    6  failure    never guess: restart at 1; the ledger says whether the epoch is committed

`protocol` has the decisions. The three small contracts below have what the coordinator needs from outside.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from lockgate.commit import protocol
from lockgate.commit.followers import Followers
from lockgate.commit.ledger import Entry
from lockgate.commit.permits import Permits, Place
from lockgate.commit.protocol import Cause, Epoch, Next, Step, Vote
from lockgate.errors import EpochFailed, Fenced, LedgerMismatch, LockgateError
from lockgate.faultpoints import FaultPoint, reach

log = logging.getLogger(__name__)


class Transactions(Protocol):
    """The transactions of the deciding sink; the producer tells writers which transaction they write to."""

    timeout_ms: int

    def begin(self) -> Any:
        """Fence older writers and begin."""

    def add(self, producer: Any, places: Sequence[Place]) -> None:
        """Make places part of the transaction."""

    def add_offsets(self, producer: Any, group: str, offsets: Mapping[Place, int]) -> str | None:
        """Write the source's offsets in the transaction; returns what went wrong, in words."""

    def end(self, producer: Any, *, is_commit: bool) -> None:
        """Decide."""

    def wait_until_complete(self) -> None:
        """Wait until readers see the decision."""


class Ledger(Protocol):
    """Where the deciding sink keeps what is committed."""

    where: str

    @property
    def place(self) -> Place:
        """The place that must be part of a transaction that writes to the ledger."""

    def read(self) -> Entry | None:
        """The last committed entry, after older writers are fenced."""

    def peek(self) -> Entry | None:
        """The last committed entry, without fencing a writer."""

    def write(self, entry: Entry, producer: Any) -> None:
        """Write an entry in the transaction."""


@dataclass(frozen=True)
class Outcome:
    """How an epoch ended."""

    step: Step
    records: int = 0
    tries: int = 1
    written: Mapping[Place, int] = field(default_factory=dict, compare=False)  # the records, by topic and partition
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)  # begin, stage, write, end; of all tries


@dataclass(frozen=True)
class Work:
    """What the coordinator needs from the run time in one epoch."""

    write: Callable[[Any, str, bool], tuple[Sequence[Vote], int]]
    """Let the tasks write with a producer and the name of a try, after an exchange of rows if asked; returns
    the votes, and how many rows the tasks received."""
    skip: Callable[[], None]  # compute the rows for their state, write nothing
    check: Callable[[], None]  # after all is written: does every topic that was written to still exist?
    cause_of: Callable[[Exception], Cause]
    stage: Callable[[], Mapping[str, str]]  # let other systems stage; returns what the marker names for each
    can_repeat: bool  # may the rows be computed twice in one go? Not if they depend on state.
    offsets: Mapping[Place, int] = field(default_factory=dict)


class Coordinator:
    """The commits of one run of a job."""

    def __init__(
        self,
        job: str,
        *,
        transactions: Transactions,
        ledger: Ledger,
        permits: Permits,
        followers: Followers,
        is_adopting: bool = False,
        can_roll_back: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        new_name: Callable[[], str] = lambda: secrets.token_hex(8),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self.run = new_name()
        self._transactions = transactions
        self._ledger = ledger
        self._permits = permits
        self._followers = followers
        self._is_adopting = is_adopting
        self._can_roll_back = can_roll_back
        self._now = now
        self._new_name = new_name
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)  # of the current epoch, by phase
        self._is_open = False  # may a task have started to write, and nothing is decided?
        self._query_run: str | None = None
        self._has_claimed = False
        self._is_exchanging = False
        self._time_outs: dict[int, int] = {}
        self._has_warned = False

    def enter(self, query_run: str) -> None:
        """The next epoch belongs to this start of the query. A query that was restarted claims the ledger again."""
        if self._query_run not in (None, query_run):
            self.run = self._new_name()
            self._has_claimed = False
        self._query_run = query_run

    def claim(self, epoch: Epoch) -> Entry | None:
        """Claim the ledger for this run and return its entry; None if that is done. `commit` calls this too."""
        return None if self._has_claimed else self._claim(epoch)

    def commit(self, epoch: Epoch, work: Work) -> Outcome:
        """Make one epoch visible, once; when this returns, the epoch is committed."""
        self._seconds = defaultdict(float)
        self.claim(epoch)
        first: Exception | None = None
        for tries in range(1, protocol.TRIES + 2):
            try:
                producer, step, entry = self._look(epoch, is_again=first is not None)
                if step is Step.SKIP and entry is not None:
                    self._follow(self._followers.publish, entry)  # the crash may have come right after the decision
            except EpochFailed as error:
                raise (first or error) from error  # show the first error
            if step is Step.SKIP:
                if first is None:
                    work.skip()
                self._time_outs.pop(epoch.number, None)
                return Outcome(step=step, tries=tries, seconds=self._seconds)
            if first is not None and not work.can_repeat:
                raise self._restart(first)
            try:
                written = self._try(epoch, work, producer)
            except Exception as error:  # noqa: BLE001 - after any error the ledger is read before anything else
                first = first or error
                self._answer(epoch, work, error, first, tries)
                continue
            finally:
                self._permits.close()
            self._time_outs.pop(epoch.number, None)
            reach(FaultPoint.BEFORE_SPARK_COMMIT)
            records = sum(written.values())
            return Outcome(step=step, records=records, tries=tries, written=written, seconds=self._seconds)
        raise first or AssertionError("an epoch without a try")

    def _look(self, epoch: Epoch, *, is_again: bool) -> tuple[Any, Step, Entry | None]:
        """Steps 1 and 2: fence, then read the ledger; returns its entry, too."""
        if is_again:
            # Another driver may have fenced us. To fence it in turn would only disturb it.
            protocol.check_run(self._ledger.peek(), run=self.run, where=self._ledger.where, job=self.job)
        with self._timed("begin"):
            producer = self._transactions.begin()
            self._is_open = False  # an open transaction is aborted
            reach(FaultPoint.BEGIN)
            if is_again:
                reach(FaultPoint.RECOVERY)
            entry = self._ledger.read()
        reach(FaultPoint.LEDGER_READ)
        step = protocol.decide(entry, epoch, run=self.run, where=self._ledger.where, job=self.job)
        return producer, step, entry

    def _claim(self, epoch: Epoch) -> Entry:
        """Step 0. Without it two drivers would fence each other forever."""
        # Look first without fencing: a run with the wrong checkpoint must not disturb the right one.
        self._check_claim(self._ledger.peek(), epoch)
        last: EpochFailed | None = None
        for _ in range(protocol.TRIES):
            leftovers = self._followers.leftovers()
            producer = self._transactions.begin()
            reach(FaultPoint.RECOVERY)
            entry = self._ledger.read()
            self._check_claim(entry, epoch)
            claim = protocol.claim(entry, epoch, run=self.run, now=self._now(), is_adopting=self._is_adopting)
            try:
                self._transactions.add(producer, [self._ledger.place])
                self._ledger.write(claim, producer)
                reach(FaultPoint.CLAIM)
                self._transactions.end(producer, is_commit=True)
            except EpochFailed as error:
                last = error  # fenced by another driver that starts, or the end is unknown: repeat the claim
                continue
            self._follow(partial(self._followers.claim, leftovers=leftovers), claim)
            self._has_claimed = True
            if entry is None and claim.epoch is not None:
                log.warning(
                    "job %s: its ledger was empty and now says that epoch %d is committed", self.job, claim.epoch
                )
            return claim
        raise last or AssertionError("a claim without a try")

    def _check_claim(self, entry: Entry | None, epoch: Epoch) -> None:
        protocol.check_claim(entry, epoch, is_adopting=self._is_adopting, where=self._ledger.where, job=self.job)

    @property
    def open_seconds(self) -> float | None:
        """How long an undecided transaction is open; None if there is none."""
        held = self._permits.held_seconds()
        return held if self._is_open and held > 0 else None

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._seconds[phase] += self._clock() - began

    def _try(self, epoch: Epoch, work: Work, producer: Any) -> Mapping[Place, int]:
        # First, because staged rows have no time-out, but the transaction has one after its first write.
        with self._timed("stage"):
            staged = work.stage()
        name = self._permits.open()
        self._is_open = True
        with self._timed("write"):
            votes, rows = work.write(producer, name, self._is_exchanging)
            protocol.tally(self._permits.granted, votes, rows=rows, where=f"epoch {epoch.number}")
            self._permits.close()
            work.check()
        reach(FaultPoint.VOTES)
        with self._timed("end"):
            self._decide(epoch, work, producer, staged)
        return {(vote.topic, vote.partition): vote.records for vote in votes}

    def _decide(self, epoch: Epoch, work: Work, producer: Any, staged: Mapping[str, str]) -> None:
        """Steps 4 and 5."""
        self._transactions.add(producer, [self._ledger.place])
        self._write_offsets(producer, work.offsets)
        entry = protocol.marker(epoch, run=self.run, now=self._now(), staged=staged)
        self._ledger.write(entry, producer)
        reach(FaultPoint.MARKER)
        reach(FaultPoint.BEFORE_END)
        self._transactions.end(producer, is_commit=True)
        self._is_open = False
        reach(FaultPoint.AFTER_END)
        self._transactions.wait_until_complete()
        self._follow(self._followers.publish, entry)

    def _follow(self, move: Callable[[Entry], None], entry: Entry) -> None:
        """Step 5. A follower that does not fit was emptied, or belongs to a driver that took over."""
        try:
            move(entry)
        except LedgerMismatch:
            protocol.check_run(self._ledger.peek(), run=self.run, where=self._ledger.where, job=self.job)
            raise

    def _write_offsets(self, producer: Any, offsets: Mapping[Place, int]) -> None:
        if not offsets:
            return
        wrong = self._transactions.add_offsets(producer, f"lockgate.{self.job}", offsets)
        if wrong is not None and not self._has_warned:
            self._has_warned = True
            log.warning("job %s: source offsets are not shown to lag tools: %s", self.job, wrong)

    def _answer(self, epoch: Epoch, work: Work, error: Exception, first: Exception, tries: int) -> None:
        """Step 6: returns if the epoch must be tried again, raises if it is over."""
        if isinstance(error, Fenced | LedgerMismatch):
            raise error
        cause = work.cause_of(error)
        seconds = self._transactions.timeout_ms / 1000
        if cause is Cause.LOST and self._permits.held_seconds() >= seconds:
            cause = Cause.TIMED_OUT
        if cause is Cause.NOT_ALIKE and self._is_exchanging:
            cause = Cause.LOST  # they were exchanged already; the next try succeeds, or shows it again
        if cause is Cause.NOT_ALIKE:
            self._is_exchanging = True
        if cause is Cause.TIMED_OUT:
            self._time_outs[epoch.number] = self._time_outs.get(epoch.number, 0) + 1
        time_outs = self._time_outs.get(epoch.number, 0)
        follows = protocol.after_failure(cause, tries=tries, time_outs=time_outs, can_repeat=work.can_repeat)
        if follows is Next.STOP:
            self._abort()
            if cause is Cause.TIMED_OUT:
                shown = first if isinstance(first, LockgateError) else None
                raise protocol.too_long(
                    self.job, epoch.number, seconds, shown, self._ledger.where, can_roll_back=self._can_roll_back
                ) from first
            raise first
        log.warning("job %s: epoch %d, try %d ended without a decision: %s", self.job, epoch.number, tries, error)

    def _abort(self) -> None:
        """Abort the transaction, so that it holds back no reader; the next driver would do it too.

        A new `begin` aborts it. It also fences a task that is about to add its partitions.
        """
        try:
            self._transactions.begin()
            self._is_open = False
        except LockgateError as error:
            log.info("job %s: the open transaction was not aborted: %s", self.job, error.what)

    def _restart(self, first: Exception) -> Exception:
        if isinstance(first, EpochFailed):
            return first
        told = first.what if isinstance(first, LockgateError) else f"{type(first).__name__}: {first}"
        failed = EpochFailed(
            f"a try of the epoch failed, and its rows depend on state: {told}",
            where=self._ledger.where,
            fix="nothing of it is visible; the query restarts from its checkpoint",
        )
        failed.__cause__ = first
        return failed
