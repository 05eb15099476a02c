"""Rows for a resource without a JVM: Arrow tables that reach PostgreSQL by a task's own code."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from lockgate.commit.resource import Opening, Resource
from lockgate.connectors.postgres.copying import CopyOrder
from lockgate.connectors.postgres.sink import PostgresSink

KINDS = {
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "bool": "boolean",
    "string": "string",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamp",
    "timestamp[us]": "timestamp_ntz",
}


Vote = namedtuple("Vote", "write output rows failure")


class _Type(NamedTuple):
    text: str

    def simpleString(self) -> str:  # noqa: N802 - Spark's name
        return self.text


class _Field(NamedTuple):
    name: str
    dataType: _Type  # noqa: N815 - Spark's name


class _Collected(NamedTuple):
    rows: list[Any]

    def collect(self) -> list[Any]:
        return self.rows


@dataclass(frozen=True)
class Rows:
    """Rows as the tasks of an epoch get them, a table for each task; it stands in for a DataFrame."""

    parts: tuple[pa.Table, ...]

    @property
    def columns(self) -> list[str]:
        return list(self.parts[0].schema.names)

    @property
    def schema(self) -> list[_Field]:
        fields = self.parts[0].schema
        return [
            _Field(one.name, _Type(KINDS.get(str(one.type), str(one.type).replace("128", "").replace(" ", ""))))
            for one in fields
        ]

    def mapInArrow(self, order: CopyOrder, schema: str) -> _Collected:  # noqa: N802 - Spark's name
        votes = [
            vote
            for task, part in enumerate(self.parts)
            for batch in order.vote(iter(part.to_batches(max_chunksize=3)), task=task)
            for vote in batch.to_pylist()
        ]
        return _Collected([Vote(**vote) for vote in votes])


def rows_of(*parts: Sequence[dict[str, Any]], **types: pa.DataType) -> Any:
    """Rows of these tasks; types where Arrow would not guess them."""
    first = pa.Table.from_pylist(list(parts[0]))
    schema = pa.schema([(name, types.get(name, first.schema.field(name).type)) for name in first.schema.names])
    return Rows(tuple(pa.Table.from_pylist(list(part), schema=schema) for part in parts))


def opening(job: str = "job", *, is_deciding: bool = True, **sinks: PostgresSink) -> Opening:
    """An opening for these outputs."""
    return Opening(job=job, sinks=sinks, spark=None, where="test", is_deciding=is_deciding)  # type: ignore[arg-type]


def open_sinks(job: str = "job", *, is_deciding: bool = True, **sinks: PostgresSink) -> Resource:
    """The resource that these outputs share."""
    return next(iter(sinks.values())).open(opening(job, is_deciding=is_deciding, **sinks))
