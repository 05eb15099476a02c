"""Pages keep every key exactly as a dictionary would, stay small, and wake keys when asked to."""

import copy
import os
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lockgate.errors import CheckpointDamaged, InvariantBroken
from lockgate.operators.contract import Clock, Key, Operator, Outcome, Side, StepFailed, Time, Values
from lockgate.operators.encoding import PLAIN, Encoding
from lockgate.operators.epoch import run_epoch
from lockgate.operators.page import Groups, Step, read_states
from lockgate.operators.pagestore import INDEX, PAGE_BYTES_MAX, Index, PageStore
from lockgate.untrusted import Unreadable


class Best(NamedTuple):
    name: str
    score: int


class Shelf:
    """Cells in memory, which count what is asked of them."""

    def __init__(self) -> None:
        self.cells: dict[str, bytes] = {}
        self.calls = 0

    def get(self, name: str) -> bytes | None:
        self.calls += 1
        return self.cells.get(name)

    def put(self, name: str, value: bytes) -> None:
        self.calls += 1
        self.cells[name] = value

    def remove(self, name: str) -> None:
        self.cells.pop(name, None)


def hash_of(key: int) -> int:
    return random.Random(key).randrange(-(2**63), 2**63)


def states_of(shelf: Shelf) -> dict[Key, Any]:
    return {key: state for name, content in shelf.cells.items() if name != INDEX for key, state in read_states(content)}


def grouped(rows: Mapping[int, Any], hash_of: Callable[[int], int] = hash_of) -> Groups:
    """A row for each key."""
    return Groups.of((hash_of(key), (key,), ((row,),)) for key, row in rows.items())


