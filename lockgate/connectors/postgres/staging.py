"""Staging: tables in which rows wait, where no reader looks, until they are moved into their table.

Every attempt of a task writes into a table of its own, once, in one transaction. So attempts cannot mix. A table has
all rows of its attempt or none, and never changes again. It has the columns of its rows, in the types of their table,
so what that table would refuse is found while tasks write and not at the commit. A registry names all such tables, so
that a later run finds what an earlier one left.

A table is created in a transaction of its own, before rows come. An unlogged one must not be created by a transaction
that is undone when its task dies. If PostgreSQL crashes before that is in its log, it finds the file where it wants to
create one and does not start any more ("could not create file ...: File exists", seen with PostgreSQL 18.4).

Nothing else is in them, because a column beside the rows of an append costs as much as the rows. With a key there are
two more columns: a running number, which says which row of a key is the last one, and whether the row deletes its key.

    created, then filled  by a task; its vote names the table
    moved                 by the driver, with the ledger, in one transaction
    dropped               afterwards; or by the next claim, if it has no vote or was not decided
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockgate.connectors.postgres.connect import STAGING_PREFIX
from lockgate.connectors.postgres.tableschema import NUMBER, Fit, Table, TableName
from lockgate.dataflow.deletes import DELETED
from lockgate.errors import EpochFailed, InvariantBroken
from lockgate.untrusted import Unreadable, as_object, as_type, excerpt, take

if TYPE_CHECKING:
    from psycopg.sql import Composable, Composed

    from lockgate.connectors.postgres.connect import Connection

REGISTRY = "lockgate_staging"
_SHORTLY_MS = 500


@dataclass(frozen=True)
class Staging:
    """The shape of the staging tables of an output, while a driver has it open."""

    schema: str
    job: str | None  # None: for one write only, without a ledger
    prefix: str  # of their names, this driver's own
    table: TableName
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]
    has_deleted: bool
    is_logged: bool  # does it survive a crash of the server?

    @property
    def all_columns(self) -> tuple[str, ...]:
        """The columns of a staging table, in their order."""
        return (*self.columns, *([DELETED] if self.has_deleted else []), *([NUMBER] if self.key else []))


@dataclass(frozen=True)
class StagedRows:
    """Rows of one output that wait: the staging tables that won, with their counts, in the order of their tasks."""

    schema: str
    table: TableName
    columns: tuple[str, ...]
    key: tuple[str, ...]
    has_deleted: bool
    writes: Mapping[str, int]

    def as_facts(self) -> dict[str, Any]:
        """As plain data, complete: it is published as it was staged, whatever the job looks like by then."""
        return {
            "schema": self.schema,
            "table": [self.table.schema, self.table.name],
            "columns": list(self.columns),
            "key": list(self.key),
            "deleted": self.has_deleted,
            "writes": dict(self.writes),
        }


def staged_rows_of(facts: Any, where: str, *, job: str | None) -> StagedRows:
    """What `as_facts` wrote for a job; InvariantBroken for anything else.

    It comes from a ledger, to which other programs may write. Without the look at the names it could copy the rows of
    any table into any other.
    """
    try:
        told = as_object(facts)
        schema, table = take(told, "table", list)
        rows = StagedRows(
            schema=take(told, "schema", str),
            table=TableName(None if schema is None else as_type(schema, str, "table"), as_type(table, str, "table")),
            columns=tuple(as_type(column, str, "columns") for column in take(told, "columns", list)),
            key=tuple(as_type(column, str, "key") for column in take(told, "key", list)),
            has_deleted=take(told, "deleted", bool),
            writes={write: as_type(count, int, "writes") for write, count in take(told, "writes", dict).items()},
        )
        for write in rows.writes:
            if not write.startswith(_prefix(job, rows.table)):
                raise Unreadable(f"{excerpt(write)} is no staging table of this job for table {rows.table}")
    except ValueError as error:
        raise InvariantBroken(
            f"this names nothing that was staged ({error}): {excerpt(facts)}", where=where, fix="report this"
        ) from None
    return rows


def _prefix(job: str | None, table: TableName) -> str:
    """How the names of staging tables of a job for a table begin."""
    digest = hashlib.sha256(f"{job}\n{table.schema}\n{table.name}".encode()).hexdigest()[:12]
    return f"{STAGING_PREFIX}{digest}_"


def staging_of(
    *,
    schema: str,
    job: str | None,
    table: Table,
    fits: Sequence[Fit],
    key: Sequence[str],
    has_deleted: bool,
    is_logged: bool,
) -> Staging:
    """Staging for these columns, under names that are not used by another driver."""
    wanted = {one.lower() for one in key}
    return Staging(
        schema=schema,
        job=job,
        prefix=f"{_prefix(job, table.name)}{secrets.token_hex(6)}",
        table=table.name,
        columns=tuple(one.column.name for one in fits),
        types=tuple(one.column.declaration for one in fits),
        key=tuple(one.column.name for one in fits if one.row.name.lower() in wanted),
        has_deleted=has_deleted,
        is_logged=is_logged,
    )


def make_registry(connection: Connection, schema: str) -> None:
    """Create the registry if it is missing; the caller ensures that no other session does so now."""
    from psycopg.sql import SQL

    connection.execute(
        SQL("CREATE TABLE IF NOT EXISTS {} (job text, name text PRIMARY KEY)").format(_registry(schema).sql)
    )


def make_table(connection: Connection, staging: Staging) -> TableName:
    """A new staging table; the caller is in no transaction, and this is one by itself."""
    from psycopg.sql import SQL, Identifier, Literal

    name = TableName(schema=staging.schema, name=f"{staging.prefix}_{secrets.token_hex(6)}")
    # A row with a null key would be inserted again in every epoch: to a unique index two nulls are different.
    columns = [
        SQL("{} {} {}").format(Identifier(column), SQL(type_), SQL("NOT NULL" if column in staging.key else ""))
        for column, type_ in zip(staging.columns, staging.types, strict=True)
    ]
    columns += [SQL("{} boolean").format(Identifier(DELETED))] if staging.has_deleted else []
    columns += [SQL("{} bigint").format(Identifier(NUMBER))] if staging.key else []
    kind = SQL("" if staging.is_logged else "UNLOGGED")
    registry, job = _registry(staging.schema).sql, Literal(staging.job)
    parts = [
        SQL("SET LOCAL synchronous_commit = off"),  # the rows' own commit makes it durable
        SQL("INSERT INTO {} VALUES ({}, {})").format(registry, job, Literal(name.name)),
        SQL("CREATE {} TABLE {} ({})").format(kind, name.sql, SQL(", ").join(columns)),
    ]
    # In one message, and the table last: nothing can come between it and the end of the transaction.
    connection.autocommit = True
    connection.execute(SQL("; ").join(parts))
    connection.autocommit = False
    return name


def move(connection: Connection, staged: StagedRows, *, where: str) -> None:
    """Move exactly these writes into their table, within the caller's transaction."""
    from psycopg.sql import SQL

    if staged.key:
        counted = _count(connection, staged)
        connection.execute(_upserting(staged))
    else:
        # One after the other and from the first page on, so that rows are added in the order of arrival.
        connection.execute("SET LOCAL synchronize_seqscans = off")
        columns = _names(staged.columns)
        adding = SQL("INSERT INTO {} ({}) SELECT {} FROM {}")
        counted = {
            write: connection.execute(adding.format(staged.table.sql, columns, columns, name.sql)).rowcount
            for write, name in _tables(staged)
        }
        if counted != staged.writes:
            counted = _count(connection, staged)  # a trigger of the table may have put rows elsewhere
    if counted != staged.writes:
        missing = sum(staged.writes.values()) - sum(counted.values())
        raise EpochFailed(
            f"{missing} of {sum(staged.writes.values())} staged rows for table {staged.table} are not there",
            where=where,
            fix="the server was restarted after a crash, or another driver has removed them; the epoch is repeated",
        )


