"""One transaction under one producer id, written by many processes and ended by one: begin, add, end, look.

    begin   InitProducerId: fences every older writer, ends its open transaction, gives a new (producer id, epoch)
    add     AddPartitionsToTxn, by the task that is about to write
    end     EndTxn: commit is the decision; a retry sends exactly the same request

Each transaction has a producer epoch of its own, so a delayed end of an older one can never end it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from lockgate.commit.permits import Place
from lockgate.connectors.kafka.errorcodes import FENCED, RETRIABLE, Code, name_of
from lockgate.connectors.kafka.rights import Denied, located
from lockgate.connectors.kafka.wire import Clock, Connection, Producer, Unanswered
from lockgate.errors import EpochFailed, Failed, Refused, TopicGone

GONE_SECONDS = 10.0
"""How long a topic may be unknown before it counts as deleted."""

DECIDED = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""The states of a transaction whose end is decided, but has not reached all its partitions."""


class TransactionLost(EpochFailed):
    """The broker no longer accepts this producer epoch: a time-out, or another writer."""


class EndUnknown(EpochFailed):
    """The broker did not report whether the transaction was committed; the ledger says it."""


class Transactions:
    """The transactions of one transactional id, one after the other."""

    def __init__(self, connection: Connection, transactional_id: str, *, timeout_ms: int, where: str) -> None:
        self.connection = connection
        self.id = transactional_id
        self.timeout_ms = timeout_ms
        self.where = where
        self.stopping = threading.Event()  # set to end the run: waits then end early

    def begin(self) -> Producer:
        """Fence older writers and get a fresh (producer id, epoch)."""

        def ask() -> tuple[tuple[int, ...], Producer]:
            code, producer = self.connection.init_producer(self.id, self.timeout_ms)
            return (code,), producer

        try:
            # If two writers begin at the same moment, one is fenced. A retry is then fine.
            retriable = RETRIABLE | {Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH}
            (code,), producer = self._patiently(ask, retriable)
        except Unanswered as error:
            raise self._silent("begin", error) from None
        if code == Code.INVALID_TRANSACTION_TIMEOUT:
            raise Refused(
                f"the broker refuses a transaction of {self.timeout_ms} ms",
                where=self.where,
                fix="client={'transaction.timeout.ms': ...} must not exceed the broker's transaction.max.timeout.ms",
            )
        if code:
            raise Failed(
                f"Kafka refuses to begin a transaction of {self.id!r}: {name_of(code)}",
                where=self.where,
                fix="look at the broker's log",
            )
        assert isinstance(producer, Producer)
        return producer

    def add(self, producer: Producer, places: Iterable[Place]) -> None:
        """Make partitions part of the transaction; retried until the coordinator has them."""
        add_partitions(self.connection, self.id, producer, places, where=self.where)

    def add_offsets(self, producer: Producer, group: str, offsets: Mapping[Place, int]) -> str | None:
        """Write source offsets for lag tools; returns an error as text, because it is only a warning."""

        def ask_group() -> tuple[tuple[int, ...], None]:
            return (self.connection.add_group(self.id, producer, group),), None

        def ask_offsets() -> tuple[tuple[int, ...], None]:
            codes = self.connection.commit_offsets(self.id, producer, group, offsets)
            return tuple(codes.values()), None

        try:
            for ask in (ask_group, ask_offsets):
                retriable = RETRIABLE - {Code.UNKNOWN_TOPIC_OR_PARTITION}
                codes, _ = _patiently(ask, retriable=retriable, deadline=_soon(self._clock, 5), clock=self._clock)
                wrong = [code for code in codes if code]
                if wrong:
                    return name_of(wrong[0])
        except Unanswered as error:
            return str(error)
        except Denied as error:
            return f"{error.what}; {error.fix}"
        return None

    def end(self, producer: Producer, *, is_commit: bool) -> None:
        """Commit or abort; raises EndUnknown if no answer comes, and TransactionLost if it was over before."""

        def ask() -> tuple[tuple[int, ...], None]:
            return (self.connection.end_transaction(self.id, producer, is_commit=is_commit),), None

        try:
            codes, _ = self._patiently(ask, RETRIABLE)
        except Unanswered as error:
            raise EndUnknown(
                f"no answer to the end of the transaction: {error}",
                where=self.where,
                fix="the ledger decides; look at the brokers",
            ) from None
        code = next(iter(codes))
        if code:
            raise _lost("the end of the transaction", code, self.where)

    def wait_until_complete(self) -> None:
        """Wait until readers see the end: after its answer, the coordinator writes the end to every partition."""
        deadline, pause = self._deadline(), 0.001
        while self._clock.monotonic() < deadline and not self.stopping.is_set():
            try:
                code, view = self.connection.describe_transaction(self.id)
                if not code and view.state not in DECIDED:
                    return
            except Unanswered:
                pass
            self._clock.sleep(pause)
            pause = min(pause * 2, 0.2)
        raise EndUnknown(
            f"the end of the transaction does not reach all partitions of {self.id!r}",
            where=self.where,
            fix="it is decided, and readers see it when the brokers that lead these partitions are back",
        )

    @property
    def _clock(self) -> Clock:
        return self.connection.clock

    def _deadline(self) -> float:
        return _soon(self._clock, self.connection.settings.delivery_timeout_ms / 1000)

    def _patiently(
        self, ask: Callable[[], tuple[Collection[int], Any]], retriable: Collection[int]
    ) -> tuple[Collection[int], Any]:
        deadline = self._deadline()
        with located(self.where):
            return _patiently(ask, retriable=retriable, deadline=deadline, clock=self._clock, stopping=self.stopping)

    def _silent(self, what: str, error: Unanswered) -> EpochFailed:
        return EpochFailed(
            f"the Kafka brokers do not answer ({what} of a transaction): {error}",
            where=self.where,
            fix="look at the brokers; when they are back, run the job again: it continues where it stopped",
        )


