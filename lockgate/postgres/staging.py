"""Staging: tables in which rows wait, where no reader looks, until they are moved into the table that they are for.

A staging table has the columns of its rows, in the table's own types, so what the table would not take is found while
tasks write and not at the commit; beside them the id of the write, a running number that keeps the order of the rows of
a task, and whether the row deletes its key. A registry names the staging tables of every job, made in the same
transaction as they are, so that a later run finds what an earlier one left.

A task that was stopped may hold a lock on such a table for ever. Whoever clears up waits for a moment only, and removes
the rows, which needs no such lock, where the table itself cannot be had.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.deletes import DELETED
from lockgate.errors import EpochFailed, InvariantBroken
from lockgate.postgres.connect import STAGING_PREFIX
from lockgate.postgres.tables import NUMBER, WRITE, Fit, Table, TableName

if TYPE_CHECKING:
    from psycopg.sql import Composed

    from lockgate.postgres.connect import Connection

REGISTRY = "lockgate_staging"
_SHORTLY_MS = 500


@dataclass(frozen=True)
class Staging:
    """A staging table and what it is for."""

    name: TableName
    table: TableName
    columns: tuple[str, ...]
    key: tuple[str, ...]
    has_deleted: bool


@dataclass(frozen=True)
class StagedRows:
    """Rows of one output that wait: the ids they were written under, with their counts."""

    staging: Staging
    writes: Mapping[str, int]

    def as_facts(self) -> dict[str, Any]:
        """As plain data, complete: it is published as it was staged, whatever the job looks like by then."""
        staging = self.staging
        return {
            "staging": [staging.name.schema, staging.name.name],
            "table": [staging.table.schema, staging.table.name],
            "columns": list(staging.columns),
            "key": list(staging.key),
            "deleted": staging.has_deleted,
            "writes": dict(self.writes),
        }


def staged_rows_of(facts: Any, where: str) -> StagedRows:
    """What `as_facts` wrote."""
    try:
        return StagedRows(
            staging=Staging(
                name=TableName(*facts["staging"]),
                table=TableName(*facts["table"]),
                columns=tuple(facts["columns"]),
                key=tuple(facts["key"]),
                has_deleted=bool(facts["deleted"]),
            ),
            writes={str(write): int(rows) for write, rows in facts["writes"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvariantBroken(
            f"this names nothing that was staged: {str(facts)[:200]}", where=where, fix="report this"
        ) from None


def make_registry(connection: Connection, schema: str) -> None:
    """Make the registry where it is missing; the caller sees to it that nobody else does so now."""
    from psycopg.sql import SQL

    connection.execute(
        SQL("CREATE TABLE IF NOT EXISTS {} (job text, name text PRIMARY KEY)").format(_registry(schema).sql)
    )


def make_staging(
    connection: Connection,
    *,
    schema: str,
    job: str | None,
    table: Table,
    fits: Sequence[Fit],
    key: Sequence[str],
    has_deleted: bool,
    is_logged: bool,
) -> Staging:
    """A new staging table for these columns, named by the job or, where it serves one write only, by nobody."""
    from psycopg.sql import SQL, Identifier

    digest = hashlib.sha256(f"{job}\n{table.name.schema}\n{table.name.name}".encode()).hexdigest()[:12]
    name = TableName(schema=schema, name=f"{STAGING_PREFIX}{digest}_{secrets.token_hex(6)}")
    wanted = {one.lower() for one in key}
    staging = Staging(
        name=name,
        table=table.name,
        columns=tuple(one.column.name for one in fits),
        key=tuple(one.column.name for one in fits if one.row.name.lower() in wanted),
        has_deleted=has_deleted,
    )
    connection.execute(
        SQL(
            "CREATE {} TABLE {} AS SELECT {}, NULL::uuid AS {}, NULL::bigint AS {}, false AS {} FROM {} WITH NO DATA"
        ).format(
            SQL("" if is_logged else "UNLOGGED"),
            name.sql,
            _names(staging.columns),
            *map(Identifier, (WRITE, NUMBER, DELETED)),
            table.name.sql,
        )
    )
    # A key that is null would be inserted anew with every epoch: a unique index takes two nulls for different.
    set_not_null = [SQL("ALTER COLUMN {} SET NOT NULL").format(Identifier(column)) for column in staging.key]
    set_default = SQL("ALTER COLUMN {} SET DEFAULT false").format(Identifier(DELETED))
    connection.execute(SQL("ALTER TABLE {} {}").format(name.sql, SQL(", ").join([*set_not_null, set_default])))
    connection.execute(SQL("INSERT INTO {} VALUES (%s, %s)").format(_registry(schema).sql), [job, name.name])
    return staging


def move(connection: Connection, staged: StagedRows, *, where: str) -> None:
    """Move exactly these writes into their table, within the caller's transaction."""
    # One statement, so that what is moved and what is counted is seen at the same moment.
    counted: dict[str, int] = dict(
        connection.execute(_moving(staged.staging), {"writes": list(staged.writes)}).fetchall()
    )
    if counted != staged.writes:
        missing = sum(staged.writes.values()) - sum(counted.values())
        raise EpochFailed(
            f"{missing} of {sum(staged.writes.values())} staged rows for table {staged.staging.table} are not there",
            where=where,
            fix="the server was restarted after a crash, or another driver has removed them; the epoch is repeated",
        )