def _count(connection: Connection, staged: StagedRows) -> dict[str, int]:
    """How many rows each write has."""
    from psycopg.sql import SQL

    return {
        write: int((connection.execute(SQL("SELECT count(*) FROM {}").format(name.sql)).fetchone() or (0,))[0])
        for write, name in _tables(staged)
    }


def drop(connection: Connection, tables: Collection[TableName]) -> None:
    """Remove staging tables, or at least their rows if a stopped session holds the table itself."""
    from psycopg.sql import SQL

    connection.execute("SET LOCAL synchronous_commit = off")  # if a crash brings it back, the next run drops it
    for table in tables:
        assert table.schema is not None
        with _shortly(connection) as has:
            connection.execute(SQL("DROP TABLE IF EXISTS {}").format(table.sql))
            statement = SQL("DELETE FROM {} WHERE name = %s").format(_registry(table.schema).sql)
            connection.execute(statement, [table.name])
        if not has.lock:
            connection.execute(SQL("DELETE FROM {}").format(table.sql))


def registered(connection: Connection, schema: str, job: str | None) -> list[TableName]:
    """The staging tables of a job that exist."""
    from psycopg.sql import SQL

    statement = SQL("SELECT name FROM {} WHERE job IS NOT DISTINCT FROM %s ORDER BY name")
    rows = connection.execute(statement.format(_registry(schema).sql), [job]).fetchall()
    return [TableName(schema=schema, name=name) for (name,) in rows]


