"""The systems beside Kafka in which a job can have a ledger."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg

from lockgate.commit.repair import MendableLedger
from lockgate.connectors.files.ledger import FileLedger
from lockgate.connectors.postgres.ledger import PostgresLedger
from lockgate.connectors.sqlite.sink import SqliteLedger


@dataclass(frozen=True)
class Place:
    """Where the ledger of a job lies, and how to spoil it."""

    job: str
    option: tuple[str, str]
    name: str
    open: Callable[[], MendableLedger]
    spoil: Callable[[], None]


def in_sqlite(job: str, directory: Path) -> Place:
    file = directory / "results.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE out (id INTEGER)")

    def spoil() -> None:
        with closing(sqlite3.connect(file)) as connection, connection:
            # Bytes in place of a text, and too deep: SQLite takes any type in any column.
            connection.execute("UPDATE lockgate_ledger SET entry = ?", [b"[" * 100_000])

    return Place(
        job, ("--sqlite", str(file)), f"of {file}", lambda: SqliteLedger(str(file), job, where="test"), spoil=spoil
    )


def in_files(job: str, directory: Path) -> Place:
    root = directory / "out"
    root.mkdir()

    def spoil() -> None:
        newest = max((root / "_lockgate" / job).glob("*.json"))
        newest.write_bytes(b"[" * 100_000)

    return Place(
        job, ("--files", str(root)), f"in {root}", lambda: FileLedger(str(root), job, where="test"), spoil=spoil
    )


def in_postgres(job: str, dsn: str) -> Place:
    def spoil() -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute("UPDATE lockgate_ledger SET entry = '{}' WHERE job = %s", [job])

    return Place(
        job, ("--postgres", dsn), "table lockgate_ledger at", lambda: PostgresLedger(dsn, job, where="test"), spoil
    )
