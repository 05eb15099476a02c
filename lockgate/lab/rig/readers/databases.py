"""Tables of PostgreSQL and SQLite: read by their own client libraries, in transactions as short as a statement.

A table that does not exist yet has no rows. The place of an added row is where it is stored, which does not change
unless the table is rewritten: its page and line in PostgreSQL, its rowid in SQLite. No reader of ours writes, or waits
for a lock that a writer would wait for.

Left behind, when the job has recovered, may be

    PostgreSQL   transactions that are prepared, or open in a session of the job; staging that the job registered
    SQLite       staged rows; a journal, which is half a transaction
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Hashable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lockgate.errors import Failed
from lockgate.lab.rig.history import Fact, Standing
from lockgate.lab.rig.judge.promises import Keeping
from lockgate.lab.rig.readers.output import Clock
from lockgate.lab.rig.readers.polling import Away, Polled, Seen
from lockgate.lab.rig.readers.rows import canonical, key_of

if TYPE_CHECKING:
    import psycopg

_CONNECT_SECONDS = 5
_STATEMENT_MS = 30_000
_LOCKED_SECONDS = 1.0
_CLEARING_SECONDS = 30.0
_SETTLING_SECONDS = 10.0  # a server needs a moment to see that a client has died
_LINES_PER_PAGE = 1 << 16

_OPEN = """
    SELECT (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database())
         + (SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND xact_start IS NOT NULL AND application_name LIKE 'lockgate%'
               AND pid <> pg_backend_pid())
