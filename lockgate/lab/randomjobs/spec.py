"""Spec: one random job and its input, complete, frozen, and without Spark.

Everything is a frozen dataclass of text, numbers, booleans and tuples. `to_json` and `from_json` are each other's
inverse. The docstring of a node says what the node means, with the page of docs/ that has the rules.

**References.** A step names its input by text: `"x"` is the source or the result of the step `x`; `"x.part"` is part
`part` of the `Split` called `x`; `"x.late"` and `"x.timed_out"` are side outputs. A part is never called `late` or
`timed_out`. Steps stand in `Spec.steps` behind their inputs. A step that leads to no output is not part of the job.

**Time.** A TIMESTAMP is a whole number of seconds since `START`, also below zero; `moment` gives the datetime.

**Columns.** Types are BIGINT, STRING, BOOLEAN, TIMESTAMP and, behind `Detect`, STRUCT. Any value may be null (None).
`columns.columns_of` says which columns a reference has.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def moment(seconds: int) -> datetime:
    """The time that a TIMESTAMP of a spec stands for."""
    return START + timedelta(seconds=seconds)


# What comes in


@dataclass(frozen=True)
class Column:
    """A column of a source."""

    name: str
    type: str


@dataclass(frozen=True)
class Event:
    """One record of a source.

    It is read in epoch `epoch`, counted from 0 over the complete job. The source position of an event is
    (name of the source, partition, number of the events of that source and partition before it in `Source.events`).
    Two events may have equal values, `id` included: a source may hold an event twice, and then both count.
    With `text` it is a record that does not parse, and has no values.
    """

    epoch: int
    partition: int
    values: tuple[Any, ...]
    text: str | None = None


@dataclass(frozen=True)
class Change:
    """A source that is another one after it was read. The job has to stop, and to name it (docs/GUARANTEES.md).

    It happens before epoch `epoch`. `how` is append or overwrite for the first file of a source that is a directory,
    and recreate or move for a topic: it is deleted and created again, or `servers=` points at another cluster when the
    job starts again.
    """

    epoch: int
    how: str


@dataclass(frozen=True)
class Source:
    """A source, and all that it gives. Epochs of `events` never decrease; within an epoch, they are in source order.

    `system` is kafka, file, memory, sensors (replayable), mqtt (acknowledged) or socket (neither). For a run by the
    test harness all systems behave alike: the events of an epoch are fed, in order.
    """

    name: str
    system: str
    columns: tuple[Column, ...]
    events: tuple[Event, ...] = ()
    change: Change | None = None


# What is said of rows and groups: names of the catalogue with the columns that they are about


@dataclass(frozen=True)
class Call:
    """An entry of `catalogue`, by name, applied to columns of the input, in order."""

    entry: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Made:
    """A new column, and what it holds."""

    column: str
    call: Call


# Steps on single rows (docs/GUARANTEES.md; SQL null rules hold: a condition that is null does not hold)


@dataclass(frozen=True)
class Where:
    """`.where(...)`: the rows for which `condition` holds. The entry says whether it is SQL or a Python function.

    A Python function that is not deterministic is declared so.
    """

    name: str
    input: str
    condition: Call


@dataclass(frozen=True)
class Select:
    """`.select(*keep, **made)` in SQL: the columns of `keep`, then those of `made`."""

    name: str
    input: str
    keep: tuple[str, ...]
    made: tuple[Made, ...] = ()


@dataclass(frozen=True)
class Map:
    """`.map(fn, schema)` in Python: one row for each row, with the columns of `keep`, then those of `made`."""

    name: str
    input: str
    keep: tuple[str, ...]
    made: tuple[Made, ...] = ()
    deterministic: bool = True


@dataclass(frozen=True)
class FlatMap:
    """`.flat_map(fn, schema)` in Python: `made.call` gives a list; one row for each of its items, in order.

    A row has the columns of `keep`, then `made.column` with the item.
    """

    name: str
    input: str
    keep: tuple[str, ...]
    made: Made
    deterministic: bool = True


@dataclass(frozen=True)
class Transform:
    """`.transform(fn)`: a function of the DataFrame that does what `Select(keep, made)` does.

    A `.select` that names the columns follows, so that every step may stand behind it. The planner cannot look inside.
    `deterministic` is what the user declares, true or not.
    """

    name: str
    input: str
    keep: tuple[str, ...]
    made: tuple[Made, ...] = ()
    deterministic: bool = True


@dataclass(frozen=True)
class FanOut:
    """`.fan_out(deadline=, schema=, **functions)` (docs/FAN_OUT.md).

    The columns of the input, then those of `made`, then `is_partial`, `missing`, `why_missing`. The functions are quick
    and the deadline is long, so a result is never partial in a run; `is_partial` is false and the two lists are empty.
    Arrays are not used by any later step.
    """

    name: str
    input: str
    made: tuple[Made, ...]


# Several streams


@dataclass(frozen=True)
class Part:
    """A part of a split, and its condition, which is SQL."""

    name: str
    condition: Call


@dataclass(frozen=True)
class Split:
    """`.split(**parts)`: a row goes to every part whose condition holds; all conditions are asked once per row."""

    name: str
    input: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Merge:
    """`.merge(...)`: all rows of all inputs, which have the same columns in the same order."""

    name: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Join:
    """`.join(other, on=, within=, how=)` of two streams with event time (docs/JOINS.md).

    Columns: `on`, then the others of `left`, then the others of `right`.
    """

    name: str
    left: str
    right: str
    on: tuple[str, ...]
    within_seconds: int
    how: str = "inner"  # inner, left, right, full


@dataclass(frozen=True)
class TableJoin:
    """`.join(table(...), on="k", how=)` with the table `catalogue.TABLE` (docs/JOINS.md).

    The columns of the input, then `column`: one row for each row of the table that agrees. how: inner, left.
    """

    name: str
    input: str
    column: str
    how: str = "inner"


# Time (docs/TIME.md)


@dataclass(frozen=True)
class EventTime:
    """`.event_time(column, lateness=, late=, allowed=)`; columns stay. `late`: DROP, LOG, TO_SIDE_OUTPUT, CORRECT.

    The watermark of the job is the least of all its event times. It moves at the end of an epoch and acts in the next.
    """

    name: str
    input: str
    column: str
    lateness_seconds: int
    late: str = "DROP"
    allowed_seconds: int | None = None
    idle_seconds: int | None = None  # the clock of a run stands still until all was read, so silence moves nothing
    max_ahead_ms: int | None = None  # an event that is further ahead of the clock, which stands at `START`, is no good


@dataclass(frozen=True)
class ProcessingTime:
    """`.processing_time()`: the time of an event is that at which its epoch was planned; columns stay."""

    name: str
    input: str


# Steps with state (docs/STATE.md, WINDOWS.md, PATTERNS.md). No `keys`: one state for all events.


@dataclass(frozen=True)
class Window:
    """A window (docs/WINDOWS.md). `kind` says which fields count:

    tumbling(size_seconds), sliding(size_seconds, every_seconds), session(gap: size_seconds), tumbling_count(count),
    sliding_count(count, every_count), until(condition).
    """

    kind: str
    size_seconds: int = 0
    every_seconds: int = 0
    count: int = 0
    every_count: int = 0
    condition: Call | None = None
    trigger: str | None = None  # the arguments of `.trigger(...)`


@dataclass(frozen=True)
class WindowAggregate:
    """`.key_by(*keys).window(w).aggregate(**made)`: `keys`, `window_start`, `window_end`, then `made`.

    Behind `late=CORRECT` a window by time has two more columns, in front of `made`: `revision` BIGINT, `is_final`.
    `.late` has the columns of the input, then `window_start`, `window_end` of the window that was missed.
    """

    name: str
    input: str
    keys: tuple[str, ...]
    window: Window
    made: tuple[Made, ...]


@dataclass(frozen=True)
class WindowApply:
    """`.key_by(*keys).window(w).apply(fn, schema)`: as `WindowAggregate`, with one column, made by a Python function.

    The entry of `made.call` is one of `catalogue.OVER_ROWS`; it gives one value, and each window has one row.
    """

    name: str
    input: str
    keys: tuple[str, ...]
    window: Window
    made: Made
    deterministic: bool = True


@dataclass(frozen=True)
class Rolling:
    """`.key_by(*keys).rolling(**made)`: the columns of the input, then the aggregates as of this event.

    It has at least one key.
    """

    name: str
    input: str
    keys: tuple[str, ...]
    made: tuple[Made, ...]


@dataclass(frozen=True)
class Process:
    """`.key_by(*keys).process(fn)`: a function with state of `catalogue.FUNCTIONS`, on column(s) of the input.

    Columns: `keys`, then those of the function, as the catalogue says.
    """

    name: str
    input: str
    keys: tuple[str, ...]
    function: Call
    deterministic: bool = True


@dataclass(frozen=True)
class Detect:
    """`.key_by(*keys).detect(pattern)` (docs/PATTERNS.md): one of `catalogue.PATTERNS`, on column(s) of the input.

    Columns: `keys`, `match_start`, `match_end`, then one STRUCT for each stage that is not negated. `.timed_out`:
    `keys`, `match_start`, `match_end`, `reached`, then the same structs. `.late` has the columns of the input.
    """

    name: str
    input: str
    keys: tuple[str, ...]
    pattern: Call


Step = (
    Where
    | Select
    | Map
    | FlatMap
    | Transform
    | FanOut
    | Split
    | Merge
    | Join
    | TableJoin
    | EventTime
    | ProcessingTime
    | WindowAggregate
    | WindowApply
    | Rolling
    | Process
    | Detect
)


# What goes out


@dataclass(frozen=True)
class Sink:
    """A sink (docs/GUARANTEES.md). `system`: kafka, postgres, sqlite, file, monitor, console, memory.

    `key`: an upsert for postgres and sqlite; the key of the record for kafka. `deleted`: rows that remove their key
    (kafka, postgres, sqlite; SQL). monitor: a gauge (`key` are its labels, `latest` decides) of the column `value`.
    """

    system: str
    key: tuple[str, ...] = ()
    deleted: Call | None = None
    value: str | None = None
    latest: str | None = None
    is_counter: bool = False
    route: str | None = None  # kafka: the column that names the topic
    cluster: int = 1  # kafka: all sources are in the first one


@dataclass(frozen=True)
class Output:
    """`.to(name, sink, guarantee=)`; `guarantee` is lower than the job's, for this output only."""

    name: str
    input: str
    sink: Sink
    guarantee: str | None = None


