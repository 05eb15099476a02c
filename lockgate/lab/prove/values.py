"""Made-up values for every type that a source can declare, as JSON and CSV write them.

Values depend only on the given random numbers, so a seed always gives the same bytes. Fractions are multiples of a
quarter: their sums are exact in any order of addition, so that a sum says something about the events and not about
rounding.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import sqlglot
from sqlglot import exp

from lockgate.dataflow.schema import Column
from lockgate.errors import Refused

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
"""The time of the first event."""

WORDS = 20
_WORD_LIMITED = ("VARCHAR", "CHAR")
_ELEMENTS_MAX = 3
_DIGITS_MAX = 9  # more of them would not come through JSON's numbers unchanged

SCALARS: dict[str, Callable[[random.Random, int, datetime], Any]] = {
    "TINYINT": lambda rng, number, at: rng.randrange(100),
    "SMALLINT": lambda rng, number, at: rng.randrange(1000),
    "INT": lambda rng, number, at: rng.randrange(1000),
    "BIGINT": lambda rng, number, at: number,
    "FLOAT": lambda rng, number, at: rng.randrange(4000) / 4,
    "DOUBLE": lambda rng, number, at: rng.randrange(4000) / 4,
    "BOOLEAN": lambda rng, number, at: rng.random() < 0.5,
    "DATE": lambda rng, number, at: at.date().isoformat(),
    "TIMESTAMP": lambda rng, number, at: at.isoformat(timespec="milliseconds"),
    "TIMESTAMP_NTZ": lambda rng, number, at: at.replace(tzinfo=None).isoformat(timespec="milliseconds"),
    "BINARY": lambda rng, number, at: base64.b64encode(rng.randbytes(rng.randrange(12))).decode(),
    "VARIANT": lambda rng, number, at: {"n": rng.randrange(100), "t": f"t-{rng.randrange(WORDS):02}"},
}
"""Of (random numbers, number of the event, time of the event)."""

_TYPES = exp.DataType.Type
_NAMES = {
    _TYPES.TINYINT: "TINYINT",
    _TYPES.SMALLINT: "SMALLINT",
    _TYPES.INT: "INT",
    _TYPES.BIGINT: "BIGINT",
    _TYPES.FLOAT: "FLOAT",
    _TYPES.DOUBLE: "DOUBLE",
    _TYPES.BOOLEAN: "BOOLEAN",
    _TYPES.DATE: "DATE",
    _TYPES.DATE32: "DATE",
    _TYPES.TIMESTAMP: "TIMESTAMP",
    _TYPES.TIMESTAMPTZ: "TIMESTAMP",
    _TYPES.TIMESTAMPLTZ: "TIMESTAMP",
    _TYPES.TIMESTAMPNTZ: "TIMESTAMP_NTZ",
    _TYPES.BINARY: "BINARY",
    _TYPES.VARBINARY: "BINARY",
    _TYPES.VARIANT: "VARIANT",
    _TYPES.TEXT: "STRING",
    _TYPES.VARCHAR: "VARCHAR",
    _TYPES.CHAR: "CHAR",
    _TYPES.DECIMAL: "DECIMAL",
    _TYPES.ARRAY: "ARRAY",
    _TYPES.MAP: "MAP",
    _TYPES.STRUCT: "STRUCT",
}


def type_of(column: Column) -> exp.DataType:
    """The type of a column, as a shared tree that must not change."""
    return _tree(column.type or "STRING")


def kind_of(column: Column) -> str | None:
    """The type of a column without its parameters; None where no values are made for it."""
    return _NAMES.get(type_of(column).this)


def digits_of(column: Column) -> tuple[int, int]:
    """How many digits a decimal has before and behind the dot."""
    return _digits(type_of(column))


def maker(column: Column, where: str, fix: str) -> Callable[[random.Random, int, datetime], Any]:
    """What makes the values of a column; Refused, with the fix, where its type has none."""
    try:
        return _maker(type_of(column), column.name)
    except _NoValues as none:
        raise Refused(
            f"no values are made for column {column.name!r} of type {column.type}: {none}", where=where, fix=fix
        ) from None


def from_domain(column: Column, index: int) -> Any:
    """The value of this number among those that a column is drawn from; the same in every source that has its name."""
    kind, tree = kind_of(column), type_of(column)
    if kind in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
        return index % {"TINYINT": 100, "SMALLINT": 30_000}.get(kind, 2**31)
    if kind in ("FLOAT", "DOUBLE"):
        return index / 4
    if kind == "DECIMAL":
        whole, behind = _digits(tree)
        return index % 10 ** min(whole, _DIGITS_MAX) if whole else (index % 10**behind) / 10**behind
    if kind == "BOOLEAN":
        return index % 2 == 0
    if kind == "BINARY":
        return base64.b64encode(struct.pack(">i", index)).decode()
    if kind in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
        return SCALARS[kind](random.Random(0), 0, BEGAN + timedelta(days=index))
    return _word(column.name, index, tree)


def key_bytes(columns: Sequence[Column], values: Sequence[Any]) -> bytes | None:
    """The bytes of a key, as KafkaSource reads them."""
    if len(columns) > 1:
        return json.dumps(list(values), separators=(",", ":")).encode()
    value, kind = values[0], kind_of(columns[0])
    if value is None:
        return None
    if kind in ("INT", "BIGINT"):
        return struct.pack(">i" if kind == "INT" else ">q", value)
    return base64.b64decode(value) if kind == "BINARY" else str(value).encode()


class _NoValues(Exception):
    """A type, or a part of it, that nothing is made for."""


@cache  # to parse it takes longer than to make a value
def _tree(type: str) -> exp.DataType:
    # As a column and not as a cast, which Spark turns into plain text if it has a length.
    table = sqlglot.parse_one(f"CREATE TABLE t (x {type})", read="spark").this
    kind = table.expressions[0].kind
    assert isinstance(kind, exp.DataType)
    return kind


def _maker(tree: exp.DataType, name: str) -> Callable[[random.Random, int, datetime], Any]:
    kind = _NAMES.get(tree.this)
    if kind in SCALARS:
        return SCALARS[kind]
    if kind in ("STRING", *_WORD_LIMITED):
        return lambda rng, number, at: _word(name, rng.randrange(WORDS), tree)
    if kind == "DECIMAL":
        whole, behind = _digits(tree)
        top = 10 ** min(whole + behind, _DIGITS_MAX)
        return lambda rng, number, at: rng.randrange(top) / 10**behind if behind else rng.randrange(top)
    if kind == "ARRAY":
        one = _maker(tree.expressions[0], name)
        return lambda rng, number, at: [one(rng, number, at) for _ in range(rng.randrange(_ELEMENTS_MAX + 1))]
    if kind == "MAP":
        if _NAMES.get(tree.expressions[0].this) != "STRING":
            raise _NoValues("the keys of a map in JSON are text")
        value = _maker(tree.expressions[1], name)
        return lambda rng, number, at: {
            f"{name}-{index}": value(rng, number, at) for index in range(rng.randrange(_ELEMENTS_MAX + 1))
        }
    if kind == "STRUCT":
        inner = {one.name: _maker(one.args["kind"], one.name) for one in tree.expressions}
        return lambda rng, number, at: {field: make(rng, number, at) for field, make in inner.items()}
    raise _NoValues(f"{tree.sql(dialect='spark')} is not known here")


def _digits(tree: exp.DataType) -> tuple[int, int]:
    told = [int(one.name) for one in tree.expressions]
    all_digits, behind = (*told, 0)[:2] if told else (10, 0)
    return all_digits - behind, behind


def _word(name: str, index: int, tree: exp.DataType) -> str:
    text = f"{name}-{index:02}"
    if _NAMES.get(tree.this) in _WORD_LIMITED and tree.expressions:
        return text[-int(tree.expressions[0].name) :]  # words differ at their end
    return text
