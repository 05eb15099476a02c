"""A PostgreSQL database as a resource: rows are staged by COPY, and one transaction moves them and the ledger.

    lockgate_ledger                         one row per job: its name and what is committed, as JSON
    lockgate_staging                        the registry of staging tables
    lockgate_staging_<digest>_<hex>_<hex>   rows that wait, one table per attempt of a task

All of them lie in the first schema of the connection's search path. Publishing is one transaction: replace the ledger's
row if it says what was seen before, then move exactly the writes that won, and count them. So an epoch becomes visible
as a whole and with its ledger, or not at all. If the answer to COMMIT is lost, the ledger knows the outcome.

If this resource decides, staging is not logged: what a crash of the server takes was not decided, and the counts show
that it is gone. If another resource decides, staging is logged, because it must survive everything until then.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lockgate.commit.ledger import Entry, entry_of
from lockgate.commit.resource import Opening, Resource
from lockgate.connectors.postgres import connect as connecting
from lockgate.connectors.postgres.address import server_of
from lockgate.connectors.postgres.connect import Lost, connect, failure_of, translated_errors
from lockgate.connectors.postgres.copying import CopyOrder, collect_votes, encode
from lockgate.connectors.postgres.staging import (
    StagedRows,
    Staging,
    drop,
    make_registry,
    move,
    registered,
    staged_rows_of,
    staging_of,
)
from lockgate.connectors.postgres.tableschema import (
    Fit,
    RowColumn,
    Table,
    TableName,
    create_statement,
    find_table,
    fit,
    missing_table,
    row_columns,
)
from lockgate.errors import EpochFailed, InvariantBroken, LockgateError, Moved, Refused
from lockgate.faultpoints import armed
from lockgate.untrusted import Unreadable, excerpt, read_object, take

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lockgate.connectors.postgres.connect import Connection

log = logging.getLogger(__name__)

LEDGER = "lockgate_ledger"
_DROPS = 200  # tables in a transaction: the server has room for some thousand locks
_LOCK = 7_022_837_521_306  # any number that no other program locks by: "one session at a time creates our tables"

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """A table to write to, and how."""

    table: TableName
    key: tuple[str, ...]
    has_deletes: bool
    create: bool

    @property
    def rights(self) -> tuple[str, ...]:
        """What the user has to be allowed in the table; its types are read with SELECT."""
        upsert = ("UPDATE",) if self.key else ()
        return ("SELECT", "INSERT", *upsert, *(("DELETE",) if self.has_deletes else ()))


@dataclass(frozen=True)
class _Prepared:
    """An output that rows can be staged for."""

    rows: tuple[RowColumn, ...]
    fits: tuple[Fit, ...]
    staging: Staging


class PostgresResource(Resource):
    """One database, opened for one job."""

    def __init__(self, opening: Opening, targets: Mapping[str, Target], dsn: str) -> None:
        self.server = server_of(dsn, opening.where)
        self.where = f"{self.server}, {opening.where}"
        self._opening = opening
        self._job = opening.job
        self._targets = targets
        self._dsn = dsn
        self._connection: Connection | None = None
        self._prepared: dict[str, _Prepared] = {}
        self._waiting: dict[str, set[str]] = {}  # what was staged here and neither published nor removed: name, writes
        try:
            self._schema = self._transact(lambda connection: make_tables(connection, self.where))
            self._transact(self._look_at_tables)
            self._refuse_second_address()
        except BaseException:
            self._disconnect()
            raise

    def read(self) -> Entry | None:
        return self._transact(self._read)

    def stage(self, rows: Mapping[str, DataFrame], epoch: int) -> str:
        staged = [one for output, frame in rows.items() if (one := self._stage(output, frame)).writes]
        if not self._opening.is_deciding:
            self._transact(partial(self._rehearse, staged))
        facts = [one.as_facts() for one in staged]
        name = json.dumps({"stage": secrets.token_hex(8), "epoch": epoch, "rows": facts})
        self._waiting[name] = {write for one in staged for write in one.writes}
        return name

    def publish(self, staged: str | None, entry: Entry, *, after: Entry | None) -> None:
        waiting = () if staged is None else self._staged(staged)

        def decide(connection: Connection) -> None:
            # The server ends a driver that was stopped here after IDLE_LIMIT; this one waits longer than that.
            connection.execute(f"SET LOCAL lock_timeout = {int(connecting.PATIENCE.total_seconds() * 1000)}")
            self._replace(connection, entry, after)
            self._move(connection, waiting)

        self._transact(decide, is_decision=True)
        if staged is not None:
            self._waiting.pop(staged, None)
            self._clear_away(waiting)

    def leftovers(self) -> Collection[str]:
        return [table.name for table in self._transact(partial(registered, schema=self._schema, job=self._job))]

    def remove(self, leftovers: Collection[str]) -> None:
        self._drop(list(leftovers))
        self._waiting = {name: own for name, own in self._waiting.items() if not own & set(leftovers)}

    def close(self) -> None:
        self._disconnect()
        for place in [place for place, one in _opened.items() if one is self]:
            del _opened[place]

    def _stage(self, output: str, frame: DataFrame) -> StagedRows:
        frame = self._opening.sinks[output].prepare(frame)
        columns = row_columns(frame)
        where = f"output {output!r}, {self.where}"
        prepared = self._prepared.get(output)
        if prepared is None or prepared.rows != columns:
            target = self._targets[output]
            prepared = self._transact(
                lambda connection: _prepare(
                    connection,
                    target,
                    columns,
                    schema=self._schema,
                    job=self._job,
                    is_logged=not self._opening.is_deciding,
                    where=where,
                )
            )
            self._prepared[output] = prepared
        else:
            # Wait here for a server that is away, and report it.
            self._transact(lambda connection: connection.execute("SELECT 1"))
        return _copy(frame, prepared, dsn=self._dsn, output=output, where=where)

    def _rehearse(self, staged: Sequence[StagedRows], connection: Connection) -> None:
        """Move the rows and undo it: a row that the table refuses must stop the epoch before it is decided."""
        with connection.transaction(force_rollback=True):
            self._move(connection, staged)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # those that are looked at only at the end, too

    def _move(self, connection: Connection, staged: Sequence[StagedRows]) -> None:
        for one in staged:
            with translated_errors(where=self.where, table=str(one.table)):
                move(connection, one, where=self.where)

    def _staged(self, name: str) -> tuple[StagedRows, ...]:
        try:
            facts = take(read_object(name), "rows", list)
        except Unreadable as error:
            raise InvariantBroken(
                f"this names nothing that was staged ({error}): {excerpt(name)}", where=self.where, fix="report this"
            ) from None
        return tuple(staged_rows_of(one, self.where, job=self._job) for one in facts)

    def _read(self, connection: Connection, *, is_locking: bool = False) -> Entry | None:
        where = f"table {LEDGER!r}, {self.where}"
        return read_entry(connection, self._schema, self._job, where=where, is_locking=is_locking)

    def _replace(self, connection: Connection, entry: Entry, after: Entry | None) -> None:
        """Advance the ledger if it says `after`; it stays locked until the transaction ends."""
        from psycopg.sql import SQL

        ledger, text = TableName(self._schema, LEDGER).sql, entry.to_bytes().decode()
        seen = self._read(connection, is_locking=True)
        if seen == after and after is None:
            # Two drivers may find nothing; the second waits here for the first, and then finds that it is too late.
            statement = SQL("INSERT INTO {} (job, entry) VALUES (%s, %s) ON CONFLICT (job) DO NOTHING").format(ledger)
            if connection.execute(statement, [self._job, text]).rowcount == 1:
                return
            seen = self._read(connection)
        elif seen == after:
            connection.execute(SQL("UPDATE {} SET entry = %s WHERE job = %s").format(ledger), [text, self._job])
            return
        raise Moved(
            f"the ledger of job {self._job!r} is not what it was: it says {_shown(seen)}, and not {_shown(after)}",
            where=f"table {LEDGER!r}, {self.where}",
            fix="another driver of this job writes; see that only one runs",
        )

    def _look_at_tables(self, connection: Connection) -> None:
        """Refuse a table that does not exist, before anything is computed."""
        for output, target in self._targets.items():
            require_table(connection, target, where=f"output {output!r}, {self.where}")

    def _refuse_second_address(self) -> None:
        """One database under two addresses would be two resources with one ledger, each moving it for the other."""
        place = self._transact(
            lambda connection: connection.execute(
                "SELECT %s, pg_postmaster_start_time()::text, d.oid, %s::regclass::oid FROM pg_database d"
                " WHERE d.datname = current_database()",
                [self._job, TableName(self._schema, LEDGER).sql.as_string(connection)],
            ).fetchone()
        )
        other = _opened.get(place)
        if other is not None and other.server != self.server:
            raise Refused(
                f"outputs of job {self._job!r} name one database in two ways: {other.server!r} and {self.server!r}",
                where=self.where,
                fix="give them the same dsn=, so that they commit in one transaction",
            )
        _opened[place] = self

    def _clear_away(self, published: Collection[StagedRows]) -> None:
        """Drop what is committed, and what attempts that lost have left. Nothing depends on it: the rest goes later."""
        out = {write for one in published for write in one.writes}
        waiting = set().union(*self._waiting.values())
        own = tuple(f"{prepared.staging.prefix}_" for prepared in self._prepared.values())
        try:
            there = [name for name in self.leftovers() if name in out or name.startswith(own)]
            self._drop([name for name in there if name not in waiting])
        except LockgateError as error:
            log.warning("job %s: staging is cleared later: %s", self._job, error.what)

    def _drop(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), _DROPS):
            tables = [TableName(schema=self._schema, name=name) for name in names[start : start + _DROPS]]
            self._transact(partial(drop, tables=tables))

    def _transact(self, work: Callable[[Connection], T], *, is_decision: bool = False) -> T:
        """Run a transaction; repeat it if the connection is lost before its end was asked for."""
        import psycopg

        deadline = time.monotonic() + connecting.PATIENCE.total_seconds()
        while True:
            connection = self._connected()
            try:
                with translated_errors(where=self.where):
                    result = work(connection)
            except Lost as error:
                self._disconnect()
                if time.monotonic() >= deadline:
                    raise
                log.warning("job %s: the connection to PostgreSQL is lost, connecting again: %s", self._job, error.what)
                continue
            except BaseException:
                self._roll_back()
                raise
            try:
                connection.commit()
            except psycopg.Error as error:
                self._disconnect()
                failure = failure_of(error, where=self.where)
                if not isinstance(failure, Lost):
                    raise failure from error
                if is_decision:
                    raise EpochFailed(
                        f"the connection was lost while the transaction was committed: {failure.what}",
                        where=self.where,
                        fix="the ledger is read to see whether the epoch is committed",
                    ) from error
                continue
            return result

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._dsn, where=self.where, name=driver_name(self._job))
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _roll_back(self) -> None:
        import psycopg

        if self._connection is not None:
            try:
                self._connection.rollback()
            except psycopg.Error:
                self._disconnect()


_opened: weakref.WeakValueDictionary[Any, PostgresResource] = weakref.WeakValueDictionary()


def driver_name(job: str) -> str:
    """The name of the connection of a job's driver, as far as PostgreSQL keeps it."""
    return f"lockgate {job}"[:63]