def _upserting(staged: StagedRows) -> Composed:
    """One statement for all writes: the last row of a key may be in any of them."""
    from psycopg.sql import SQL, Identifier

    columns, table, key = _names(staged.columns), staged.table.sql, _names(staged.key)
    number, deleted = Identifier(NUMBER), Identifier(DELETED)
    is_deleted: Composable = deleted if staged.has_deleted else SQL("false")
    one = SQL("SELECT {}, {} AS {}, {} FROM {}")
    rows = SQL(" UNION ALL ").join(
        one.format(columns, is_deleted, deleted, number, name.sql) for _, name in _tables(staged)
    )
    last = SQL("SELECT DISTINCT ON ({}) {}, {} FROM ({}) AS rows ORDER BY {}, {} DESC").format(
        key, columns, deleted, rows, key, number
    )
    others = [Identifier(column) for column in staged.columns if column not in staged.key]
    setting = SQL(", ").join(SQL("{} = EXCLUDED.{}").format(column, column) for column in others)
    put = SQL("INSERT INTO {} ({}) SELECT {} FROM last WHERE NOT {} ON CONFLICT ({}) DO {}").format(
        table, columns, columns, deleted, key, SQL("UPDATE SET {}").format(setting) if others else SQL("NOTHING")
    )
    if not staged.has_deleted:
        return SQL("WITH last AS ({}) {}").format(last, put)
    same = SQL(" AND ").join(SQL("there.{} = last.{}").format(name, name) for name in map(Identifier, staged.key))
    gone = SQL("DELETE FROM {} AS there USING last WHERE last.{} AND {}").format(table, deleted, same)
    return SQL("WITH last AS ({}), gone AS ({}) {}").format(last, gone, put)


@dataclass
class _Turn:
    lock: bool = True


@contextmanager
def _shortly(connection: Connection) -> Iterator[_Turn]:
    """Do what needs the whole table, or nothing of it if the table cannot be locked at once."""
    from psycopg.errors import LockNotAvailable

    turn = _Turn()
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {_SHORTLY_MS}")
            yield turn
            connection.execute("SET LOCAL lock_timeout = 0")
    except LockNotAvailable:
        turn.lock = False


def _tables(staged: StagedRows) -> list[tuple[str, TableName]]:
    return [(write, TableName(schema=staged.schema, name=write)) for write in staged.writes]


def _names(columns: Sequence[str]) -> Composed:
    from psycopg.sql import SQL, Identifier

    return SQL(", ").join(map(Identifier, columns))


def _registry(schema: str) -> TableName:
    return TableName(schema=schema, name=REGISTRY)
