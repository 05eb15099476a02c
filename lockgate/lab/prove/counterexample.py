"""The time line of one event that shows what is wrong: its sending, its epochs, the faults, the readers.

It uses the facts of the history alone, so that you can follow it without trusting the checker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lockgate.columns import columns, wrap
from lockgate.escaping import visible
from lockgate.lab.rig.history import (
    Committed,
    Fault,
    History,
    Position,
    Read,
    Reader,
    ReadToEnd,
    Sent,
    Standing,
    Start,
    Up,
)
from lockgate.lab.rig.judge.findings import Finding, Subject

LANES = ("event", "driver", "fault", "epoch", "reader")
_EVENTS_MAX = 4  # a window may go back to thousands
_VALUE_MAX = 200  # characters


@dataclass(frozen=True)
class Moment:
    """Something that happened, in the lane of the part that it happened to."""

    at_seconds: float
    lane: str
    text: str


@dataclass(frozen=True)
class Counterexample:
    """What is wrong, how it came about, and how to see it again."""

    checker: str
    reason: str
    moments: tuple[Moment, ...]
    replay: str  # a command

    def lines(self, width: int = 120) -> list[str]:
        """For a terminal; the command stays in one line, to be copied."""
        moments = [(f"{one.at_seconds:.3f} s", one.lane, visible(one.text)) for one in self.moments]
        told = wrap(visible(f"{self.checker}: {self.reason}"), width)
        return [*told, *columns(moments, right=(0,), indent=2, width=width), f"  again: {visible(self.replay)}"]

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> Counterexample:
        """Read what `as_json` has written."""
        return cls(**{**plain, "moments": tuple(Moment(**moment) for moment in plain["moments"])})


def explain(history: History, finding: Finding, *, replay: str) -> Counterexample:
    """The time line of a finding that is broken."""
    subject = finding.subject
    told = [*_standings(history)] if subject is None else [*_of_row(history, subject)]
    since = min((moment.at_seconds for moment in told if moment.lane == "event"), default=0.0)
    until = max((moment.at_seconds for moment in told), default=float("inf"))
    around = (moment for moment in _surroundings(history) if since <= moment.at_seconds <= until)
    moments = sorted([*told, *around], key=lambda moment: (moment.at_seconds, LANES.index(moment.lane)))
    return Counterexample(finding.checker, finding.reason, tuple(moments), replay)


def _of_row(history: History, subject: Subject) -> Iterator[Moment]:
    events = {(event.topic, event.partition, event.offset) for event in subject.trace or ()}
    sent = [fact for fact in history.of(Sent) if (fact.topic, fact.partition, fact.offset) in events]
    for fact in sent[:_EVENTS_MAX]:
        event = Position(fact.topic, fact.partition, fact.offset)
        yield Moment(fact.at_seconds, "event", f"sent as {event}: {_text(fact.value)}")
    if len(sent) > _EVENTS_MAX:
        yield Moment(sent[_EVENTS_MAX].at_seconds, "event", f"and {len(sent) - _EVENTS_MAX} more events")
    yield from _epochs(history, _epochs_of(history, subject))
    yield from _reads(history, subject)


def _epochs_of(history: History, subject: Subject) -> set[int]:
    """The epochs that the rows say they are of, and those that took the events."""
    found = {read.epoch for read in subject.reads if read.epoch is not None}
    for event in subject.trace or ():
        took = [
            fact.epoch
            for fact in history.of(Committed)
            for end in fact.ends
            if (end.topic, end.partition) == (event.topic, event.partition) and event.offset < end.offset
        ]
        found |= {min(took)} if took else set()
    return found


def _epochs(history: History, epochs: Iterable[int]) -> Iterator[Moment]:
    wanted = set(epochs)
    for commit in history.of(Committed):
        if commit.epoch in wanted:
            by = "" if commit.driver is None else f" by driver {commit.driver}"
            yield Moment(commit.at_seconds, "epoch", f"epoch {commit.epoch} committed{by}")


def _reads(history: History, subject: Subject) -> Iterator[Moment]:
    def alike(reader: Reader) -> list[Read]:
        rows = (row for row in history.read_by(reader, subject.output) if row.content == subject.content)
        return [row for row in rows if None in (row.trace, subject.trace) or row.trace == subject.trace]

    # With the rows that it is compared with, at the time at which they were first seen.
    places = {read.place for read in (*subject.reads, *alike(Reader.ALONG))}
    for read in history.read_by(Reader.ALONG, subject.output):
        if read.place in places:
            yield Moment(read.at_seconds, "reader", f"read at {_place(read)}{_epoch(read)}: {_text(read.value)}")
    there = alike(Reader.AFTER)
    committed = {row.place for row in there}
    left = [row for row in alike(Reader.LOG) if row.place not in committed]
    end = max((fact.at_seconds for fact in history.of(ReadToEnd)), default=None)
    if end is not None:
        if left:
            yield Moment(end, "reader", f"in the log, not committed, at {', '.join(map(_place, left))}")
        told = f"in the end at {', '.join(map(_place, there))}" if there else "in the end it is not there"
        yield Moment(end, "reader", told)


def _standings(history: History) -> Iterator[Moment]:
    for one in history.of(Standing):
        if one.open_transactions or one.last_stable_offset < one.high_watermark:
            told = f"{one.output}-{one.partition}: {one.open_transactions} open transactions, readable up to"
            yield Moment(one.at_seconds, "reader", f"{told} {one.last_stable_offset} of {one.high_watermark}")


def _surroundings(history: History) -> Iterator[Moment]:
    for fault in history.of(Fault):
        epoch = "" if fault.epoch is None else f", in epoch {fault.epoch}"
        yield Moment(fault.at_seconds, "fault", f"{fault.kind} at {fault.point} ({fault.process}){epoch}")
    for start in history.of(Start):
        yield Moment(start.at_seconds, "driver", f"driver {start.driver} started")
    for up in history.of(Up):
        yield Moment(up.at_seconds, "driver", f"driver {up.driver} up")


def _place(read: Read) -> str:
    return f"{read.output}-{read.partition}@{read.offset}"


def _epoch(read: Read) -> str:
    return "" if read.epoch is None else f", of epoch {read.epoch}"


def _text(value: bytes | None) -> str:
    text = "null" if value is None else value.decode("utf-8", "backslashreplace")
    return text if len(text) <= _VALUE_MAX else text[: _VALUE_MAX - 3] + "..."