def clear(connection: Connection, staging: TableName) -> None:
    """Remove all rows of a staging table, whoever may still write to it."""
    from psycopg.sql import SQL

    with _shortly(connection) as has:
        connection.execute(SQL("TRUNCATE {}").format(staging.sql))
    if not has.lock:
        connection.execute(SQL("DELETE FROM {}").format(staging.sql))


def forget(connection: Connection, staging: TableName, writes: Collection[str]) -> None:
    """Remove the rows of these writes."""
    from psycopg.sql import SQL, Identifier

    statement = SQL("DELETE FROM {} WHERE {} = ANY(%s::uuid[])").format(staging.sql, Identifier(WRITE))
    connection.execute(statement, [list(writes)])


def drop_empty(connection: Connection, staging: TableName) -> None:
    """Remove a staging table in which nothing waits and to which nobody writes."""
    from psycopg.sql import SQL

    assert staging.schema is not None
    with _shortly(connection):
        if exists(connection, staging):
            # Locked before it is looked at: what a task commits in between would go with the table.
            connection.execute(SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(staging.sql))
            if connection.execute(SQL("SELECT 1 FROM {} LIMIT 1").format(staging.sql)).fetchone() is not None:
                return
            connection.execute(SQL("DROP TABLE {}").format(staging.sql))
        statement = SQL("DELETE FROM {} WHERE name = %s").format(_registry(staging.schema).sql)
        connection.execute(statement, [staging.name])


def exists(connection: Connection, staging: TableName) -> bool:
    """Is the table there?"""
    shown = staging.sql.as_string(connection)
    return connection.execute("SELECT to_regclass(%s) IS NOT NULL", [shown]).fetchone() == (True,)


def waiting_writes(connection: Connection, staging: TableName) -> list[str]:
    """The ids under which rows wait in a staging table."""
    from psycopg.sql import SQL, Identifier

    if not exists(connection, staging):
        return []
    statement = SQL("SELECT DISTINCT {}::text FROM {} ORDER BY 1").format(Identifier(WRITE), staging.sql)
    return [write for (write,) in connection.execute(statement).fetchall()]


def registered(connection: Connection, schema: str, job: str | None) -> list[TableName]:
    """The staging tables that are there for a job."""
    from psycopg.sql import SQL

    statement = SQL("SELECT name FROM {} WHERE job IS NOT DISTINCT FROM %s ORDER BY name")
    rows = connection.execute(statement.format(_registry(schema).sql), [job]).fetchall()
    return [TableName(schema=schema, name=name) for (name,) in rows]


def _moving(staging: Staging) -> Composed:
    from psycopg.sql import SQL, Identifier

    columns, table = _names(staging.columns), staging.table.sql
    write, number, deleted = map(Identifier, (WRITE, NUMBER, DELETED))
    rows = SQL("FROM {} WHERE {} = ANY(%(writes)s::uuid[])").format(staging.name.sql, write)
    counts = SQL("SELECT {}::text, count(*) {} GROUP BY 1").format(write, rows)
    if not staging.key:
        put = SQL("INSERT INTO {} ({}) SELECT {} {} ORDER BY {}").format(table, columns, columns, rows, number)
        return SQL("WITH put AS ({}) {}").format(put, counts)
    key = _names(staging.key)
    last = SQL("SELECT DISTINCT ON ({}) {}, {} {} ORDER BY {}, {} DESC").format(
        key, columns, deleted, rows, key, number
    )
    others = [Identifier(column) for column in staging.columns if column not in staging.key]
    setting = SQL(", ").join(SQL("{} = EXCLUDED.{}").format(column, column) for column in others)
    put = SQL("INSERT INTO {} ({}) SELECT {} FROM last WHERE NOT {} ON CONFLICT ({}) DO {}").format(
        table, columns, columns, deleted, key, SQL("UPDATE SET {}").format(setting) if others else SQL("NOTHING")
    )
    parts = [SQL("last AS ({})").format(last), SQL("put AS ({})").format(put)]
    if staging.has_deleted:
        same = SQL(" AND ").join(SQL("there.{} = last.{}").format(name, name) for name in map(Identifier, staging.key))
        gone = SQL("DELETE FROM {} AS there USING last WHERE last.{} AND {}").format(table, deleted, same)
        parts.append(SQL("gone AS ({})").format(gone))
    return SQL("WITH {} {}").format(SQL(", ").join(parts), counts)


@dataclass
class _Turn:
    lock: bool = True


@contextmanager
def _shortly(connection: Connection) -> Iterator[_Turn]:
    """Carry out what needs the whole table, or nothing of it where the table cannot be had at once."""
    from psycopg.errors import LockNotAvailable

    turn = _Turn()
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {_SHORTLY_MS}")
            yield turn
            connection.execute("SET LOCAL lock_timeout = 0")
    except LockNotAvailable:
        turn.lock = False


def _names(columns: Sequence[str]) -> Composed:
    from psycopg.sql import SQL, Identifier

    return SQL(", ").join(map(Identifier, columns))


def _registry(schema: str) -> TableName:
    return TableName(schema=schema, name=REGISTRY)
