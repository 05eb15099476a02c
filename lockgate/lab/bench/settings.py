"""The settings of a measurement, and the job that both sides run.

The two sides differ only in their guarantee and in what makes Spark's own writer fast: any other difference would be
measured as a cost of the guarantee. Settings know the command that repeats the measurement.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from lockgate.connectors.kafka.sink import KafkaSink
from lockgate.connectors.kafka.source import KafkaSource
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.errors import Refused
from lockgate.guarantees import Guarantee
from lockgate.runtime.options import ROWS_PER_EPOCH

EVENTS = 2_000_000
BACKLOG_EVENTS = 1_000_000
PARTITIONS = 4
REPEATS = 3
PARTS = (
    "throughput",
    "transactions",
    "memory",
    "table",
    "lateness",
    "windows",
    "state",
    "keys",
    "at-most-once",
    "acks",
    "backlog",
)
USUAL_PARTS = PARTS[:3]
"""The other parts run only if requested: the table needs a server and a driver that no other part
does, lateness says nothing about this machine, windows and state have nothing to do with guarantees, at-most-once needs
a driver of its own, which tries nothing twice, acks compares two ways to one guarantee, and backlog has nothing to
compare with."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SIDES = (Guarantee.AT_LEAST_ONCE, Guarantee.END_TO_END_EXACTLY_ONCE)

SPARK_WRITER = {"linger.ms": "20", "batch.size": "262144"}
"""Java's defaults send 16 KiB at a time; these let Spark's own writer fill larger batches. A guess at its best. The
transactional writer always sends an epoch in large batches, and refuses linger.ms, which it does not need.
"""

EPOCH_SIZES = (50_000, 200_000, 800_000)
VALUE = "id BIGINT, cents INT, at BIGINT, shop STRING"
LIMIT_CENTS = 10_000
"""Nine of ten payments are at least this large."""

WHERE = "lockgate bench"


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement."""

    events: int = EVENTS
    partitions: int = PARTITIONS
    rows_per_epoch: int = ROWS_PER_EPOCH
    codec: str = "none"
    repeats: int = REPEATS
    job: str = "parse"
    is_keyed: bool = True
    is_exchanged: bool = False
    parts: tuple[str, ...] = USUAL_PARTS
    seed: int = 7

    def __post_init__(self) -> None:
        for name in ("events", "partitions", "rows_per_epoch", "repeats"):
            if getattr(self, name) < 1:
                raise Refused(
                    f"{name.replace('_', ' ')}: {getattr(self, name)} is too few",
                    where=f"--{name.replace('_', '-')}",
                    fix="request at least one",
                )
        if self.is_exchanged and (self.job != "parse" or not self.is_keyed):
            raise Refused(
                "only rows whose key is a part of their value can be made to need an exchange",
                where="--exchange",
                fix="omit it, or measure --job parse --keyed",
            )

    @property
    def command(self) -> str:
        """The command that repeats the measurement."""
        words = ["lockgate", "bench", "--events", self.events, "--partitions", self.partitions]
        words += ["--rows-per-epoch", self.rows_per_epoch, "--codec", self.codec, "--repeats", self.repeats]
        words += ["--job", self.job, "--keyed" if self.is_keyed else "--no-key"]
        words += ["--exchange"] if self.is_exchanged else []
        words += ["--seed", self.seed]
        words += ["--part", self.parts[0]] if len(self.parts) == 1 else []
        return shlex.join(map(str, words))

    def client(self, side: Guarantee) -> dict[str, str]:
        """The client's settings of a side: the same codec, and for Spark's writer what makes it fast."""
        is_spark = side is not Guarantee.END_TO_END_EXACTLY_ONCE
        return {"compression.type": self.codec, **(SPARK_WRITER if is_spark else {})}

    def epoch_sizes(self) -> tuple[int, ...]:
        """The sizes of epochs whose memory is compared: sixteen times as many rows in the last as in the first."""
        if self.events >= EPOCH_SIZES[-1]:
            return EPOCH_SIZES
        return tuple(max(1, self.events // part) for part in (16, 4, 1))


def job(settings: Settings, side: Guarantee, *, servers: str, payments: str, out: str, name: str) -> Job:
    """The job that both sides run: payments of some size from one topic into another."""
    client = settings.client(side)
    key = "card" if settings.is_keyed else None
    if settings.job == "pass":
        source = KafkaSource(topic=payments, servers=servers, key="card STRING", value="value BINARY", format="bytes")
        rows = stream("payments", source).select(*(["card", "value"] if key else ["value"]))
        sink = KafkaSink(topic=out, servers=servers, key=key, format="bytes", client=client)
    else:
        if settings.is_exchanged:
            # The planner cannot know that rows are partitioned by a column of their value.
            source = KafkaSource(topic=payments, servers=servers, value=f"card STRING, {VALUE}")
        else:
            source = KafkaSource(topic=payments, servers=servers, key="card STRING", value=VALUE)
        chosen = stream("payments", source).where(f"cents >= {LIMIT_CENTS}")
        rows = chosen.select("id", "card", "cents", "at", "shop")
        sink = KafkaSink(topic=out, servers=servers, key=key, client=client)
    return Job(name, rows.to("out", sink), guarantee=side)
