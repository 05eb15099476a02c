"""Distribute the keys of all pages over another number of buckets.

The hash of a key decides its bucket, so with another number of buckets nearly every key moves. State is far larger than
memory, so nothing here holds more than some pages:

    deal      a page of an old bucket     a piece for every new bucket that has a key in it
    gather    the pieces of a new bucket  by the least hash of each: new pages, and then the index

The pieces of one old bucket do not overlap. So at most one from each old bucket waits for the next one to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lockgate.operators.page import Page
from lockgate.operators.pagestore import INDEX, PAGE_BYTES_MAX, Index, cell_name


@dataclass(frozen=True)
class Piece:
    """What a page of an old bucket holds for a new one."""

    bucket: int
    least: int  # the least hash in it
    content: bytes


def redistribute(content: bytes, buckets: int) -> Iterator[Piece]:
    """The pieces of a page for this number of buckets."""
    for number, page in Page(0, content).dealt(buckets):
        yield Piece(number, page.least, page.content())


def gather(
    pieces: Iterable[tuple[int, bytes]],
    *,
    clock: int,
    declared: Mapping[str, Any] | None,
    limit: int = PAGE_BYTES_MAX,
) -> Iterator[tuple[str, bytes]]:
    """The cells of a new bucket by name, its index last. The pieces come ordered by the least hash of each."""
    index = Index(None)
    index.clock, index.declared = clock, declared
    first, index.begins = index.begins[0], []
    held = Page(first)
    for least, content in pieces:
        if held.size > limit:
            done, held = held.parted(least)
            yield from _written(done, index, limit)
        held = held.merged(Page(held.begin, content))
    yield from _written(held, index, limit)
    index.begins = index.begins or [first]
    yield INDEX, index.content()


def _written(page: Page, index: Index, limit: int) -> Iterator[tuple[str, bytes]]:
    for part in page.cut(limit) if len(page) else ():
        index.note(part)
        yield cell_name(part.begin), part.content()
