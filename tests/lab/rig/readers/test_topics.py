"""A reader of topics reads to the end, remembers its positions when a broker dies, and never waits for ever."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError, OffsetOutOfRangeError

from lockgate.errors import Failed
from lockgate.lab.rig.history import Gap, Read, Reader
from lockgate.lab.rig.readers import topics
from lockgate.lab.rig.readers.topics import Topics, read_records

PLACE = "out-0"


class Broker:
    """One partition, which fails when a test wants it to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, *errors: Exception) -> None:
        self.count, self.errors, self.asked_from = count, list(errors), list[int]()
        monkeypatch.setattr(topics, "_open", self._open)
        monkeypatch.setattr(topics, "_ends", lambda servers, names, isolation: {PLACE: self.count})
        monkeypatch.setattr(topics, "_PAUSE_SECONDS", 0.0)

    @contextmanager
    def _open(self, servers: str, names: Any, isolation: str, positions: Mapping[str, int]) -> Iterator[Any]:
        self.asked_from.append(positions.get(PLACE, 0))
        yield Consumer(self, self.asked_from[-1])


class Consumer:
    """Gives two records at a time."""

    def __init__(self, broker: Broker, at: int) -> None:
        self._broker, self._at = broker, at

    def position(self, place: str) -> int:
        return self._at

    def poll(self, timeout_ms: int) -> dict[str, list[Any]]:
        if self._at >= 4 and self._broker.errors:
            raise self._broker.errors.pop()
        first, self._at = self._at, min(self._at + 2, self._broker.count)
        found = [_record(offset) for offset in range(first, self._at)]
        return {PLACE: found} if found else {}


def _record(offset: int) -> Any:
    return SimpleNamespace(topic="topic", partition=0, offset=offset, key=None, value=b"%d" % offset, headers=[])


def test_records_are_read_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    Broker(monkeypatch, 7)
    assert [record.offset for record in read_records("h:1", ["topic"])] == [*range(7)]


def test_a_broker_that_dies_costs_no_record_and_gives_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch, 7, KafkaConnectionError(), KafkaConnectionError())
    assert [record.offset for record in read_records("h:1", ["topic"])] == [*range(7)]
    assert broker.asked_from == [0, 4, 4]


def test_a_position_that_is_gone_is_a_gap_and_no_new_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    Broker(monkeypatch, 7, OffsetOutOfRangeError())
    reader = Topics("h:1", {"out": "topic"}, inputs={})
    reader.start_along(lambda: 1.0)
    *rows, gap = reader.finish_along()
    assert [row.offset for row in rows if isinstance(row, Read)] == [0, 1, 2, 3]
    assert isinstance(gap, Gap)
    assert gap.reader is Reader.ALONG
    assert "OffsetOutOfRange" in gap.reason


def test_an_end_that_cannot_be_reached_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch, 4)
    monkeypatch.setattr(topics, "_ends", lambda servers, names, isolation: {PLACE: broker.count + 1})
    monkeypatch.setattr(topics, "_SILENCE_SECONDS", 0.05)
    with pytest.raises(Failed, match="cannot be read to their end"):
        list(read_records("h:1", ["topic"]))


def test_a_broker_that_stays_away_when_it_is_over_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    Broker(monkeypatch, 7, *[KafkaConnectionError()] * 10**6)
    monkeypatch.setattr(topics, "_SILENCE_SECONDS", 0.05)
    with pytest.raises(Failed, match="cannot be read to their end"):
        list(read_records("h:1", ["topic"]))


def test_the_end_is_asked_for_until_it_is_there_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Broker(monkeypatch, 7)
    answers = iter([False, False, True])
    assert len(list(read_records("h:1", ["topic"], is_over=lambda: next(answers)))) == 7
