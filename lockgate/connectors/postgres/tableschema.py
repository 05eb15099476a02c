"""Tables: what Spark's types become in PostgreSQL, what a table is like, and whether rows fit into it.

A value goes only into a type that is as wide or wider, so nothing of it is lost. PostgreSQL itself reads what a string
holds (a uuid, JSON, an address). An error reports all differences at once, each with its fix.

    Spark                           made as                        also goes into
    tinyint, smallint, int, bigint  smallint, integer, bigint      wider integers, numeric, doubles that hold them
    float, double                   real, double precision         float into double precision
    decimal(p, s)                   numeric(p, s)                  numeric with as many digits on both sides of the dot
    boolean, date                   the same                       date into timestamp
    timestamp, timestamp_ntz        timestamptz, timestamp
    string                          text                           varchar, char, uuid, json, jsonb, inet, enums, ...
    binary                          bytea
    array, map, struct, variant     jsonb                          json, text

Names are used as they are written, in any case and with any characters. If a table has a name only in another case, it
is found as Spark finds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.deletes import DELETED
from lockgate.errors import BadJob, Refused

if TYPE_CHECKING:
    from psycopg.sql import Composed, Identifier
    from pyspark.sql import DataFrame

    from lockgate.connectors.postgres.connect import Connection

NUMBER = "__number"
"""A column of staging beside those of the table, if there is a key: which row came first."""

NESTED = ("array", "map", "struct", "variant")
_MADE = {
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
    "time": "time without time zone",
    "string": "text",
    "char": "text",
    "varchar": "text",
    "binary": "bytea",
    **dict.fromkeys(NESTED, "jsonb"),
}
_TEXTS = ("text", "varchar", "bpchar", "citext", "uuid", "json", "jsonb", "inet", "cidr", "macaddr", "macaddr8", "xml")
_TAKEN_BY: Mapping[str, tuple[str, ...]] = {
    "tinyint": ("int2", "int4", "int8", "float4", "float8"),
    "smallint": ("int2", "int4", "int8", "float4", "float8"),
    "int": ("int4", "int8", "float8"),
    "bigint": ("int8",),
    "float": ("float4", "float8"),
    "double": ("float8",),
    "boolean": ("bool",),
    "date": ("date", "timestamp"),
    "timestamp": ("timestamptz",),
    "timestamp_ntz": ("timestamp",),
    "time": ("time",),
    "string": _TEXTS,
    "char": _TEXTS,
    "varchar": _TEXTS,
    "binary": ("bytea",),
    **dict.fromkeys(NESTED, ("jsonb", "json", "text")),
}
_WHOLE_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_HELD_DIGITS = {"int2": 4, "int4": 9, "int8": 18}  # any number of so many digits fits
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}


@dataclass(frozen=True)
class TableName:
    """A table, in a schema or in the search path."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return repr(self.name if self.schema is None else f"{self.schema}.{self.name}")

    @property
    def sql(self) -> Identifier:
        """The name as SQL takes it."""
        from psycopg.sql import Identifier

        return Identifier(self.name) if self.schema is None else Identifier(self.schema, self.name)


@dataclass(frozen=True)
class RowColumn:
    """A column of the rows, with its type as Spark writes it."""

    name: str
    type: str

    @property
    def kind(self) -> str:
        """The type without its parameters."""
        found = re.match(r"[a-z_]+", self.type)
        return found.group() if found else self.type

    @property
    def digits(self) -> tuple[int, int] | None:
        """How many digits before and after the dot a number of this type may have, if that is fixed."""
        if self.kind in _WHOLE_DIGITS:
            return _WHOLE_DIGITS[self.kind], 0
        found = re.fullmatch(r"decimal\((\d+),(-?\d+)\)", self.type)
        return None if found is None else (int(found[1]) - int(found[2]), int(found[2]))


@dataclass(frozen=True)
class TableColumn:
    """A column of a table."""

    name: str
    type: str  # as PostgreSQL shows it
    base: str  # the name in pg_type, of a domain that of the type below it
    is_text: bool = False  # an enum, or a type of the category of strings
    digits: tuple[int, int] | None = None  # of a limited numeric: before and after the dot
    is_required: bool = False  # not null, and the table does not fill it by itself
    is_not_null: bool = False  # even if the table fills it when the rows lack it
    is_generated: bool = False  # and cannot be written
    collation: str | None = None  # if it is not the usual one of its type

    @property
    def declaration(self) -> str:
        """The type and the collation, as in the declaration of a column."""
        return self.type if self.collation is None else f"{self.type} COLLATE {self.collation}"


@dataclass(frozen=True)
class Table:
    """A table as it is."""

    name: TableName  # with its schema
    kind: str  # relkind
    columns: tuple[TableColumn, ...]
    unique: frozenset[frozenset[str]]  # column sets that ON CONFLICT can use
    lacking: tuple[str, ...]  # rights that the user does not have