def add_partitions(
    connection: Connection, transactional_id: str, producer: Producer, places: Iterable[Place], *, where: str
) -> None:
    """Make partitions part of a transaction, from the driver or from a task."""
    wanted, clock = list(places), connection.clock

    def ask() -> tuple[tuple[int, ...], None]:
        with located(where):
            return tuple(connection.add_partitions(transactional_id, producer, wanted).values()), None

    unknown = {Code.UNKNOWN_TOPIC_OR_PARTITION}
    deadline = _soon(clock, connection.settings.delivery_timeout_ms / 1000)
    try:
        codes, _ = _patiently(ask, retriable=RETRIABLE - unknown, deadline=deadline, clock=clock)
        if set(codes) & unknown:  # a new topic may be unknown for a moment
            codes, _ = _patiently(ask, retriable=RETRIABLE, deadline=_soon(clock, GONE_SECONDS), clock=clock)
    except Unanswered as error:
        refuse_gone(connection, {topic for topic, _ in wanted}, where=where)
        raise EpochFailed(
            f"partitions cannot be added to the transaction: {error}",
            where=where,
            fix="look at the brokers, and that the topics still exist; the epoch is repeated",
        ) from None
    for code in codes:
        if code:
            raise _lost("adding partitions to the transaction", code, where)


def refuse_gone(connection: Connection, topics: Iterable[str], *, where: str) -> None:
    """Raise TopicGone if one of these topics does not exist."""
    wanted = sorted(topics)
    try:
        found = connection.shapes(wanted, is_fresh=True)
    except Unanswered:
        return
    gone = [name for name in wanted if name not in found]
    if gone:
        raise TopicGone(
            f"topic {gone[0]!r} does not exist any more",
            where=where,
            fix="it was deleted, with its records; create it again with as many partitions as it had, and run the job"
            " again: it continues with the epoch that it could not write",
        )


def _patiently(
    ask: Callable[[], tuple[Collection[int], Any]],
    *,
    retriable: Collection[int],
    deadline: float,
    clock: Clock,
    stopping: threading.Event | None = None,
) -> tuple[Collection[int], Any]:
    """Ask until the answer is not retriable; raises Unanswered when time is up, or when a stop is requested."""
    pause_seconds = 0.005
    while True:
        told: str
        try:
            codes, answer = ask()
            if not set(codes) & set(retriable):
                return codes, answer
            told = f"the broker kept answering {sorted(set(codes) & set(retriable))}"
        except Unanswered as error:
            told = str(error)
        if clock.monotonic() + pause_seconds > deadline or (stopping is not None and stopping.is_set()):
            raise Unanswered(told)
        clock.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, 0.5)


def _lost(what: str, code: int, where: str) -> EpochFailed:
    if code in FENCED:
        return TransactionLost(
            f"{what} came too late: {name_of(code)}",
            where=where,
            fix="the transaction timed out, or another writer uses its id; the ledger says which",
        )
    return EpochFailed(f"Kafka refused {what}: {name_of(code)}", where=where, fix="see the broker's log")


def _soon(clock: Clock, seconds: float) -> float:
    return clock.monotonic() + seconds
