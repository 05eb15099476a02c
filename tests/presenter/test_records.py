"""What is taken of a record, and that nothing that anybody can write ends the presenter."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.presenter.records import ID_BYTES_MAX, Unreadable, read_score, read_transaction

DEEP = b'{"id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BROKEN_IDS = [
    None,
    b"",
    b"no JSON",
    b"[]",
    b'"id"',
    b"\xff\xfe",
    b"{}",
    b'{"id": null}',
    b'{"id": true}',
    b'{"id": 1.5}',
    b'{"id": {"a": 1}}',
    rb'{"id": "\ud800"}',
    json.dumps({"id": "x" * (ID_BYTES_MAX + 1)}).encode(),
    b'{"id": ' + b"9" * 5000 + b"}",
    DEEP,
]
BROKEN_SCORES = [b"", b'"high"', b"true", b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 400, b"[0.5]", b"{}"]


@pytest.mark.parametrize("value", BROKEN_IDS)
def test_a_record_without_a_usable_id_is_unreadable(value: bytes | None) -> None:
    with pytest.raises(Unreadable):
        read_transaction(value)


@pytest.mark.parametrize("score", BROKEN_SCORES)
def test_a_score_that_is_no_finite_number_is_unreadable(score: bytes) -> None:
    with pytest.raises(Unreadable):
        read_score(b'{"id": "t1", "score": ' + score + b"}")


def test_a_score_has_to_be_there_and_may_be_null() -> None:
    with pytest.raises(Unreadable):
        read_score(b'{"id": "t1"}')
    assert read_score(b'{"id": "t1", "score": null}') == ("t1", None)
    assert read_score(b'{"id": "t1", "score": 1}') == ("t1", 1.0)


def test_an_id_may_be_text_or_a_whole_number() -> None:
    assert read_transaction(b'{"id": 7}') == read_transaction(b'{"id": "7"}') == "7"
    assert read_transaction(rb'{"id": "\ud83d\ude00"}') == "\U0001f600"
    longest = "x" * ID_BYTES_MAX
    assert read_transaction(json.dumps({"id": longest}).encode()) == longest


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=4))
def test_whatever_an_id_and_a_score_are_the_answer_can_be_written(thing: object) -> None:
    value = json.dumps({"id": thing, "score": thing}).encode()
    for read in (read_transaction, lambda value: read_score(value)[0]):
        try:
            id = read(value)
        except Unreadable:
            continue
        assert json.loads(json.dumps({"id": id.encode().decode()}, allow_nan=False)) == {"id": id}
