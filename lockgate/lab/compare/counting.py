"""Compare delivered rows with the answer, as multisets of (topic, key, value).

    lost          a row of the answer that is missing
    duplicated    a copy of a row of the answer beyond those that it has
    other         a row that is not in the answer, for example a count that restarted from zero

The answer is what an undisturbed run wrote. If undisturbed runs differ (a function that is not deterministic, results
that depend on where epochs end), rows cannot be compared, and only their number counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

Row = tuple[str, bytes | None, bytes | None]
"""The user's topic, key and value."""


@dataclass(frozen=True)
class Tally:
    """How many rows were expected, delivered, lost, duplicated and other."""

    expected_count: int
    delivered_count: int
    lost_count: int
    duplicated_count: int
    other_count: int


def count_rows(answer: Iterable[Row], delivered: Iterable[Row], *, by_number: bool = False) -> Tally:
    """Compare two deliveries; `by_number` if rows cannot be compared."""
    wanted, found = Counter(answer), Counter(delivered)
    expected, got = wanted.total(), found.total()
    if by_number:
        return Tally(
            expected, got, lost_count=max(0, expected - got), duplicated_count=max(0, got - expected), other_count=0
        )
    beyond = found - wanted
    other = sum(count for row, count in beyond.items() if row not in wanted)
    return Tally(
        expected_count=expected,
        delivered_count=got,
        lost_count=(wanted - found).total(),
        duplicated_count=beyond.total() - other,
        other_count=other,
    )
