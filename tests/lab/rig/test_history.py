"""A history is written and read line by line, and comes back as it was."""

import json

import pytest

from lockgate.errors import Refused
from lockgate.lab.rig.history import (
    Committed,
    End,
    Fact,
    Fault,
    Gap,
    History,
    Ledger,
    Position,
    Processed,
    Read,
    Reader,
    ReadToEnd,
    Sent,
    Signed,
    Standing,
    Start,
    Up,
    as_fact,
    as_line,
)

TRACE = (Position("in", 0, 3), Position("in", 1, 7, (0, 2)))
ENDS = (End("in", 0, 4), End("in", 1, 8))
FACTS: list[Fact] = [
    Sent("in", 0, 3, b"k", b"\x00\xff not text", 0.5),
    Sent("in", 1, 7, None, None, 0.6),
    Fault("kill driver", "VOTES", "driver 0", 1.0, epoch=2),
    Fault("kill broker", "any moment", "broker 1", 1.5),
    Start(0, 0.1),
    Up(0, 0.4),
    Processed(2, 0, ENDS, 0.9),
    Committed(2, 1, ENDS, 4.0),
    Committed(3, None, ENDS, 5.0),
    Read(Reader.ALONG, "out", 0, 11, b"k", b"\xfe", TRACE, 2, 4.25),
    Read(Reader.LOG, "out", 0, 11, None, None, None, None, 9.0),
    Read(Reader.AFTER, "out", 0, 12, b"", b"", (), 0, 9.0),
    ReadToEnd(Reader.AFTER, 9.5),
    Gap(Reader.ALONG, "it was killed", 5.0),
    Standing("out", 0, 1, 11, 13, 9.6),
    Ledger((Signed("a", None), Signed("a", 0)), "", 9.7),
]


def test_every_kind_of_fact_comes_back_as_it_was() -> None:
    history = History(tuple(FACTS))
    lines = list(history.lines())
    assert History.of_lines((line + "\n" for line in lines), where="history") == history
    assert all("\n" not in line for line in lines)
    assert {type(fact) for fact in FACTS} == set(Fact.__args__)


def test_bytes_are_base64() -> None:
    assert json.loads(as_line(FACTS[0]))["value"] == "AP8gbm90IHRleHQ="


def test_what_was_read_is_told_apart_by_reader_and_output() -> None:
    history = History(tuple(FACTS))
    assert [row.offset for row in history.read_by(Reader.AFTER, "out")] == [12]
    assert history.read_by(Reader.AFTER, "elsewhere") == ()


def test_only_a_reader_that_says_so_has_read_to_the_end() -> None:
    history = History(tuple(FACTS))
    assert history.doubt(Reader.AFTER) is None
    assert "it was killed" in str(history.doubt(Reader.ALONG))
    assert "not read to the end" in str(history.doubt(Reader.LOG))


@pytest.mark.parametrize(
    "line",
    [
        as_line(FACTS[0])[:-9],
        "",
        "[]",
        "7",
        '{"fact": "rumour", "at_seconds": 1}',
        '{"fact": "up", "at_seconds": 1}',
        '{"fact": "up", "driver": 0, "at_seconds": 1, "mood": "good"}',
        as_line(FACTS[0]).replace("AP8g", "A!8g"),
    ],
)
def test_what_is_no_fact_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(Refused, match="history, line 2"):
        History.of_lines([as_line(FACTS[1]), line], where="history")


def test_a_line_is_a_fact() -> None:
    assert as_fact(as_line(FACTS[9])) == FACTS[9]
