"""PostgresSink: rows into a table, each epoch in one transaction; a key makes it an upsert.

    without a key   rows are added
    with a key      the last row of a key in an epoch replaces what the table has under it
    deleted         a last row for which this SQL holds removes its key

All tasks stage rows by COPY at once, and the server itself moves them (see connectors/postgres/store.py). An output
that is declared end-to-end exactly-once is moved together with the job's ledger, in one transaction with all outputs of
the job in that database. So is an upsert that declares less, because only the ledger stops a replaced driver from
writing older rows over newer ones. Other outputs that declare less, and upserts of jobs that are tracked by
acknowledgement or at-most-once, are moved without the ledger: a repeated epoch is written again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from lockgate.commit.repair import MendableLedger
from lockgate.commit.resource import CommittingSink, Opening, Resource
from lockgate.connectors.postgres.address import server_of
from lockgate.connectors.postgres.connect import Lost, connect, translated_errors
from lockgate.connectors.postgres.ledger import PostgresLedger
from lockgate.connectors.postgres.store import PostgresResource, Target, look_up, require_table, write_plainly
from lockgate.connectors.postgres.tableschema import TableColumn, TableName, find_table, parse_name, row_columns
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.deletes import DELETED, mark_deleted
from lockgate.dataflow.endpoints import SinkAbility
from lockgate.dataflow.locations import ServerTable
from lockgate.dataflow.origin import caller
from lockgate.dataflow.relocation import Relocation
from lockgate.dataflow.schema import quote
from lockgate.errors import BadJob, Unreachable
from lockgate.guarantees import Delivery
from lockgate.secrets import as_login, check_reference

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lockgate.connectors.postgres.connect import Connection

_LIMITED = re.compile(r"(?:character varying|character)\((\d+)\)")
_CHECK_PATIENCE = timedelta(seconds=5)  # before anything runs a person waits for the answer


@explain_wrong_calls('PostgresSink(table="counts", dsn="env:ORDERS_DSN", key="ip")')
@dataclass(frozen=True, init=False)
class PostgresSink(CommittingSink):
    """Rows for a table. The table has columns with the names of the rows' columns.

    Args:
        table: its name, `orders` or `schema.orders`.
        dsn: an address as libpq reads it, or a reference that each machine which connects resolves: `env:NAME`,
            `file:/path` or `hook:module:function`.
        key: the column, or columns, by which a row replaces an older one. Without it rows are added.
        deleted: SQL for the rows that remove their key.
        create: create the table from the rows' columns if it does not exist.

    Raises:
        BadJob: an argument cannot be valid.

    >>> counts = orders.to("counts", PostgresSink(table="counts", dsn="env:ORDERS_DSN", key="ip"))
    """

    table: str
    dsn: str = field(repr=False)  # there may be a password in it
    key: tuple[str, ...]
    deleted: str | None
    create: bool

    def __init__(
        self,
        *,
        table: str,
        dsn: str,
        key: str | Sequence[str] | None = None,
        deleted: str | None = None,
        create: bool = False,
    ) -> None:
        where = f"PostgresSink, declared at {caller()}"
        if not (isinstance(table, str) and table and isinstance(dsn, str) and dsn):
            raise BadJob(
                "a PostgresSink needs a table and a dsn as text",
                where=where,
                fix='table="orders", dsn="postgresql://user:password@host:5432/database"',
            )
        keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        if deleted is not None and not keys:
            raise BadJob(
                "deleted= says which rows remove their key, but there is no key",
                where=where,
                fix='name the column(s) that identify a row: key="id"',
            )
        parse_name(table, where)
        check_reference(dsn, where=where)
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "dsn", as_login(dsn))
        object.__setattr__(self, "key", keys)
        object.__setattr__(self, "deleted", deleted)
        object.__setattr__(self, "create", create)

    @property
    def ability(self) -> SinkAbility:
        how = f"upserted by {', '.join(self.key)}" if self.key else "added"
        return SinkAbility(
            delivery=Delivery.TRANSACTIONAL,
            reason=f"PostgreSQL gets the rows of an epoch, {how}, and the job's ledger in one transaction",
            cure="declare Guarantee.END_TO_END_EXACTLY_ONCE",
            otherwise=Delivery.IDEMPOTENT if self.key else Delivery.PLAIN,
        )

    @property
    def resource(self) -> str:
        return server_of(self.dsn, self._where)

    @property
    def fitness(self) -> int:
        return 2  # a server that many can reach and that keeps copies: before files and a database in one file

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        return frozenset({(self.resource, str(self._target.table))})

    @property
    def location(self) -> ServerTable:
        return ServerTable(self.dsn, self.table, replaced_by=self.key)

    def relocate(self, to: Relocation) -> PostgresSink:
        dsn, table = to.table(self.dsn, self.table)
        # The user's table is not read, so only the rows can define the new one.
        return PostgresSink(table=table, dsn=dsn, key=self.key or None, deleted=self.deleted, create=True)

    @property
    def extra(self) -> str:
        return "postgres"

    def task_modules(self, *, is_exact: bool) -> tuple[str, ...]:
        return ("psycopg",)

    def columns_needed(self) -> Sequence[str]:
        return self.key

    def expressions(self) -> Sequence[str]:
        return () if self.deleted is None else (self.deleted,)

    def summary(self) -> tuple[str, ...]:
        how = (f"upsert by {', '.join(self.key)}",) if self.key else ()
        return ("PostgresSink", f"table {self.table}", *how)

    def prepare(self, rows: DataFrame) -> DataFrame:
        """The rows with the results of the sink's own SQL, computed while these names can be resolved."""
        return mark_deleted(rows, self.deleted)

    def check(self, where: str) -> None:
        if not self.create:
            self._look(None, where)

    def check_rows(self, rows: DataFrame, where: str) -> None:
        self._look(rows, where)

    def refusal(self, rows: DataFrame, *, within: str | None, where: str) -> Column | None:
        """A null that the table or the key refuses; a text that is too long; a zero byte in a text."""
        from pyspark.sql import functions as F

        frame = rows if within is None else rows.select(f"{within}.*")
        columns = {column.name.lower(): column for column in self._columns(where)}
        keys = {name.lower() for name in self.key}

        def at(name: str) -> Column:
            return F.col(quote(name) if within is None else f"{within}.{quote(name)}")

        # Nothing else is written of a row that removes its key.
        is_written = F.lit(True) if self.deleted is None else ~at(DELETED)
        reason = F.when(F.lit(False), F.lit(""))
        for one in frame.schema.fields:
            column, value, is_key = columns.get(one.name.lower()), at(one.name), one.name.lower() in keys
            if is_key or (column is not None and column.is_not_null):
                why = F.lit(f"{one.name} is null, and the table takes none there")
                reason = reason.when(value.isNull() & (F.lit(True) if is_key else is_written), why)
            if one.dataType.simpleString() == "string":
                why = F.lit(f"{one.name} holds a zero byte, which no text in PostgreSQL has")
                reason = reason.when(value.contains("\0"), why)
                limit = None if column is None else _LIMITED.fullmatch(column.type)
                if limit is not None:
                    why = F.lit(f"{one.name} is longer than the table takes: {limit[0]}")
                    reason = reason.when((F.length(F.rtrim(value)) > int(limit[1])) & is_written, why)
        return reason

    def _columns(self, where: str) -> tuple[TableColumn, ...]:
        """The columns of the table; none if it will be created."""
        with self._connected(where) as (connection, _):
            table = find_table(connection, self._target.table)
            return () if table is None else table.columns

    def execution(self, *, is_exact: bool) -> tuple[str, str]:
        return "Python", "tasks stage by COPY in Python workers, in Arrow batches; PostgreSQL moves what was staged"

    def write(self, rows: DataFrame, epoch: int) -> None:
        write_plainly(self.prepare(rows), self._target, self.dsn, where=self._where)

    def open(self, opening: Opening) -> Resource:
        sinks = {name: sink for name, sink in opening.sinks.items() if isinstance(sink, PostgresSink)}
        return PostgresResource(opening, {name: sink._target for name, sink in sinks.items()}, self.dsn)

    def ledger(self, job: str, where: str) -> MendableLedger:
        return PostgresLedger(self.dsn, job, where=where)

    def _look(self, rows: DataFrame | None, where: str) -> None:
        """Does the table exist, and do rows fit, if they are known?"""
        with self._connected(where) as (connection, place):
            if rows is not None:
                look_up(connection, self._target, row_columns(rows), where=place)
            else:
                require_table(connection, self._target, where=place)

    @contextmanager
    def _connected(self, where: str) -> Iterator[tuple[Connection, str]]:
        """A connection for a check before anything runs, and the server beside `where`."""
        place = f"{self.resource}, {where}"
        try:
            connection = connect(self.dsn, where=place, name="lockgate", patience=_CHECK_PATIENCE)
        except Lost as error:
            raise Unreachable(error.what, where=error.where, fix=error.fix) from None
        try:
            with translated_errors(where=place, table=str(self._target.table)):
                yield connection, place
        finally:
            connection.close()

    @property
    def _target(self) -> Target:
        return Target(table=self._name, key=self.key, has_deletes=self.deleted is not None, create=self.create)

    @property
    def _name(self) -> TableName:
        return parse_name(self.table, self._where)

    @property
    def _where(self) -> str:
        return f"PostgresSink(table={self.table!r})"
