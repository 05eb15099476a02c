"""A batch that cannot be read, among the records of a topic: it is skipped with a warning."""

import logging

import pytest

from lockgate.connectors.kafka.batches import split
from lockgate.connectors.kafka.reading import _values
from support.batches import seal, varint

RECORD = varint(9) + b"\0" + varint(0) * 2 + varint(-1) + varint(3) + b"abc" + varint(0)


def test_records_before_the_one_that_cannot_be_read_are_there_and_the_rest_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (whole,) = split(seal(RECORD))
    (broken,) = split(seal(RECORD + b"x", at=1))
    with caplog.at_level(logging.WARNING):
        found = [value for batch in (whole, broken) for value in _values(batch, ("letters", 2), 0, 9)]
    assert found == [b"abc", b"abc"]
    assert "topic letters, partition 2: a batch is skipped, because 1 bytes follow" in caplog.text