def make_tables(connection: Connection, where: str) -> str:
    """Create the ledger and the registry if they are missing; return their schema."""
    from psycopg.sql import SQL

    found = connection.execute("SELECT current_schema()").fetchone()
    if found is None or found[0] is None:
        raise Refused(
            "the connection's search path names no schema that exists, so there is no place for the ledger",
            where=where,
            fix="ALTER ROLE ... SET search_path = public, or options=-csearch_path=public in the dsn",
        )
    schema: str = found[0]
    # IF NOT EXISTS alone does not help if two sessions create the same table at once.
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    connection.execute(
        SQL("CREATE TABLE IF NOT EXISTS {} (job text PRIMARY KEY, entry jsonb NOT NULL)").format(
            TableName(schema, LEDGER).sql
        )
    )
    make_registry(connection, schema)
    return schema


def read_entry(connection: Connection, schema: str, job: str, *, where: str, is_locking: bool = False) -> Entry | None:
    """The ledger's entry of a job; its row stays locked until the transaction ends, if wanted."""
    from psycopg.sql import SQL

    statement = SQL("SELECT entry::text FROM {} WHERE job = %s {}").format(
        TableName(schema, LEDGER).sql, SQL("FOR UPDATE" if is_locking else "")
    )
    found = connection.execute(statement, [job]).fetchone()
    return None if found is None else entry_of(found[0].encode(), where)