@dataclass(frozen=True)
class Fit:
    """A column of the rows and the column of the table for it."""

    row: RowColumn
    column: TableColumn


def parse_name(text: str, where: str) -> TableName:
    """The table that a text names: `orders`, `sales.orders`; double quotes keep a dot together.

    >>> parse_name('sales."odd.name"', where="")
    TableName(schema='sales', name='odd.name')
    """
    found = re.fullmatch(r'(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)', text)
    if found is None or "\0" in text:
        raise BadJob(f"{text!r} names no table", where=where, fix='table="orders" or table="schema.orders"')
    schema, name = (None if part is None else _unquoted(part) for part in found.groups())
    assert name is not None
    return TableName(schema=schema, name=name)


def row_columns(rows: DataFrame) -> tuple[RowColumn, ...]:
    """The columns of prepared rows, without the hidden one."""
    fields = (field for field in rows.schema if field.name != DELETED)
    return tuple(RowColumn(name=field.name, type=field.dataType.simpleString()) for field in fields)


def made_type(column: RowColumn) -> str | None:
    """The type of PostgreSQL for a new column; None if there is none for it."""
    if column.kind == "decimal" and column.digits is not None:
        whole, behind = column.digits
        return f"numeric({whole + behind},{behind})"
    return _MADE.get(column.kind)


def takes(column: TableColumn, row: RowColumn) -> bool:
    """Does every value of the rows' type go into the column, as far as types decide?"""
    if row.digits is not None:
        whole, behind = row.digits
        if column.base == "numeric":
            return column.digits is None or (column.digits[0] >= whole and column.digits[1] >= behind)
        if row.kind == "decimal":
            return behind == 0 and whole <= _HELD_DIGITS.get(column.base, 0)
    if column.is_text and row.kind in ("string", "char", "varchar"):
        return True
    return column.base in _TAKEN_BY.get(row.kind, ())


def create_statement(name: TableName, rows: Sequence[RowColumn], key: Sequence[str], where: str) -> Composed:
    """The statement that creates a table for these rows."""
    from psycopg.sql import SQL, Identifier

    refuse_untyped(rows, where)
    lines = [SQL("{} {}").format(Identifier(row.name), SQL(made_type(row) or "")) for row in rows]
    if key:
        names = [_found(name, rows) for name in key]
        lines.append(SQL("PRIMARY KEY ({})").format(SQL(", ").join(map(Identifier, names))))
    return SQL("CREATE TABLE {} ({})").format(name.sql, SQL(", ").join(lines))


def refuse_untyped(rows: Sequence[RowColumn], where: str) -> None:
    """Refuse columns of types that PostgreSQL cannot have in any form."""
    wrong = [row for row in rows if made_type(row) is None]
    if wrong:
        raise Refused(
            "there is no form in PostgreSQL for " + ", ".join(f"column {row.name!r} ({row.type})" for row in wrong),
            where=where,
            fix='cast it in a select, e.g. .select("id", span="CAST(span AS STRING)")',
        )


def find_table(connection: Connection, name: TableName, *, rights: Sequence[str] = ()) -> Table | None:
    """The table of that name, as it is now; None if there is none."""
    shown = name.sql.as_string(connection)
    found = connection.execute(
        "SELECT c.oid, c.relkind::text, n.nspname, c.relname FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
        [shown],
    ).fetchone()
    if found is None:
        return None
    oid, kind, schema, table = found
    columns = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), b.typname, b.typtype::text, b.typcategory::text,"
        " CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END,"
        " a.attnotnull OR t.typnotnull, a.atthasdef OR t.typdefault IS NOT NULL, a.attidentity::text,"
        " a.attgenerated::text, a.attnum,"
        " (SELECT quote_ident(s.nspname) || '.' || quote_ident(l.collname) FROM pg_collation l"
        " JOIN pg_namespace s ON s.oid = l.collnamespace WHERE l.oid = a.attcollation AND l.oid <> t.typcollation)"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " JOIN pg_type b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END"
        " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        [oid],
    ).fetchall()
    numbered = {column[10]: column[0] for column in columns}
    indexes = connection.execute(
        "SELECT (indkey::int2[])[0:indnkeyatts - 1] FROM pg_index WHERE indrelid = %s AND indisunique AND indimmediate"
        " AND indisvalid AND indpred IS NULL AND indexprs IS NULL",
        [oid],
    ).fetchall()
    lacking = tuple(
        right
        for right in rights
        if connection.execute("SELECT has_table_privilege(%s::oid, %s)", [oid, right]).fetchone() == (False,)
    )
    return Table(
        name=TableName(schema=schema, name=table),
        kind=kind,
        columns=tuple(_column(column) for column in columns),
        unique=frozenset(frozenset(numbered[number] for number in numbers) for (numbers,) in indexes),
        lacking=lacking,
    )


