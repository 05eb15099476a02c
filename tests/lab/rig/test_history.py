"""A history is written line by line, and tells its readers apart."""

import json

from lockgate.lab.rig.history import (
    Committed,
    End,
    Fact,
    Fault,
    Gap,
    History,
    Ledger,
    Position,
    Read,
    Reader,
    ReadToEnd,
    Sent,
    Signed,
    Standing,
    Start,
    Up,
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


def test_every_kind_of_fact_is_one_line_of_json_that_names_it() -> None:
    lines = [json.loads(line) for line in History(tuple(FACTS)).lines()]
    assert {type(fact) for fact in FACTS} == set(Fact.__args__)
    assert len({line["fact"] for line in lines}) == len(Fact.__args__)
    assert all("\n" not in line for line in History(tuple(FACTS)).lines())


def test_bytes_are_base64_and_places_are_lists() -> None:
    assert json.loads(as_line(FACTS[0]))["value"] == "AP8gbm90IHRleHQ="
    read = next(fact for fact in FACTS if isinstance(fact, Read))
    assert json.loads(as_line(read))["trace"] == [["in", 0, 3, []], ["in", 1, 7, [0, 2]]]


def test_what_was_read_is_distinguished_by_reader_and_output() -> None:
    history = History(tuple(FACTS))
    assert [row.offset for row in history.read_by(Reader.AFTER, "out")] == [12]
    assert history.read_by(Reader.AFTER, "elsewhere") == ()


def test_only_a_reader_that_says_so_has_read_to_the_end() -> None:
    history = History(tuple(FACTS))
    assert history.doubt(Reader.AFTER) is None
    assert "it was killed" in str(history.doubt(Reader.ALONG))
    assert "not read to the end" in str(history.doubt(Reader.LOG))