@dataclass(frozen=True)
class Spec:
    """One job and its input. `guarantee` is a name of `Guarantee`, `mode` one of `Mode`."""

    name: str
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    guarantee: str
    mode: str = "MICRO_BATCH"
    dead_letters: str | None = None  # the system of their sink: kafka, file or memory
    letters_cluster: int = 1  # of a topic of dead letters

    def step(self, name: str) -> Source | Step:
        """The source or step of this name, or the one that a reference is about."""
        own = name.split(".")[0]
        return next(one for one in (*self.sources, *self.steps) if one.name == own)


def inputs_of(step: Source | Step) -> tuple[str, ...]:
    """The references that a step reads, in order."""
    if isinstance(step, Source):
        return ()
    if isinstance(step, Merge):
        return step.inputs
    if isinstance(step, Join):
        return (step.left, step.right)
    return (step.input,)


def used(spec: Spec) -> tuple[Step, ...]:
    """The steps that lead to an output, in the order of the spec."""
    wanted = {output.input.split(".")[0] for output in spec.outputs}
    for step in reversed(spec.steps):
        if step.name in wanted:
            wanted |= {reference.split(".")[0] for reference in inputs_of(step)}
    return tuple(step for step in spec.steps if step.name in wanted)


def read(spec: Spec) -> tuple[Source, ...]:
    """The sources that are read, in the order of the spec."""
    names = {one.split(".")[0] for step in used(spec) for one in inputs_of(step)}
    names |= {output.input.split(".")[0] for output in spec.outputs}
    return tuple(source for source in spec.sources if source.name in names)


CHANGES = {"file": ("append", "overwrite"), "kafka": ("recreate", "move")}
"""How a source may change, by its system."""


def changes(spec: Spec) -> dict[str, Change]:
    """The sources that change after they were read; a job without a checkpoint does not know what it read."""
    return {
        source.name: source.change
        for source in read(spec)
        if source.change is not None
        and source.change.how in CHANGES.get(source.system, ())
        and spec.guarantee != "AT_MOST_ONCE"
        and any(event.epoch < source.change.epoch for event in source.events)
    }


# As JSON

_KINDS: dict[str, Any] = {name: one for name, one in globals().items() if dataclasses.is_dataclass(one)}


def to_json(spec: Spec) -> str:
    """The spec as text."""
    return json.dumps(_encoded(spec), indent=1)


def from_json(text: str) -> Spec:
    """The spec that `to_json` wrote."""
    decoded = _decoded(json.loads(text))
    assert isinstance(decoded, Spec)
    return decoded


def _encoded(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = {field.name: _encoded(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    return [_encoded(item) for item in value] if isinstance(value, tuple) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return _KINDS[value["is"]](**{name: _decoded(item) for name, item in value.items() if name != "is"})
    return tuple(_decoded(item) for item in value) if isinstance(value, list) else value