def fit(table: Table, rows: Sequence[RowColumn], key: Sequence[str], where: str) -> tuple[Fit, ...]:
    """Which column goes where; raises with every difference if the rows do not fit."""
    differences = list(_differences(table, rows, key))
    if differences:
        count = f"{len(differences)} difference" + ("s" if len(differences) > 1 else "")
        raise Refused(
            f"the rows do not fit table {table.name}, {count}:"
            + "".join(f"\n    {difference}" for difference, _ in differences),
            where=where,
            fix="in the table: "
            + "; ".join(cure for _, cure in differences)
            + "; or select and cast in the job what the table has",
        )
    found = ((row, _match(row.name, table)) for row in rows)
    return tuple(Fit(row=row, column=column) for row, column in found if column is not None)


def missing_table(name: TableName, rows: Sequence[RowColumn], key: Sequence[str], where: str) -> Refused:
    """The refusal of a table that does not exist, with the statement that creates it."""
    statement = create_statement(name, rows, key, where).as_string(None)
    return Refused(
        f"there is no table {name}, or it is not in the search path",
        where=where,
        fix=f"{statement}; or let the sink make it: create=True",
    )


def _differences(table: Table, rows: Sequence[RowColumn], key: Sequence[str]) -> Iterable[tuple[str, str]]:
    """What does not fit, and its fix as SQL."""
    shown = table.name.sql.as_string(None)
    if table.kind not in ("r", "p"):
        yield f"it is {_KINDS.get(table.kind, 'no table')}", "name a table"
        return
    if table.lacking:
        rights = ", ".join(table.lacking)
        yield f"the user has no right to {rights} there", f"GRANT {rights} ON {shown} TO that user"
    brought: dict[str, RowColumn] = {}
    for row in rows:
        column, type_ = _match(row.name, table), made_type(row)
        if column is None:
            cure = f"ALTER TABLE {shown} ADD COLUMN {_quoted(row.name)} {type_}"
            yield f"column {row.name!r}: comes as {row.type}, the table has no such column", cure
            continue
        brought[column.name] = row
        if column.is_generated:
            cure = f"ALTER TABLE {shown} ALTER COLUMN {_quoted(column.name)} DROP EXPRESSION (or DROP IDENTITY)"
            yield f"column {row.name!r}: comes as {row.type}, the table makes it by itself", cure
        elif not takes(column, row):
            cure = f"ALTER TABLE {shown} ALTER COLUMN {_quoted(column.name)} TYPE {type_}"
            yield f"column {row.name!r}: comes as {row.type}, the table has {column.type}", cure
    for column in table.columns:
        if column.is_required and column.name not in brought:
            cure = f"ALTER TABLE {shown} ALTER COLUMN {_quoted(column.name)} DROP NOT NULL (or SET DEFAULT ...)"
            yield f"column {column.name!r}: does not come, the table has {column.type} not null, no default", cure
    coming = {row.name.lower() for row in rows}
    for name in key:
        if name.lower() not in coming:
            yield f"key {name}: does not come with the rows", "nothing: select the key in the job"
    if key:
        keys = [column.name if (column := _match(name, table)) else name for name in key]
        if frozenset(keys) not in table.unique:
            names = ", ".join(keys)
            cure = f"CREATE UNIQUE INDEX ON {shown} ({', '.join(map(_quoted, keys))})"
            yield f"key {names}: the table has no unique index over exactly that, which an upsert goes by", cure


def _match(name: str, table: Table) -> TableColumn | None:
    """The column of that name, or the only one that has it in another case."""
    exact = [column for column in table.columns if column.name == name]
    alike = exact or [column for column in table.columns if column.name.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _found(name: str, rows: Sequence[RowColumn]) -> str:
    return next((row.name for row in rows if row.name.lower() == name.lower()), name)


def _column(facts: Sequence[Any]) -> TableColumn:
    name, shown, base, kind, category, modifier, is_not_null, has_default, identity, generated, _, collation = facts
    digits = None
    if base == "numeric" and modifier >= 4:
        precision = (modifier - 4) >> 16 & 0xFFFF
        behind = ((modifier - 4 & 0x7FF) ^ 1024) - 1024  # eleven bits, signed
        digits = precision - behind, behind
    return TableColumn(
        name=name,
        type=shown,
        base=base,
        is_text=kind == "e" or category == "S",
        digits=digits,
        is_required=is_not_null and not has_default and not identity,
        is_not_null=is_not_null,
        is_generated=bool(generated) or identity == "a",
        collation=collation,
    )


def _quoted(name: str) -> str:
    from psycopg.sql import Identifier

    return Identifier(name).as_string(None)


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
