"""Columns and their types, read from a Spark DDL string without a JVM.

The planner needs names (to find a column that does not exist) and a few types (to know which bytes a key has). What it
cannot know, for example after `.transform`, is `None`. Then Spark's analyser checks it, still before anything runs.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lockgate.errors import BadJob

_FIELD = re.compile(r"\s*(`(?:[^`]|``)+`|\w+)\s*:?(.*)", re.DOTALL)


@dataclass(frozen=True)
class Column:
    """A column: its name, its type as Spark writes it (None if unknown), and whether it may be null."""

    name: str
    type: str | None = None
    is_nullable: bool = True


@dataclass(frozen=True)
class Schema:
    """Named columns in order."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names in order."""
        return tuple(column.name for column in self.columns)

    def find(self, name: str) -> Column | None:
        """The column of that name, in any case, as Spark resolves it."""
        return next((column for column in self.columns if column.name.lower() == name.lower()), None)

    def __str__(self) -> str:
        return ", ".join(f"{column.name} {column.type or '?'}" for column in self.columns)


def quote(name: str) -> str:
    """A column name as SQL takes it, whatever it contains."""
    return "`" + name.replace("`", "``") + "`"


@lru_cache(maxsize=256)
def parse_ddl(ddl: str, where: str) -> Schema:
    """The schema of a DDL string.

    >>> parse_ddl("ip STRING, at TIMESTAMP NOT NULL", where="").names
    ('ip', 'at')
    """
    try:
        statement = sqlglot.parse_one(f"CREATE TABLE t ({_quoted(ddl)})", read="spark")
    except SqlglotError as error:
        raise _refusal(ddl, where, _first_line(error)) from None
    table = statement.this
    definitions = table.expressions if isinstance(table, exp.Schema) else []
    columns = []
    for definition in definitions:
        if not isinstance(definition, exp.ColumnDef) or definition.kind is None:
            raise _refusal(ddl, where, f"{definition.sql(dialect='spark')!r} has no type")
        if _names_unknown_type(definition.kind):
            raise _refusal(ddl, where, f"{definition.kind.sql(dialect='spark')!r} is not a type of Spark")
        if definition.name.startswith("__"):
            raise _refusal(ddl, where, f"names such as {definition.name!r}, with two underscores first, are taken")
        is_nullable = not any(
            isinstance(constraint.kind, exp.NotNullColumnConstraint) for constraint in definition.constraints
        )
        columns.append(Column(name=definition.name, type=definition.kind.sql(dialect="spark"), is_nullable=is_nullable))
    if not columns:
        raise _refusal(ddl, where, "it names no column")
    seen: set[str] = set()
    for column in columns:
        if column.name.lower() in seen:
            raise _refusal(ddl, where, f"column {column.name!r} is named twice")
        seen.add(column.name.lower())
    return Schema(columns=tuple(columns))


def _quoted(ddl: str) -> str:
    """The same DDL with every name in backquotes: Spark takes `check INT` and `ip: STRING`, but sqlglot would not."""
    fields, depth, begin = [], 0, 0
    for piece in re.finditer(r"`[^`]*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[<>(),]", ddl):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(piece.group(), 0)
        if piece.group() == "," and depth == 0:
            fields.append(ddl[begin : piece.start()])
            begin = piece.end()
    matches = [(field, _FIELD.fullmatch(field)) for field in (*fields, ddl[begin:])]
    return ", ".join(f"`{match[1].strip('`')}` {match[2]}" if match else field for field, match in matches)


def _names_unknown_type(kind: exp.Expression) -> bool:
    return any(
        isinstance(node, exp.DataType) and node.this in (exp.DataType.Type.USERDEFINED, exp.DataType.Type.UNKNOWN)
        for node in kind.walk()
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")


def _refusal(ddl: str, where: str, why: str) -> BadJob:
    return BadJob(
        f"the schema {ddl!r} cannot be read: {why}",
        where=where,
        fix='write it as Spark DDL: names and types, e.g. "ip STRING, at TIMESTAMP, amount DOUBLE"',
    )
