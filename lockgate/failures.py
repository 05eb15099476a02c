"""Failures that happen in Spark's workers, carried to the author in one piece.

A row can fail in a SQL expression inside the JVM or in a Python worker, and Spark wraps what was raised there in pages
of its own. So the facts travel as one signed mark inside the message, and whoever catches Spark's exception reads it
back: a RowFailure, which a SQL expression can make too, or any error of ours. Messages of Spark's quote events, so a
mark that is not signed (lockgate/signing.py) is text like any other.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from lockgate.errors import Failed, FunctionFailed, LockgateError, RecordsGone, UnparsableValue, UnusableTime
from lockgate.escaping import escape
from lockgate.signing import Signer, driver_signer
from lockgate.untrusted import read_object

MARK = "lockgate-failure:"
_ERROR_MARK = "lockgate-error:"
_GAP = re.compile(
    r"Some data may have been lost because they are not available in Kafka.*?"
    r"Reason:\s*(.*?)(?=\s*(?:SQLSTATE|\n\s*at |\n\n|\Z))",
    re.DOTALL,
)
_NO_GAP = re.compile(r"offset was changed|have been deleted")
"""The end of a partition went back, or the partition is gone: no position is before a first record."""

_EXCERPT = 200

GAP_CHOICES = (
    "choose: bring the records back with their offsets, from a copy of the topic, and raise its retention; or skip"
    " exactly these, noted in the ledger: lockgate run FILE --accept-gap; or begin again with all that the source still"
    " has, which doubles what is committed: lockgate run FILE --new-life"
)
NO_GAP_CHOICES = (
    "there is no gap that could be skipped: look at the topic, its partitions and their leaders. Then choose: bring the"
    " records back with their offsets, and run the job again; or, if the job has a ledger, plan the epoch again by what"
    " the topic has now: lockgate checkpoints rollback FILE --uncommitted; or begin again with all that the source"
    " still has, which doubles what is committed: lockgate run FILE --new-life"
)

TRIED = "lockgate.tried"
"""The local property of Spark's by which tasks know that their epoch has failed before."""


@dataclass(frozen=True)
class RowFailure:
    """One row that could not be processed: where it came from, and what went wrong."""

    kind: str  # "value", "time" or "function"
    where: str
    part: str  # "topic 'orders', partition 2", or a file
    at: int
    reason: str
    row: str

    def token(self, signer: Signer) -> str:
        """The failure as text that survives being wrapped."""
        return signer.mark(MARK, base64.b64encode(json.dumps(asdict(self)).encode()).decode())

    @property
    def place(self) -> str:
        """Where the row came from, as exactly as is known."""
        part = escape(self.part)
        return part if self.at < 0 else f"{part}, offset {self.at}"

    def as_error(self) -> Failed:
        """The failure as the author sees it."""
        row, reason = escape(self.row if len(self.row) <= _EXCERPT else self.row[:_EXCERPT] + "…"), escape(self.reason)
        if self.kind == "value":
            return UnparsableValue(
                f"A value does not parse: {self.place}: {reason}: {row}",
                where=self.where,
                fix="correct the schema or the format of the source, or have the producer mend the record;"
                " nothing is lost, the job goes on from here when it is run again",
            )
        if self.kind == "time":
            return UnusableTime(
                f"The time of an event cannot be used: {self.place}: {reason}: {row}",
                where=self.where,
                fix="filter such events away or mend their time before .event_time(...), or raise max_ahead=; nothing"
                " is lost. The clock of an epoch that is planned stands still, also where the time has come by now: for"
                " an end-to-end exactly-once job `lockgate checkpoints rollback --uncommitted` plans it anew",
            )
        return FunctionFailed(
            f"A function failed on the row from {self.place}: {reason}: {row}",
            where=self.where,
            fix="mend the function and run the job again: it goes on from here, nothing is lost",
        )


def find_failure(message: str) -> RowFailure | None:
    """The failure that a message of Spark's carries, if it carries one that this driver's workers have signed."""
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
    """An error of ours on its way out of a worker."""

    def __init__(self, error: LockgateError, signer: Signer) -> None:
        super().__init__(carry(error, signer))


def carry(error: LockgateError, signer: Signer) -> str:
    """An error as text that survives being wrapped; people see its first line too."""
    facts = {"class": _name(type(error)), "what": error.what, "where": error.where, "fix": error.fix}
    return f"{error.what} {signer.mark(_ERROR_MARK, base64.b64encode(json.dumps(facts).encode()).decode())}"


def find_error(message: str) -> LockgateError | None:
    """The error of ours that a message of Spark's carries, if it carries one that this driver's workers have signed."""
    failure = find_failure(message)
    if failure is not None:
        return failure.as_error()
    payload = next(driver_signer().payloads(_ERROR_MARK, message), None)
    if payload is None:
        return _find_gap(message)
    facts = read_object(base64.b64decode(payload))
    known = {_name(one): one for one in _kinds(LockgateError)}
    return known.get(facts["class"], Failed)(str(facts["what"]), where=str(facts["where"]), fix=str(facts["fix"]))


def _find_gap(message: str) -> RecordsGone | None:
    """What Spark's Kafka source says if it misses records; it advises failOnDataLoss=false, which skips in silence.

    >>> text = "Some data may have been lost because they are not available in Kafka any more; either ...\\nReason: "
    >>> _find_gap(f"{text}Partitions t-1 have been deleted.").what
    'Records that are not read yet are not in Kafka any more: Partitions t-1 have been deleted.'
    """
    found = _GAP.search(message)
    if found is None:
        return None
    return RecordsGone(
        f"Records that are not read yet are not in Kafka any more: {escape(' '.join(found[1].split()))}",
        where="a Kafka source of the query",
        fix=NO_GAP_CHOICES if _NO_GAP.search(found[1]) else GAP_CHOICES,
    )


def first_cause(message: str) -> str:
    """The line of Spark's message that says what happened, and not which of its calls noticed.

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
