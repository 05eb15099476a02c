"""One page of state: keys in the order of their hashes, each with its state as bytes of its own.

A page is read and written whole, and an epoch touches some of its keys. So numpy does what is to be done for all of
them, and the bytes of those that are not touched are copied and never looked at:

    hashes            64 bits each, in order
    sizes             how many bytes each key has in the body
    times             when each key wants to be woken, by the watermark and by processing time; empty where none does
    body              each key with its state, one behind the other
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from lockgate.operators.contract import Clock, Key, Outcome, Values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[Any]

PICKLE = 5
"""Fixed: later versions read what earlier ones wrote."""

NEVER = 2**63 - 1
_BESIDE = 12  # bytes that a key has outside the body
_ROOM = 3 / 4  # how full a page is that was cut
_QUIET = 16  # a page of which an epoch touches less than this part may be no larger than the same part of the limit


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of an epoch by key, in the order of the keys' hashes: by column, because there may be a million."""

    hashes: _Numbers
    keys: Sequence[Key]
    rows: Sequence[Sequence[Values]]

    @classmethod
    def of(cls, groups: Iterable[tuple[int, Key, Sequence[Values]]]) -> Groups:
        """Those of hash, key and rows."""
        made = sorted(groups, key=itemgetter(0))
        return cls(
            hashes=np.array([number for number, _, _ in made], np.int64),
            keys=[key for _, key, _ in made],
            rows=[rows for _, _, rows in made],
        )

    def __getitem__(self, part: slice) -> Groups:
        return Groups(self.hashes[part], self.keys[part], self.rows[part])


Step = Callable[[Key, Any, Sequence[Values], Clock], Outcome]
"""What is done with a key, as `Operator.step` says."""

Found = list[tuple[int, Key, Values]]
"""What steps gave: side, key and values."""

Wakes = tuple[int, int]
"""When a key wants to be woken, by the watermark and by processing time, each of which may be NEVER."""


