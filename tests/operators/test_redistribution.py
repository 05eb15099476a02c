"""Pages dealt out to another number of buckets keep every key, where it is looked for, with its state and its wakes."""

import random
from typing import Any

import pytest

from lockgate.operators.contract import Clock, Key, Outcome
from lockgate.operators.page import Groups, bucket_numbers, read_states
from lockgate.operators.pagestore import INDEX, Index, PageStore
from lockgate.operators.redistribution import Piece, gather, redistribute

from .test_pagestore import Shelf, hash_of, set_state, states_of

CLOCK = Clock(before=0, now=0, wall=0)
DECLARED = {"parts": {"the key": "id INT"}, "states": {}}


def filled(keys: range, buckets: int, limit: int) -> list[Shelf]:
    """Buckets with keys, each with a state of some size; every seventh wants to be woken."""
    shelves = [Shelf() for _ in range(buckets)]
    for number, shelf in enumerate(shelves):
        pages = PageStore(shelf, limit=limit)
        own = [key for key in keys if hash_of(key) % buckets == number]
        rows = {key: Outcome("x" * (key % 50), (), key if key % 7 == 0 else None) for key in own}
        pages.declared = DECLARED
        groups = Groups.of((hash_of(key), (key,), ((row,),)) for key, row in rows.items())
        pages.run(groups, set_state, CLOCK)
        pages.flush(41)
    return shelves


def dealt(shelves: list[Shelf], buckets: int, limit: int) -> list[Shelf]:
    """What a rescaling does, without Spark."""
    pages = [content for shelf in shelves for name, content in shelf.cells.items() if name != INDEX]
    random.Random(1).shuffle(pages)
    pieces: list[Piece] = [piece for content in pages for piece in redistribute(content, buckets)]
    made = []
    for number in range(buckets):
        own = sorted((piece.least, piece.content) for piece in pieces if piece.bucket == number)
        shelf = Shelf()
        shelf.cells = dict(gather(own, clock=41, declared=DECLARED, limit=limit))
        made.append(shelf)
    return made


@pytest.mark.parametrize(("before", "after"), [(4, 7), (7, 4), (1, 3), (3, 1), (4, 4)])
@pytest.mark.parametrize("limit", [300, 100_000])
def test_every_key_is_found_in_its_new_bucket(before: int, after: int, limit: int) -> None:
    keys = range(600)
    shelves = dealt(filled(keys, before, limit), after, limit)
    assert sum(len(states_of(shelf)) for shelf in shelves) == len(keys)
    for number, shelf in enumerate(shelves):
        assert all(hash_of(key[0]) % after == number for key in states_of(shelf))
        index = Index(shelf.cells[INDEX])
        assert (index.clock, index.declared) == (41, DECLARED)
        assert index.begins == sorted(set(index.begins))
        assert len(index.begins) == len(shelf.cells) - 1
        for key in states_of(shelf):
            assert key in dict(read_states(shelf.cells[index.cell_of(hash_of(key[0]))]))
    # The next epoch goes on with them: every key has its state, and those that asked for it are woken.
    seen: dict[Key, Any] = {}

    def step(key: Key, state: Any, rows: Any, clock: Clock) -> Outcome:
        seen[key] = (state, bool(rows))
        return Outcome(state)

    for number, shelf in enumerate(shelves):
        own = [key for key in keys if hash_of(key) % after == number and key % 7]
        groups = Groups.of((hash_of(key), (key,), ((None,),)) for key in own)
        PageStore(shelf, limit=limit).run(groups, step, Clock(before=41, now=1000, wall=0))
    assert seen == {(key,): ("x" * (key % 50), key % 7 != 0) for key in keys}


def test_pages_are_no_larger_than_they_may_be_and_a_bucket_without_keys_knows_the_time() -> None:
    made = dealt(filled(range(2000), 4, 1000), 3, 1000)
    sizes = [len(content) for shelf in made for name, content in shelf.cells.items() if name != INDEX]
    assert max(sizes) < 2500
    assert len(sizes) > 30
    empty = dict(gather([], clock=7, declared=None))
    assert list(empty) == [INDEX]
    assert Index(empty[INDEX]).clock == 7
    assert Index(empty[INDEX]).begins == Index(None).begins


def test_a_key_is_dealt_as_rows_are() -> None:
    import numpy as np

    assert bucket_numbers(np.array([-1, 5, -8]), 7).tolist() == [6, 5, 6]
