"""The contracts of sources and sinks, and the abilities that each declares.

The planner derives a job's guarantee from these abilities alone. So an endpoint that claims more than it does breaks
every promise that builds on it. `columns` needs no JVM; only the run time calls `read` and `write`.

Beside the columns of its value every source gives hidden columns. SQL can name them, they stay beside the row until an
aggregate or a join ends it, and they reach a sink only if a `select` names them. One of them, POSITION, says where the
row came from. It orders the rows of a key and names the row in errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from lockgate.dataflow.locations import Files, Location
from lockgate.dataflow.origin import Origin
from lockgate.dataflow.relocation import Relocation
from lockgate.dataflow.schema import Schema
from lockgate.guarantees import Delivery

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

POSITION = "_position"
"""Hidden column of every source: where a row came from. Unique in a job, and ordered as the source within a part."""

POSITION_DDL = "STRUCT<source: STRING, part: STRING, at: BIGINT, child: ARRAY<INT>>"
"""`child` distinguishes the rows that were made of one event."""

PLACE = "__place"
"""POSITION beside the rows of an output, for sinks that want it: a user may have made a column of that name."""

ORIGINAL = "__original"
"""Hidden column of jobs with dead letters: what the source gave, unchanged, so that a dead letter can hold it."""

ORIGINAL_DDL = (
    "STRUCT<key: BINARY, value: BINARY, headers: ARRAY<STRUCT<key: STRING, value: BINARY>>, timestamp: TIMESTAMP,"
    " attempts: INT>"
)
"""`attempts` counts how often the event was tried before."""


@dataclass(frozen=True)
class SourceAbility:
    """What a source can promise, with the reason in words."""

    is_replayable: bool
    reason: str
    can_skip_history: bool = False  # can a run start with what comes next?
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
    """Takes events that cannot be used."""

    def watch(self, frame: DataFrame, reason: Column, *, step: str, shown: Column) -> DataFrame:
        """The rows without those for which there is a reason; these are put aside."""


@dataclass(frozen=True)
class Reading:
    """What the run time gives to a source when it opens it."""

    name: str
    job: str
    origin: Origin
    start: str  # "earliest", "latest" or an ISO-8601 time
    rows_per_epoch: int  # the most
    rows_first: int | None = None  # of the first epoch, if later ones get their limit while the job runs
    is_real_time: bool = False  # then no rows are counted for an epoch
    is_order_needed: bool = False  # does a step after this source depend on the order of its rows?
    is_at_most_once: bool = False  # must no row come twice, whatever is lost?
    rejects: Rejecting | None = None  # takes events that cannot be used; without it they stop the job
    returned: DataFrame | None = None  # events that come once more, as `sources.returned` reads them

    @property
    def where(self) -> str:
        """The source as errors name it."""
        return f"source {self.name!r}, declared at {self.origin}"


@dataclass(frozen=True)
class Encoding:
    """What an event of a source is made of, for code that makes events: proofs, and the harness of users' tests."""

    value: str  # the columns of the value, as DDL
    format: str  # how the value is written
    key: str | None = None  # the columns of the key, as DDL
    record: str | None = None
    """The columns of a record, as DDL, if the source has `record` and `rows_of`; otherwise an event is its value."""
    beside: tuple[str, ...] = ()
    """Hidden columns for which a test can give values."""


class Source(ABC):
    """A place that events come from."""

    @property
    @abstractmethod
    def ability(self) -> SourceAbility:
        """Can a row be read again after a failure?"""

    @property
    @abstractmethod
    def tasks(self) -> str:
        """How many tasks read it, in words if only the source knows: `one per partition of the topic`."""

    @abstractmethod
    def columns(self, where: str) -> Schema:
        """The columns of the value, without a JVM; raises BadJob, with `where`, for a schema that cannot be read."""

    @abstractmethod
    def hidden_columns(self) -> Sequence[str]:
        """The columns that come without being declared, POSITION among them."""

    def check(self, reading: Reading) -> None:  # noqa: B027 - most sources have nothing to check
        """Check the source before anything runs; raise with the fix if it cannot be read."""

    @abstractmethod
    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        """The stream as a DataFrame: the columns of the value, then the hidden ones."""

    @property
    def has_bytes(self) -> bool:
        """Does `read` give what its rows were made of, and take events that come once more? Other rows are typed."""
        return False

    @property
    def is_native(self) -> bool:
        """Are its rows read inside the JVM, and not made by Python?"""
        return True

    @property
    def partitioned_by(self) -> frozenset[str]:
        """The columns each of which alone decides, as in Kafka's clients, which part of the source holds a row."""
        return frozenset()

    @property
    def is_fit_for_real_time(self) -> bool:
        """Can Spark's real-time mode read it?"""
        return False

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        """What is read, as (system, place) pairs, to find a job that reads what it writes."""
        return frozenset()

    @property
    def offsets_of(self) -> str:
        """What an offset in a checkpoint is a place in, in words: in another place it would mean other events."""
        return type(self).__name__

    @property
    def location(self) -> Location | None:
        """Where its events are, if other code can find them there."""
        return None

    @property
    def encoding(self) -> Encoding | None:
        """What an event is made of; None if only the source itself can make its rows."""
        return None

    def record(
        self, value: bytes | None, key: bytes | None, beside: Mapping[str, Any], *, number: int, now: datetime
    ) -> dict[str, Any]:
        """A record of the columns of `encoding.record`, the `number`th of its partition, for tests."""
        raise NotImplementedError

    def rows_of(self, records: DataFrame, reading: Reading) -> DataFrame:
        """The rows of such records, as `read` gives them."""
        raise NotImplementedError

    def relocate(self, to: Relocation) -> Source:
        """The same source over other systems. A class that does not define this method itself is refused."""
        raise to.refusal(
            f"reads a {type(self).__name__}, which a proof cannot put elsewhere",
            fix="read the same columns by KafkaSource(...) or FileSource(...), and prove that job; a source of your own"
            " needs a method `relocate`",
        )

    @property
    def watched_files(self) -> Files | None:
        """The files that Spark's own file source reads for it. The run notices if one of them changes."""
        return None

    @property
    def endless(self) -> str | None:
        """What never reports that everything is read, in words; None if a run can catch up with the source."""
        return None

    @property
    def reported_as(self) -> tuple[str, ...]:
        """What Spark's reports call it, the most exact text first; empty if Spark's name says little."""
        return ()

    @property
    def extra(self) -> str | None:
        """The extra of this package that it needs, as in `pip install 'lockgate[kafka]'`."""
        return None

    def summary(self) -> tuple[str, ...]:
        """A few short lines for pictures of the graph."""
        return (type(self).__name__,)