def write_plainly(frame: DataFrame, target: Target, dsn: str, *, where: str) -> None:
    """Write rows in one transaction, without a ledger: an epoch that is repeated is written again."""
    where = f"{server_of(dsn, where)}, {where}"
    connection = connect(dsn, where=where, name="lockgate")
    try:
        with translated_errors(where=where, table=str(target.table)):
            schema = make_tables(connection, where)
            connection.commit()
            _drop_orphans(connection, schema)
            prepared = _prepare(
                connection, target, row_columns(frame), schema=schema, job=None, is_logged=False, where=where
            )
            prefix = prepared.staging.prefix
            connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [prefix])
            connection.commit()
            staged = _copy(frame, prepared, dsn=dsn, output=str(target.table), where=where)
            if staged.writes:
                move(connection, staged, where=where)
                connection.commit()  # before the next one, which may be lost by a crash
            for table in registered(connection, schema, None):
                if table.name.startswith(f"{prefix}_"):
                    drop(connection, [table])
                    connection.commit()
    finally:
        connection.close()


def _drop_orphans(connection: Connection, schema: str) -> None:
    """Drop the staging of plain writes that died: no session holds the lock of its prefix any more."""
    for table in registered(connection, schema, None):
        statement = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"
        if connection.execute(statement, [table.name.rpartition("_")[0]]).fetchone() == (True,):
            drop(connection, [table])
        connection.commit()


