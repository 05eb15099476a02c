"""Whatever somebody else has written, reading it ends in a value or in an error of ours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.checkpoints.checkpoint import ACCEPTED, Checkpoint, as_offsets, parse_accepted
from lockgate.checkpoints.logs import read_commit, read_offsets, read_source_log
from lockgate.checkpoints.marker import parse_marker, read_marker
from lockgate.checkpoints.operators import parse_operator
from lockgate.checkpoints.savepoints import read_savepoint
from lockgate.checkpoints.tree import LocalTree
from lockgate.commit.ledger import Entry, entry_of
from lockgate.connectors.files.manifest import Manifest, manifest_of
from lockgate.connectors.files.store import directory_of
from lockgate.errors import LockgateError
from lockgate.runtime.deadletters import as_letter
from lockgate.untrusted import DEPTH_MAX, Unreadable, read_json, read_object, take, take_nullable

ENTRY = Entry(run="r", query="q", epoch=7, digest="d", at="2026-01-01", staged={"files": "x"})
DEEP = 100_000
HOSTILE = {
    "deep lists": b"[" * DEEP,
    "deep and closed": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "a huge number": b"9" * 10_000,
    "a number of 21 digits": b'{"epoch": 999999999999999999999}',
    "NaN": b'{"epoch": NaN}',
    "infinity": b'{"epoch": 1e999}',
    "no UTF-8": b"\xff\xfe\x00",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "nothing": b"",
    "half": b'{"format": 1',
    "null": b"null",
    "a list": b"[[], {}]",
    "an enormous text": json.dumps({"format": 1, "run": "x" * (17 << 20)}).encode(),
}
FIELDS = json.dumps({**ENTRY.as_facts(), "sequence": 1, "job": "j", "id": "ab", "made": "", "groups": [], "files": []})
WRONG = ("x", -1, 1.5, True, None, [], [[]], {}, {"a": []}, [1, 2, 3], "9" * 5000, "\ud800")


def decoders(folder: Path) -> dict[str, Callable[[bytes], object]]:
    """Everything that reads JSON from outside, as a function of bytes."""
    tree = LocalTree(folder)

    def written(name: str, read: Callable[[], object]) -> Callable[[bytes], object]:
        def put_and_read(content: bytes) -> object:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
            return read()

        return put_and_read

    checkpoint = Checkpoint(root=str(folder))
    second_line = b"v1\n"
    return {
        "ledger": lambda content: entry_of(content, "here"),
        "manifest": lambda content: manifest_of(content, "j", "here"),
        "staged": lambda content: directory_of(content.decode(errors="replace")),
        "marker": written("lockgate.json", lambda: read_marker(tree)),
        "marker, parsed": parse_marker,
        "savepoint": written("savepoint.json", lambda: read_savepoint(tree)),
        "accepted": parse_accepted,
        "accepted, read": written(ACCEPTED, checkpoint.accepted),
        "query": written("metadata", checkpoint.query),
        "offsets": lambda content: read_offsets(second_line + content),
        "offset": lambda content: read_offsets(second_line + b"{}\n" + content),
        "commit": lambda content: read_commit(second_line + content),
        "source log": lambda content: read_source_log(second_line + content),
        "operator": lambda content: parse_operator(second_line + content, 0),
        "Kafka's offsets": lambda content: as_offsets(content.decode(errors="replace")),
        "letter": lambda content: as_letter(read_object(content)),
    }


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_an_error_of_ours_in_every_decoder(content: bytes, tmp_path: Path) -> None:
    check_all(tmp_path, content)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:20])
def test_a_value_of_another_type_is_an_error_of_ours_in_every_decoder(wrong: object, tmp_path: Path) -> None:
    facts = json.loads(FIELDS)
    for name in facts:
        check_all(tmp_path, json.dumps({**facts, name: wrong}).encode())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)


@given(st.sampled_from(sorted(json.loads(FIELDS))), values)
def test_any_value_in_any_field_is_an_error_of_ours(name: str, value: Any) -> None:
    content = json.dumps({**json.loads(FIELDS), name: value}).encode()
    for read in (entry_of, lambda content, where: manifest_of(content, "j", where)):
        try:
            found = read(content, "here")
        except LockgateError:
            continue
        assert isinstance(found, Entry | Manifest)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_unreadable(content: bytes) -> None:
    told = "a value"
    try:
        json.dumps(read_json(content))
    except Unreadable as error:
        told = str(error)
    assert len(told) < 1000


def test_depth_is_bounded_where_the_stack_is_not() -> None:
    assert read_json("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    with pytest.raises(Unreadable, match="nested too deep"):
        read_json("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1))


def test_a_field_has_one_type() -> None:
    facts = {"epoch": True, "digest": None}
    with pytest.raises(Unreadable, match="'epoch' is True, and not an int"):
        take(facts, "epoch", int)
    with pytest.raises(Unreadable, match="'run' is missing"):
        take_nullable(facts, "run", str)
    assert take_nullable(facts, "digest", str) is None


def test_what_an_error_quotes_is_short_and_has_no_control_characters() -> None:
    with pytest.raises(LockgateError) as caught:
        entry_of(json.dumps({**ENTRY.as_facts(), "epoch": "\x1b[2J\n" + "x" * 10_000}).encode(), "here")
    assert caught.value.what.isprintable()
    assert len(caught.value.what) < 1000


def check_all(folder: Path, content: bytes) -> None:
    """Every decoder gives a value or an error of ours; those that raise ValueError are wrapped by who calls them."""
    for name, read in decoders(folder).items():
        told = "a value"
        try:
            read(content)
        except (LockgateError, ValueError) as error:
            told = str(error)
        assert len(told) < 4000, name
