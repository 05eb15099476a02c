"""The ledger row of a job in PostgreSQL, for the commands that show and set ledgers (see `commit/repair.py`).

A running driver holds a connection with the job's name, so this system can see that there is one. Only some users may
see it: the same user, or one with pg_read_all_stats.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from lockgate.commit.ledger import Entry
from lockgate.commit.repair import MendableLedger, moved, read_if_possible
from lockgate.connectors.postgres.address import server_of
from lockgate.connectors.postgres.connect import Lost, connect, translated_errors
from lockgate.connectors.postgres.staging import REGISTRY, registered
from lockgate.connectors.postgres.store import LEDGER, driver_name, make_tables, read_entry
from lockgate.connectors.postgres.tableschema import TableName
from lockgate.errors import Failed, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockgate.connectors.postgres.connect import Connection

_PATIENCE = timedelta(seconds=5)  # a person waits for the answer
_LOCK_MS = 20_000
_TRIES = 3


class PostgresLedger(MendableLedger):
    """The ledger of one job in one database."""

    option = "--postgres DSN"
    missing = f"table {LEDGER!r} has no row for it, or is not there"

    def __init__(self, dsn: str, job: str, *, where: str) -> None:
        server = server_of(dsn, where)
        self.where = f"table {LEDGER!r} at {server}, {where}"
        self.name = f"table {LEDGER} at {server}"
        self.facts = {"table": LEDGER, "database": server}
        self._dsn = dsn
        self._job = job
        try:
            self._connection = self._connect()
        except Lost as error:
            raise Refused(error.what, where=error.where, fix="start the server, or correct the dsn") from None

    def peek(self) -> Entry | None:
        with translated_errors(where=self.where), self._connection.transaction():
            schema = self._schema(LEDGER)
            return None if schema is None else self._read(schema)

    def waiting(self) -> Sequence[str]:
        with translated_errors(where=self.where), self._connection.transaction():
            schema = self._schema(REGISTRY)
            if schema is None:
                return ()
            return [table.name for table in registered(self._connection, schema, self._job) if self._has_rows(table)]

    def refuse_driver(self) -> None:
        with translated_errors(where=self.where), self._connection.transaction():
            found = self._connection.execute(
                "SELECT pid, host(client_addr), backend_start::text FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = %s AND pid <> pg_backend_pid()",
                [driver_name(self._job)],
            ).fetchone()
        if found is not None:
            pid, address, since = found
            raise Refused(
                f"a driver of job {self._job!r} seems to run: it is connected to the database since {since}"
                + ("" if address is None else f", from {address}"),
                where=self.where,
                fix=f"stop the driver; if it is dead, the server notices within a minute or two, or at once with:"
                f" SELECT pg_terminate_backend({pid})",
            )

    def replace(self, seen: Entry | None, entry: Entry) -> None:
        lost = ""
        for _ in range(_TRIES):
            try:
                if lost:
                    self._connection = self._connect()
                with translated_errors(where=self.where), self._connection.transaction():
                    self._replace(seen, entry)
                return
            except Lost as error:
                lost = error.what
                self._connection.close()
        raise Failed(
            f"it is not known whether the ledger was written: {lost}",
            where=self.where,
            fix="start the server, then look: lockgate ledger show",
        )

    def close(self) -> None:
        self._connection.close()

    def _connect(self) -> Connection:
        connection = connect(self._dsn, where=self.where, name="lockgate ledger", patience=_PATIENCE)
        connection.autocommit = True  # transactions are begun explicitly, so that reading holds none open
        return connection

    def _schema(self, table: str) -> str | None:
        """The schema in which a run would keep this table, if the table exists."""
        found = self._connection.execute("SELECT current_schema()").fetchone()
        schema: str | None = None if found is None else found[0]
        return schema if schema is not None and self._exists(TableName(schema, table)) else None

    def _exists(self, table: TableName) -> bool:
        shown = table.sql.as_string(self._connection)
        return self._connection.execute("SELECT to_regclass(%s) IS NOT NULL", [shown]).fetchone() == (True,)

    def _has_rows(self, table: TableName) -> bool:
        from psycopg.sql import SQL

        statement = SQL("SELECT EXISTS (SELECT FROM {})").format(table.sql)
        return self._exists(table) and self._connection.execute(statement).fetchone() == (True,)

    def _read(self, schema: str) -> Entry | None:
        return read_entry(self._connection, schema, self._job, where=self.where)

    def _replace(self, seen: Entry | None, entry: Entry) -> None:
        from psycopg.sql import SQL

        schema = make_tables(self._connection, self.where)
        ledger = TableName(schema, LEDGER).sql
        self._connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MS}")
        # The whole table, because a driver may be about to insert a row that cannot be locked yet.
        self._connection.execute(SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(ledger))
        current = read_if_possible(lambda: self._read(schema))
        if current == entry:
            return  # the end of the last try was unknown, and it is committed
        if current != seen:
            raise moved(current, self.where)
        self._connection.execute(
            SQL(
                "INSERT INTO {} (job, entry) VALUES (%s, %s) ON CONFLICT (job) DO UPDATE SET entry = EXCLUDED.entry"
            ).format(ledger),
            [self._job, entry.to_bytes().decode()],
        )
