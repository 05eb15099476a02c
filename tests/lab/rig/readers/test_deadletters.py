"""Dead letters are compared by what they say of their events, not by what a run says of itself."""

import json
from typing import Any

from lockgate.lab.rig.history import Read, Reader
from lockgate.lab.rig.readers.deadletters import compared

RUN = "lockgate-proof-1-0"
LETTER = {
    "id": "f06d",
    "job": RUN,
    "life": "e036",
    "epoch": 3,
    "attempts": 2,
    "hindered": None,
    "step": "map",
    "reason": "ValueError: no call",
    "source": "events",
    "part": f"{RUN}-in-0-000000",
    "at": 46,
    "value": "e30=",
}


def letter(key: bytes | None = None, **facts: Any) -> Read:
    value = json.dumps({**LETTER, **facts}).encode()
    return Read(Reader.AFTER, "out-1", 0, 7, key, value, (("in-0", 0, 46),), 3, 1.5)


def test_dead_letters_of_two_runs_are_alike() -> None:
    one = letter(key=b"f06d")
    name = "lockgate-proof-answer"
    other = letter(key=b"beef", id="beef", job=name, life="aa", epoch=9, attempts=1, part=f"{name}-in-0-000000")
    assert one.content != other.content
    assert compared(one, {f"{RUN}-": ""}).content == compared(other, {f"{name}-": ""}).content
    assert compared(one, {}).trace == one.trace


def test_topics_are_shown_by_the_names_that_they_have_in_every_run_and_the_longest_name_counts() -> None:
    names = {"ours": "job", "ours-in-1": "calls", "ours-in-10": "payments"}
    found = compared(letter(reason="no number in topic 'ours-in-1'", part="ours-in-10-000000"), names)
    told = json.loads(found.value or b"")
    assert (told["reason"], told["part"]) == ("no number in topic 'calls'", "payments-000000")
    assert told.keys().isdisjoint({"id", "job", "life", "epoch", "attempts", "hindered"})


def test_a_dead_letter_without_a_column_is_the_same_as_one_with_nothing_in_it() -> None:
    assert compared(letter(child=None), {}).content == compared(letter(), {}).content


def test_dead_letters_of_other_events_or_for_other_reasons_are_not() -> None:
    known = compared(letter(), {}).content
    for facts in (
        {"at": 47},
        {"reason": "another"},
        {"step": "where"},
        {"value": "e31="},
        {"part": "1"},
        {"child": "1"},
    ):
        assert compared(letter(**facts), {}).content != known, facts


def test_what_is_no_dead_letter_is_left_as_it_is() -> None:
    for value in (None, b"", b"\xff", b"{", b"[1]", b"7", b"a,b", b'{"id": 1, "job": "ours"}'):
        read = Read(Reader.AFTER, "out-1", 0, 7, b"k", value, None, 3, 1.5)
        assert compared(read, {RUN: ""}) == read
    more = letter(colour="red")
    assert compared(more, {RUN: ""}) == more
