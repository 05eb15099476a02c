"""What the failure of a task at one of its steps does to the events in hand, and the table of it in the docs.

    lost           an event never came out
    state twice    an event counts twice in the running count of its key
    output twice   an event came out twice

All three are read from what came out: every row shows the count behind it. How often an event was processed is counted
by the job's own function, outside of any guarantee; how often it was delivered, by a reader of committed records.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kills.kill_matrix import STEPS
from kills.kill_workloads import Event
from lockgate.guarantees import Guarantee

COLUMNS = ("guarantee", "killed at", "lost?", "state twice?", "output twice?", "processed", "delivered", "in the state")
QUESTIONS = COLUMNS[2:5]
# The questions to which a guarantee answers no, whatever fails.
PROMISED = {
    Guarantee.AT_MOST_ONCE: {"state twice?", "output twice?"},
    Guarantee.AT_LEAST_ONCE: {"lost?"},
    Guarantee.EXACTLY_ONCE: {"lost?", "state twice?"},
    Guarantee.END_TO_END_EXACTLY_ONCE: {*QUESTIONS},
}

COMMAND = "LOCKGATE_WRITE_DOCS=1 pytest -m prove tests/kills/test_failures.py"
"""Writes the table again."""

_TABLE = re.compile(r"(<!-- failures: [^>]*-->\n).*?(<!-- end of failures -->)", re.DOTALL)


@dataclass(frozen=True)
class Cohorts:
    """The events around a failure: each part was sent when the one before it was done with.

    An event has `id` and `name`; a row also `count`, how many events of that name there were.
    """

    before: Sequence[Event]
    in_hand: Sequence[Event]
    after: Sequence[Event]


@dataclass(frozen=True)
class Cell:
    """What became of the events in hand."""

    guarantee: Guarantee
    step: str
    processed: Counter[int]  # so often: so many events
    delivered: Counter[int]
    counted: int  # so often is each of them in the state
    is_state_kept: bool  # is what was before them still in it?
    is_jumping: bool  # did a row show a count that is too high?

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in the table."""
        return self.guarantee, STEPS.index(self.step)

    @property
    def answers(self) -> dict[str, bool]:
        """The answer to each question."""
        is_doubled = self.counted > 1 or self.is_jumping
        return dict(zip(QUESTIONS, (self.delivered[0] > 0, is_doubled, max(self.delivered) > 1), strict=True))

    @property
    def broken(self) -> list[str]:
        """The promises that were not kept."""
        return [asked for asked, is_so in self.answers.items() if is_so and asked in PROMISED[self.guarantee]]

    def line(self) -> dict[str, str]:
        """The cell as a line of the table, by column."""
        told = [self.guarantee.label, self.step]
        for asked, is_so in self.answers.items():
            told.append("**yes**" if is_so else "no" if asked in PROMISED[self.guarantee] else "no (not promised)")
        state = f"{self.counted}x" if self.is_state_kept else f"{self.counted}x, begins empty"
        return dict(zip(COLUMNS, [*told, _shown(self.processed), _shown(self.delivered), state], strict=True))


def _shown(histogram: Mapping[int, int]) -> str:
    return ", ".join(f"{times}x: {events}" for times, events in sorted(histogram.items()))


