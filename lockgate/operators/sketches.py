"""Synopses: folds that answer with a known error and keep little, however many values come.

A replayed epoch must give the rows that are already committed. So nothing here is random: where a textbook draws a
random number, there is a hash that is the same in every process, forever.

    sample       the events with the smallest hashes of their identity   uniform, exact if there are no more events
    top          Misra-Gries counters                                    a count is never too high, and too low by at
                                                                         most 1 / (counters + 1) of all events
    distinct     the smallest hashes of the values (theta sketch)        exact below 1,024 values, then a standard
                                                                         error of 3.1 %
    quantiles    counts of values that share their leading bits          exact up to 1,024 values, then each within
                                                                         0.4 % if the largest is 256 times the
                                                                         smallest, 1.6 % if it is 10**9 times

Sample, distinct and quantiles do not depend on the order of the events, and merging them loses nothing. Nulls are
skipped, as in all folds. What is kept is plain data and not the bytes of a library: those would be decoded and encoded
again for every value.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from math import copysign, inf, nan
from operator import itemgetter
from typing import Any

from lockgate.operators.contract import StepFailed
from lockgate.operators.fold import Fold

_HASHES = 1024
_BUCKETS = 1024
_COUNTERS_MIN = 256
_COUNTERS_PER_PLACE = 8

_HASH_BITS = 64
_HASH_MASK = (1 << _HASH_BITS) - 1
_DOUBLE = struct.Struct("<d")
_BITS = struct.Struct("<q")
_BITS_MAX = 2**63 - 1
_NAN = 0x7FF8 << 48  # above infinity, as Spark has it


@dataclass(frozen=True)
class Sample(Fold):
    """Some of the values, each event equally likely: those with the smallest hashes of their identity."""

    size: int

    needs_identity = True

    def empty(self) -> Any:
        return [[], []]

    def add(self, kept: Any, value: Any, identity: int) -> Any:
        if value is None:
            return kept
        hashes, values = kept
        number = _mix(identity)
        if len(hashes) == self.size and number >= hashes[-1]:
            return kept
        place = bisect_right(hashes, number)
        return [
            [*hashes[:place], number, *hashes[place:]][: self.size],
            [*values[:place], value, *values[place:]][: self.size],
        ]

    def merge(self, one: Any, two: Any) -> Any:
        pairs = sorted([*zip(*one, strict=True), *zip(*two, strict=True)], key=itemgetter(0))[: self.size]
        return [[number for number, _ in pairs], [value for _, value in pairs]]

    def result(self, kept: Any) -> Any:
        return list(kept[1])


@dataclass(frozen=True)
class Top(Fold):
    """The most frequent values with their counts, the most frequent first; of equal ones, the one that came first."""

    k: int

    @property
    def counters(self) -> int:
        """How many values are counted at a time; while there are no more, the counts are exact."""
        return max(_COUNTERS_MIN, _COUNTERS_PER_PLACE * self.k)

    def empty(self) -> Any:
        return {}

    def add(self, kept: Any, value: Any, identity: int) -> Any:
        if value is None:
            return kept
        value = _countable(value)
        if value in kept or len(kept) < self.counters:
            counts = kept.copy()
            counts[value] = counts.get(value, 0) + 1
            return counts
        return {other: count - 1 for other, count in kept.items() if count > 1}

    def merge(self, one: Any, two: Any) -> Any:
        counts = dict(one)
        for value, count in two.items():
            counts[value] = counts.get(value, 0) + count
        if len(counts) <= self.counters:
            return counts
        surplus = sorted(counts.values(), reverse=True)[self.counters]
        return {value: count - surplus for value, count in counts.items() if count > surplus}

    def result(self, kept: Any) -> Any:
        ranked = sorted(kept.items(), key=itemgetter(1), reverse=True)[: self.k]
        return [(nan if value is None else value, count) for value, count in ranked]


@dataclass(frozen=True)
class Distinct(Fold):
    """How many different values there are."""

    def empty(self) -> Any:
        return []

    def add(self, kept: Any, value: Any, identity: int) -> Any:
        if value is None:
            return kept
        number = int.from_bytes(blake2b(_encode(value), digest_size=_HASH_BITS // 8).digest(), "big")
        if len(kept) == _HASHES and number >= kept[-1]:
            return kept
        place = bisect_left(kept, number)
        if place < len(kept) and kept[place] == number:
            return kept
        return [*kept[:place], number, *kept[place:]][:_HASHES]

    def merge(self, one: Any, two: Any) -> Any:
        return sorted({*one, *two})[:_HASHES]

    def result(self, kept: Any) -> Any:
        if len(kept) < _HASHES:
            return len(kept)
        # The hashes are evenly distributed: 1,024 of them fill this share of all possible ones.
        return ((_HASHES - 1) << _HASH_BITS) // (kept[-1] + 1)


@dataclass(frozen=True)
class Quantiles(Fold):
    """The values below which these shares of all values lie; each is one of them, or as close as the error says.

    A number is counted under its leading bits: its sign, its exponent and as much of its fraction as there is room
    for. Kept: [bits dropped, [leading bits, ...] in rising order, [count, ...]]. If there would be too many counts, one
    more bit is dropped. How many are dropped in the end does not depend on the order.
    """

    at: tuple[float, ...]

    def empty(self) -> Any:
        return [0, [], []]

    def add(self, kept: Any, value: Any, identity: int) -> Any:
        if value is None:
            return kept
        shift, leads, counts = kept
        lead = _bits_of(value) >> shift
        place = bisect_left(leads, lead)
        if place < len(leads) and leads[place] == lead:
            return [shift, leads, [*counts[:place], counts[place] + 1, *counts[place + 1 :]]]
        return _within_room(shift, [*leads[:place], lead, *leads[place:]], [*counts[:place], 1, *counts[place:]])

    def merge(self, one: Any, two: Any) -> Any:
        shift = max(one[0], two[0])
        grouped: Counter[int] = Counter()
        for its_shift, leads, counts in (one, two):
            for lead, count in zip(leads, counts, strict=True):
                grouped[lead >> (shift - its_shift)] += count
        leads = sorted(grouped)
        return _within_room(shift, leads, [grouped[lead] for lead in leads])

    def result(self, kept: Any) -> Any:
        shift, leads, counts = kept
        if not leads:
            return None
        ranks = list(accumulate(counts))
        return [_value_of(leads[bisect_left(ranks, _rank(share, ranks[-1]))], shift) for share in self.at]


def _mix(identity: int) -> int:
    """A hash of a number, different for different numbers of 64 bits (the last steps of SplitMix64)."""
    mixed = (identity + 0x9E3779B97F4A7C15) & _HASH_MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _HASH_MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _HASH_MASK
    return mixed ^ (mixed >> 31)


def _countable(value: Any) -> Any:
    """The value as the key of a counter; every NaN is the same, under None."""
    if isinstance(value, tuple | list | dict):
        raise StepFailed("top counts single values, no STRUCT, ARRAY or MAP")
    if isinstance(value, bytearray):
        return bytes(value)
    return None if value != value else value


def _encode(value: Any) -> bytes:
    """The value as bytes, the same for equal values of a column in every version of Python."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, float):
        return repr(value + 0.0).encode()  # -0.0 is 0.0
    if isinstance(value, date):
        return value.isoformat().encode()
    if isinstance(value, tuple | list):
        parts = [b"\0" if part is None else b"\1" + _encode(part) for part in value]
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    if isinstance(value, dict):
        raise StepFailed("distinct counts no MAP: equal ones may look different")
    return str(value).encode()


