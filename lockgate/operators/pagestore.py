"""The state of many keys, kept in pages: some hundred neighbours by their hash, read and written together.

A state store answers one question at a time, and every question costs far more than the bytes that it moves. So keys
lie in the order of their hashes, cut into pages. A page that has grown too large is cut again. An epoch goes through
the pages that it touches in that order and holds one at a time, however many keys there are. Inside a page every key is
written separately, so untouched keys cost an epoch only a copy. If an epoch touches only a few keys of a page, the page
is cut smaller, so that there is less to copy the next time.

    index     where the pages begin, when the earliest key of each page wants to be called, the watermark that was acted
              on last, and what the state of a key is made of (`evolution`)
    page      by the least hash that belongs into it (`page`)

Pages are written one after the other, the index by `flush`. The code that keeps the cells undoes an epoch that fails.
"""

from __future__ import annotations

import contextlib
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from lockgate.errors import CheckpointDamaged, InvariantBroken
from lockgate.operators.contract import Clock
from lockgate.operators.encoding import PLAIN, Encoding
from lockgate.operators.page import FORMAT, NEVER, Found, Groups, Page, Step, Wakes
from lockgate.operators.pickled import FIRST_BYTE, read_pickled
from lockgate.operators.statetypes import read_type
from lockgate.untrusted import Unreadable, as_list, as_object, as_type, take, take_nullable

PAGE_BYTES_MAX = 524_288
INDEX = "index"
_LEAST = -(2**63)  # of all hashes


class Cells(Protocol):
    """Where pages are kept: named bytes."""

    def get(self, name: str) -> bytes | None:
        """The bytes under a name."""

    def put(self, name: str, value: bytes) -> None:
        """Keep bytes under a name."""

    def remove(self, name: str) -> None:
        """Forget a name."""


class Index:
    """What is known of all pages together."""

    def __init__(self, content: bytes | None) -> None:
        """Read an index; CheckpointDamaged if these bytes are none."""
        self.clock = 0
        self.declared: Mapping[str, Any] | None = None
        self.begins = [_LEAST]
        self.wakes: dict[int, Wakes] = {}  # of the pages with keys that want to be called
        if content is not None:
            try:
                self._read(as_object(read_pickled(content) if content[:1] == FIRST_BYTE else PLAIN.decode(content)))
            except (TypeError, ValueError, LookupError) as error:  # Unreadable is a ValueError
                raise damaged(INDEX, error) from None

    def _read(self, facts: dict[str, Any]) -> None:
        written = take(facts, "format", int)
        if written not in (1, FORMAT):
            raise InvariantBroken(
                f"the state has format {written}; this version of Lockgate knows 1 and {FORMAT}",
                where="the checkpoint's state",
                fix="run the version of Lockgate that wrote it, or a newer one",
            )
        self.clock = take(facts, "clock", int)
        self.declared = take_nullable(facts, "declared", dict)
        if self.declared is not None:
            _check_declared(self.declared)
        self.begins = [as_type(begin, int, "begins") for begin in as_list(facts.get("begins"))]
        wakes = facts.get("wakes")
        told = as_object(wakes).items() if written == 1 else ((one[0], one[1:]) for one in map(as_list, as_list(wakes)))
        self.wakes = {as_type(begin, int, "wakes"): (wake, wall) for begin, (wake, wall) in told}
        if not all(type(time) is int for wakes in self.wakes.values() for time in wakes):
            raise Unreadable("it wakes a page at no time")
        if not self.begins or self.begins != sorted(self.begins):
            raise Unreadable("its pages are not in order")

    def content(self) -> bytes:
        """The bytes that are written."""
        facts = {
            "format": FORMAT,
            "clock": self.clock,
            "declared": self.declared,
            "begins": self.begins,
            "wakes": [[begin, *times] for begin, times in self.wakes.items()],
        }
        return PLAIN.encode(facts)

    def woken(self, clock: Clock) -> set[int]:
        """The pages with a key that wants to be called by now."""
        return {begin for begin, (wake, wall) in self.wakes.items() if wake <= clock.now or wall <= clock.wall}

    def cell_of(self, number: int) -> str:
        """The name of the cell that a key of this hash is in, if it is anywhere."""
        return cell_name(self.begins[bisect_right(self.begins, number) - 1])

    def note(self, page: Page) -> None:
        """Add a page after all others."""
        self.begins.append(page.begin)
        if min(page.earliest()) < NEVER:
            self.wakes[page.begin] = page.earliest()