class Page:
    """The keys from one hash on, for the time of one epoch."""

    def __init__(self, begin: int, content: bytes | None = None) -> None:
        hashes, sizes, times, body = (b"",) * 4 if content is None else pickle.loads(content)
        self.begin = begin
        self._hashes: _Numbers = np.frombuffer(hashes, "<i8")
        self._offsets = _offsets(np.frombuffer(sizes, "<u4"))
        self._times: _Numbers = (
            np.frombuffer(times, "<i8").reshape(-1, 2) if times else np.full((len(self._hashes), 2), NEVER)
        )
        self._body: bytes = body
        # Of the keys that had their turn, by place: the bytes that each is now, none where it is gone; and its wakes.
        self._changed: dict[int, bytes] = {}
        self._asked: dict[int, Wakes] = {}
        self._new: list[tuple[int, bytes, Wakes]] = []  # with the hash of each
        self._is_busy = False

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def is_changed(self) -> bool:
        """Has any key had its turn and something to keep or to forget?"""
        return bool(self._changed or self._new)

    def take(self, groups: Groups, step: Step, clock: Clock, found: Found) -> None:
        """Let the step have each group and the state of its key."""
        loads, dumps, body, changed = pickle.loads, pickle.dumps, self._body, self._changed
        places, starts, ends = self._find(groups.hashes)
        for at, (key, rows, place, start, end) in enumerate(
            zip(groups.keys, groups.rows, places, starts, ends, strict=True)
        ):
            state = None
            if end:
                held, state = loads(body[start:end])
                if held != key:
                    place, state = self._seek(place, key)
            kept, made, wake, wall = step(key, state, rows, clock)
            for side, values in made:
                found.append((side, key, values))
            # What follows is what `_change` does, without its call: this is the way of nearly all keys.
            if state is not None:
                changed[place] = b"" if kept is None else dumps((key, kept), PICKLE)
                if wake is not None or wall is not None:
                    self._asked[place] = _wakes(wake, wall)
            elif kept is not None:
                self._new.append((int(groups.hashes[at]), dumps((key, kept), PICKLE), _wakes(wake, wall)))

    def wake(self, step: Step, clock: Clock, found: Found) -> None:
        """Let the step have each key that wants to be woken by now, but for those that had rows."""
        for place in np.flatnonzero((self._times <= (clock.now, clock.wall)).any(axis=1)).tolist():
            if place not in self._changed:
                key, state = self._entry(place)
                outcome = step(key, state, (), clock)
                found += [(side, key, values) for side, values in outcome.rows]
                self._change(place, key, outcome)

    def convert(self, convert: Callable[[Any], Any], *, is_woken: bool) -> None:
        """Change the state of every key."""
        for place, (wake, wall) in enumerate(self._times.tolist()):
            key, state = self._entry(place)
            self._change(place, key, Outcome(convert(state), (), wake, 0 if is_woken else wall))

    def settle(self) -> None:
        """Bring in what has changed: keys in order again, with those that are new, without those that are gone."""
        places = np.array(sorted(self._changed), np.int64)
        entries = [self._changed[place] for place in places.tolist()]
        lengths = [len(entry) for entry in entries]
        self._new.sort(key=itemgetter(0))
        hashes = np.array([number for number, _, _ in self._new], np.int64)
        behind = np.searchsorted(self._hashes, hashes, side="right")

        starts, ends = self._offsets[places].tolist(), self._offsets[places + 1].tolist()
        if self._new:
            inside = self._offsets[behind].tolist()
            # By their place, and a new key before the one at whose bytes it goes in.
            cuts = [*zip(starts, ends, entries, strict=True)]
            cuts += [(at, at, entry) for at, (_, entry, _) in zip(inside, self._new, strict=True)]
            cuts.sort(key=itemgetter(0, 1))
            starts, ends, entries = ([cut[part] for cut in cuts] for part in range(3))
        self._body = _spliced(self._body, starts, ends, entries)

        sizes, times = np.diff(self._offsets), self._times.copy()
        sizes[places] = lengths
        sizes = np.insert(sizes, behind, [len(entry) for _, entry, _ in self._new])
        times[places] = NEVER
        times[list(self._asked)] = _pairs(self._asked.values())
        times = np.insert(times, behind, _pairs(wakes for _, _, wakes in self._new), axis=0)
        is_kept = sizes > 0
        self._hashes = np.insert(self._hashes, behind, hashes)[is_kept]
        self._offsets, self._times = _offsets(sizes[is_kept]), times[is_kept]
        self._is_busy = (len(places) + len(self._new)) * _QUIET >= len(self)
        self._changed, self._asked, self._new = {}, {}, []

    def cut(self, limit: int) -> Iterator[Page]:
        """The same keys in pages that are not too large; keys of one hash stay together."""
        limit = limit if self._is_busy else limit // _QUIET
        sizes = self._offsets + _BESIDE * np.arange(len(self) + 1)  # of all keys before each
        if sizes[-1] <= limit:
            yield self
            return
        first = 0
        while first < len(self):
            end = max(int(np.searchsorted(sizes, sizes[first] + limit * _ROOM, side="right")) - 1, first + 1)
            while end < len(self) and self._hashes[end] == self._hashes[end - 1]:
                end += 1
            yield self._part(first, end)
            first = end

    def dealt(self, buckets: int) -> Iterator[tuple[int, Page]]:
        """Its keys by the buckets that they belong to where there are so many."""
        numbers = bucket_numbers(self._hashes, buckets)
        for number in np.unique(numbers).tolist():
            yield number, self._chosen(np.flatnonzero(numbers == number))

    def merged(self, other: Page) -> Page:
        """The keys of both, in order, from where this page begins."""
        made = Page(self.begin)
        hashes = np.concatenate([self._hashes, other._hashes])
        sizes = np.concatenate([np.diff(self._offsets), np.diff(other._offsets)])
        made._hashes, made._offsets, made._body = hashes, _offsets(sizes), self._body + other._body
        made._times = np.concatenate([self._times, other._times])
        return made._chosen(np.argsort(hashes, kind="stable"))

    def parted(self, number: int) -> tuple[Page, Page]:
        """The keys with hashes less than this one, and the others, which begin with it."""
        place = int(np.searchsorted(self._hashes, number))
        before, behind = self._chosen(np.arange(place)), self._chosen(np.arange(place, len(self)))
        behind.begin = number if place else self.begin
        return before, behind

    @property
    def least(self) -> int:
        """The least hash that it holds."""
        return int(self._hashes[0])

    @property
    def size(self) -> int:
        """How many bytes it has, as far as its limit is concerned."""
        return len(self._body) + _BESIDE * len(self)

    def content(self) -> bytes:
        """As it is written."""
        times = self._times.tobytes() if (self._times != NEVER).any() else b""
        sizes = np.diff(self._offsets).astype("<u4").tobytes()
        return pickle.dumps((self._hashes.tobytes(), sizes, times, self._body), PICKLE)

    def earliest(self) -> Wakes:
        """When the first of the keys wants to be woken."""
        wake, wall = self._times.min(axis=0).tolist()
        return wake, wall

    def _find(self, hashes: _Numbers) -> tuple[list[int], list[int], list[int]]:
        """The place of each, and where its bytes begin and end, which is at 0 where no key has this hash."""
        places = np.searchsorted(self._hashes, hashes)
        starts = ends = np.zeros(len(hashes), np.int64)
        if len(self):
            near = np.minimum(places, len(self) - 1)
            starts, ends = self._offsets[near], self._offsets[near + 1] * (self._hashes[near] == hashes)
        return places.tolist(), starts.tolist(), ends.tolist()

    def _seek(self, place: int, key: Key) -> tuple[int, Any]:
        """Where a key is among those that share the hash of the first, and its state, which is None if it is new."""
        for other in range(place, int(np.searchsorted(self._hashes, self._hashes[place], side="right"))):
            held, state = self._entry(other)
            if held == key or repr(held) == repr(key):  # NaN equals itself in writing only
                return other, state
        return place, None

    def _entry(self, place: int) -> tuple[Key, Any]:
        key, state = pickle.loads(self._body[self._offsets[place] : self._offsets[place + 1]])
        return key, state

    def _change(self, place: int, key: Key, outcome: Outcome) -> None:
        kept, _, wake, wall = outcome
        self._changed[place] = b"" if kept is None else pickle.dumps((key, kept), PICKLE)
        self._asked[place] = _wakes(wake, wall)

    def _chosen(self, places: _Numbers) -> Page:
        """The keys at these places, in the order of the places, as a page that is written whole."""
        made = Page(self.begin)
        made._hashes, made._times = self._hashes[places], self._times[places]
        starts, ends = self._offsets[places].tolist(), self._offsets[places + 1].tolist()
        made._offsets = _offsets(np.diff(self._offsets)[places])
        made._body = b"".join(map(self._body.__getitem__, map(slice, starts, ends)))
        made._is_busy = True
        return made

    def _part(self, first: int, end: int) -> Page:
        made = Page(int(self._hashes[first]) if first else self.begin)
        made._hashes, made._times = self._hashes[first:end], self._times[first:end]
        made._offsets = self._offsets[first : end + 1] - self._offsets[first]
        made._body = self._body[self._offsets[first] : self._offsets[end]]
        return made