def judge(
    guarantee: Guarantee, step: str, cohorts: Cohorts, *, rows: Iterable[Event], processed: Iterable[int]
) -> Cell:
    """What was observed; an AssertionError where that is no answer.

    Args:
        rows: everything that came out.
        processed: the ids of events, each time that the job's function had one.
    """
    runs = Counter(processed)
    found: dict[int, list[int]] = {}  # the counts shown by the rows of each event
    for row in rows:
        found.setdefault(row["id"], []).append(row["count"])
    for event in (*cohorts.before, *cohorts.after):
        number = event["id"]
        assert (runs[number], len(found.get(number, []))) == (1, 1), (
            f"event {number}, which no failure touched, was processed {runs[number]} times and came out"
            f" {len(found.get(number, []))} times"
        )
    states = {_state(name, cohorts, found) for name in {event["name"] for event in cohorts.in_hand}}
    assert len(states) == 1, f"keys differ in what became of their state: {states}"
    ((is_state_kept, counted),) = states
    excess = [count - expected for number, expected in _expected(cohorts, found) for count in found.get(number, [])]
    assert min(excess, default=0) >= 0, f"a row shows fewer events than there were: {sorted(found.items())}"
    return Cell(
        guarantee=guarantee,
        step=step,
        processed=Counter(runs[event["id"]] for event in cohorts.in_hand),
        delivered=Counter(len(found.get(event["id"], [])) for event in cohorts.in_hand),
        counted=counted,
        is_state_kept=is_state_kept,
        is_jumping=any(excess),
    )


def _state(name: str, cohorts: Cohorts, found: Mapping[int, Sequence[int]]) -> tuple[bool, int]:
    """Is the count of a key kept, and how often are the events in hand in it? As the first row afterwards shows it."""
    then = _count_before(name, cohorts, found)
    first = min(event["id"] for event in cohorts.after if event["name"] == name)
    now, own = found[first][0] - 1, sum(event["name"] == name for event in cohorts.in_hand)
    meant = [(is_kept, times) for is_kept in (True, False) for times in range(4) if now == then * is_kept + times * own]
    assert len(meant) == 1, f"{then} events of {name}, then {own} in hand, and {now} afterwards: this means {meant}"
    return meant[0]


def _count_before(name: str, cohorts: Cohorts, found: Mapping[int, Sequence[int]]) -> int:
    return found[max(event["id"] for event in cohorts.before if event["name"] == name)][0]


def _expected(cohorts: Cohorts, found: Mapping[int, Sequence[int]]) -> Iterable[tuple[int, int]]:
    """The events in hand, each with the count that its row has to show."""
    counts: dict[str, int] = {}
    for event in cohorts.in_hand:
        name = event["name"]
        counts[name] = counts.get(name, _count_before(name, cohorts, found)) + 1
        yield event["id"], counts[name]


# -- the table in the docs ------------------------------------------------------------------------------------------


def load(file: Path) -> list[Cell]:
    """The cells that were observed last."""
    facts = json.loads(file.read_text(encoding="utf-8"))["cells"] if file.exists() else []
    histograms = ("processed", "delivered")
    return [
        Cell(
            **one
            | {"guarantee": Guarantee[one["guarantee"]]}
            | {name: Counter({int(times): events for times, events in one[name].items()}) for name in histograms}
        )
        for one in facts
    ]


def save(file: Path, cells: Iterable[Cell]) -> None:
    """Keep cells, in place of those for the same guarantee and step."""
    kept = {cell.place: cell for cell in (*load(file), *cells)}
    facts = [vars(cell) | {"guarantee": cell.guarantee.name} for _, cell in sorted(kept.items())]
    file.write_text(json.dumps({"command": COMMAND, "cells": facts}, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def with_table(page: str, cells: Iterable[Cell]) -> str:
    """The page with the table of these cells."""
    assert _TABLE.search(page), "the page has no place for the table of failures"
    lines = [COLUMNS, *(cell.line().values() for cell in cells)]
    head, *rest = [f"| {' | '.join(texts)} |" for texts in lines]
    table = "\n".join([head, "|---" * len(COLUMNS) + "|", *rest])
    return _TABLE.sub(lambda found: f"{found[1]}{table}\n{found[2]}", page)


def differences(stored: Iterable[Cell], seen: Iterable[Cell]) -> list[str]:
    """Where the table and what was observed now are not the same."""
    lines = {cell.place: cell.line() for cell in stored}
    return [
        f"{cell.guarantee.label}, killed at {cell.step}: {column} {text!r}, the table says"
        f" {lines.get(cell.place, {}).get(column)!r}"
        for cell in seen
        for column, text in cell.line().items()
        if lines.get(cell.place, {}).get(column) != text
    ]
