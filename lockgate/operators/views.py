"""What is kept for a key, in words for people.

a function with state      what its own `get_state` says
rolling aggregates         the aggregates as of now
windows                    each that is open: its span, and its aggregates or its rows
patterns                   events that wait for the watermark, and partial matches
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lockgate.operators.contract import Clock, Key, Operator
from lockgate.operators.countwindows import CountWindows, UntilWindows
from lockgate.operators.evaluation import Evaluation, Whole
from lockgate.operators.moments import as_datetime
from lockgate.operators.patternmatching import Detect
from lockgate.operators.process import ProcessOperator
from lockgate.operators.rolling import RollingOperator
from lockgate.operators.windows import TimeWindows


def show_state(operator: Operator, key: Key, state: Any, clock: Clock) -> dict[str, Any]:
    """What the state of a key shows, as of this time."""
    if isinstance(operator, ProcessOperator):
        return operator.get_state(key, state, clock)
    if isinstance(operator, RollingOperator):
        pairs = zip(operator.aggregates, state, strict=True)
        return {rolled.name: rolled.fold.result(kept) for rolled, kept in pairs}
    if isinstance(operator, TimeWindows):
        return {"windows": _open_windows(operator.evaluation, key, *state)}
    if isinstance(operator, CountWindows):
        since, slots = state
        return {"events": since, **_span(operator.evaluation, key, slots)}
    if isinstance(operator, UntilWindows):
        return _span(operator.evaluation, key, [state])
    if isinstance(operator, Detect):
        return _search(operator, *state)
    return {"state": state}


def _open_windows(
    evaluation: Evaluation, key: Key, slices: Iterable[Any], windows: Iterable[Any]
) -> list[dict[str, Any]]:
    shown = []
    held = dict(slices)
    for start, (end, told, *_) in sorted(dict(windows).items()):
        parts = [held[at] for at in sorted(at for at in held if start <= at < end)]
        span = {"window_start": as_datetime(start), "window_end": as_datetime(end), "told": told}
        shown.append({**span, **_content(evaluation, key, evaluation.merge(parts))})
    return shown


def _span(evaluation: Evaluation, key: Key, slots: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """What is kept of several consecutive events."""
    start, end = min(slot[1] for slot in slots), max(slot[2] for slot in slots)
    content = _content(evaluation, key, evaluation.merge([slot[0] for slot in slots]))
    return {"window_start": as_datetime(start), "window_end": as_datetime(end), **content}


def _content(evaluation: Evaluation, key: Key, kept: Any) -> dict[str, Any]:
    if isinstance(evaluation, Whole):
        return {"rows": [list(row) for row in evaluation.rows(kept)]}
    results = list(evaluation.results(key, kept))
    names = [_name_of(column) for column in evaluation.columns]
    return dict(zip(names, results[0], strict=True))


def _name_of(column: str) -> str:
    """The name in a column's DDL."""
    if not column.startswith("`"):
        return column.split()[0]
    return column[1 : column.rindex("`")].replace("``", "`")


def _search(
    operator: Detect, shape: int, number: int, waiting: Sequence[Any], partials: Sequence[Any]
) -> dict[str, Any]:
    return {
        "waiting": [{"at": as_datetime(at), "event": list(values)} for at, _, _, values in waiting],
        "partial_matches": [
            {
                "match_start": as_datetime(began),
                "reached": operator.stages[stage].name,
                "events": [
                    {"stage": operator.stages[one].name, "at": as_datetime(at), "event": list(values)}
                    for one, _, at, values in taken
                ],
            }
            for _, began, stage, _, _, _, taken in partials
        ],
    }
