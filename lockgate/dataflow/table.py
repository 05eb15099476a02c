"""Tables: small ones that stand beside a stream and give its events what they lack.

    customers = FileTable(path="customers.csv", format="csv", schema="id INT, name STRING")
    orders.join(table("customers", customers, refresh="10 minutes"), on="id")

A table is read whole when a job starts and again every `refresh`; each reading is a snapshot. Every task holds the
whole of one snapshot, and all rows of an epoch meet the same one, also when the epoch is repeated. It is a description
here: nothing is read, and the columns are those that the author declares.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import timedelta

from lockgate.dataflow.duration import Duration, as_duration, as_people_text
from lockgate.dataflow.origin import caller
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.dataflow.steps import Step
from lockgate.errors import BadJob
from lockgate.secrets import check_reference

FORMATS = ("parquet", "csv", "json")
SHORTEST_REFRESH = timedelta(seconds=1)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # it names a directory of the checkpoint


class TableRows(ABC):
    """Where the rows of a table are, and the columns that are taken of them, as DDL."""

    schema: str

    def columns(self, where: str) -> Schema:
        """The columns, without a JVM; raises BadJob, with `where`, for a schema that cannot be read."""
        return parse_ddl(self.schema, where)

    @abstractmethod
    def summary(self) -> tuple[str, ...]:
        """A few short lines for pictures of the graph."""


@dataclass(frozen=True, kw_only=True)
class FileTable(TableRows):
    """The rows of a file, or of all files in a directory; `header` says whether CSV begins with column names.

    Writers replace files whole, by a rename: a file that is read while it grows is half a table.
    """

    path: str
    format: str
    schema: str
    header: bool = False

    def __post_init__(self) -> None:
        _require(
            isinstance(self.path, str) and bool(self.path) and isinstance(self.schema, str),
            what="a FileTable needs a path and a schema as text",
            fix='FileTable(path="customers.parquet", format="parquet", schema="id INT, name STRING")',
        )
        _require(
            self.format in FORMATS,
            what=f"format={self.format!r} is not known",
            fix=f"use one of {', '.join(FORMATS)}",
        )
        _require(
            not self.header or self.format == "csv",
            what=f"header= is for CSV, not for {self.format}",
            fix="leave it away",
        )

    def summary(self) -> tuple[str, ...]:
        return ("FileTable", f"{self.format}: {self.path}")


@dataclass(frozen=True, kw_only=True)
class PostgresTable(TableRows):
    """The rows of a table or view in PostgreSQL, `customers` or `schema.customers`, as one statement sees them.

    The dsn is an address as libpq reads it, or says where the driver finds one: `env:NAME` or `file:/path`.
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

    def summary(self) -> tuple[str, ...]:
        return ("PostgresTable", self.table)


@dataclass(frozen=True, eq=False, kw_only=True)
class ReadTable(Step):
    """The rows of a small table, read again while the job runs."""

    rows: TableRows
    refresh: timedelta


@dataclass(frozen=True)
class Table:
    """A table that streams can be joined with; one that several of them use is read once for all."""

    step: ReadTable


def table(name: str, rows: TableRows, *, refresh: Duration) -> Table:
    """A small table, under a name that errors and the checkpoint refer to; it is read again every `refresh`."""
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
