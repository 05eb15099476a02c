"""One page of state: keys in the order of their hashes, each with its state as bytes of its own.

A page is read and written as a whole, and an epoch touches some of its keys. So numpy does what must be done for all of
them, and the bytes of untouched keys are copied without being decoded:

    hashes            64 bits each, in order
    sizes             how many bytes each key has in the body
    times             when each key wants to be called, by the watermark and by processing time; empty if none does
    body              each key with its state, one after the other: [*key, state], see `encoding`

A page of format 1 was a pickle, and so were its keys (`pickled`). It is read as a page of this format, and becomes one
when it is written the next time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from lockgate.operators.contract import Clock, Key, Outcome, StepFailed, Values
from lockgate.operators.encoding import PLAIN, Encoding, NotKept
from lockgate.operators.pickled import FIRST_BYTE, read_pickled
from lockgate.untrusted import Unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[Any]

FORMAT = 2
"""Of pages and of their index. Later versions read what earlier ones wrote."""

NEVER = 2**63 - 1
_BESIDE = 12  # bytes that a key has outside the body
_ROOM = 3 / 4  # how full a page is that was cut
_QUIET = 16  # if an epoch touches less than this part of a page, the page may have at most the same part of the limit


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
"""When a key wants to be called, by the watermark and by processing time, each of which may be NEVER."""


class Page:
    """The keys from one hash on, for the time of one epoch."""

    def __init__(self, begin: int, content: bytes | None = None, encoding: Encoding = PLAIN) -> None:
        """Read a page; Unreadable if these bytes are none."""
        self.begin = begin
        self._encoding = encoding
        self._hashes: _Numbers
        self._times: _Numbers
        self._body: bytes
        self._hashes, sizes, self._times, self._body = _parts(content, encoding)
        self._offsets = _offsets(sizes)
        # Of the keys that were called, by place: the new bytes of each, none if it is forgotten; and its wakes.
        self._changed: dict[int, bytes] = {}
        self._asked: dict[int, Wakes] = {}
        self._new: list[tuple[int, bytes, Wakes]] = []  # with the hash of each
        self._is_busy = False

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def is_changed(self) -> bool:
        """Was any key called that has something to keep or to forget?"""
        return bool(self._changed or self._new)

    def take(self, groups: Groups, step: Step, clock: Clock, found: Found) -> None:
        """Let the step have each group and the state of its key."""
        encode, body, changed = self._encoding.encode, self._body, self._changed
        places, starts, ends = self._find(groups.hashes)
        # All keys that the epoch touches are decoded at once: a call for each key would cost more than the decoding.
        held = self._encoding.decode_all([body[start:end] for start, end in zip(starts, ends, strict=True) if end])
        entries = iter(_entries(held))
        key: Key = ()
        try:
            for at, (key, rows, place, end) in enumerate(zip(groups.keys, groups.rows, places, ends, strict=True)):
                state = None
                if end:
                    entry = next(entries)
                    state = entry.pop()
                    if tuple(entry) != key:
                        place, state = self._seek(place, key)
                kept, made, wake, wall = step(key, state, rows, clock)
                for side, values in made:
                    found.append((side, key, values))
                # The next lines do what `_change` does, without its call: nearly all keys come this way.
                if state is not None:
                    changed[place] = b"" if kept is None else encode([*key, kept])
                    if wake is not None or wall is not None:
                        self._asked[place] = _wakes(wake, wall)
                elif kept is not None:
                    self._new.append((int(groups.hashes[at]), encode([*key, kept]), _wakes(wake, wall)))
        except NotKept as error:
            raise _unkept(key, error) from None

    def wake(self, step: Step, clock: Clock, found: Found) -> None:
        """Let the step have each key that wants to be called by now, except those that had rows."""
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
        """Apply the changes: keys in order again, with the new ones, without those that are forgotten."""
        places = np.array(sorted(self._changed), np.int64)
        entries = [self._changed[place] for place in places.tolist()]
        lengths = [len(entry) for entry in entries]
        self._new.sort(key=itemgetter(0))
        hashes = np.array([number for number, _, _ in self._new], np.int64)
        behind = np.searchsorted(self._hashes, hashes, side="right")

        starts, ends = self._offsets[places].tolist(), self._offsets[places + 1].tolist()
        if self._new:
            inside = self._offsets[behind].tolist()
            # By their place, and a new key before the one at whose bytes it is inserted.
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
        """Its keys by their buckets, for this number of buckets."""
        numbers = bucket_numbers(self._hashes, buckets)
        for number in np.unique(numbers).tolist():
            yield number, self._chosen(np.flatnonzero(numbers == number))

    def merged(self, other: Page) -> Page:
        """The keys of both, in order, in a page that begins where this one does."""
        made = Page(self.begin, encoding=self._encoding)
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
        """How many bytes it has for the limit of a page."""
        return len(self._body) + _BESIDE * len(self)

    def content(self) -> bytes:
        """The bytes that are written."""
        times = self._times.tobytes() if (self._times != NEVER).any() else b""
        sizes = np.diff(self._offsets).astype("<u4").tobytes()
        return PLAIN.encode([FORMAT, self._hashes.tobytes(), sizes, times, self._body])

    def earliest(self) -> Wakes:
        """When the first of the keys wants to be called."""
        wake, wall = self._times.min(axis=0).tolist()
        return wake, wall

    def _find(self, hashes: _Numbers) -> tuple[list[int], list[int], list[int]]:
        """The place of each, and the start and end of its bytes; the end is 0 if no key has this hash."""
        places = np.searchsorted(self._hashes, hashes)
        starts = ends = np.zeros(len(hashes), np.int64)
        if len(self):
            near = np.minimum(places, len(self) - 1)
            starts, ends = self._offsets[near], self._offsets[near + 1] * (self._hashes[near] == hashes)
        return places.tolist(), starts.tolist(), ends.tolist()

    def _seek(self, place: int, key: Key) -> tuple[int, Any]:
        """The place of a key among those that share the hash of the first, and its state, None if it is new."""
        for other in range(place, int(np.searchsorted(self._hashes, self._hashes[place], side="right"))):
            held, state = self._entry(other)
            if held == key or repr(held) == repr(key):  # NaN equals itself in writing only
                return other, state
        return place, None

    def _entry(self, place: int) -> tuple[Key, Any]:
        content = self._body[self._offsets[place] : self._offsets[place + 1]]
        ((*key, state),) = _entries([self._encoding.decode(content)])
        return tuple(key), state

    def _change(self, place: int, key: Key, outcome: Outcome) -> None:
        kept, _, wake, wall = outcome
        try:
            self._changed[place] = b"" if kept is None else self._encoding.encode([*key, kept])
        except NotKept as error:
            raise _unkept(key, error) from None
        self._asked[place] = _wakes(wake, wall)

    def _chosen(self, places: _Numbers) -> Page:
        """The keys at these places, in the order of the places, as a page that is written whole."""
        made = Page(self.begin, encoding=self._encoding)
        made._hashes, made._times = self._hashes[places], self._times[places]
        starts, ends = self._offsets[places].tolist(), self._offsets[places + 1].tolist()
        made._offsets = _offsets(np.diff(self._offsets)[places])
        made._body = b"".join(map(self._body.__getitem__, map(slice, starts, ends)))
        made._is_busy = True
        return made

    def _part(self, first: int, end: int) -> Page:
        made = Page(int(self._hashes[first]) if first else self.begin, encoding=self._encoding)
        made._hashes, made._times = self._hashes[first:end], self._times[first:end]
        made._offsets = self._offsets[first : end + 1] - self._offsets[first]
        made._body = self._body[self._offsets[first] : self._offsets[end]]
        return made


def bucket_numbers(hashes: _Numbers, buckets: int) -> _Numbers:
    """The bucket of each key, by its hash, for this number of buckets; numpy's remainder is never negative."""
    return np.mod(hashes, buckets)


