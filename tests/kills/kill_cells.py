"""What the failure of a task at one of its steps does to the events that it has in hand, and the table of it in the docs.

    lost           an event never came out
    state twice    an event counts twice in the running count of its key
    output twice   an event came out twice

All three are read from what came out: every row shows the count behind it. How often an event was processed is counted
by the job's own function, outside of any guarantee; how often it was delivered, by a reader of committed records.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockgate.guarantees import Guarantee

STEPS = ("receive", "update state", "emit")
COLUMNS = ("guarantee", "killed at", "lost?", "state twice?", "output twice?", "processed", "delivered", "in the state")
QUESTIONS = COLUMNS[2:5]
# The questions to which a guarantee answers no, whatever fails.
PROMISED = {
    Guarantee.AT_MOST_ONCE: {"state twice?", "output twice?"},
    Guarantee.AT_LEAST_ONCE: {"lost?"},
    Guarantee.EXACTLY_ONCE: {"lost?", "state twice?"},
    Guarantee.END_TO_END_EXACTLY_ONCE: {*QUESTIONS},
}

_TABLE = re.compile(r"(<!-- failures: .*? -->\n)(.*?)(<!-- end of failures -->)", re.DOTALL)

Event = dict[str, Any]
"""`id` and `name`; of a row also `count`, how many events of that name there were."""

Line = dict[str, str]
"""A line of the table, by column."""


@dataclass(frozen=True)
class Cohorts:
    """The events around a failure: each part was sent when the one before it was done with."""

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
    def answers(self) -> dict[str, bool]:
        """The answer to each question."""
        is_doubled = self.counted > 1 or self.is_jumping
        return dict(zip(QUESTIONS, (self.delivered[0] > 0, is_doubled, max(self.delivered) > 1), strict=True))

    @property
    def broken(self) -> list[str]:
        """The promises that were not kept."""
        return [asked for asked, is_so in self.answers.items() if is_so and asked in PROMISED[self.guarantee]]

    def line(self) -> Line:
        """The cell as a line of the table."""
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


def read_lines(page: str) -> list[Line]:
    """The lines of the table in a page."""
    found = _TABLE.search(page)
    assert found is not None, "the page has no place for the table of failures"
    told = [[text.strip() for text in line.strip("|\n").split("|")] for line in found[2].splitlines()[2:]]
    return [dict(zip(COLUMNS, texts, strict=True)) for texts in told]


def with_lines(page: str, lines: Iterable[Line]) -> str:
    """The page with these lines in its table, in place of those for the same guarantee and step."""
    kept = {_place(line): line for line in (*read_lines(page), *lines)}
    told = [COLUMNS, ["---"] * len(COLUMNS), *(line.values() for _, line in sorted(kept.items()))]
    table = "".join(f"| {' | '.join(texts)} |\n" for texts in told).replace("| --- ", "|---").replace("--- |", "---|")
    return _TABLE.sub(lambda found: found[1] + table + found[3], page)


def _place(line: Line) -> tuple[int, int]:
    labels = [guarantee.label for guarantee in Guarantee]
    return labels.index(line["guarantee"]), STEPS.index(line["killed at"])


def differences(told: Iterable[Line], seen: Iterable[Line]) -> list[str]:
    """Where the table in the docs and what was observed are not the same."""
    lines = {_place(line): line for line in told}
    return [
        f"{line['guarantee']}, killed at {line['killed at']}: {column} is {line[column]!r}, the table says"
        f" {lines.get(_place(line), {}).get(column)!r}"
        for line in seen
        for column in COLUMNS
        if lines.get(_place(line), {}).get(column) != line[column]
    ]
