"""Was every row delivered once? Decided from what readers saw, and from nothing that the job says of itself.

    lost         expected, and not in the last scan
    duplicated   in the last scan more often than expected
    aborted      seen by the reader that read while processes died, and not in the last scan: a row of a transaction
                 that was given up, or one that a broker forgot
    disordered   a key's rows in another order than their events had

A reader that did not keep up proves nothing: then the verdict is unknown, and unknown is not `holds`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class Row(NamedTuple):
    """A record as a reader found it."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: str

    @property
    def place(self) -> Place:
        return self.topic, self.partition, self.offset

    @property
    def content(self) -> tuple[str, str | None, str]:
        return self.topic, self.key, self.value


Content = tuple[str, str | None, str]
"""Topic, key, value."""


@dataclass(frozen=True)
class Verdict:
    """What is wrong, as counterexamples; nothing is wrong where all are empty."""

    rows: int
    lost: Sequence[Content] = ()
    duplicated: Sequence[Content] = ()
    aborted: Sequence[Row] = ()
    disordered: Sequence[tuple[Row, Row]] = ()
    unknown: Sequence[str] = ()
    aborted_in_log: int = 0

    @property
    def holds(self) -> bool:
        return not (self.lost or self.duplicated or self.aborted or self.disordered or self.unknown)

    def __str__(self) -> str:
        told = [f"{self.rows} rows, {self.aborted_in_log} of aborted transactions in the log"]
        for name in ("lost", "duplicated", "aborted", "disordered", "unknown"):
            found = getattr(self, name)
            told += [f"{len(found)} {name}, e.g. {list(found[:3])}"] if found else []
        return "; ".join(told)


def judge(
    expected: Iterable[Content],
    *,
    seen: Iterable[Row],
    scanned: Iterable[Row],
    in_log: Iterable[Row] = (),
    position: Callable[[Row], Any] | None = None,
) -> Verdict:
    """Compare what had to come out with what a reader saw meanwhile (`seen`) and what is there now (`scanned`).

    `in_log` is all that was ever written, committed or not; `position` is the place of a row's event among those of
    its key, where there is one.
    """
    wanted, seen, scanned = Counter(expected), list(seen), list(scanned)
    found = Counter(row.content for row in scanned)
    there = {row.place: row for row in scanned}
    aborted = [row for row in seen if there.get(row.place) != row]
    missed = len(there.keys() - {row.place for row in seen})
    unknown = [f"the reader that read meanwhile missed {missed} rows"] if missed else []
    twice = len(seen) - len({row.place for row in seen})
    if twice:
        unknown.append(f"the reader that read meanwhile was given {twice} offsets twice")
    return Verdict(
        rows=len(scanned),
        lost=sorted((wanted - found).elements(), key=repr),
        duplicated=sorted((found - wanted).elements(), key=repr),
        aborted=aborted,
        disordered=_disordered(scanned, position) if position is not None else (),
        unknown=unknown,
        aborted_in_log=len({row.place for row in in_log} - there.keys()),
    )


def _disordered(scanned: Iterable[Row], position: Callable[[Row], Any]) -> list[tuple[Row, Row]]:
    last: dict[tuple[str, str | None], Row] = {}
    wrong = []
    for row in sorted(scanned, key=lambda row: row.place):
        before = last.get((row.topic, row.key))
        if before is not None and (before.partition != row.partition or position(before) > position(row)):
            wrong.append((before, row))
        last[row.topic, row.key] = row
    return wrong