def _bits_of(number: float) -> int:
    """A number's bits as an integer; integers are in the order of the numbers."""
    if number != number:
        return _NAN
    bits: int = _BITS.unpack(_DOUBLE.pack(number + 0.0))[0]  # -0.0 is 0.0
    return bits if bits >= 0 else bits ^ _BITS_MAX


def _value_of(lead: int, shift: int) -> float:
    """The number in the middle of those with these leading bits."""
    if lead in (0, -1):
        return 0.0
    bits = lead << shift | 1 << shift >> 1
    value: float = _DOUBLE.unpack(_BITS.pack(bits if bits >= 0 else bits ^ _BITS_MAX))[0]
    # The middle of the values that begin like infinity is no number.
    return copysign(inf, lead) if value != value and lead != _NAN >> shift else value


def _within_room(shift: int, leads: list[int], counts: list[int]) -> list[Any]:
    if len(leads) <= _BUCKETS:
        return [shift, leads, counts]
    more = bisect_left(range(64), True, key=lambda bits: len({lead >> bits for lead in leads}) <= _BUCKETS)
    grouped: Counter[int] = Counter()
    for lead, count in zip(leads, counts, strict=True):
        grouped[lead >> more] += count
    return [shift + more, [*grouped], [*grouped.values()]]


@lru_cache(maxsize=256)
def _share(share: float) -> Fraction:
    return Fraction(str(share))  # as it is written: 0.07 of 100 values are 7


def _rank(share: float, count: int) -> int:
    """Which value it is, counted from 1: the first with at least this share of all values up to it."""
    exact = _share(share)
    return max(1, -(-exact.numerator * count // exact.denominator))
