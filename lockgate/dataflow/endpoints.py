"""The contracts of sources and sinks, and the abilities that each declares.

The planner derives a job's guarantee from these abilities alone, so an endpoint that claims more than it does breaks
every promise made over it. `columns` needs no JVM; `read` and `write` are called by the run time only.

Every source delivers, beside the columns of its value, hidden columns: they can be named in SQL, stay beside the row
until an aggregate or a join ends it, and reach a sink only where a `select` names them. One of them, POSITION, says
where the row came from; it orders the rows of a key and names the row in errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lockgate.dataflow.origin import Origin
from lockgate.dataflow.schema import Schema
from lockgate.guarantees import Delivery

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

POSITION = "_position"
"""Hidden column of every source: where a row came from; unique in a job, and ordered as the source is within a part."""

POSITION_DDL = "STRUCT<source: STRING, part: STRING, at: BIGINT, child: ARRAY<INT>>"
"""`child` tells the rows apart that one event was split into."""

PLACE = "__place"
"""POSITION beside the rows of an output, for who wants it there: an author may have made a column of it."""

ORIGINAL = "__original"
"""Hidden column of jobs with dead letters: what the source gave, as it was, so that a letter can hold it."""

ORIGINAL_DDL = (
    "STRUCT<key: BINARY, value: BINARY, headers: ARRAY<STRUCT<key: STRING, value: BINARY>>, timestamp: TIMESTAMP,"
    " attempts: INT>"
)
"""`attempts` counts how often it has been tried before."""


@dataclass(frozen=True)
class SourceAbility:
    """What a source can promise, with the reason in words."""

    is_replayable: bool
    reason: str
    can_skip_history: bool = False  # can a run begin with what comes next?
    is_acknowledged: bool = False  # if it cannot be replayed: does it send again what no complete epoch has held?


@dataclass(frozen=True)
class SinkAbility:
    """What a sink does with an epoch that comes twice, with the reason in words and the way to lift it.

    A transactional sink uses transactions if end-to-end exactly-once is declared for it, or if it is idempotent without
    them, and if epochs can be held together; `otherwise` is what it is without transactions.

    An idempotent sink lifts the guarantee only if it `is_fenced`: a driver that slept while another driver took over
    cannot write its older rows over the newer ones. A sink that only upserts is not fenced.
    """

    delivery: Delivery
    reason: str
    cure: str
    otherwise: Delivery = Delivery.PLAIN
    is_fenced: bool = False


class Rejecting(Protocol):
    """Who takes events that cannot be used."""

    def watch(self, frame: DataFrame, reason: Column, *, step: str, shown: Column) -> DataFrame:
        """The rows without those for which there is a reason, which are put aside."""


@dataclass(frozen=True)
class Reading:
    """What the run time tells a source when it opens it."""

    name: str
    job: str
    origin: Origin
    start: str  # "earliest", "latest" or an ISO-8601 time
    rows_per_epoch: int  # the most
    rows_first: int | None = None  # of the first epoch, where the others are set while it runs; None: all are alike
    is_real_time: bool = False  # then rows are not counted out to epochs
    is_order_needed: bool = False  # does a step behind this source depend on the order of its rows?
    is_at_most_once: bool = False  # must no row come twice, whatever is lost?
    rejects: Rejecting | None = None  # takes events that cannot be used; None where they stop the job
    returned: DataFrame | None = None  # events that come once more, as `sources.returned` reads them

    @property
    def where(self) -> str:
        """The source as errors name it."""
        return f"source {self.name!r}, declared at {self.origin}"


class Source(ABC):
    """Where events come from."""

    @property
    @abstractmethod
    def ability(self) -> SourceAbility:
        """Can a row be read again after a failure?"""

    @property
    @abstractmethod
    def tasks(self) -> str:
        """How many tasks read it, in words where only the outside knows: `one per partition of the topic`."""

    @abstractmethod
    def columns(self, where: str) -> Schema:
        """The columns of the value, without a JVM; raises BadJob, with `where`, for a schema that cannot be read."""

    @abstractmethod
    def hidden_columns(self) -> Sequence[str]:
        """The columns that come along unasked, POSITION among them."""

    def check(self, reading: Reading) -> None:  # noqa: B027 - most sources have nothing to look at
        """Look at the outside before anything runs; raise with the cure where the source cannot be read."""

    @abstractmethod
    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        """The stream as a DataFrame: the columns of the value, then the hidden ones."""

    @property
    def has_bytes(self) -> bool:
        """Does `read` tell what its rows were made of, and take events that come once more? Others' rows are typed."""
        return False

    @property
    def is_native(self) -> bool:
        """Are its rows read inside the JVM, and not made by Python?"""
        return True

    @property
    def partitioned_by(self) -> frozenset[str]:
        """The columns each of which alone decides, as Kafka's clients do, which part of the source holds a row."""
        return frozenset()

    @property
    def is_fit_for_real_time(self) -> bool:
        """Can Spark's real-time mode read it?"""
        return False

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        """What is read, as (system, place) pairs, so that a job which feeds itself is found."""
        return frozenset()

    @property
    def offsets_of(self) -> str:
        """What an offset in a checkpoint is a place in, in words: with another one it would mean other events."""
        return type(self).__name__

    def summary(self) -> tuple[str, ...]:
        """A few short lines for pictures of the graph."""
        return (type(self).__name__,)


