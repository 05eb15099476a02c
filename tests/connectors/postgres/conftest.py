"""What the tests of the PostgreSQL layer share."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockgate.connectors.postgres import store


@pytest.fixture
def database(dsn: str) -> Iterator["psycopg.Connection[Any]"]:
    """A connection of the test's own, in autocommit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of this file need no JVM to be encoded: their columns only take the table's names."""
    monkeypatch.setattr(store, "encode", lambda rows, fits: rows)
