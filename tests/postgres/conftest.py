"""What the tests of the PostgreSQL layer share; the module beside this file is found by its name."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lockgate.postgres import store
from lockgate.services.postgres import Postgres


@pytest.fixture
def dsn(server: Postgres) -> str:
    """A schema of the test's own, as the first of the search path."""
    schema = f"Test-{uuid4().hex[:8]}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{schema}"')
    return f"{server.dsn}?options=-csearch_path%3D%22{schema}%22"


@pytest.fixture
def database(dsn: str) -> Iterator["psycopg.Connection[Any]"]:
    """A connection of the test's own, in autocommit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of this file need no JVM to be encoded: their columns only take the table's names."""
    monkeypatch.setattr(store, "encode", lambda rows, fits: rows)
