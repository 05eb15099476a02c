"""Workloads: events for all sources of a job, made from their schemas by a seed, or given line by line.

The same seed gives the same bytes. The events resemble real streams, and still have one answer:

    hot keys      few keys have most of the events, in every partition
    pauses        if a job has sessions, half of the keys in turn pause for longer than the gap
    partitions    all events of a key are in one, so their order does not depend on where epochs end
    disorder      an event is up to half of the declared lateness behind; the other half is for partitions that are read
                  ahead of others (see `Workload.wave`)
    too late      some events are so far behind that they are late however epochs of at most `rows_per_epoch` are cut;
                  none if a job reads files, because an epoch of files may have any number of lines
    bad events    values that do not parse, no value, no key; if the job has dead letters
    partners      columns that streams and tables are joined on, and keys, are drawn from the same values everywhere
    hints         what the job's SQL and functions say about a column comes up in it, so that conditions sometimes hold

Times advance so fast that all windows of the job close several times.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lockgate.dataflow.locations import Files
from lockgate.dataflow.schema import Column, Schema, parse_ddl
from lockgate.dataflow.steps import Join, Read, TableJoin, Timed, Windowed
from lockgate.dataflow.windows import SessionWindow
from lockgate.errors import Refused
from lockgate.lab.prove.constraints import Constraints, longest_wait
from lockgate.lab.prove.redirect import Input, Redirected, TablePlace
from lockgate.lab.prove.values import BEGAN, WORDS, from_domain, key_bytes, kind_of, maker
from lockgate.lab.rig.feed import Event
from lockgate.planner.logical import LogicalGraph, build_logical

PACE = timedelta(milliseconds=50)
"""How far the time goes on from one event to the next, at least."""

_SPANS = 6  # so many of the job's longest windows follow each other
_SKEW = 1.1  # the exponent of Zipf's law: how much hotter the hottest key is
_HINTED = 0.5  # the share of values that the job itself hints at, where it does
_NULL_KEY = 5  # the number of the key that is null, where the job reckons with one; one key has one partition
_REST = 1.5  # keys rest for so many of the longest gaps
_MISSING = 7  # one in so many keys is in no table
_TIME_NAME = re.compile(r"(?i)(?:^|_)(?:at|date|time|timestamp|ts)(?:_(?P<unit>s|seconds|ms|millis|us|micros))?$")
_TICKS = {"s": 1, "seconds": 1, "us": 1_000_000, "micros": 1_000_000}
_LIMITS = {"TINYINT": 2**7, "SMALLINT": 2**15, "INT": 2**31, "BIGINT": 2**63}
_FIX = "give its events line by line"


@dataclass(frozen=True)
class Shape:
    """How a workload is to be."""

    events: int = 1000  # of all sources together
    seed: int = 1
    partitions: int = 4  # of a topic, at most
    rows_per_epoch: int = 100  # the most that an epoch takes of a source
    late_share: float = 0.01
    bad_share: float = 0.02


@dataclass(frozen=True)
class Workload:
    """What a job is given."""

    events: tuple[Event, ...]  # addressed to the labels of its inputs, in the order of sending
    partitions: Mapping[str, int]  # of each topic, by its label
    tables: Mapping[str, tuple[Mapping[str, Any], ...]]  # the rows of each table, by its name
    wave: int  # no partition may be sent further ahead of another than so many events
    late: tuple[int, ...]  # which of the events come too late for every window and pattern, however epochs are cut
    unsure_count: int  # given events that may or may not be late, as epochs end
    bad: tuple[int, ...]  # which of the events no job can read
    origin: str  # for people


def make_workload(moved: Redirected, shape: Shape, given: Mapping[str, Path] | None = None) -> Workload:
    """The workload of a job.

    Args:
        given: files of JSON lines by the name of a stream or table. A line holds the columns of an event, those of the
            key among them; for a source of another format it is the value itself.
    """
    graph = build_logical(moved.job)
    lines = {name: _lines(path) for name, path in (given or {}).items()}
    _refuse_unknown(lines, moved)
    told = [Constraints.of(graph, one.streams, {each.name.lower() for each in _columns(one)}) for one in moved.inputs]
    pace = _pace(graph, shape.events)
    slack = min((one.lateness for one in told if one.lateness is not None), default=None)
    wave = shape.events if slack is None else int(slack / 2 / pace)
    is_in_step = wave < shape.partitions  # time does not wait for a partition that is behind
    ways = [
        _way(graph, one, facts, shape, pace, lines, has_one_part=is_in_step)
        for one, facts in zip(moved.inputs, told, strict=True)
    ]
    rng = random.Random(shape.seed)
    events: list[Event] = []
    late: list[int] = []
    bad: list[int] = []
    left = [way.limit for way in ways]
    for number in range(shape.events):
        turn = number % len(ways)
        if left[turn]:
            event, is_late, is_bad = ways[turn].make(rng, number)
            late += [len(events)] if is_late else []
            bad += [len(events)] if is_bad else []
            events.append(event)
            left[turn] -= 1
    made = [stream for one in moved.inputs for stream in one.streams if stream not in lines]
    origin = "made from the schemas" if made else "as given"
    return Workload(
        events=tuple(events),
        partitions={one.label: way.partitions for one, way in zip(moved.inputs, ways, strict=True)},
        tables={one.name: _table_rows(graph, one, shape, lines) for one in moved.tables},
        wave=max(1, wave),
        late=tuple(late),
        unsure_count=sum(_unsure(graph, one, facts, lines) for one, facts in zip(moved.inputs, told, strict=True)),
        bad=tuple(bad),
        origin=f"{origin}; {', '.join(sorted(lines))} as given" if made and lines else origin,
    )


def _pace(graph: LogicalGraph, events: int) -> timedelta:
    """How far the time advances with every event."""
    return max(PACE, _SPANS * longest_wait(graph) / max(1, events))


# Events


@dataclass
class _Way:
    """Makes the events of one input."""

    limit: int  # so many, at most
    partitions: int
    make: Callable[[random.Random, int], tuple[Event, bool, bool]]  # the event, whether it is late, whether it is bad


def _way(
    graph: LogicalGraph,
    one: Input,
    told: Constraints,
    shape: Shape,
    pace: timedelta,
    lines: Mapping[str, Sequence[bytes]],
    *,
    has_one_part: bool,
) -> _Way:
    is_file = not one.is_topic
    own = next((lines[name] for name in one.streams if name in lines), None)
    if own is not None:
        # Which given lines belong together is unknown.
        spread = 1 if is_file or told.order or told.lateness is not None else shape.partitions
        return _Way(len(own), spread, _replay(one, own, spread, pace))
    columns = [column for column in _columns(one) if column.name.lower() in told.domain]
    is_spread = not is_file and not has_one_part and all(_has_unique_values(columns, keys) for keys in told.order)
    spread = shape.partitions if is_spread else 1
    return _Way(shape.events, spread, _Maker(graph, one, told, shape, pace, spread).make)


def _has_unique_values(columns: Sequence[Column], keys: frozenset[str]) -> bool:
    """Is there a column among the keys that has a value of its own for every key?"""
    kinds = ("INT", "BIGINT", "SMALLINT", "STRING", "FLOAT", "DOUBLE", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ")
    return any(column.name.lower() in keys and kind_of(column) in kinds for column in columns)


class _Maker:
    """Makes events of a schema."""

    def __init__(
        self, graph: LogicalGraph, one: Input, told: Constraints, shape: Shape, pace: timedelta, partitions: int
    ) -> None:
        self._input, self._shape, self._pace, self._told = one, shape, pace, told
        self._where = f"source {one.streams[0]!r}"
        self._key = _key_columns(one)
        self._value = _value_columns(one)
        self._makers = {column.name: self._maker(column) for column in (*self._key, *self._value)}
        self._format = _format(one, self._value, self._where)
        self._has_time = any(_is_time_column(column) for column in self._value)  # else it is that of the record
        self._is_bytes = one.is_topic and _format_name(one) == "bytes"
        # All bytes are good ones, and clients send no record that has neither key nor value.
        self._can_be_bad = graph.job.dead_letters is not None and not (self._is_bytes and not self._key)
        read = [node.step.source for node in graph.nodes if isinstance(node.step, Read)]
        self._has_late = not any(isinstance(one.location, Files) for one in read)
        # Two epochs pass until the watermark acts on an event; as much again for partitions that are read ahead.
        epochs = 4 * shape.rows_per_epoch * len(read)
        self._late_from = epochs
        self._behind = longest_wait(graph) + (told.lateness or timedelta(0)) + epochs * pace
        self._keys = _key_numbers(self._key, graph, shape, partitions)
        steps = [node.step for node in graph.nodes if isinstance(node.step, Windowed)]
        self._gap = max((one.window.gap for one in steps if isinstance(one.window, SessionWindow)), default=None)

    def make(self, rng: random.Random, number: int) -> tuple[Event, bool, bool]:
        partition = number % len(self._keys)
        index = self._keys[partition].draw(rng, self._turn(number))
        on_time = BEGAN + number * self._pace
        at, is_late = self._time(rng, number, on_time)
        columns = (*self._key, *self._value)
        row = {column.name: self._makers[column.name](rng, number, at, index) for column in columns}
        key = key_bytes(self._key, [row[column.name] for column in self._key]) if self._key else None
        value: bytes | None = self._format({column.name: row[column.name] for column in self._value})
        is_bad = self._can_be_bad and rng.random() < self._shape.bad_share
        if is_bad:
            key, value, partition = self._spoiled(rng, key, value, partition)
        stamp = _since_1970(on_time, 1000)
        return Event(self._input.label, partition, key, value, timestamp_ms=stamp), is_late and not is_bad, is_bad

    def _turn(self, number: int) -> int | None:
        """Which half of the keys is awake; None where all are, always."""
        return None if self._gap is None else int(number * self._pace / (_REST * self._gap)) % 2

    def _time(self, rng: random.Random, number: int, on_time: datetime) -> tuple[datetime, bool]:
        lateness = self._told.lateness
        if lateness is None or not self._has_time:
            return on_time, False
        draw, share = rng.random(), rng.random()
        if self._has_late and number >= self._late_from and draw < self._shape.late_share:
            return on_time - self._behind * (1 + share), True
        behind = lateness / 2 * share
        return on_time - behind, False

    def _spoiled(
        self, rng: random.Random, key: bytes | None, value: bytes | None, partition: int
    ) -> tuple[bytes | None, bytes | None, int]:
        """One of the ways in which an event can be bad; one without a key has a partition of its own, as all such."""
        how = rng.randrange(3)
        if self._input.is_topic and key is not None and (how == 0 or self._is_bytes):
            return key, None, partition
        if how == 1 and key is not None:
            return None, value, 0
        return key, b"\xff{" + (value or b"")[:8], partition

    def _maker(self, column: Column) -> Callable[[random.Random, int, datetime, int], Any]:
        """What makes the values of a column, of (random numbers, number, time, number of the key)."""
        kind = kind_of(column)
        plain = maker(column, self._where, _FIX)
        said = self._told.hints.get(column.name.lower(), ())
        if column.name.lower() in self._told.domain or column in self._key:
            null = _NULL_KEY if None in said and column.is_nullable and column not in self._key else None
            return lambda rng, number, at, index: None if index == null else from_domain(column, index)
        if _is_time_column(column) and kind in ("BIGINT", "STRING"):
            if kind == "STRING":
                return lambda rng, number, at, index: at.isoformat(timespec="milliseconds")
            named = _TIME_NAME.search(column.name)
            ticks = _TICKS.get(((named and named["unit"]) or "").lower(), 1000)
            return lambda rng, number, at, index: _since_1970(at, ticks)
        hints = [value for one in said for value in _around(one, column)]
        if hints:
            return lambda rng, number, at, index: (
                rng.choice(hints) if rng.random() < _HINTED else plain(rng, number, at)
            )
        return lambda rng, number, at, index: plain(rng, number, at)


def _is_time_column(column: Column) -> bool:
    kind = kind_of(column)
    is_named_so = kind in ("BIGINT", "STRING") and _TIME_NAME.search(column.name) is not None
    return is_named_so or kind in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ")


def _since_1970(at: datetime, ticks_per_second: int) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1_000_000 // ticks_per_second)


def _around(hint: Any, column: Column) -> Sequence[Any]:
    """Values on both sides of what is hinted at, where a column has such values."""
    kind = kind_of(column)
    if hint is None:
        return (None,) if column.is_nullable else ()
    if isinstance(hint, str):
        return (hint,) if kind == "STRING" else ()
    if kind in _LIMITS:
        least, greatest = -_LIMITS[kind], _LIMITS[kind] - 1
        return [one for one in (int(hint) - 1, int(hint), int(hint) + 1) if least <= one <= greatest]
    return (hint - 1, hint, hint + 1) if kind in ("FLOAT", "DOUBLE") else ()


@dataclass
class _Keys:
    """The keys of one partition, the hottest first."""

    numbers: list[int] = field(default_factory=list)
    _weighted: dict[int | None, tuple[list[int], list[float]]] = field(default_factory=dict)

    def draw(self, rng: random.Random, turn: int | None) -> int:
        """One of them, or one of every other where they are awake in turn."""
        if turn not in self._weighted:
            awake = self.numbers if turn is None or len(self.numbers) < 2 else self.numbers[turn::2]
            shares = (1 / (rank + 1) ** _SKEW for rank in range(len(awake)))
            self._weighted[turn] = awake, list(itertools.accumulate(shares))
        awake, weights = self._weighted[turn]
        return rng.choices(awake, cum_weights=weights)[0]


def _key_numbers(key: Sequence[Column], graph: LogicalGraph, shape: Shape, partitions: int) -> list[_Keys]:
    """The keys of each partition: where the record has a key, those that Kafka's clients would put there."""
    words = _words(graph, shape)
    parts = [_Keys() for _ in range(partitions)]
    if not key or partitions == 1:
        for number in range(words * partitions):
            parts[number % partitions].numbers.append(number)
        return parts
    from kafka.partitioner.default import murmur2

    for number in itertools.count():
        raw = key_bytes(key, [from_domain(column, number) for column in key]) or b""
        own = parts[(murmur2(raw) & 0x7FFFFFFF) % partitions].numbers
        if len(own) < words:
            own.append(number)
        # A key of few values, as a boolean has, may never come to some partition.
        if number > 100 * words * partitions or all(len(part.numbers) == words for part in parts):
            break
    return [part if part.numbers else _Keys([0]) for part in parts]