def read_states(content: bytes, encoding: Encoding = PLAIN) -> Iterator[tuple[Key, Any]]:
    """The keys of a page with their states, to show them outside."""
    page = Page(0, content, encoding)
    yield from (page._entry(place) for place in range(len(page)))


_Parts = tuple["_Numbers", "_Numbers", "_Numbers", bytes]
"""The hashes, sizes, times and body of a page."""


def _parts(content: bytes | None, encoding: Encoding) -> _Parts:
    if content is None:
        return _arrays([b"", b"", b"", b""])
    if content[:1] == FIRST_BYTE:
        return _converted(_arrays(read_pickled(content)), encoding)
    parts = encoding.decode(content)
    if type(parts) is not list or parts[:1] != [FORMAT]:
        raise Unreadable(f"it is no page of format {FORMAT}")
    return _arrays(parts[1:])


def _arrays(parts: Sequence[bytes]) -> _Parts:
    """The parts as they are used, if they fit together."""
    if type(parts) not in (list, tuple) or len(parts) != 4 or not all(type(part) is bytes for part in parts):
        raise Unreadable("a page has four parts of bytes")
    try:
        hashes, sizes = np.frombuffer(parts[0], "<i8"), np.frombuffer(parts[1], "<u4")
        times = np.frombuffer(parts[2], "<i8").reshape(-1, 2) if parts[2] else np.full((len(hashes), 2), NEVER)
    except ValueError as error:
        raise Unreadable(f"a part of a page does not hold numbers: {error}") from None
    if not len(hashes) == len(sizes) == len(times) or int(sizes.sum()) != len(parts[3]):
        raise Unreadable("the parts of a page do not fit together")
    if (hashes[1:] < hashes[:-1]).any():
        raise Unreadable("its hashes are not in order")
    return hashes, sizes, times, parts[3]