def set_state(key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
    """What the row says: the state, or the outcome itself."""
    told = rows[0][0]
    return told if isinstance(told, Outcome) else Outcome(told)


def noting(seen: dict[Key, Any]) -> Step:
    """Keep the states that keys have when their turn comes; one that is woken goes."""

    def step(key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        assert key not in seen
        seen[key] = state
        return set_state(key, state, rows, clock) if rows else Outcome(None)

    return step


def put(shelf: Shelf, rows: Mapping[int, Any], *, limit: int = 500, clock: int = 0) -> None:
    pages = PageStore(shelf, limit=limit)
    pages.run(grouped(rows), set_state, Clock(before=0, now=0, wall=0))
    pages.flush(clock)


@pytest.mark.parametrize("hash_of", [hash_of, lambda key: key % 7, lambda key: 0])
@pytest.mark.parametrize("seed", range(5))
def test_pages_hold_what_a_dictionary_would(seed: int, hash_of: Callable[[int], int]) -> None:
    rng, shelf, expected = random.Random(seed), Shelf(), {}
    for epoch in range(30):
        rows = {rng.randrange(200): rng.choice([None, *range(5)]) for _ in range(rng.randrange(60))}

        seen: dict[Key, Any] = {}
        pages = PageStore(shelf, limit=500)
        pages.run(grouped(rows, hash_of), noting(seen), Clock(before=0, now=0, wall=0))
        pages.flush(epoch)
        assert seen == {(key,): expected.get((key,)) for key in rows}
        expected.update({(key,): state for key, state in rows.items()})
        expected = {key: state for key, state in expected.items() if state is not None}
        assert states_of(shelf) == expected
        assert PageStore(shelf).clock == epoch
    if hash_of(1) != hash_of(8):
        assert max(len(content) for name, content in shelf.cells.items() if name != INDEX) <= 600


def test_a_state_that_is_larger_than_a_page_has_one_of_its_own() -> None:
    shelf = Shelf()
    put(shelf, {key: "x" * (5_000 if key == 7 else 5) for key in range(40)})
    large = [content for content in shelf.cells.values() if len(content) > 1_000]
    assert [[key for key, _ in read_states(content)] for content in large] == [[(7,)]]
    put(shelf, {7: "small"})
    assert states_of(shelf) == {(key,): "small" if key == 7 else "xxxxx" for key in range(40)}


def test_pages_are_given_back_when_their_keys_are_gone() -> None:
    shelf = Shelf()
    put(shelf, dict.fromkeys(range(300), "state"))
    assert len(shelf.cells) > 10
    put(shelf, dict.fromkeys(range(299), None))
    assert states_of(shelf) == {(299,): "state"}
    assert len(shelf.cells) == 2
    put(shelf, dict.fromkeys(range(300, 600), "other"))
    assert len(states_of(shelf)) == 301


def test_an_epoch_asks_for_pages_and_not_for_keys() -> None:
    shelf = Shelf()
    put(shelf, dict.fromkeys(range(5000), 0), limit=PAGE_BYTES_MAX)
    shelf.calls = 0
    put(shelf, {key: key for key in range(5_000)}, limit=PAGE_BYTES_MAX)
    assert shelf.calls < 60
    assert states_of(shelf) == {(key,): key for key in range(5_000)}


def test_a_page_of_which_an_epoch_touches_little_is_cut_smaller() -> None:
    shelf = Shelf()
    put(shelf, dict.fromkeys(range(500), "state"), limit=50_000)
    large = {name: len(content) for name, content in shelf.cells.items() if name != INDEX}
    assert min(large.values()) > 10_000
    put(shelf, dict.fromkeys(range(250), "state"), limit=50_000)
    assert {name: len(content) for name, content in shelf.cells.items() if name != INDEX} == large
    put(shelf, {7: "other"}, limit=50_000)
    assert states_of(shelf) == {(key,): "other" if key == 7 else "state" for key in range(500)}
    assert max(len(content) for name, content in shelf.cells.items() if name != INDEX) <= 50_000 // 16


def test_a_page_that_nothing_was_changed_in_is_not_written() -> None:
    shelf = Shelf()
    put(shelf, {1: "kept"})
    before = dict(shelf.cells)
    shelf.calls = 0
    put(shelf, {2: None})
    assert shelf.calls == 3  # the index is read, the page is read, the index is written
    assert shelf.cells == before


@pytest.mark.parametrize("seed", range(3))
def test_keys_are_woken_when_they_asked_for_it_and_not_before(seed: int) -> None:
    rng, shelf = random.Random(seed), Shelf()
    asked: dict[int, tuple[int | None, int | None]] = {}
    for now in range(0, 300, 7):
        due = {key for key, wakes in asked.items() if min(wake for wake in wakes if wake is not None) <= now}
        rows: dict[int, Any] = {}
        for _ in range(20):
            key = rng.choice([rng.randrange(10**6), *asked])
            wake = rng.randrange(now, 300)
            rows[key] = Outcome(1, wake=wake) if rng.random() < 0.5 else Outcome(1, wake_wall=wake)
        seen: dict[Key, Any] = {}
        pages = PageStore(shelf, limit=400)
        pages.run(grouped(rows), noting(seen), Clock(before=0, now=now, wall=now))
        pages.flush(now)
        assert seen == {(key,): 1 if key in asked else None for key in {*due, *rows}}
        asked = {key: wakes for key, wakes in asked.items() if key not in due}
        asked.update({key: (outcome.wake, outcome.wake_wall) for key, outcome in rows.items()})


def test_state_of_an_unknown_format_is_refused() -> None:
    shelf = Shelf()
    shelf.put(INDEX, pickle.dumps({"format": 99}))
    with pytest.raises(InvariantBroken, match="format 99"):
        PageStore(shelf)


class Runs:
    """Runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.system, (self.command,)


def cell(*parts: Any) -> bytes:
    """A cell of this format with other parts."""
    return PLAIN.encode([2, *parts])


ONE = (
    bytes(8),
    (3).to_bytes(4, "little"),
    b"",
    PLAIN.encode([1, 2]),
)  # a page with the key (1,), of which the hash is 0
DAMAGED = {
    "nothing": b"",
    "no page": PLAIN.encode("page"),
    "another format": PLAIN.encode([3, *ONE]),
    "three parts": cell(*ONE[:3]),
    "parts that are no bytes": cell([], [], [], []),
    "half a hash": cell(bytes(7), *ONE[1:]),
    "more hashes than sizes": cell(bytes(16), *ONE[1:]),
    "half a time": cell(*ONE[:2], bytes(8), ONE[3]),
    "hashes out of order": cell((5).to_bytes(8, "little") + bytes(8), ONE[1] * 2, b"", ONE[3] * 2),
    "a body that is too short": cell(*ONE[:3], b""),
    "a body that is too long": cell(*ONE[:3], ONE[3] + b"x"),
    "a size beyond the body": cell(ONE[0], b"\xff" * 4, *ONE[2:]),
    "a key that is no list": cell(*ONE[:3], PLAIN.encode("ab")),
    "no key and no state": cell(ONE[0], (1).to_bytes(4, "little"), b"", PLAIN.encode([])),
    "a list that is too long": cell(ONE[0], (5).to_bytes(4, "little"), b"", b"\xdd\xff\xff\xff\xff"),
    "deep lists": cell(ONE[0], (1_000_000).to_bytes(4, "little"), b"", b"\x91" * 1_000_000),
    "a pickle of something else": pickle.dumps({"a": 1}, 5),
    "a pickled page with other entries": pickle.dumps((*ONE[:3], pickle.dumps(1, 5)[:3]), 5),
    "code as a page": pickle.dumps(Runs("touch ran"), 5),
    "code as a part": pickle.dumps((*ONE[:3], Runs("touch ran")), 5),
    "code as an entry": pickle.dumps((ONE[0], b"\x2f\0\0\0", b"", pickle.dumps(Runs("touch ran"), 5)), 5),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_page_that_is_none_is_refused_with_its_name(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shelf = Shelf()
    shelf.put(f"page {-(2**63)}", content)
    pages = PageStore(shelf)
    row = Groups.of([(0, (1,), ((1,),))])
    with pytest.raises(CheckpointDamaged, match=f"cell 'page {-(2**63)}' of the state cannot be read"):
        pages.run(row, set_state, Clock(before=0, now=0, wall=0))
    with pytest.raises(CheckpointDamaged):
        PageStore(shelf).convert(lambda state: state, is_woken=True)
    with pytest.raises(Unreadable):
        list(read_states(content))
    assert not list(tmp_path.iterdir())


def test_the_page_of_these_damages_is_one() -> None:
    assert list(read_states(cell(*ONE))) == [((1,), 2)]
    assert len(pickle.dumps(Runs("touch ran"), 5)) == 0x2F


FACTS = {"format": 2, "clock": 0, "declared": None, "begins": [0], "wakes": []}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        PLAIN.encode([]),
        PLAIN.encode({}),
        *(PLAIN.encode({**FACTS, name: "x"}) for name in FACTS),
        *(PLAIN.encode({name: one for name, one in FACTS.items() if name != missing}) for missing in FACTS),
        PLAIN.encode({**FACTS, "begins": []}),
        PLAIN.encode({**FACTS, "begins": [2, 1]}),
        PLAIN.encode({**FACTS, "begins": [1.5]}),
        PLAIN.encode({**FACTS, "wakes": [[1, 2]]}),
        PLAIN.encode({**FACTS, "wakes": [[1, 2, "3"]]}),
        PLAIN.encode({**FACTS, "wakes": [[[], 2, 3]]}),
        PLAIN.encode({**FACTS, "declared": {"parts": {}}}),
        PLAIN.encode({**FACTS, "declared": {"parts": {"a": 1}, "states": {}}}),
        PLAIN.encode({**FACTS, "declared": {"parts": {}, "states": {"a": {"kind": "value", "type": "X"}}}}),
        pickle.dumps({**FACTS, "format": 1, "wakes": {1: 5}}, 5),
        pickle.dumps({**FACTS, "format": 1, "wakes": [1]}, 5),
        pickle.dumps(Runs("touch ran"), 5),
        pickle.dumps({**FACTS, "format": 1, "clock": Runs("touch ran")}, 5),
    ],
)
def test_an_index_that_is_none_is_refused(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shelf = Shelf()
    shelf.put(INDEX, content)
    with pytest.raises(CheckpointDamaged, match="cell 'index' of the state cannot be read"):
        PageStore(shelf)
    assert not list(tmp_path.iterdir())


def test_a_state_that_cannot_be_kept_stops_before_anything_is_written() -> None:
    shelf = Shelf()
    put(shelf, {1: "kept"})
    before = dict(shelf.cells)
    for key in (1, 2):  # one that is there, and a new one
        with pytest.raises(StepFailed, match=rf"the state of key \({key},\) holds a value of type fractions.Fraction"):
            put(shelf, {key: [Fraction(1, 3)]})
    assert shelf.cells == before


def test_a_declared_class_is_kept_and_read() -> None:
    shelf, encoding = Shelf(), Encoding([Best])
    for expected in (None, Best("a", 1)):
        seen: dict[Key, Any] = {}
        pages = PageStore(shelf, encoding=encoding)
        pages.run(grouped({1: Best("a", 1)}), noting(seen), Clock(before=0, now=0, wall=0))
        pages.flush(0)
        assert seen == {(1,): expected}
        assert type(seen[1,]) is type(expected)
    with pytest.raises(CheckpointDamaged, match="it holds a Best, which the job's code does not declare"):
        put(shelf, {1: None})


def test_what_states_are_made_of_is_kept_beside_them() -> None:
    shelf = Shelf()
    pages = PageStore(shelf)
    assert pages.declared is None
    declared = {"parts": {"the step": "rolling"}, "states": {}}
    pages.declared = declared
    pages.flush(0)
    assert PageStore(shelf).declared == Index(shelf.cells[INDEX]).declared == declared


@pytest.mark.parametrize("is_woken", [True, False])
def test_every_state_is_converted_wherever_its_page_is(is_woken: bool) -> None:
    shelf = Shelf()
    put(shelf, {key: Outcome(key, wake=50 if key == 7 else None) for key in range(300)})
    pages = PageStore(shelf, limit=500)
    pages.convert(lambda state: None if state % 3 == 0 else -state, is_woken=is_woken)
    pages.flush(0)
    expected = {(key,): -key for key in range(300) if key % 3}
    assert states_of(shelf) == expected

    def woken(now: int, wall: int) -> set[Key]:
        seen: dict[Key, Any] = {}
        PageStore(copy.deepcopy(shelf)).run(Groups.of([]), noting(seen), Clock(before=0, now=now, wall=wall))
        return set(seen)

    assert woken(0, -1) == set()
    assert woken(0, 0) == (set(expected) if is_woken else set())
    assert woken(50, -1) == {(7,)}


@pytest.mark.parametrize("seed", range(3))
def test_the_index_tells_in_which_page_a_key_is(seed: int) -> None:
    rng, shelf = random.Random(seed), Shelf()
    keys = {rng.randrange(10**6) for _ in range(400)}
    put(shelf, {key: key for key in keys})
    index = Index(shelf.cells[INDEX])
    assert len(index.begins) > 10
    for key in keys:
        held = shelf.cells[index.cell_of(hash_of(key))]
        assert [state for one, state in read_states(held) if one == (key,)] == [key]


def test_a_key_that_is_not_a_number_is_found_again() -> None:
    shelf = Shelf()
    for state in (None, 1, 2):
        seen: dict[Key, Any] = {}
        key = (float("nan"),)
        pages = PageStore(shelf)
        pages.run(Groups.of([(5, key, (((state or 0) + 1,),))]), noting(seen), Clock(before=0, now=0, wall=0))
        pages.flush(0)
        assert seen[key] == state


class Counting(Operator):
    """Counts the rows of a key and tells them ten later."""

    reads = ("x",)
    sides = (Side("counts", "n BIGINT"),)
    time = Time.EVENT

    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        count, since = state or (0, clock.now)
        if count and since + 10 <= clock.now:
            return Outcome(None, [(0, (count,))])
        return Outcome((count + len(rows), since), wake=since + 10)


def test_an_epoch_takes_rows_and_wakes_keys() -> None:
    shelf = Shelf()
    group = Groups.of([(hash_of(1), (1,), [(0, "a"), (1, "b")])])
    assert run_epoch(Counting(), PageStore(shelf), group, watermark=5, wall=0) == []
    assert run_epoch(Counting(), PageStore(shelf), Groups.of([]), watermark=14, wall=0) == []
    assert run_epoch(Counting(), PageStore(shelf), Groups.of([]), watermark=15, wall=0) == [(0, (1,), (2,))]
    assert states_of(shelf) == {}
    assert PageStore(shelf).clock == 15


def test_a_watch_receives_the_key_before_the_code_gets_it_and_may_withhold_it() -> None:
    told: list[tuple[Any, int | None]] = []

    def watch(key: Any, number: int | None) -> None:
        told.append((key, number))
        raise StepFailed("its worker died of it", number, is_final=True)

    group = Groups.of([(1, (1,), [(0,)])])
    with pytest.raises(StepFailed, match="its worker died of it"):
        run_epoch(Counting(), PageStore(Shelf()), group, watermark=5, wall=0, watch=watch)
    assert told == [((1,), None)]