def _words(graph: LogicalGraph, shape: Shape) -> int:
    """How many keys a partition has; more where events meet each other, of which hot ones would make too many pairs."""
    is_joined = any(isinstance(node.step, Join) for node in graph.nodes)
    return max(WORDS, shape.events // 20) if is_joined else WORDS


def _format(one: Input, columns: Sequence[Column], where: str) -> Callable[[Mapping[str, Any]], bytes]:
    """What makes the bytes of a row."""
    kind = _format_name(one)
    if kind == "json":
        return lambda row: json.dumps(row, separators=(",", ":")).encode()
    if kind == "csv" and not any(kind_of(column) in ("ARRAY", "MAP", "STRUCT", "VARIANT") for column in columns):
        return lambda row: ",".join(_as_csv(value) for value in row.values()).encode()
    if kind in ("text", "bytes"):
        return lambda row: str(next(iter(row.values()))).encode()
    raise Refused(f"no events are made for format={kind!r} of ({Schema(tuple(columns))})", where=where, fix=_FIX)


def _as_csv(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str) else str(value)


# Events that are given


def _replay(
    one: Input, lines: Sequence[bytes], partitions: int, pace: timedelta
) -> Callable[[random.Random, int], tuple[Event, bool, bool]]:
    rest = iter(enumerate(lines))
    key = _key_columns(one)

    def make(rng: random.Random, number: int) -> tuple[Event, bool, bool]:
        at, line = next(rest)
        raw, value = None, line
        if key:
            row = _row(line, one.streams[0], at)
            raw = key_bytes(key, [row.pop(column.name, None) for column in key])
            value = json.dumps(row, separators=(",", ":")).encode() if _format_name(one) == "json" else line
        stamp = _since_1970(BEGAN + number * pace, 1000)
        return Event(one.label, at % partitions, raw, value, timestamp_ms=stamp), False, False

    return make


def _unsure(graph: LogicalGraph, one: Input, told: Constraints, lines: Mapping[str, Sequence[bytes]]) -> int:
    """How many of the lines that are given are further behind than a step waits, or have no time that can be read."""
    own = next((lines[name] for name in one.streams if name in lines), None)
    if own is None or told.lateness is None:
        return 0
    times = [node.step.time.column for node in graph.nodes if isinstance(node.step, Timed)]
    greatest: datetime | None = None
    count = 0
    for line in own:
        at = _time_of(line, times)
        count += at is None or (greatest is not None and at < greatest - told.lateness)
        greatest = at if greatest is None else max(greatest, at or greatest)
    return count


def _time_of(line: bytes, columns: Sequence[str]) -> datetime | None:
    try:
        row = json.loads(line)
        text = next(str(row[name]) for name in columns if name in row)
        at = datetime.fromisoformat(text)
    except (ValueError, TypeError, StopIteration):
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _row(line: bytes, name: str, at: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise Refused(
            f"line {at + 1} of what is given for {name!r} is no JSON object",
            where=f"stream {name!r}",
            fix="give a line for each event, with its columns and those of its key",
        )
    return row


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise Refused(
            f"{path} cannot be read: {error.strerror}", where="workload", fix="name a file of lines"
        ) from None


def _refuse_unknown(lines: Mapping[str, Sequence[bytes]], moved: Redirected) -> None:
    known = [*(stream for one in moved.inputs for stream in one.streams), *(one.name for one in moved.tables)]
    unknown = sorted(set(lines) - set(known))
    if unknown:
        raise Refused(
            f"events are given for {', '.join(unknown)}, which the job does not read",
            where="workload",
            fix=f"give them for {', '.join(known)}",
        )


# Tables


def _table_rows(
    graph: LogicalGraph, one: TablePlace, shape: Shape, lines: Mapping[str, Sequence[bytes]]
) -> tuple[Mapping[str, Any], ...]:
    """A row for most of the keys that events may have; what is missing is missed by an inner join."""
    if one.name in lines:
        return tuple(_row(line, one.name, at) for at, line in enumerate(lines[one.name]))
    where = f"table {one.name!r}"
    columns = one.rows.columns(where).columns
    on = {
        name.lower()
        for node in graph.nodes
        if isinstance(node.step, TableJoin) and node.inputs[1] == one.name
        for name in node.step.on
    }
    makers = {column.name: maker(column, where, "give its rows line by line") for column in columns}
    rng = random.Random(f"{shape.seed} {one.name}")
    return tuple(
        {
            column.name: from_domain(column, number)
            if column.name.lower() in on
            else makers[column.name](rng, number, BEGAN)
            for column in columns
        }
        for number in range(_words(graph, shape) * shape.partitions)
        if number % _MISSING != _MISSING - 1
    )


def _columns(one: Input) -> tuple[Column, ...]:
    return (*_key_columns(one), *_value_columns(one))


def _value_columns(one: Input) -> tuple[Column, ...]:
    """The columns of all streams that read this place; where they read lines, there is one."""
    where = f"source {one.streams[0]!r}"
    kind = _format_name(one)
    schemas = [parse_ddl(each.value, where) for each in one.encodings if each.format == kind]
    found = {column.name.lower(): column for schema in schemas for column in schema.columns}
    return tuple(found.values()) if kind == "json" else schemas[0].columns


def _key_columns(one: Input) -> tuple[Column, ...]:
    keys = [each.key for each in one.encodings if each.key is not None]
    return parse_ddl(keys[0], f"source {one.streams[0]!r}").columns if keys else ()


def _format_name(one: Input) -> str:
    formats = [each.format for each in one.encodings]
    return "json" if "json" in formats else formats[0]