def _converted(parts: _Parts, encoding: Encoding) -> _Parts:
    """The parts of a page of format 1 as those of this format."""
    hashes, sizes, times, body = parts
    entries = []
    for start, end in itertools.pairwise(_offsets(sizes).tolist()):
        pair = read_pickled(body[start:end], encoding.classes)
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not tuple:
            raise Unreadable("it holds something that is no key with its state")
        try:
            entries.append(encoding.encode([*pair[0], pair[1]]))
        except NotKept as error:
            raise Unreadable(_unkept(pair[0], error).reason) from None
    return hashes, np.array([len(entry) for entry in entries], "<u4"), times, b"".join(entries)


def _entries(values: list[Any]) -> list[list[Any]]:
    """The values as keys with their states, if they are."""
    if {*map(type, values)} - {list} or [] in values:
        raise Unreadable("it holds something that is no key with its state")
    return values


def _unkept(key: Key, error: NotKept) -> StepFailed:
    return StepFailed(
        f"the state of key {key!r} holds {error}, which cannot be kept. State holds None, bool, int, float, str, bytes,"
        " Decimal, datetime, date, timedelta, and tuples, lists, dicts and sets of these; a named tuple if the function"
        " that gives it is annotated with it"
    )


def _wakes(wake: int | None, wall: int | None) -> Wakes:
    # An operator may ask for a time that is further away than a page can write.
    return NEVER if wake is None else min(wake, NEVER), NEVER if wall is None else min(wall, NEVER)


def _offsets(sizes: _Numbers) -> _Numbers:
    """The start of each of these, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _spliced(body: bytes, starts: Sequence[int], ends: Sequence[int], entries: Sequence[bytes]) -> bytes:
    """The body with an entry in place of what is between each start and its end."""
    gaps = map(body.__getitem__, map(slice, [0, *ends], [*starts, len(body)]))
    return b"".join(itertools.chain.from_iterable(zip(gaps, [*entries, b""], strict=True)))


def _pairs(wakes: Iterable[Wakes]) -> _Numbers:
    return np.array(list(wakes), np.int64).reshape(-1, 2)
