"""Carry failures of Spark's workers to the user, with all their facts.

A row can fail in a SQL expression inside the JVM or in a Python worker, and Spark wraps the error in long messages of
its own. So the facts travel as one signed mark inside the message. Code that catches Spark's exception reads them back:
a RowFailure, which a SQL expression can make too, or any error of ours. Spark's messages quote events, so a mark
without our signature (lockgate/signing.py) is only text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from lockgate.errors import Failed, FunctionFailed, LockgateError, RecordsGone, UnparsableValue, UnusableTime
from lockgate.escaping import escape
from lockgate.signing import Signer, driver_signer
from lockgate.throwables import Throwable, throwables
from lockgate.untrusted import read_object

MARK = "lockgate-failure:"
_ERROR_MARK = "lockgate-error:"
_GAP_KIND = "org.apache.spark.sql.kafka010.KafkaIllegalStateException"
_GAP = re.compile(
    r"Some data may have been lost because they are not available in Kafka.*?Reason:\s*(.*?)(?=\s*SQLSTATE|\Z)",
    re.DOTALL,
)
_NO_GAP = re.compile(r"offset was changed|have been deleted")
"""The end of a partition went back, or the partition is gone: no position is before a first record."""

_EXCERPT = 200

GAP_CHOICES = (
    "choose: bring the records back with their offsets, from a copy of the topic, and raise its retention; or skip"
    " exactly these, noted in the ledger: lockgate run FILE --accept-gap; or reset the job and read all that the source"
    " still has, which doubles what is committed: lockgate run FILE --new-life"
)
NO_GAP_CHOICES = (
    "there is no gap that could be skipped: look at the topic, its partitions and their leaders. Then choose: bring the"
    " records back with their offsets, and run the job again; or, if the job has a ledger, plan the epoch again from"
    " what the topic has now: lockgate checkpoints rollback FILE --uncommitted; or reset the job and read all that the"
    " source still has, which doubles what is committed: lockgate run FILE --new-life"
)

TRIED = "lockgate.tried"
"""The local property of Spark that tells tasks that their epoch has failed before."""


@dataclass(frozen=True)
class RowFailure:
    """One row that could not be processed: its place, and the reason."""

    kind: str  # "value", "time" or "function"
    where: str
    part: str  # "topic 'orders', partition 2", or a file
    at: int
    reason: str
    row: str

    def token(self, signer: Signer) -> str:
        """The failure as a text that stays readable inside other messages."""
        return signer.mark(MARK, base64.b64encode(json.dumps(asdict(self)).encode()).decode())

    @property
    def place(self) -> str:
        """The place of the row, as exactly as it is known."""
        part = escape(self.part)
        return part if self.at < 0 else f"{part}, offset {self.at}"

    def as_error(self) -> Failed:
        """The failure as the user sees it."""
        row, reason = escape(self.row if len(self.row) <= _EXCERPT else self.row[:_EXCERPT] + "…"), escape(self.reason)
        if self.kind == "value":
            return UnparsableValue(
                f"A value does not parse: {self.place}: {reason}: {row}",
                where=self.where,
                fix="correct the schema or the format of the source, or have the producer repair the record;"
                " nothing is lost, and the next run continues from here",
            )
        if self.kind == "time":
            return UnusableTime(
                f"The time of an event cannot be used: {self.place}: {reason}: {row}",
                where=self.where,
                fix="filter such events, or correct their time before .event_time(...), or raise max_ahead=; nothing is"
                " lost. A planned epoch keeps its clock, even if the time has come by now: for an end-to-end"
                " exactly-once job `lockgate checkpoints rollback --uncommitted` plans it again",
            )
        return FunctionFailed(
            f"A function failed on the row from {self.place}: {reason}: {row}",
            where=self.where,
            fix="fix the function and run the job again: it continues from here, and nothing is lost",
        )


def find_failure(message: str) -> RowFailure | None:
    """The failure in a message of Spark, if it has one that this driver's workers have signed."""
    payload = next(driver_signer().payloads(MARK, message), None)
    if payload is None:
        return None
    facts = read_object(base64.b64decode(payload))
    return RowFailure(
        kind=str(facts["kind"]),
        where=str(facts["where"]),
        part=str(facts["part"]),
        at=int(facts["at"]),
        reason=str(facts["reason"]),
        row=str(facts.get("row") or ""),
    )


class Carried(Exception):
    """Carries an error of ours out of a worker."""

    def __init__(self, error: LockgateError, signer: Signer) -> None:
        super().__init__(carry(error, signer))


def carry(error: LockgateError, signer: Signer) -> str:
    """An error as a text that stays readable inside other messages; people see its first line, too."""
    facts = {"class": _name(type(error)), "what": error.what, "where": error.where, "fix": error.fix}
    return f"{error.what} {signer.mark(_ERROR_MARK, base64.b64encode(json.dumps(facts).encode()).decode())}"


def find_error(message: str) -> LockgateError | None:
    """The error of ours in a message of Spark, if it has one that this driver's workers have signed."""
    failure = find_failure(message)
    if failure is not None:
        return failure.as_error()
    payload = next(driver_signer().payloads(_ERROR_MARK, message), None)
    if payload is None:
        return None
    facts = read_object(base64.b64decode(payload))
    known = {_name(one): one for one in _kinds(LockgateError)}
    return known.get(facts["class"], Failed)(str(facts["what"]), where=str(facts["where"]), fix=str(facts["fix"]))


def find_raised(error: BaseException) -> LockgateError | None:
    """The error of ours that an exception carries, or the error about records that Spark's Kafka source misses."""
    return find_error(str(error)) or find_gap(throwables(error))


def find_gap(raised: Sequence[Throwable]) -> RecordsGone | None:
    """The error of Spark's Kafka source if it misses records; it advises failOnDataLoss=false, which skips in silence.

    >>> text = "Some data may have been lost because they are not available in Kafka any more; either ...\\nReason: "
    >>> find_gap([Throwable(_GAP_KIND, f"{text}Partitions t-1 have been deleted.")]).what
    'Records that are not read yet are not in Kafka any more: Partitions t-1 have been deleted.'
    """
    found = next((told for one in raised if one.kind == _GAP_KIND and (told := _GAP.match(one.message))), None)
    if found is None:
        return None
    return RecordsGone(
        f"Records that are not read yet are not in Kafka any more: {escape(' '.join(found[1].split()))}",
        where="a Kafka source of the query",
        fix=NO_GAP_CHOICES if _NO_GAP.search(found[1]) else GAP_CHOICES,
    )


def first_cause(message: str) -> str:
    """The line of Spark's message that says what happened, and not the lines about its calls.

    >>> first_cause("An error occurred while calling o1.save.\\n: java.lang.A: late\\nCaused by: java.net.B: no route")
    'java.net.B: no route'
    """
    lines = [line.strip().removeprefix(": ") for line in message.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    # A killed Python worker ends in a bare java.io.EOFException; the cause before it says what happened.
    causes = [cause for cause in causes if ": " in cause] or causes
    told = [line for line in lines if not line.startswith(("An error occurred while calling", "at ", "==", "..."))]
    return escape((causes[-1:] or told or lines or ["it did not say why"])[0])


def _name(kind: type[LockgateError]) -> str:
    """The name of a kind of error with its module: two modules may each have a kind of that name."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _kinds(kind: type[LockgateError]) -> Iterator[type[LockgateError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)
