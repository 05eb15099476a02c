"""Tables: small tables that are joined with a stream and add columns to its events.

    customers = FileTable(path="customers.csv", format="csv", schema="id INT, name STRING")
    orders.join(table("customers", customers, refresh="10 minutes"), on="id")

The driver reads a whole table when a job starts and again every `refresh`; each reading is a snapshot. Every task holds
one whole snapshot. All rows of an epoch see the same one, also when the epoch is repeated. Here a table is a
description: nothing is read, and the columns are those that the user declares.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from datetime import timedelta

from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.duration import Duration, as_duration, as_people_text
from lockgate.dataflow.format import Format, require_format
from lockgate.dataflow.locations import Files, Location, ServerTable
from lockgate.dataflow.origin import caller
from lockgate.dataflow.relocation import Relocation
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.dataflow.steps import Step
from lockgate.errors import BadJob
from lockgate.secrets import as_login, check_reference

FORMATS = (Format.PARQUET, Format.CSV, Format.JSON)
SHORTEST_REFRESH = timedelta(seconds=1)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # the name of a directory in the checkpoint


class TableRows(ABC):
    """Where the rows of a table are, and which of their columns are read, as DDL."""

    schema: str

    def columns(self, where: str) -> Schema:
        """The columns, without a JVM; raises BadJob, with `where`, for a schema that cannot be read."""
        return parse_ddl(self.schema, where)

    @abstractmethod
    def summary(self) -> tuple[str, ...]:
        """A few short lines for pictures of the graph."""

    @property
    @abstractmethod
    def location(self) -> Location:
        """Where its rows are."""

    def relocate(self, to: Relocation) -> TableRows:
        """The same table in other systems. A class that does not define this method itself is refused."""
        raise to.refusal(
            f"reads a {type(self).__name__}, which a proof cannot put elsewhere",
            fix="read a FileTable or a PostgresTable",
        )


@explain_wrong_calls('FileTable(path="customers.csv", format="csv", schema="id INT, name STRING")')
@dataclass(frozen=True, kw_only=True)
class FileTable(TableRows):
    """The rows of a file, or of all files in a directory, for `table(...)`.

    Writers replace files whole, by a rename: a file that is read while it grows is half a table.

    Args:
        path: the file or the directory.
        format: `"parquet"`, `"csv"` or `"json"`.
        schema: the columns to take, as Spark DDL.
        header: whether CSV files begin with the names of their columns.

    >>> customers = FileTable(path="customers.csv", format=Format.CSV, schema="ip STRING, name STRING", header=True)
    """

    path: str
    format: Format | str
    schema: str
    header: bool = False

    def __post_init__(self) -> None:
        _require(
            isinstance(self.path, str) and bool(self.path) and isinstance(self.schema, str),
            what="a FileTable needs a path and a schema as text",
            fix='FileTable(path="customers.parquet", format="parquet", schema="id INT, name STRING")',
        )
        require_format(self.format, FORMATS, where=f"declared at {caller()}")
        _require(
            not self.header or self.format == "csv",
            what=f"header= is for CSV, not for {self.format}",
            fix="remove it",
        )

    @property
    def location(self) -> Files:
        return Files(self.path, self.format, has_header=self.header)

    def relocate(self, to: Relocation) -> FileTable:
        return replace(self, path=to.path(self.path))

    def summary(self) -> tuple[str, ...]:
        return ("FileTable", f"{self.format}: {self.path}")


@explain_wrong_calls('PostgresTable(table="customers", dsn="env:ORDERS_DSN", schema="id INT, name STRING")')
@dataclass(frozen=True, kw_only=True)
class PostgresTable(TableRows):
    """The rows of a table or view in PostgreSQL, for `table(...)`. One statement reads all of them.

    Args:
        table: its name, `customers` or `schema.customers`.
        dsn: an address as libpq reads it, or a reference that the driver resolves: `env:NAME`, `file:/path` or
            `hook:module:function`.
        schema: the columns to take, as Spark DDL.

    >>> customers = PostgresTable(table="customers", dsn="env:CUSTOMERS_DSN", schema="ip STRING, name STRING")
    """

    table: str
    dsn: str = field(repr=False)  # there may be a password in it
    schema: str

    def __post_init__(self) -> None:
        _require(
            all(isinstance(text, str) and bool(text) for text in (self.table, self.dsn))
            and isinstance(self.schema, str),
            what="a PostgresTable needs a table, a dsn and a schema as text",
            fix='PostgresTable(table="customers", dsn="postgresql://host/database", schema="id INT, name STRING")',
        )
        check_reference(self.dsn, where=f"declared at {caller()}")
        object.__setattr__(self, "dsn", as_login(self.dsn))

    @property
    def location(self) -> ServerTable:
        return ServerTable(self.dsn, self.table)

    def relocate(self, to: Relocation) -> PostgresTable:
        dsn, table = to.table(self.dsn, self.table)
        return replace(self, table=table, dsn=dsn)

    def summary(self) -> tuple[str, ...]:
        return ("PostgresTable", self.table)


@dataclass(frozen=True, eq=False, kw_only=True)
class ReadTable(Step):
    """The rows of a small table, read again while the job runs."""

    rows: TableRows
    refresh: timedelta


@dataclass(frozen=True)
class Table:
    """A table that streams can be joined with. `table(...)` makes it. Streams that share one read it once.

    >>> rows = FileTable(path="customers.csv", format="csv", schema="ip STRING, name STRING")
    >>> named = orders.join(table("customers", rows, refresh="1m"), on="ip")
    """

    step: ReadTable


@explain_wrong_calls('table("customers", FileTable(...), refresh="1 minute")')
def table(name: str, rows: TableRows, *, refresh: Duration) -> Table:
    """Describe a small table that the job reads again from time to time.

    Args:
        name: what errors and the checkpoint call this table.
        rows: a FileTable or a PostgresTable.
        refresh: how long the job uses what it read; at least a second.

    Raises:
        BadJob: an argument cannot be valid.

    >>> rows = FileTable(path="customers.csv", format="csv", schema="ip STRING, name STRING")
    >>> customers = table("customers", rows, refresh="1m")
    """
    _require(
        isinstance(name, str) and _NAME.fullmatch(name) is not None,
        what=f"a table cannot be named {name!r}",
        fix="use letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 200",
    )
    _require(
        isinstance(rows, TableRows),
        what=f"table {name!r} has no rows to read: {rows!r} is not a table",
        fix="give it a FileTable or a PostgresTable",
    )
    every = as_duration(refresh, of="refresh")
    _require(
        every >= SHORTEST_REFRESH,
        what=f"table {name!r} would be read whole every {as_people_text(every)}",
        fix='refresh="1 second" is the shortest; what changes faster is a stream: join it within= a time',
    )
    return Table(step=ReadTable(inputs=(), origin=caller(), name=name, rows=rows, refresh=every))


def _require(holds: bool, *, what: str, fix: str) -> None:
    if not holds:
        raise BadJob(what, where=f"declared at {caller()}", fix=fix)
