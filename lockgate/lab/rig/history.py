"""What happened in one trial, as plain facts, one line of JSON each.

Verdicts follow from a history, so it says only what was observed, by which observer and when, and never what it means:

    Sent                 an event is in a source
    Fault                something was killed, stopped or cut off
    Start, Up            a driver's process was started; it reported that it is ready
    Committed            Spark has logged an epoch as done
    Read                 a reader got a record
    ReadToEnd, Gap       a reader has read everything; a reader missed something, and why
    Standing             a partition of an output after the trial: is a transaction still open?
    Ledger               which runs wrote the sink's ledger, and for which epochs, in order

Three readers, independent of the job: ALONG reads committed records during the faults and to the end, AFTER reads
committed records from the first when all is over, LOG reads everything that was ever written, committed or not. A
reader without ReadToEnd has not read all, so an incomplete history cannot pass for a complete one.

Times are seconds since the trial began, by one clock for all processes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeVar


class Position(NamedTuple):
    """The position of an event in a source; `children` distinguish what a step made of one event."""

    topic: str
    partition: int
    offset: int
    children: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}" + "".join(f".{child}" for child in self.children)


Trace = tuple[Position, ...]
"""The events that a row goes back to."""

Content = tuple[bytes | None, bytes | None]
"""Key and value of a row."""


class End(NamedTuple):
    """The first offset of a source's partition that an epoch has not."""

    topic: str
    partition: int
    offset: int


class Reader(Enum):
    """The reader of a record."""

    ALONG = "along"
    AFTER = "after"
    LOG = "log"


@dataclass(frozen=True)
class Sent:
    """An event is in a source."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    at_seconds: float


@dataclass(frozen=True)
class Fault:
    """Something was done to a process or to a connection."""

    kind: str  # what was done: "kill driver", "pause worker", ...
    point: str  # the name of a fault point, or "any moment"
    process: str
    at_seconds: float
    epoch: int | None = None  # that it struck in, where it is known


@dataclass(frozen=True)
class Start:
    """A driver's process was started; drivers are numbered from 0."""

    driver: int
    at_seconds: float


@dataclass(frozen=True)
class Up:
    """A driver said that it is ready."""

    driver: int
    at_seconds: float


@dataclass(frozen=True)
class Committed:
    """Spark has logged an epoch as done."""

    epoch: int
    driver: int | None  # that committed it in the sink, not one that claimed the ledger later; None: not known
    ends: tuple[End, ...]
    at_seconds: float


@dataclass(frozen=True)
class Read:
    """A reader was given a record of an output."""

    reader: Reader
    output: str  # the topic or table: a reader cannot distinguish outputs that share one
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    trace: Trace | None  # None: the record does not say
    epoch: int | None
    at_seconds: float

    @property
    def place(self) -> tuple[str, int, int]:
        """Output, partition, offset."""
        return self.output, self.partition, self.offset

    @property
    def content(self) -> Content:
        """Key and value."""
        return self.key, self.value


@dataclass(frozen=True)
class ReadToEnd:
    """A reader has read every partition to the end that it had when the job was over."""

    reader: Reader
    at_seconds: float


@dataclass(frozen=True)
class Gap:
    """A reader died, or missed something."""

    reader: Reader
    reason: str
    at_seconds: float


@dataclass(frozen=True)
class Standing:
    """A partition of an output when the job was over and had recovered."""

    output: str
    partition: int
    open_transactions: int
    last_stable_offset: int
    high_watermark: int
    at_seconds: float


class Signed(NamedTuple):
    """An entry of a ledger: the run that wrote it, and the last committed epoch."""

    run: str
    epoch: int | None


@dataclass(frozen=True)
class Ledger:
    """What the sink's ledger has said in turn, as far back as it goes."""

    entries: tuple[Signed, ...]
    doubt: str  # why it could not be read, or nothing
    at_seconds: float


Fact = Sent | Fault | Start | Up | Committed | Read | ReadToEnd | Gap | Standing | Ledger

_NAMES: dict[type[Fact], str] = {
    Sent: "sent",
    Fault: "fault",
    Start: "start",
    Up: "up",
    Committed: "committed",
    Read: "read",
    ReadToEnd: "read to end",
    Gap: "gap",
    Standing: "standing",
    Ledger: "ledger",
}

AnyFact = TypeVar("AnyFact", bound=Fact)


@dataclass(frozen=True)
class History:
    """The facts of one trial; those of one observer stand in the order in which it saw them."""

    facts: tuple[Fact, ...]

    def lines(self) -> Iterator[str]:
        """Every fact as a line, without its end."""
        return map(as_line, self.facts)

    def of(self, kind: type[AnyFact]) -> tuple[AnyFact, ...]:
        """The facts of one kind."""
        return tuple(fact for fact in self.facts if isinstance(fact, kind))

    def read_by(self, reader: Reader, output: str) -> tuple[Read, ...]:
        """What a reader was given of an output, in the order in which it came."""
        return tuple(self._reads.get((reader, output), ()))

    @cached_property
    def _reads(self) -> dict[tuple[Reader, str], list[Read]]:
        found: dict[tuple[Reader, str], list[Read]] = {}
        for fact in self.of(Read):
            found.setdefault((fact.reader, fact.output), []).append(fact)
        return found

    def doubt(self, reader: Reader) -> str | None:
        """Why a reader cannot be relied on; None where it has read all, and everything once."""
        return self._doubts[reader]

    @cached_property
    def _doubts(self) -> dict[Reader, str | None]:
        return {reader: self._find_doubt(reader) for reader in Reader}

    def _find_doubt(self, reader: Reader) -> str | None:
        gaps = [fact.reason for fact in self.of(Gap) if fact.reader is reader]
        if gaps:
            return f"the reader {reader.value!r} has a gap: {gaps[0]}"
        if not any(fact.reader is reader for fact in self.of(ReadToEnd)):
            return f"the reader {reader.value!r} has not read to the end"
        places = [fact.place for fact in self.of(Read) if fact.reader is reader]
        if twice := len(places) - len(set(places)):
            return f"the reader {reader.value!r} was given {twice} offsets twice"
        return None


def as_line(fact: Fact) -> str:
    """A fact as one line of JSON; bytes are base64."""
    plain = {field.name: _plain(getattr(fact, field.name)) for field in fields(fact)}
    return json.dumps({"fact": _NAMES[type(fact)], **plain}, separators=(",", ":"))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value.value if isinstance(value, Reader) else value
