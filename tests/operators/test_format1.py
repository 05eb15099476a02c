"""State that an earlier version wrote in format 1 goes on as if that version had gone on.

The fixture was written by the last version that wrote format 1: for each kind of step its cells after some epochs, and
digests of what the same version gave in the epochs that follow.
"""

import base64
import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from lockgate.errors import CheckpointDamaged
from lockgate.operators.encoding import PLAIN
from lockgate.operators.page import FORMAT, Page, read_states
from lockgate.operators.pagestore import INDEX, Index, PageStore
from lockgate.operators.pickled import FIRST_BYTE
from support.everykind import KEYS, KINDS, Kind, run_epochs

FIXTURE = json.loads((Path(__file__).parent / "fixtures" / "state_format_1.json").read_text())


class Cells(dict[str, bytes]):
    """Cells in memory."""

    def put(self, name: str, value: bytes) -> None:
        self[name] = value

    def remove(self, name: str) -> None:
        self.pop(name, None)


def written(kind: str) -> Cells:
    return Cells({name: base64.b64decode(content) for name, content in FIXTURE[kind]["cells"].items()})


def pages_of(cells: Cells) -> PageStore:
    return PageStore(cells, limit=3000)


def states_in(cells: Mapping[str, bytes]) -> dict[str, Any]:
    pages = [content for name, content in cells.items() if name != INDEX]
    return {repr(key): state for content in pages for key, state in read_states(content)}


def test_the_fixture_has_every_kind_of_step() -> None:
    assert FIXTURE.keys() == KINDS.keys()
    assert all(content[:1] == FIRST_BYTE for kind in FIXTURE for content in written(kind).values())


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_kept_is_read(kind: str) -> None:
    cells = written(kind)
    assert len(states_in(cells)) == len(KEYS)
    index = Index(cells[INDEX])
    assert index.declared is not None
    assert index.declared["parts"] == {"the step": kind}
    assert index.clock > 0
    again = Index(index.content())
    assert vars(again) == vars(index)


@pytest.mark.parametrize(("name", "kind"), KINDS.items(), ids=KINDS)
def test_a_step_continues_as_the_earlier_version_would_have(name: str, kind: Kind) -> None:
    cells = written(name)
    found = list(run_epochs(kind, lambda: pages_of(cells), first=len(kind.before), rows=kind.after))
    assert [sha256(repr(one).encode()).hexdigest()[:16] for one in found] == FIXTURE[name]["found"]


@pytest.mark.parametrize(("name", "kind"), KINDS.items(), ids=KINDS)
def test_state_that_this_version_wrote_continues_the_same_way(name: str, kind: Kind) -> None:
    cells = Cells()
    list(run_epochs(kind, lambda: pages_of(cells), first=0, rows=kind.before))
    found = list(run_epochs(kind, lambda: pages_of(cells), first=len(kind.before), rows=kind.after))
    assert [sha256(repr(one).encode()).hexdigest()[:16] for one in found] == FIXTURE[name]["found"]


@pytest.mark.parametrize(("name", "kind"), KINDS.items(), ids=KINDS)
def test_a_page_that_is_written_again_has_the_new_format(name: str, kind: Kind) -> None:
    cells = written(name)
    list(run_epochs(kind, lambda: pages_of(cells), first=len(kind.before), rows=kind.after[:1]))
    assert all(content[:1] != FIRST_BYTE for content in cells.values())
    assert PLAIN.decode(cells[INDEX])["format"] == FORMAT


def test_a_page_of_the_old_format_has_every_part_of_it() -> None:
    for kind in KINDS:
        for name, content in written(kind).items():
            if name == INDEX:
                continue
            old, again = Page(0, content), Page(0, Page(0, content).content())
            assert len(old) == len(again) > 0
            assert old.earliest() == again.earliest()
            assert repr(list(read_states(content))) == repr(list(read_states(old.content())))


@pytest.mark.parametrize("kind", KINDS)
def test_cells_that_were_cut_are_refused_with_their_name(kind: str) -> None:
    for name, content in written(kind).items():
        for length in (1, len(content) // 2, len(content) - 1):
            cells = written(kind)
            cells[name] = content[:length]
            with pytest.raises(CheckpointDamaged, match=f"cell '{name}' of the state cannot be read"):
                list(run_epochs(KINDS[kind], lambda cells=cells: pages_of(cells), first=3, rows=KINDS[kind].after))