class Sink(ABC):
    """A place that results go to."""

    @property
    @abstractmethod
    def ability(self) -> SinkAbility:
        """What happens to an epoch that is written twice?"""

    @abstractmethod
    def columns_needed(self) -> Sequence[str]:
        """The columns that a row must have for this sink."""

    def expressions(self) -> Sequence[str]:
        """The SQL that this sink evaluates on every row."""
        return ()

    def prepare(self, rows: DataFrame) -> DataFrame:
        """The rows with hidden columns from the sink's own SQL, computed while these names can be resolved."""
        return rows

    @abstractmethod
    def write(self, rows: DataFrame, epoch: int) -> None:
        """Write the rows of one epoch; returning means that the sink has them."""

    @property
    def wants_place(self) -> bool:
        """Does it take PLACE beside the columns of a row, if the row has one?"""
        return False

    def untracked(self) -> Sink:
        """The sink as an at-most-once job uses it: it asks no system to send a row a second time."""
        return self

    def execution(self, *, is_exact: bool) -> tuple[str, str]:
        """What writes the rows, in transactions or not, and why: "native" (in the JVM), "Python" or "driver"."""
        return "Python", "the sink's own code takes the rows"

    def check_rows(self, rows: DataFrame, where: str) -> None:  # noqa: B027 - most sinks take any rows
        """Check the columns and types of the rows to come; raise with the fix if they cannot be written."""

    def refusal(self, rows: DataFrame, *, within: str | None, where: str) -> Column | None:
        """Why the sink would refuse a row, as a text that is null if it takes the row; None if it takes all rows.

        The rows are prepared, or are in a struct of this name. A row with a reason becomes a dead letter. Anything else
        that a system refuses stops the job.
        """
        return None

    def refusal_if_exact(self, rows: DataFrame, *, within: str | None, where: str) -> Column | None:
        """The same for rules that hold only if the output is declared end-to-end exactly-once."""
        return None

    def check(self, where: str) -> None:  # noqa: B027 - most sinks have nothing to check
        """Check the sink's system before anything runs; raise with the fix if the sink cannot work."""

    def close(self) -> None:  # noqa: B027 - most sinks hold nothing open
        """Close what `check` opened; called at the end of a run, and if it could not start."""

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        """The columns that together decide, as in Kafka's clients, to which part of the sink a row goes."""
        return ()

    @property
    def commits_at(self) -> frozenset[str]:
        """The servers of the system in whose transactions the sink commits; empty if it has none."""
        return frozenset()

    @property
    def is_fit_for_real_time(self) -> bool:
        """Can Spark's real-time mode write to it?"""
        return False

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        """What is written, as (system, place) pairs."""
        return frozenset()

    @property
    def location(self) -> Location | None:
        """Where its rows are, and how they are kept there; None if nothing could be read when the job is over."""
        return None

    def relocate(self, to: Relocation) -> Sink:
        """The same sink into other systems. A class that does not define this method itself is refused."""
        raise to.refusal(
            f"writes into a {type(self).__name__}, which a proof cannot put elsewhere",
            fix="write into a KafkaSink, FileSink, PostgresSink or SqliteSink, and prove that job; a sink of your own"
            " needs a method `relocate`",
        )

    @property
    def checks_rows_alone(self) -> bool:
        """Does `check_rows` look at the rows alone, and not at the sink's system?"""
        return False

    @property
    def extra(self) -> str | None:
        """The extra of this package that it needs, as in `pip install 'lockgate[kafka]'`."""
        return None

    def task_modules(self, *, is_exact: bool) -> tuple[str, ...]:
        """The modules that tasks import to write its rows, in transactions or not, besides those of every job."""
        return ()

    def summary(self) -> tuple[str, ...]:
        """A few short lines for pictures of the graph."""
        return (type(self).__name__,)
