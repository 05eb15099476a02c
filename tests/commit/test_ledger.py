"""The bytes of the ledger are a contract between versions, and are read by people."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.commit.ledger import FORMAT, Entry, Gap, entry_of
from lockgate.errors import InvariantBroken

ENTRY = Entry(
    run="run", query="query", epoch=7, digest="ab12", at="2026-01-01T00:00:00.000+00:00", staged={"out": "file-3"}
)
texts = st.text(max_size=20)


def test_the_bytes_of_format_1_stay_as_they_are() -> None:
    assert ENTRY.to_bytes() == (
        b'{"format": 1, "epoch": 7, "digest": "ab12", "run": "run", "query": "query",'
        b' "staged": {"out": "file-3"}, "at": "2026-01-01T00:00:00.000+00:00"}'
    )


@given(
    st.builds(
        Entry,
        run=texts,
        query=st.none() | texts,
        epoch=st.none() | st.integers(0, 2**63),
        digest=st.none() | texts,
        at=texts,
        staged=st.dictionaries(texts, texts, max_size=3),
    )
)
def test_what_is_written_is_read_back(entry: Entry) -> None:
    assert entry_of(entry.to_bytes(), "here") == entry


def test_gaps_are_reported_if_there_are_any() -> None:
    gap = Gap(topic="t", partition=1, start=5, end=9, epoch=7, at="2026-01-01T00:00:00.000+00:00")
    entry = replace(ENTRY, gaps=(gap,))
    assert entry.to_bytes().endswith(
        b', "gaps": [{"topic": "t", "partition": 1, "from": 5, "to": 9, "behind_epoch": 7,'
        b' "at": "2026-01-01T00:00:00.000+00:00"}]}'
    )
    assert entry_of(entry.to_bytes(), "here") == entry


def test_facts_of_a_newer_version_that_are_not_known_do_no_harm() -> None:
    facts = {**ENTRY.as_facts(), "shape of things to come": [1, 2]}
    assert entry_of(json.dumps(facts).encode(), "here") == ENTRY


def test_a_claim_changes_hands_and_nothing_else() -> None:
    now = datetime(2026, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    claimed = ENTRY.claimed("other", "query-2", now)
    assert claimed.as_facts() == {
        **ENTRY.as_facts(),
        "run": "other",
        "query": "query-2",
        "at": "2026-05-06T07:08:09.123+00:00",
    }


@pytest.mark.parametrize("kind", [0, FORMAT + 1, "1", None])
def test_another_format_is_refused_with_the_version_as_the_fix(kind: object) -> None:
    with pytest.raises(InvariantBroken, match=r"the ledger has format .*this version of Lockgate knows 1") as caught:
        entry_of(json.dumps({**ENTRY.as_facts(), "format": kind}).encode(), "topic 'x'")
    assert "version of Lockgate" in caught.value.fix
    assert caught.value.where == "topic 'x'"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        b"not json",
        b"[]",
        b"null",
        b"7",
        b"{}",
        b'{"format": 1}',
        json.dumps({**ENTRY.as_facts(), "epoch": "many"}).encode(),
        json.dumps({**ENTRY.as_facts(), "staged": None}).encode(),
        json.dumps({**ENTRY.as_facts(), "staged": ["a"]}).encode(),
        json.dumps({key: fact for key, fact in ENTRY.as_facts().items() if key != "digest"}).encode(),
    ],
)
def test_bytes_that_are_no_entry_are_shown_and_the_commands_named(value: bytes) -> None:
    with pytest.raises(InvariantBroken, match="cannot be read") as caught:
        entry_of(value, "topic 'x'")
    assert "lockgate ledger show" in caught.value.fix
    assert "lockgate ledger set" in caught.value.fix
    assert caught.value.where == "topic 'x'"


def test_a_long_stranger_is_shown_only_in_part() -> None:
    with pytest.raises(InvariantBroken) as caught:
        entry_of(b"x" * 100_000, "here")
    assert len(caught.value.what) < 400
