"""The state of many keys, kept in pages: some hundred neighbours by their hash, read and written together.

A state store answers one question at a time, and every question costs far more than the bytes that it moves. So keys
lie in the order of their hashes, cut into pages; a page that has grown too large is cut again. An epoch goes through
the pages that it touches in that order and holds one at a time, however many keys there are. Inside a page every key
is written apart, so those that an epoch does not touch cost it no more than a copy; a page of which it touches only a
few is cut smaller, so that there is less to copy the next time.

    index     where the pages begin, when the earliest key of each page wants to be woken, the watermark that was acted
              on last, and what the state of a key is made of (`evolution`)
    page      by the least hash that belongs into it (`page`)

Pages are written as they are left, the index by `flush`; who keeps the cells takes back an epoch that fails.
"""

from __future__ import annotations

import itertools
import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from lockgate.errors import InvariantBroken
from lockgate.operators.contract import Clock
from lockgate.operators.page import NEVER, PICKLE, Found, Groups, Page, Step, Wakes

FORMAT = 1
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
        facts: dict[str, Any] = {"format": FORMAT} if content is None else pickle.loads(content)
        if facts["format"] != FORMAT:
            raise InvariantBroken(
                f"the state has format {facts['format']}; this version of Lockgate knows {FORMAT}",
                where="the checkpoint's state",
                fix="run the version of Lockgate that wrote it, or a newer one",
            )
        self.clock: int = facts.get("clock", 0)
        self.declared: Mapping[str, Any] | None = facts.get("declared")
        self.begins: list[int] = facts.get("begins", [_LEAST])
        self.wakes: dict[int, Wakes] = facts.get("wakes", {})  # of those pages that want to be woken

    def content(self) -> bytes:
        """As it is written."""
        return pickle.dumps({"format": FORMAT, **vars(self)}, PICKLE)

    def woken(self, clock: Clock) -> set[int]:
        """The pages with a key that wants to be woken by now."""
        return {begin for begin, (wake, wall) in self.wakes.items() if wake <= clock.now or wall <= clock.wall}

    def cell_of(self, number: int) -> str:
        """The name of the cell that a key of this hash is in, if it is anywhere."""
        return cell_name(self.begins[bisect_right(self.begins, number) - 1])

    def note(self, page: Page) -> None:
        """Take up a page behind all others."""
        self.begins.append(page.begin)
        if min(page.earliest()) < NEVER:
            self.wakes[page.begin] = page.earliest()


class Pages:
    """The keys of one bucket, for the time of one epoch."""

    def __init__(self, cells: Cells, *, limit: int = PAGE_BYTES_MAX) -> None:
        self._cells = cells
        self._limit = limit
        self._index = Index(cells.get(INDEX))
        self.clock = self._index.clock
        self.declared = self._index.declared

    def run(self, groups: Groups, step: Step, clock: Clock) -> Found:
        """Take the rows, and wake the keys that asked for it by now; what came out.

        A key that has rows is not woken besides: it has seen the time with them.
        """
        found: Found = []
        begins, woken = list(self._index.begins), self._index.woken(clock)
        firsts = [*np.searchsorted(groups.hashes, begins).tolist(), len(groups.keys)]
        for begin, (first, end) in zip(begins, itertools.pairwise(firsts), strict=True):
            if first == end and begin not in woken:
                continue
            page = self._page(begin)
            page.take(groups[first:end], step, clock, found)
            if begin in woken:
                page.wake(step, clock, found)
            self._leave(page)
        return found

    def convert(self, convert: Callable[[Any], Any], *, is_woken: bool) -> None:
        """Change the state of every key; with `is_woken` each wants to be woken at once, and sees the time anew."""
        for begin in list(self._index.begins):
            page = self._page(begin)
            page.convert(convert, is_woken=is_woken)
            self._leave(page)

    def flush(self, clock: int) -> None:
        """Write what is known of all pages, and the watermark that was acted on."""
        self._index.clock = self.clock = clock
        self._index.declared = self.declared
        self._cells.put(INDEX, self._index.content())

    def _page(self, begin: int) -> Page:
        return Page(begin, self._cells.get(cell_name(begin)))

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
    """What the cell of a page is called, by the least hash that belongs into it."""
    return f"page {begin}"
