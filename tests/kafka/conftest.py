"""What the tests of the Kafka layer share."""

from collections.abc import Iterator

import pytest

from lockgate.kafka.settings import read_settings
from lockgate.kafka.wire import Connection


@pytest.fixture(scope="module")
def connection(kafka: str) -> Iterator[Connection]:
    """A module's own connection to the session's Kafka."""
    connection = Connection(read_settings(kafka, {}, where="test"), where="test")
    yield connection
    connection.close()
