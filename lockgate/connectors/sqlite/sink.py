"""SqliteSink: rows into a table of an SQLite file, for jobs that have no database server.

All rows pass through the driver, which alone can write to the file: use it for results, not for large streams. The
table is created from the rows if it is missing. Types that SQLite does not have become text: times ISO-8601 in UTC,
decimals as they are written, arrays and structs as JSON.

    without a key   rows are added
    with a key      the last row of a key in an epoch replaces what the table has under it; a key is never null, because
                    SQL does not treat two nulls as the same, and the row would be added each time
    deleted         a last row for which this SQL holds removes its key

Which outputs are written together with the job's ledger is the same as for PostgresSink.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.commit.ledger import Entry, entry_of
from lockgate.commit.repair import MendableLedger, moved, read_if_possible
from lockgate.commit.resource import CommittingSink, Opening, Resource
from lockgate.connectors.collecting import collect_rows
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.deletes import DELETED, mark_deleted
from lockgate.dataflow.endpoints import SinkAbility
from lockgate.dataflow.locations import SqliteTable
from lockgate.dataflow.origin import caller
from lockgate.dataflow.relocation import Relocation
from lockgate.dataflow.schema import quote
from lockgate.errors import BadJob, EpochFailed, Failed, InvariantBroken, Moved, Refused, RowRefused
from lockgate.guarantees import Delivery
from lockgate.untrusted import Unreadable, as_type, excerpt, read_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_BUSY_SECONDS = 60.0
_KINDS = {"tinyint": "INTEGER", "smallint": "INTEGER", "int": "INTEGER", "bigint": "INTEGER", "boolean": "INTEGER"}
_KINDS |= {"float": "REAL", "double": "REAL", "binary": "BLOB"}
_MAKE_LEDGER = "CREATE TABLE IF NOT EXISTS lockgate_ledger (job TEXT PRIMARY KEY, entry TEXT NOT NULL)"
_WRITE_LEDGER = "INSERT OR REPLACE INTO lockgate_ledger VALUES (?, ?)"


@explain_wrong_calls('SqliteSink(table="counts", path="counts.db", key="ip")')
@dataclass(frozen=True, init=False)
class SqliteSink(CommittingSink):
    """Rows for a table of an SQLite file. The driver writes them.

    Args:
        table: the name of the table.
        path: the file, on a local disk.
        key: the column, or columns, by which a row replaces an older one. Without it rows are added.
        deleted: SQL for the rows that remove their key.

    Raises:
        BadJob: an argument cannot be valid.

    >>> counts = orders.to("counts", SqliteSink(table="counts", path="counts.db", key="ip"))
    """

    table: str
    path: str
    key: tuple[str, ...]
    deleted: str | None

    def __init__(
        self, *, table: str, path: str, key: str | Sequence[str] | None = None, deleted: str | None = None
    ) -> None:
        where = f"SqliteSink, declared at {caller()}"
        if not (isinstance(table, str) and table and isinstance(path, str) and path):
            raise BadJob("an SqliteSink needs a table and a path as text", where=where, fix='path="results.db"')
        if "://" in path or path == ":memory:":
            raise BadJob(
                f"{path!r} is not a file that outlives the driver", where=where, fix="use a file on a local disk"
            )
        keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        if deleted is not None and not keys:
            raise BadJob(
                "deleted= says which rows remove their key, but there is no key", where=where, fix='key="column"'
            )
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "key", keys)
        object.__setattr__(self, "deleted", deleted)

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(
            delivery=Delivery.TRANSACTIONAL,
            reason="SQLite gets the rows of an epoch, through the driver, and the job's ledger in one transaction",
            cure="declare Guarantee.END_TO_END_EXACTLY_ONCE",
            otherwise=Delivery.IDEMPOTENT if self.key else Delivery.PLAIN,
        )

    @property
    def resource(self) -> str:
        return f"SQLite file {Path(self.path).absolute()}"

    @property
    def fitness(self) -> int:
        return 1

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        return frozenset({(self.resource, self.table)})

    @property
    def location(self) -> SqliteTable:
        return SqliteTable(self.path, self.table, replaced_by=self.key)

    def relocate(self, to: Relocation) -> SqliteSink:
        path = f"{to.path(self.path)}.db"
        return SqliteSink(table=self.table, path=path, key=self.key or None, deleted=self.deleted)

    def make_place(self) -> None:
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        Path(self.path).touch()

    def columns_needed(self) -> Sequence[str]:
        return self.key

    def expressions(self) -> Sequence[str]:
        return () if self.deleted is None else (self.deleted,)

    def summary(self) -> tuple[str, ...]:
        how = (f"upsert by {', '.join(self.key)}",) if self.key else ()
        return ("SqliteSink", f"table {self.table}", *how, "through the driver")

    def prepare(self, rows: DataFrame) -> DataFrame:
        return mark_deleted(rows, self.deleted)

    def refusal(self, rows: DataFrame, *, within: str | None, where: str) -> Column | None:
        """A null in the key."""
        from pyspark.sql import functions as F

        reason = F.when(F.lit(False), F.lit(""))
        for name in self.key:
            value = F.col(quote(name) if within is None else f"{within}.{quote(name)}")
            reason = reason.when(value.isNull(), F.lit(f"{name} is null, and is part of the key"))
        return reason if self.key else None

    def execution(self, *, is_exact: bool) -> tuple[str, str]:
        return "driver", "all rows pass through the driver"

    def write(self, rows: DataFrame, epoch: int) -> None:
        with closing(_connect(self.path)) as opened, _transaction(opened) as connection:
            staging = _Staging(self, "plain", where=f"SqliteSink(table={self.table!r}), {self.resource}")
            staging.make(connection, rows)
            name = staging.put(connection, self.prepare(rows))
            staging.move(connection, name)

    def open(self, opening: Opening) -> Resource:
        sinks = {name: sink for name, sink in opening.sinks.items() if isinstance(sink, SqliteSink)}
        where = f"{self.resource}, {opening.where}"
        return SqliteResource(opening.job, sinks, self.path, where=where, is_deciding=opening.is_deciding)

    def ledger(self, job: str, where: str) -> MendableLedger:
        return SqliteLedger(self.path, job, where=where)


class SqliteResource(Resource):
    """An SQLite file, opened for one job."""

    def __init__(
        self, job: str, sinks: Mapping[str, SqliteSink], path: str, *, where: str, is_deciding: bool = True
    ) -> None:
        self.where = where
        self._job = job
        self._is_deciding = is_deciding
        self._connection = _connect(path, where)
        self._stagings = {
            output: _Staging(sink, job, where=f"output {output!r}, {where}") for output, sink in sinks.items()
        }
        with self._translated_errors(), _transaction(self._connection) as connection:
            connection.execute(_MAKE_LEDGER)

    def read(self) -> Entry | None:
        with self._translated_errors():
            return self._read()

    def stage(self, rows: Mapping[str, DataFrame], epoch: int) -> str:
        with self._translated_errors():
            names: dict[str, str] = {}
            for output, frame in rows.items():
                with _transaction(self._connection) as connection:
                    self._stagings[output].make(connection, frame)
                    names[output] = self._stagings[output].put(connection, frame)
            if not self._is_deciding:
                self._rehearse(names)
            return json.dumps(names)

    def publish(self, staged: str | None, entry: Entry, *, after: Entry | None) -> None:
        with self._translated_errors(), _transaction(self._connection) as connection:
            seen = self._read()
            if seen != after:
                raise Moved(
                    f"the ledger of job {self._job!r} says {seen}, and not {after}", where=self.where, fix="look again"
                )
            for output, name in self._staged(staged).items():
                if not self._stagings[output].move(connection, name):
                    raise EpochFailed(
                        f"what was staged for {output!r} is gone", where=self.where, fix="the epoch is repeated"
                    )
            connection.execute(_WRITE_LEDGER, (self._job, entry.to_bytes().decode()))

    def _staged(self, text: str | None) -> dict[str, str]:
        """What was staged under a name, by output; the name comes from a ledger that others may write to."""
        try:
            names = {} if text is None else read_object(text)
            if unknown := names.keys() - self._stagings.keys():
                raise Unreadable(f"{excerpt(min(unknown))} is no output of the job")
            return {output: as_type(name, str, output) for output, name in names.items()}
        except Unreadable as error:
            raise InvariantBroken(
                f"this names nothing that was staged ({error}): {excerpt(text)}", where=self.where, fix="report this"
            ) from None

    def _rehearse(self, names: Mapping[str, str]) -> None:
        """Move the rows and undo it: a row that the table refuses must stop the epoch before it is decided."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for output, name in names.items():
                self._stagings[output].move(self._connection, name)
        finally:
            self._connection.execute("ROLLBACK")

    def leftovers(self) -> Collection[str]:
        with self._translated_errors():
            return [
                json.dumps([output, name])
                for output, staging in self._stagings.items()
                for name in staging.names(self._connection)
            ]

    def remove(self, leftovers: Collection[str]) -> None:
        with self._translated_errors(), _transaction(self._connection) as connection:
            for output, name in map(json.loads, leftovers):
                self._stagings[output].drop(connection, name)

    def close(self) -> None:
        self._connection.close()

    def _read(self) -> Entry | None:
        return _read_ledger(self._connection, self._job, self.where)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """SQLite's errors as ours: those that another try may fix, and those that it cannot."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise EpochFailed(
                f"SQLite: {error}",
                where=self.where,
                fix="see that the disk has room and that no other program locks the file",
            ) from error
        except sqlite3.Error as error:
            kind = RowRefused if isinstance(error, sqlite3.IntegrityError) else Failed
            raise kind(
                f"SQLite refuses the rows of an epoch: {error}",
                where=self.where,
                fix="correct the rows or the table, and run the job again: nothing of the epoch is visible",
            ) from error


class SqliteLedger(MendableLedger):
    """The ledger of one job in an SQLite file, for the commands that show and set ledgers."""

    option = "--sqlite FILE"
    missing = "table 'lockgate_ledger' has no row for it, or is not there"

    def __init__(self, path: str, job: str, *, where: str) -> None:
        file = Path(path).absolute()
        self.where = f"table 'lockgate_ledger' of {file}, {where}"
        self.name = f"table lockgate_ledger of {file}"
        self.facts = {"table": "lockgate_ledger", "file": str(file)}
        self._job = job
        if not file.is_file():
            raise Refused(f"there is no file {file}", where=where, fix="name the path of the job's SqliteSink")
        self._connection = _connect(path, where)

    def peek(self) -> Entry | None:
        with self._translated_errors():
            return _read_ledger(self._connection, self._job, self.where) if self._has("lockgate_ledger") else None

    def waiting(self) -> Sequence[str]:
        with self._translated_errors():
            tables = [row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            stagings = {_staging_table(self._job, table) for table in tables} & set(tables)
            names = (f"SELECT DISTINCT lockgate_name FROM {_quote(table)}" for table in sorted(stagings))
            return [row[0] for name in names for row in self._connection.execute(name)]

    def replace(self, seen: Entry | None, entry: Entry) -> None:
        with self._translated_errors(), _transaction(self._connection) as connection:
            connection.execute(_MAKE_LEDGER)
            current = read_if_possible(lambda: _read_ledger(connection, self._job, self.where))
            if current != seen:
                raise moved(current, self.where)
            connection.execute(_WRITE_LEDGER, (self._job, entry.to_bytes().decode()))

    def close(self) -> None:
        self._connection.close()

    def _has(self, table: str) -> bool:
        found = self._connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
        return found.fetchone() is not None

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise Failed(
                f"SQLite: {error}", where=self.where, fix="see that it is writable, and that no other program locks it"
            ) from error
        except sqlite3.Error as error:
            raise Refused(f"SQLite: {error}", where=self.where, fix="name the path of the job's SqliteSink") from error


@dataclass(frozen=True)
class _Staging:
    """The table where rows of one output wait: their columns, and by which try, in which order and for what."""

    sink: SqliteSink
    job: str
    where: str

    @property
    def table(self) -> str:
        return _quote(_staging_table(self.job, self.sink.table))

    def make(self, connection: sqlite3.Connection, rows: DataFrame) -> None:
        """Create both tables if they are missing, and check that the rows fit."""
        kinds = {field.name: field.dataType for field in rows.schema if field.name != DELETED}
        keys = {name.lower() for name in self.sink.key}
        columns = [f"{_quote(name)} {_kind(kind)}" for name, kind in kinds.items()]
        strict = [f"{one} NOT NULL" if name.lower() in keys else one for name, one in zip(kinds, columns, strict=True)]
        key = [f"PRIMARY KEY ({', '.join(map(_quote, self.sink.key))})"] if self.sink.key else []
        connection.execute(f"CREATE TABLE IF NOT EXISTS {_quote(self.sink.table)} ({', '.join([*strict, *key])})")
        there = {row[1] for row in connection.execute(f"PRAGMA table_info({_quote(self.sink.table)})")}
        missing = [name for name in kinds if name not in there]
        if missing:
            raise Refused(
                f"table {self.sink.table!r} has no column {', '.join(map(repr, missing))}",
                where=self.where,
                fix=f"add it, or select what the table has: {', '.join(sorted(there))}",
            )
        own = ["lockgate_name TEXT NOT NULL", "lockgate_number INTEGER NOT NULL", "lockgate_deleted INTEGER NOT NULL"]
        connection.execute(f"CREATE TABLE IF NOT EXISTS {self.table} ({', '.join([*own, *columns])})")

    def put(self, connection: sqlite3.Connection, rows: DataFrame) -> str:
        """Stage rows; return the name that they are under, even if there are none."""
        name = secrets.token_hex(8)
        columns = [column for column in rows.columns if column != DELETED]
        found = collect_rows(rows)
        keys = [column for column in columns if column.lower() in {name.lower() for name in self.sink.key}]
        null = next((key for row in found for key in keys if row[key] is None), None)
        if null is not None:  # another program's table may accept it, and would have the row twice after a replay
            raise RowRefused(
                f"{null} is null in a row for table {self.sink.table!r}, and is part of the key",
                where=self.where,
                fix="filter such rows (where), or say where they go instead: Job(..., dead_letters=...)",
            )
        marks = ", ".join("?" * (len(columns) + 3))
        into = ", ".join(["lockgate_name", "lockgate_number", "lockgate_deleted", *map(_quote, columns)])
        # Number 0 is the name itself, so that an epoch without rows differs from one that is gone.
        connection.execute(
            f"INSERT INTO {self.table} (lockgate_name, lockgate_number, lockgate_deleted) VALUES (?, 0, 0)", (name,)
        )
        connection.executemany(
            f"INSERT INTO {self.table} ({into}) VALUES ({marks})",
            (
                (name, number, int(DELETED in rows.columns and row[DELETED]), *(_value(row[one]) for one in columns))
                for number, row in enumerate(found, 1)
            ),
        )
        return name

    def move(self, connection: sqlite3.Connection, name: str) -> bool:
        """Show what is staged under a name, inside the caller's transaction; False if nothing is."""
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({self.table})")][3:]
        listed = ", ".join(map(_quote, columns))
        rows = f"SELECT * FROM {self.table} WHERE lockgate_name = ? AND lockgate_number > 0"
        if connection.execute(f"SELECT 1 FROM {self.table} WHERE lockgate_name = ?", (name,)).fetchone() is None:
            return False
        if not self.sink.key:
            connection.execute(
                f"INSERT INTO {_quote(self.sink.table)} ({listed})"
                f" SELECT {listed} FROM ({rows}) ORDER BY lockgate_number",
                (name,),
            )
        else:
            keys = ", ".join(map(_quote, self.sink.key))
            # SQLite takes the bare columns of a max() from the row that has it: the last one of the key.
            last = f"SELECT *, max(lockgate_number) FROM ({rows}) GROUP BY {keys}"
            connection.execute(
                f"DELETE FROM {_quote(self.sink.table)} WHERE ({keys}) IN (SELECT {keys} FROM ({rows}))", (name,)
            )
            connection.execute(
                f"INSERT INTO {_quote(self.sink.table)} ({listed})"
                f" SELECT {listed} FROM ({last}) WHERE NOT lockgate_deleted ORDER BY lockgate_number",
                (name,),
            )
        self.drop(connection, name)
        return True

    def names(self, connection: sqlite3.Connection) -> list[str]:
        try:
            return [row[0] for row in connection.execute(f"SELECT DISTINCT lockgate_name FROM {self.table}")]
        except sqlite3.OperationalError:
            return []  # nothing was ever staged

    def drop(self, connection: sqlite3.Connection, name: str) -> None:
        connection.execute(f"DELETE FROM {self.table} WHERE lockgate_name = ?", (name,))


def _staging_table(job: str, table: str) -> str:
    digest = hashlib.sha256(f"{job}\n{table}".encode()).hexdigest()[:12]
    return f"lockgate_staged_{digest}"


def _read_ledger(connection: sqlite3.Connection, job: str, where: str) -> Entry | None:
    found = connection.execute("SELECT entry FROM lockgate_ledger WHERE job = ?", (job,)).fetchone()
    return None if found is None else entry_of(found[0], where)


def _connect(path: str, where: str = "SqliteSink") -> sqlite3.Connection:
    try:
        # Only we begin transactions; and the epochs of a query come from a thread of Spark's.
        return sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise Refused(
            f"SQLite cannot open {path}: {error}", where=where, fix="make its directory, or repair it"
        ) from None


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _kind(kind: DataType) -> str:
    return _KINDS.get(kind.simpleString(), "TEXT")


def _value(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, default=str, ensure_ascii=False)
    return value


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
