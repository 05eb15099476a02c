"""Fit observed rows to rows with values that a job does not determine.

Rows that share an atom form a cluster. What its guards may be together are the alternatives of a cluster: in each, some
of its rows are there and others are not. Rows are as they should be if every cluster can have one of its alternatives,
with one value for each atom. The search is exact, and gives up when it takes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Any

from lockgate.lab.randomjobs.interpreter.rows import Row
from lockgate.lab.randomjobs.interpreter.symbols import Atom, Bindings, Term, atoms_of, is_symbolic, value_of

_WORLDS_MAX = 20_000
_STEPS_MAX = 50_000


class Need(Enum):
    """What the observed rows have to be."""

    ALL_AND_NO_OTHER = "each row as often as it should be"
    ALL = "each row at least as often"
    NO_OTHER = "each row at most as often"


@dataclass(frozen=True, eq=False)
class Pattern:
    """A row of an output that has symbols or guards."""

    output: str
    row: Row


Observed = tuple[str, Mapping[str, Any]]
Fault = tuple[str, Mapping[str, Any] | None, str]


def fits(pattern: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """May the row be that of the pattern, on its own?"""
    return _bound(pattern, row, {}) is not None


def fit(
    patterns: Sequence[Pattern],
    rows: Sequence[Observed],
    need: Need,
    is_repeat: Callable[[str, Mapping[str, Any]], bool],
) -> Iterator[Fault]:
    """What does not fit; `is_repeat` says that a row beside the patterns is a plain one that stands twice."""
    clusters = _clusters(patterns)
    candidates: list[list[int]] = [[] for _ in clusters]  # numbers of rows
    for number, (output, row) in enumerate(rows):
        homes = [
            at
            for at, cluster in enumerate(clusters)
            if any(one.output == output and fits(one.row.values, row) for one in cluster)
        ]
        for at in homes:
            candidates[at].append(number)
        if not homes and not (need is Need.ALL and is_repeat(output, row)):
            yield output, row, "once too often"
    for together in _components(candidates):
        members = [clusters[at] for at in together]
        numbers = sorted({number for at in together for number in candidates[at]})
        yield from _fit_component(members, [rows[number] for number in numbers], need)


def _clusters(patterns: Sequence[Pattern]) -> list[list[Pattern]]:
    """Patterns that share atoms, together."""
    atoms = [atoms_of(pattern.row.values) | atoms_of(pattern.row.guards) for pattern in patterns]
    owner: dict[Atom, int] = {}
    links: list[list[int]] = []
    for own in atoms:
        links.append([owner.setdefault(atom, len(owner)) for atom in own])
    return [[patterns[number] for number in together] for together in _components(links)]


def _components(links: Sequence[Sequence[int]]) -> list[list[int]]:
    """Numbers of the lists that hold a common element, directly or through others."""
    group = list(range(len(links)))

    def root(number: int) -> int:
        while group[number] != number:
            number = group[number]
        return number

    first: dict[int, int] = {}
    for number, elements in enumerate(links):
        for element in elements:
            group[root(number)] = root(first.setdefault(element, number))
    found: dict[int, list[int]] = {}
    for number in range(len(links)):
        found.setdefault(root(number), []).append(number)
    return list(found.values())


@dataclass(frozen=True)
class _Alternative:
    patterns: tuple[Pattern, ...]
    guards: tuple[tuple[Any, bool], ...]  # and what each has to be


class _TooLong(Exception):
    pass


def _alternatives(cluster: Sequence[Pattern]) -> list[_Alternative]:
    guards = list(dict.fromkeys(guard for pattern in cluster for guard in pattern.row.guards))
    atoms = sorted(frozenset().union(*map(atoms_of, guards)), key=lambda atom: atom.name) if guards else []
    size = 1
    for atom in atoms:
        size *= len(atom.samples)
    if size > _WORLDS_MAX:
        raise _TooLong
    found: dict[tuple[bool, ...], _Alternative] = {}
    for values in product(*(atom.samples for atom in atoms)):
        bindings = dict(zip(atoms, values, strict=True))
        truths = {guard: value_of(guard, bindings) is True for guard in guards}
        key = tuple(truths.values())
        if key not in found:
            there = tuple(one for one in cluster if all(truths[guard] for guard in one.row.guards))
            found[key] = _Alternative(there, tuple(truths.items()))
    return list(found.values())


def _fit_component(clusters: Sequence[Sequence[Pattern]], rows: Sequence[Observed], need: Need) -> Iterator[Fault]:
    name = clusters[0][0].output
    try:
        alternatives = [_alternatives(cluster) for cluster in clusters]
    except _TooLong:
        yield name, None, "too many ways to draw the random values of a row"
        return
    for output in {pattern.output for cluster in clusters for pattern in cluster}:
        counts = [[sum(one.output == output for one in way.patterns) for way in ways] for ways in alternatives]
        least, most = sum(map(min, counts)), sum(map(max, counts))
        there = sum(one[0] == output for one in rows)
        if (there < least and need is not Need.NO_OTHER) or (there > most and need is not Need.ALL):
            yield (
                output,
                None,
                f"{there} rows, and not {least} to {most}, are there of {_examples(clusters, rows, output)}",
            )
            return
    search = _Search(alternatives, rows, need)
    try:
        is_found = search.place(0, frozenset())
    except (_TooLong, RecursionError):
        yield name, None, "too many ways to draw the random values of rows that look alike"
        return
    if not is_found:
        yield name, None, f"no random values give these rows together: {_examples(clusters, rows)}"


def _examples(clusters: Sequence[Sequence[Pattern]], rows: Sequence[Observed], output: str | None = None) -> str:
    plain = [
        (pattern.output, {name: one for name, one in pattern.row.values.items() if not is_symbolic(one)})
        for pattern in clusters[0]
    ]
    there = [one for one in rows if output in (None, one[0])]
    return f"{plain}; there are {there[:6]}"


class _Search:
    """Give each cluster an alternative, and each pattern of it a row of its own."""

    def __init__(self, alternatives: Sequence[Sequence[_Alternative]], rows: Sequence[Observed], need: Need) -> None:
        self.alternatives, self.rows, self.need = alternatives, rows, need
        self.steps = 0

    def place(self, at: int, used: frozenset[int]) -> bool:
        """Can the clusters from this one on have the rows that are left?"""
        if at == len(self.alternatives):
            return self.need is Need.ALL or len(used) == len(self.rows)
        for way in self.alternatives[at]:
            for bindings, taken in self._placed(way.patterns, 0, {}, used):
                if _agrees(way, bindings) and self.place(at + 1, taken):
                    return True
        return False

    def _placed(
        self, patterns: Sequence[Pattern], at: int, bindings: Bindings, used: frozenset[int]
    ) -> Iterator[tuple[Bindings, frozenset[int]]]:
        if at == len(patterns):
            yield bindings, used
            return
        pattern = patterns[at]
        for number, (output, row) in enumerate(self.rows):
            self.steps += 1
            if self.steps > _STEPS_MAX:
                raise _TooLong
            if number in used or output != pattern.output:
                continue
            bound = _bound(pattern.row.values, row, bindings)
            if bound is not None:
                yield from self._placed(patterns, at + 1, bound, used | {number})
        if self.need is Need.NO_OTHER:
            yield from self._placed(patterns, at + 1, bindings, used)


def _agrees(way: _Alternative, bindings: Bindings) -> bool:
    """Are the guards what they have to be, and do the terms of all rows hold, as far as the atoms are known?"""
    for guard, truth in way.guards:
        try:
            if (value_of(guard, bindings) is True) is not truth:
                return False
        except KeyError:
            continue
    return all(value_of(term, bindings) == value for term, value in _known_terms(bindings))


def _known_terms(bindings: Bindings) -> Iterable[tuple[Any, Any]]:
    for term, value in bindings.items():
        if isinstance(term, Term) and all(atom in bindings for atom in atoms_of(term)):
            yield term, value


def _bound(pattern: Any, value: Any, bindings: Mapping[Any, Any]) -> Mapping[Any, Any] | None:
    """The bindings that make the pattern this value, or None. Terms are bound too, and checked later."""
    if isinstance(pattern, Atom | Term):
        if pattern in bindings:
            return bindings if bindings[pattern] == value else None
        return {**bindings, pattern: value}
    if isinstance(pattern, Mapping):
        if not isinstance(value, Mapping) or not {*pattern} <= {*value}:
            return None
        parts = [(one, value[name]) for name, one in pattern.items()]
    elif isinstance(pattern, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(pattern):
            return None
        parts = list(zip(pattern, value, strict=True))
    else:
        return bindings if pattern == value else None
    found: Mapping[Any, Any] | None = bindings
    for one, part in parts:
        found = None if found is None else _bound(one, part, found)
    return found