"""


class PostgresRows(Polled):
    """A table of PostgreSQL, as a job of this name writes it."""

    def __init__(self, label: str, dsn: str, table: str, *, job: str, key: Collection[str] = ()) -> None:
        super().__init__(label, Keeping.REPLACED if key else Keeping.ADDED)
        self._dsn, self._table, self._job, self._key = dsn, table, job, key
        self._connection: psycopg.Connection[Any] | None = None

    def look(self, known: Collection[Hashable]) -> list[Seen]:
        import psycopg
        from psycopg.errors import UndefinedTable
        from psycopg.sql import SQL, Identifier

        # A place may be used again: only together with the transaction that wrote it, it names a version.
        version = "ctid::text || ' ' || xmin::text"
        # The alias is a name that no column has.
        rows = SQL(
            f"SELECT {version}, row_to_json({{one}})::text FROM {{}} AS {{one}} WHERE {version} <> ALL (%s::text[])"
        )
        statement = rows.format(Identifier(self._table), one=Identifier("row of a trial"))
        try:
            if self._connection is None:
                self._connection = self._connect()
            found = self._connection.execute(statement, [list(known)]).fetchall()
        except UndefinedTable:
            return []
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            self.release()
            raise Away(str(error)) from error
        return [self._seen(version, json.loads(text, parse_float=str)) for version, text in found]

    def release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def clear(self) -> None:
        from psycopg.sql import SQL, Identifier

        with self._asked(is_reading=False) as connection:
            connection.execute(f"SET lock_timeout = {int(_CLEARING_SECONDS * 1000)}")
            connection.execute(SQL("DROP TABLE IF EXISTS {}").format(Identifier(self._table)))
            if _has(connection, "lockgate_ledger"):
                connection.execute("DELETE FROM lockgate_ledger WHERE job = %s", [self._job])
            if _has(connection, "lockgate_staging"):
                staged = connection.execute("DELETE FROM lockgate_staging WHERE job = %s RETURNING name", [self._job])
                for (name,) in staged.fetchall():
                    connection.execute(SQL("DROP TABLE IF EXISTS {}").format(Identifier(name)))

    def standing(self, clock: Clock) -> list[Fact]:
        deadline = time.monotonic() + _SETTLING_SECONDS
        with self._asked() as connection:
            while (left := self._left(connection)) and time.monotonic() < deadline:
                time.sleep(0.5)
        return [Standing(self.label, 0, left, 0, 0, clock())]

    def _left(self, connection: psycopg.Connection[Any]) -> int:
        left = _number(connection.execute(_OPEN))
        if _has(connection, "lockgate_staging"):
            left += _number(connection.execute("SELECT count(*) FROM lockgate_staging WHERE job = %s", [self._job]))
        return left

    def _seen(self, version: str, row: dict[str, Any]) -> Seen:
        page, line = version.split(" ")[0].strip("()").split(",")
        return Seen(version, int(page) * _LINES_PER_PAGE + int(line), key_of(row, self._key), canonical(row))

    def _connect(self, *, is_reading: bool = True) -> psycopg.Connection[Any]:
        import psycopg

        settings = {
            "timezone": "UTC",
            "statement_timeout": str(_STATEMENT_MS),
            "default_transaction_read_only": "on" if is_reading else "off",
        }
        return psycopg.connect(
            self._dsn,
            autocommit=True,
            connect_timeout=_CONNECT_SECONDS,
            application_name="reader of a trial",
            options=" ".join(f"-c {name}={value}" for name, value in settings.items()),
        )

    @contextmanager
    def _asked(self, *, is_reading: bool = True) -> Iterator[psycopg.Connection[Any]]:
        """A connection for a question, when nothing is killed."""
        import psycopg

        try:
            with self._connect(is_reading=is_reading) as connection:
                yield connection
        except psycopg.Error as error:
            raise Failed(
                f"PostgreSQL does not answer a reader: {error}",
                where=f"table {self._table!r} of the trial's PostgreSQL",
                fix="see what its log says, and run the trial again",
            ) from error


class SqliteRows(Polled):
    """A table of an SQLite file."""

    def __init__(self, label: str, path: Path, table: str, *, key: Collection[str] = ()) -> None:
        super().__init__(label, Keeping.REPLACED if key else Keeping.ADDED)
        self._path, self._table, self._key = path, table, key

    def look(self, known: Collection[Hashable]) -> list[Seen]:
        if not self._path.exists():
            return []
        try:
            with closing(self._connect()) as connection:
                columns = [row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(self._table)})")]
                if not columns:
                    return []
                own = {name.lower() for name in columns}
                rowid = next(name for name in ("rowid", "_rowid_", "oid") if name not in own)
                found = connection.execute(f"SELECT {rowid}, * FROM {_quoted(self._table)}").fetchall()
        except (
            sqlite3.OperationalError
        ) as error:  # it is locked, or a driver died in a transaction and no other one has rolled it back
            raise Away(str(error)) from error
        return [
            Seen(version, version[0], key_of(row, self._key), canonical(row))
            for version in found
            if version not in known
            for row in [dict(zip(columns, version[1:], strict=True))]
        ]

    def clear(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for path in (self._path, self._journal):
            path.unlink(missing_ok=True)

    def standing(self, clock: Clock) -> list[Fact]:
        left = int(self._journal.exists() and self._journal.stat().st_size > 0)
        if not left and self._path.exists():  # a reader cannot roll back half a transaction
            try:
                with closing(self._connect()) as connection:
                    tables = connection.execute(
                        r"SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'lockgate\_staged\_%'"
                        r" ESCAPE '\'"
                    ).fetchall()
                    for (table,) in tables:
                        count = f"SELECT count(DISTINCT lockgate_name) FROM {_quoted(table)}"
                        left += connection.execute(count).fetchone()[0]
            except sqlite3.Error as error:
                raise Failed(
                    f"SQLite does not answer a reader: {error}",
                    where=str(self._path),
                    fix="see which process holds the file, and run the trial again",
                ) from error
        return [Standing(self.label, 0, left, 0, 0, clock())]

    @property
    def _journal(self) -> Path:
        return self._path.with_name(f"{self._path.name}-journal")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{quote(str(self._path))}?mode=ro", uri=True, timeout=_LOCKED_SECONDS)


def _has(connection: psycopg.Connection[Any], table: str) -> bool:
    return connection.execute("SELECT to_regclass(%s)", [table]).fetchone() != (None,)


def _number(cursor: psycopg.Cursor[Any]) -> int:
    found = cursor.fetchone()
    return int(found[0]) if found is not None else 0


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
