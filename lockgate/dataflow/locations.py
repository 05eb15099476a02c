"""Where an endpoint reads or writes, and how rows are kept there, as plain data.

Code outside connectors asks an endpoint for its location and never for its class. So a new connector needs no change in
the rest of the package, and a proof can read what it delivers if one of these kinds describes it:

    Topic         records in a topic of Kafka
    Files         a file, or the files below a directory
    ServerTable   a table of PostgreSQL
    SqliteTable   a table in a file of SQLite
    OwnRows       rows that the sink itself can show, whatever keeps them
    Metric        a metric, of which nothing can be read when the job is over
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Location:
    """A place that is read or written."""

    replaced_by: tuple[str, ...] = field(default=(), kw_only=True)
    """The columns by which a row replaces an older one; empty if rows are only added."""


class Located(Protocol):
    """A source or a sink."""

    @property
    def location(self) -> Location | None:
        """Where it reads or writes."""


@dataclass(frozen=True)
class Topic(Location):
    """A topic of Kafka. A sink also says how it makes a record of a row."""

    servers: str
    name: str | None  # None if a column of each row names it
    client: Mapping[str, str] = field(default_factory=dict)  # settings of Kafka's client
    route: str | None = None  # the column that names the topic
    key: tuple[str, ...] = ()  # the columns of the record's key
    format: str = "json"  # of the value
    partition: str | None = None  # the column that has the number of the partition
    headers: str | None = None  # the column of the headers
    timestamp: str | None = None  # the column of the record's time
    deleted: str | None = None  # SQL for the rows that become records without a value


def topics_among(endpoints: Iterable[Located]) -> Iterator[Topic]:
    """The topics of those sources and sinks that have one."""
    return (one.location for one in endpoints if isinstance(one.location, Topic))


KEPT = "kept"


@dataclass(frozen=True)
class Files(Location):
    """A file, or the files below a directory."""

    path: str
    format: str = "json"
    has_header: bool = False  # do CSV files begin with the names of their columns?
    archive: str | None = None  # where a file goes when its epoch is committed
    delete: bool = False  # is it deleted then?
    partition_by: tuple[str, ...] = ()  # the columns that name directories

    @property
    def processed(self) -> str:
        """What happens to a file when its epoch is committed, in words."""
        if self.delete:
            return "deleted"
        return KEPT if self.archive is None else f"moved to {self.archive}"


@dataclass(frozen=True)
class ServerTable(Location):
    """A table of PostgreSQL."""

    dsn: str = field(repr=False)  # there may be a password in it
    table: str


@dataclass(frozen=True)
class SqliteTable(Location):
    """A table in a file of SQLite."""

    path: str
    table: str


@dataclass(frozen=True)
class OwnRows(Location):
    """Rows that a sink can show.

    Args:
        look: the rows that a reader of the sink's system sees now; it knows nothing of staging. It raises if the system
            cannot be read at this moment.
    """

    look: Callable[[], Iterable[Mapping[str, Any]]]


@dataclass(frozen=True)
class Metric(Location):
    """A number for each combination of label values."""

    labels: tuple[str, ...]
    latest: str | None  # the column that decides which row of the same labels is shown
    is_replaced: bool  # does a number replace the one before? Otherwise it is added