def require_table(connection: Connection, target: Target, *, where: str) -> None:
    """Refuse a table that does not exist and that the user did not ask to create."""
    if not target.create and find_table(connection, target.table) is None:
        raise Refused(
            f"there is no table {target.table}, or it is not in the search path",
            where=where,
            fix="create it, or let the sink make it from the rows: create=True",
        )


def look_up(
    connection: Connection, target: Target, rows: tuple[RowColumn, ...], *, where: str
) -> tuple[Table | None, tuple[Fit, ...]]:
    """The table and the target of each column; None if the table must still be created. Raises if they do not fit."""
    table = find_table(connection, target.table, rights=target.rights)
    if table is not None:
        return table, fit(table, rows, target.key, where)
    if not target.create:
        raise missing_table(target.table, rows, target.key, where)
    create_statement(target.table, rows, target.key, where)  # refuses types that it does not have
    return None, ()


def _prepare(
    connection: Connection,
    target: Target,
    rows: tuple[RowColumn, ...],
    *,
    schema: str,
    job: str | None,
    is_logged: bool,
    where: str,
) -> _Prepared:
    """Look at the table for these rows, and create it if it is missing and the user asked for that."""
    table, fits = look_up(connection, target, rows, where=where)
    if table is None:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        if find_table(connection, target.table) is None:  # another output may have created it in the meantime
            connection.execute(create_statement(target.table, rows, target.key, where))
        table, fits = look_up(connection, target, rows, where=where)
        assert table is not None
    staging = staging_of(
        schema=schema,
        job=job,
        table=table,
        fits=fits,
        key=target.key,
        has_deleted=target.has_deletes,
        is_logged=is_logged,
    )
    return _Prepared(rows=rows, fits=fits, staging=staging)


def _copy(frame: DataFrame, prepared: _Prepared, *, dsn: str, output: str, where: str) -> StagedRows:
    staging = prepared.staging
    order = CopyOrder(dsn=dsn, staging=staging, output=output, faults=armed(), where=where)
    return StagedRows(
        schema=staging.schema,
        table=staging.table,
        columns=staging.columns,
        key=staging.key,
        has_deleted=staging.has_deleted,
        writes=collect_votes(encode(frame, prepared.fits), order),
    )


def _shown(entry: Entry | None) -> str:
    return "nothing" if entry is None else f"epoch {entry.epoch} of run {entry.run!r} at {entry.at}"
