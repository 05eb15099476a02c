"""What the tests of the Kafka layer share."""

from collections.abc import Iterator

import pytest

from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.wire import Connection
from support.secured import Secured, secured_broker


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with TLS, logins and rights, for all tests of this folder in a process."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture(scope="module")
def connection(kafka: str) -> Iterator[Connection]:
    """A module's own connection to the session's Kafka."""
    connection = Connection(read_settings(kafka, {}, where="test"), where="test")
    yield connection
    connection.close()
