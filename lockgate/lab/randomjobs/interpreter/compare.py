"""Compare what a reader of the outputs sees in the end with the answer, under the guarantee of each output.

    guarantee                 rows without state before them           rows behind state
    end-to-end exactly-once   the same rows, each as often             the same
    exactly-once (state)      all of them, some may stand twice        the same: the state is right
    at-least-once             all of them, some may stand twice        all events and groups; counts are not too low
    at-most-once              none that is not in the answer           no other events and groups; counts not too high

A table with a key shows one row for each key. End-to-end exactly-once it is the last one, else any of the key.

A difference is a true violation. What cannot be judged is a difference with `is_unknown`; those are counted separately.
Values that a job does not determine may be any, but the same for all rows that were made from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from lockgate.dataflow.deletes import DELETED
from lockgate.guarantees import Guarantee
from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.interpreter.answer import Answer, OutputAnswer
from lockgate.lab.randomjobs.interpreter.deadletters import compare_letters
from lockgate.lab.randomjobs.interpreter.fitting import Need, Pattern, fit, fits
from lockgate.lab.randomjobs.interpreter.rows import Effect, Flow, Row
from lockgate.lab.randomjobs.interpreter.symbols import Atom, applied, is_symbolic
from lockgate.lab.randomjobs.spec import START, Sink

Seen = dict[str, Any]

LETTERS = "dead-letters"
"""What the output of dead letters is called (docs/DEAD_LETTERS.md)."""


@dataclass(frozen=True)
class Difference:
    """One thing that an output shows and must not, or must show and does not."""

    output: str
    what: str
    is_unknown: bool = False

    def __str__(self) -> str:
        return f"{self.output}: {'unknown: ' if self.is_unknown else ''}{self.what}"


def compare(
    answer: Answer,
    rows_by_output: Mapping[str, Sequence[Mapping[str, Any]]],
    guarantee: Guarantee | Mapping[str, Guarantee],
) -> list[Difference]:
    """What the outputs show beside the answer; `guarantee` is that of all outputs, or of each by its name.

    Args:
        rows_by_output: what a reader sees when the run is over; of a table with a key, one row for each key.
    """
    found: list[Difference] = []
    groups: dict[Need, dict[str, tuple[Flow, list[Seen]]]] = {need: {} for need in Need}
    for name, one in answer.outputs.items():
        flow = None if one.flow is None else _with_marks(one.output.sink, one.flow)
        if flow is None or name not in rows_by_output:
            found.append(Difference(name, one.unknown or "nothing was observed", is_unknown=True))
            continue
        seen = [_seen(row, flow.columns) for row in rows_by_output[name]]
        strange = [row for row in seen if row.keys() != {*flow.columns}]
        if strange:
            found.append(Difference(name, f"a row lacks columns of {flow.columns}: {strange[0]}"))
            continue
        level = guarantee if isinstance(guarantee, Guarantee) else guarantee[name]
        if _is_keyed(one.output.sink) and not _is_like_a_bag(one.output.sink, flow, level):
            found += _compare_table(one, flow, seen, level)
        elif level is Guarantee.END_TO_END_EXACTLY_ONCE:
            groups[Need.ALL_AND_NO_OTHER][name] = (flow, seen)
        elif level is Guarantee.EXACTLY_ONCE or (level is Guarantee.AT_LEAST_ONCE and not flow.is_stateful):
            groups[Need.ALL][name] = (flow, seen)
        elif level is Guarantee.AT_MOST_ONCE and not flow.is_stateful:
            groups[Need.NO_OTHER][name] = (flow, seen)
        elif level is Guarantee.AT_LEAST_ONCE:
            found += _compare_repeated(name, flow, _possible(one), seen)
        else:
            found += _compare_lost(name, _possible(one), seen)
    for need, outputs in groups.items():
        found += _compare_rows(outputs, need)
    if LETTERS in rows_by_output:
        level = guarantee if isinstance(guarantee, Guarantee) else guarantee[LETTERS]
        found += [Difference(LETTERS, *what) for what in compare_letters(answer, rows_by_output[LETTERS], level)]
    return found


def _with_marks(sink: Sink, flow: Flow) -> Flow:
    """The rows of a topic with what they do: a row that deletes its key is a record without a value."""
    if sink.system != "kafka" or sink.deleted is None:
        return flow
    entry, columns = catalogue.entry(sink.deleted.entry), sink.deleted.columns

    def mark(row: Row) -> Any:
        if not entry.is_deterministic:
            return Atom("deleted", (True, False))
        return applied(lambda *values: entry.of(*values) is True, tuple(row.values[name] for name in columns))

    is_event = entry.is_deterministic and all(flow.effects[name] is Effect.EVENT for name in columns)
    rows = tuple(replace(row, values={**row.values, DELETED: mark(row)}) for row in flow.rows)
    return replace(flow, rows=rows, effects={**flow.effects, DELETED: Effect.EVENT if is_event else Effect.OTHER})


def _possible(one: OutputAnswer) -> Flow | None:
    return None if one.possible is None else _with_marks(one.output.sink, one.possible)


# Rows as they are


def _compare_rows(outputs: Mapping[str, tuple[Flow, list[Seen]]], need: Need) -> list[Difference]:
    """Plain rows one by one; then those with values that the job does not determine, together over all outputs."""
    found: list[Difference] = []
    patterns: list[Pattern] = []
    others: list[tuple[str, Seen]] = []
    plain: dict[str, set[Any]] = {}
    for name, (flow, seen) in outputs.items():
        fixed = Counter(frozen(row.values) for row in flow.rows if _is_plain(row))
        observed = Counter(frozen(row) for row in seen)
        plain[name] = {*fixed}
        patterns += [Pattern(name, row) for row in flow.rows if not _is_plain(row)]
        if need is not Need.NO_OTHER:
            found += [
                Difference(name, f"{_times(count)} missing: {_shown(row)}") for row, count in (fixed - observed).items()
            ]
        left = observed - fixed
        by_form = {frozen(row): row for row in seen}
        others += [(name, by_form[form]) for form, count in left.items() for _ in range(count)]
    for output, row, what in fit(patterns, others, need, is_repeat=lambda name, row: frozen(row) in plain[name]):
        found.append(
            Difference(output, what if row is None else f"{what}: {row}", is_unknown=what.startswith("too many"))
        )
    return found


def _is_plain(row: Row) -> bool:
    return not row.guards and not is_symbolic(row.values)


# Tables with a key


def _is_keyed(sink: Sink) -> bool:
    if sink.system == "monitor":
        return not sink.is_counter
    return sink.system in ("postgres", "sqlite") and bool(sink.key)


def _is_like_a_bag(sink: Sink, flow: Flow, level: Guarantee) -> bool:
    """Has every row a key of its own, and is none deleted?"""
    if sink.deleted is not None or (
        level is not Guarantee.END_TO_END_EXACTLY_ONCE and not all(map(_is_plain, flow.rows))
    ):
        return False
    keys = [tuple(row.values[name] for name in sink.key) for row in flow.rows]
    return not is_symbolic(keys) and len({*keys}) == len(keys) and not any(None in key for key in keys)


def _compare_table(one: OutputAnswer, flow: Flow, seen: list[Seen], level: Guarantee) -> list[Difference]:
    """One row for each key: the last one of the key, if the guarantee says so and the order is known."""
    name, sink = one.output.name, one.output.sink
    if sink.deleted is not None and (
        not catalogue.entry(sink.deleted.entry).is_deterministic
        or any(is_symbolic([row.values[column] for column in sink.deleted.columns]) for row in flow.rows)
    ):
        return [Difference(name, "random values say which rows are deleted", is_unknown=True)]
    if any(row.guards or is_symbolic([row.values[column] for column in sink.key]) for row in flow.rows):
        return [Difference(name, "random values say which keys there are", is_unknown=True)]
    if sink.system != "monitor" and any(row.values[column] is None for row in flow.rows for column in sink.key):
        return [Difference(name, "a key is null", is_unknown=True)]
    if flow.is_stateful and level in (Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE):
        return [
            Difference(name, "state may have counted otherwise, and the table shows one row of a key", is_unknown=True)
        ]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in flow.rows:
        groups.setdefault(tuple(row.values[column] for column in sink.key), []).append(row)
    shown: dict[tuple[Any, ...], list[Seen]] = {}
    for given in seen:
        shown.setdefault(tuple(given[column] for column in sink.key), []).append(given)
    found = [Difference(name, f"no such key: {rows[0]}") for key, rows in shown.items() if key not in groups]
    found += [Difference(name, f"two rows of one key: {rows}") for rows in shown.values() if len(rows) > 1]
    is_exact = level is Guarantee.END_TO_END_EXACTLY_ONCE
    for key, rows in groups.items():
        if sink.latest is not None and any(
            row.values[sink.latest] is None or is_symbolic(row.values[sink.latest]) for row in rows
        ):
            found.append(Difference(name, "no order decides", is_unknown=True))
            continue
        last = _last(rows, sink) if is_exact else rows
        if not last:
            found.append(Difference(name, "nothing says which row of a key comes last", is_unknown=True))
            continue
        if key not in shown:
            if level is not Guarantee.AT_MOST_ONCE and not any(_is_deleted(row, sink) for row in last):
                found.append(Difference(name, f"missing: {_shown(frozen(last[-1].values))}"))
        elif not any(fits(row.values, shown[key][0]) and not _is_deleted(row, sink) for row in last):
            found.append(Difference(name, f"the row of its key should be {dict(last[-1].values)}: {shown[key][0]}"))
    return found


def _last(rows: list[Row], sink: Sink) -> list[Row]:
    """The rows that may be the last of their key; none if their order is not known."""
    if sink.latest is not None:
        greatest = max(row.values[sink.latest] for row in rows)
        return [row for row in rows if row.values[sink.latest] == greatest]
    if len(rows) == 1:
        return rows
    epochs = [row.out for row in rows]
    known = [epoch for epoch in epochs if epoch is not None]
    if len(known) < len(epochs):
        return []
    # Inside an epoch, rows of one key may come from several tasks.
    return [row for row, epoch in zip(rows, epochs, strict=True) if epoch == max(known)]


def _is_deleted(row: Row, sink: Sink) -> bool:
    if sink.deleted is None:
        return False
    return catalogue.entry(sink.deleted.entry).of(*(row.values[name] for name in sink.deleted.columns)) is True


# Behind state


def _compare_repeated(name: str, flow: Flow, possible: Flow | None, seen: list[Seen]) -> list[Difference]:
    """At least once: what names an event or a group is there, and what only grows has grown enough."""
    if flow.is_loose:
        return [Difference(name, "rows depend on what the state has counted", is_unknown=True)]
    whole = (flow, *([] if possible is None else [possible]))
    own = _own_columns(whole, (Effect.EVENT, Effect.SPAN))
    wanted = Counter(_form(row.values, own) for row in flow.rows if not row.guards)
    observed = Counter(_form(row, own) for row in seen)
    if flow.is_grouped:  # a group may have another result with more events
        wanted = Counter({*wanted})
    found = [
        Difference(name, f"{_times(count)} missing: {_shown(form)}") for form, count in (wanted - observed).items()
    ]
    if possible is not None and Effect.SPAN not in flow.effects.values():
        known = {_form(row.values, own) for one in whole for row in one.rows}
        found += [Difference(name, f"no such event or group: {row}") for row in seen if _form(row, own) not in known]
    for column, effect in flow.effects.items():
        if effect in (Effect.COUNT, Effect.GROWS) and not found:
            most = _greatest(seen, own, column)
            found += [
                Difference(
                    name,
                    f"{column} has to be at least that of {dict(row.values)}",
                )
                for row in flow.rows
                if not row.guards and _is_below(most[_form(row.values, own)], row.values[column])
            ]
    return found


def _compare_lost(name: str, possible: Flow | None, seen: list[Seen]) -> list[Difference]:
    """At most once: nothing that is not in the input, and no more of it than there is."""
    if possible is None or possible.is_loose or possible.is_loose_if_lost:
        return [Difference(name, "rows depend on what the state has counted", is_unknown=True)]
    own = _own_columns((possible,), (Effect.EVENT,))
    if Effect.SPAN in possible.effects.values():
        return [Difference(name, "sessions depend on what was lost", is_unknown=True)]
    known = Counter(_form(row.values, own) for row in possible.rows)
    observed = Counter(_form(row, own) for row in seen)
    if not possible.is_grouped:
        return [
            Difference(name, f"{_times(count)} too often: {_shown(form)}") for form, count in (observed - known).items()
        ]
    found = [Difference(name, f"no such group: {_shown(form)}") for form in observed if form not in known]
    for column, effect in possible.effects.items():
        if effect is Effect.COUNT and not found:
            limits = _sums(((row.values for row in possible.rows)), own, column)
            found += [
                Difference(name, f"{column} adds up to {total}, of {limits[form]}: {_shown(form)}")
                for form, total in _sums(seen, own, column).items()
                if total > limits[form]
            ]
    return found


def _own_columns(flows: Sequence[Flow], effects: tuple[Effect, ...]) -> tuple[str, ...]:
    """The columns that name an event or a group, and hold plain values."""
    return tuple(
        name
        for name in flows[0].columns
        if all(flow.effects[name] in effects for flow in flows)
        and not any(is_symbolic(row.values[name]) for flow in flows for row in flow.rows)
    )


def _greatest(seen: Iterable[Seen], own: tuple[str, ...], column: str) -> dict[Any, Any]:
    most: dict[Any, Any] = {}
    for row in seen:
        form = _form(row, own)
        if form not in most or _is_below(most[form], row[column]):
            most[form] = row[column]
    return most


def _is_below(one: Any, other: Any) -> bool:
    if other is None or is_symbolic(other):
        return False
    return one is None or bool(one < other)


def _sums(rows: Iterable[Mapping[str, Any]], own: tuple[str, ...], column: str) -> dict[Any, int]:
    sums: dict[Any, int] = {}
    for row in rows:
        sums[_form(row, own)] = sums.get(_form(row, own), 0) + row[column]
    return sums


# Forms


def frozen(value: Any) -> Any:
    """A value that can be counted."""
    if isinstance(value, Mapping):
        return tuple((name, frozen(value[name])) for name in sorted(value))
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def _form(row: Mapping[str, Any], own: tuple[str, ...]) -> Any:
    return frozen({name: row[name] for name in own})


def _seen(row: Mapping[str, Any], columns: tuple[str, ...]) -> Seen:
    return {name: _plain(row[name]) for name in columns if name in row}


def _plain(value: Any) -> Any:
    """A value as a spec has it: times are seconds since `START`."""
    if isinstance(value, datetime):
        since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - START
        return since.total_seconds() if since.microseconds else since // (since.resolution * 1_000_000)
    if isinstance(value, float):
        return catalogue.rounded(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _shown(form: Any) -> str:
    return str(dict(form))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