class PageStore:
    """The keys of one bucket, for the time of one epoch."""

    def __init__(self, cells: Cells, *, limit: int = PAGE_BYTES_MAX, encoding: Encoding = PLAIN) -> None:
        self._cells = cells
        self.encoding = encoding
        self._limit = limit
        self._index = Index(cells.get(INDEX))
        self.clock = self._index.clock
        self.declared = self._index.declared

    def run(self, groups: Groups, step: Step, clock: Clock) -> Found:
        """Take the rows, and call the keys that asked for it by now; return what the step gave.

        A key with rows is not called a second time: it has seen the time with its rows.
        """
        found: Found = []
        begins, woken = list(self._index.begins), self._index.woken(clock)
        firsts = [*np.searchsorted(groups.hashes, begins).tolist(), len(groups.keys)]
        for begin, (first, end) in zip(begins, itertools.pairwise(firsts), strict=True):
            if first == end and begin not in woken:
                continue
            with _reading(begin):
                page = self._page(begin)
                page.take(groups[first:end], step, clock, found)
                if begin in woken:
                    page.wake(step, clock, found)
            self._leave(page)
        return found

    def convert(self, convert: Callable[[Any], Any], *, is_woken: bool) -> None:
        """Change the state of every key; with `is_woken` each wants to be called at once, and sees the time again."""
        for begin in list(self._index.begins):
            with _reading(begin):
                page = self._page(begin)
                page.convert(convert, is_woken=is_woken)
            self._leave(page)

    def flush(self, clock: int) -> None:
        """Write what is known of all pages, and the watermark that was acted on."""
        self._index.clock = self.clock = clock
        self._index.declared = self.declared
        self._cells.put(INDEX, self._index.content())

    def _page(self, begin: int) -> Page:
        return Page(begin, self._cells.get(cell_name(begin)), self.encoding)

    def _leave(self, page: Page) -> None:
        """Write a page as it is now, cut into several if it has grown too large."""
        if not page.is_changed:
            return
        page.settle()
        begins, wakes = self._index.begins, self._index.wakes
        wakes.pop(page.begin, None)
        if not len(page):
            self._cells.remove(cell_name(page.begin))
            if page.begin != _LEAST:
                del begins[bisect_left(begins, page.begin)]
            return
        parts = list(page.cut(self._limit))
        for part in parts:
            self._cells.put(cell_name(part.begin), part.content())
            earliest = part.earliest()
            if min(earliest) < NEVER:
                wakes[part.begin] = earliest
        if len(parts) > 1:
            place = bisect_left(begins, page.begin)
            begins[place : place + 1] = [part.begin for part in parts]


def cell_name(begin: int) -> str:
    """The name of the cell of a page, by the least hash that belongs into it."""
    return f"page {begin}"


def _check_declared(declared: dict[str, Any]) -> None:
    """Refuse what `evolution.adapt` could not compare."""
    for name, part in take(declared, "parts", dict).items():
        as_type(part, str, name)
    for state in map(as_object, take(declared, "states", dict).values()):
        kinds = [take(state, "type", str), *([take(state, "key", str)] if take(state, "kind", str) == "map" else ())]
        for kind in kinds:
            read_type(kind)
        take_nullable(state, "ttl_us", int)


def damaged(cell: str, error: Exception) -> CheckpointDamaged:
    """A cell does not hold what was written."""
    return CheckpointDamaged(
        f"cell {cell!r} of the state cannot be read: {error}",
        where="the checkpoint's state",
        fix="nothing of it was run. Find out what wrote these bytes, and restore the checkpoint from a savepoint"
        " or a copy. If it names a named tuple of yours, annotate the function that gives it: def best(a, b) -> Best",
    )


@contextlib.contextmanager
def _reading(begin: int) -> Iterator[None]:
    try:
        yield
    except Unreadable as error:
        raise damaged(cell_name(begin), error) from None