class Sink(ABC):
    """Where results go."""

    @property
    @abstractmethod
    def ability(self) -> SinkAbility:
        """What becomes of an epoch that is written twice?"""

    @abstractmethod
    def columns_needed(self) -> Sequence[str]:
        """The columns that a row must have for this sink."""

    def expressions(self) -> Sequence[str]:
        """The SQL that this sink evaluates on every row."""
        return ()

    def prepare(self, rows: DataFrame) -> DataFrame:
        """The rows with hidden columns that the sink's own SQL makes, while the names of the rows can be resolved."""
        return rows

    @abstractmethod
    def write(self, rows: DataFrame, epoch: int) -> None:
        """Write the rows of one epoch; returning means that the sink has them."""

    @property
    def wants_place(self) -> bool:
        """Does it take PLACE beside the columns of a row, where the row has one?"""
        return False

    def untracked(self) -> Sink:
        """The sink as an at-most-once job uses it: where the outside could send a row a second time, it does not."""
        return self

    def execution(self, *, is_exact: bool) -> tuple[str, str]:
        """What writes the rows, in transactions or not, and why: "native" (in the JVM), "Python" or "driver"."""
        return "Python", "the sink's own code takes the rows"

    def check_rows(self, rows: DataFrame, where: str) -> None:  # noqa: B027 - most sinks take any rows
        """Look at the columns and types of what will come; raise with the cure where they cannot be written."""

    def refusal(self, rows: DataFrame, *, within: str | None, where: str) -> Column | None:
        """Why the sink would not take a row, as a text that is null where it would; None where it takes all of them.

        The rows are prepared, or are in a struct of this name. What is told here becomes a dead letter; whatever else a
        system refuses stops the job.
        """
        return None

    def refusal_if_exact(self, rows: DataFrame, *, within: str | None, where: str) -> Column | None:
        """The same for what is checked only if the output is declared end-to-end exactly-once."""
        return None

    def check(self, where: str) -> None:  # noqa: B027 - most sinks have nothing to look at
        """Look at the outside before anything runs; raise with the cure where the sink cannot work."""

    def close(self) -> None:  # noqa: B027 - most sinks hold nothing open
        """Let go of what `check` opened; called at the end of a run, and where it could not begin."""

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        """The columns that together decide, as Kafka's clients do, to which part of the sink a row goes."""
        return ()

    @property
    def commits_at(self) -> frozenset[str]:
        """The servers of the system in whose transactions the sink commits; empty where it has none."""
        return frozenset()

    @property
    def is_fit_for_real_time(self) -> bool:
        """Can Spark's real-time mode write to it?"""
        return False

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        """What is written, as (system, place) pairs."""
        return frozenset()

    def summary(self) -> tuple[str, ...]:
        """A few short lines for pictures of the graph."""
        return (type(self).__name__,)