def bucket_numbers(hashes: _Numbers, buckets: int) -> _Numbers:
    """Which bucket each key belongs to, by its hash, where there are so many; numpy's remainder is never negative."""
    return np.mod(hashes, buckets)


def read_states(content: bytes) -> Iterator[tuple[Key, Any]]:
    """The keys of a page with their states, for those who look from outside."""
    page = Page(0, content)
    yield from (page._entry(place) for place in range(len(page)))


def _wakes(wake: int | None, wall: int | None) -> Wakes:
    # Somebody may ask for a time that is further away than a page can write.
    return NEVER if wake is None else min(wake, NEVER), NEVER if wall is None else min(wall, NEVER)


def _offsets(sizes: _Numbers) -> _Numbers:
    """Where each of these begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _spliced(body: bytes, starts: Sequence[int], ends: Sequence[int], entries: Sequence[bytes]) -> bytes:
    """The body with an entry instead of what is from each start to its end."""
    gaps = map(body.__getitem__, map(slice, [0, *ends], [*starts, len(body)]))
    return b"".join(itertools.chain.from_iterable(zip(gaps, [*entries, b""], strict=True)))


def _pairs(wakes: Iterable[Wakes]) -> _Numbers:
    return np.array(list(wakes), np.int64).reshape(-1, 2)
