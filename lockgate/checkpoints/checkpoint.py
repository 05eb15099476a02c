"""A query's checkpoint, as far as a commit needs it: its epochs, and the digests of their offsets.

A checkpoint is on any Hadoop file system. On this machine's disk it is read as files; elsewhere through Spark's JVM.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlparse

from lockgate.checkpoints.checksums import checksum_of, is_whole
from lockgate.commit.ledger import Gap, gap_of
from lockgate.commit.protocol import Epoch
from lockgate.connectors.files.filesystem import NotAFile, read_file
from lockgate.errors import CheckpointDamaged, Failed, Refused
from lockgate.untrusted import as_list, as_object, as_type, read_json, read_object, take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

ACCEPTED = "described/gaps.json"


@dataclass(frozen=True)
class Accepted:
    """Gaps that an operator accepted together: the offsets of the last epoch before them were moved."""

    epoch: int
    digest: str  # of its planned offsets, by which ledgers know the epoch
    moved: str  # SHA-256 of its offsets after the move
    gaps: tuple[Gap, ...]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Accepted:
        """An acceptance from what `as_facts` wrote."""
        gaps = tuple(gap_of(as_object(one)) for one in take(facts, "gaps", list))
        return cls(take(facts, "epoch", int), take(facts, "digest", str), take(facts, "moved", str), gaps)

    def as_facts(self) -> dict[str, Any]:
        """The acceptance as plain data."""
        gaps = [gap.as_facts() for gap in self.gaps]
        return {"epoch": self.epoch, "digest": self.digest, "moved": self.moved, "gaps": gaps}


def parse_accepted(content: bytes) -> list[Accepted]:
    """The content of the file ACCEPTED; Unreadable if it is something else."""
    return [Accepted.of(as_object(facts)) for facts in as_list(read_json(content))]


def digest_of(offsets: bytes, epoch: int, accepted: Sequence[Accepted]) -> str:
    """The digest by which ledgers know an epoch: of its offsets before a move over a gap."""
    digest = hashlib.sha256(offsets).hexdigest()
    return next((one.digest for one in accepted if (one.epoch, one.moved) == (epoch, digest)), digest)


@dataclass(frozen=True)
class Past:
    """What a query finds in its checkpoint when it starts."""

    planned: int = -1  # the newest planned epoch, which may be repeated
    upcoming: int = 0  # the epoch that it begins with
    watermark_ms: int = 0  # the watermark of the epoch after the last one, since 1970
    clock_ms: int = 0  # the time of the newest planned epoch, since 1970


@dataclass(frozen=True)
class Checkpoint:
    """The files of a checkpoint; `spark` is needed only if it is not on this machine's disk."""

    root: str
    spark: SparkSession | None = None

    @property
    def local(self) -> Path | None:
        """Its directory; None if it is not on this machine's disk."""
        try:
            parsed = urlparse(self.root)
        except ValueError as error:
            raise Refused(
                f"{self.root!r} is not the address of a checkpoint: {error}",
                where="checkpoint",
                fix="write a directory, or an address such as hdfs://host:9000/checkpoints/orders",
            ) from error
        if parsed.scheme == "file":
            return Path(unquote(parsed.path))
        return Path(self.root) if not parsed.scheme else None

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None if there is no file, CheckpointDamaged if they do not fit their checksum."""
        if self.local is not None:
            try:
                data = read_file(self.local, name)
                # Elsewhere the file system checks them itself.
                with contextlib.suppress(FileNotFoundError):
                    if not is_whole(data, read_file(self.local, checksum_of(name))):
                        raise self.damaged(name, "its bytes do not fit its checksum")
            except (FileNotFoundError, NotADirectoryError):
                return None
            except NotAFile as error:
                raise self.damaged(name, str(error)) from None
            return data
        system, path = self._remote(name)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            jvm = self._jvm()
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def epochs(self, log: str) -> list[int]:
        """The numbers of the epochs in one of the logs, `offsets` or `commits`."""
        if self.local is not None:
            folder = self.local / log
            names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
        else:
            system, path = self._remote(log)
            names = [one.getPath().getName() for one in system.listStatus(path)] if system.exists(path) else []
        return sorted(int(name) for name in names if name.isdecimal())

    def read_note(self, name: str, make: Callable[[Any], T]) -> T | None:
        """The JSON in a file, passed through `make`; None if there is no file, CheckpointDamaged if it does not fit."""
        content = self.read(name)
        try:
            return None if content is None else make(read_json(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self.damaged(name, str(error)) from None

    def is_committed(self, epoch: int) -> bool:
        """Is an epoch done? Spark removes the oldest files of its log, so a later file shows it, too."""
        return epoch <= max(self.epochs("commits"), default=-1)

    def past(self) -> Past:
        """What a query would find if it started now."""
        planned, ended = self.epochs("offsets"), self.epochs("commits")
        told = [self._number_in(f"offsets/{planned[-1]}", "batchWatermarkMs")] if planned else []
        clock_ms = self._number_in(f"offsets/{planned[-1]}", "batchTimestampMs") if planned else 0
        told += [self._number_in(f"commits/{ended[-1]}", "nextBatchWatermarkMs")] if ended else []
        newest = max(planned, default=-1)
        upcoming = newest + 1 if newest < 0 or newest in ended else newest
        return Past(planned=newest, upcoming=upcoming, watermark_ms=max(told, default=0), clock_ms=clock_ms)

    def is_still(self, epoch: int, now_ms: int) -> bool:
        """Did an epoch run at this time of the clock, without a change of the watermark?"""
        found = self._number_in(f"offsets/{epoch}", "batchWatermarkMs")
        is_now = self._number_in(f"offsets/{epoch}", "batchTimestampMs") == now_ms
        return is_now and self._number_in(f"commits/{epoch}", "nextBatchWatermarkMs") == found

    def watermark_ms(self, epoch: int) -> int:
        """The watermark that an epoch uses, since 1970."""
        return self._number_in(f"offsets/{epoch}", "batchWatermarkMs")

    def _number_in(self, name: str, what: str) -> int:
        """A number in the second line of a file in Spark's logs; 0 if the number is missing."""
        try:
            lines = (self.read(name) or b"").decode().splitlines()
            return as_type(read_object(lines[1]).get(what, 0), int, what) if len(lines) > 1 else 0
        except ValueError as error:
            raise self.damaged(name, str(error)) from None

    def digest(self, epoch: int) -> str | None:
        """SHA-256 of an epoch's planned offsets; None if the checkpoint does not have them, or has lost them."""
        content = self.read(f"offsets/{epoch}") if epoch >= 0 else None
        return None if content is None else digest_of(content, epoch, self.accepted())

    def accepted(self) -> list[Accepted]:
        """The gaps that operators accepted, one acceptance after another."""
        content = self.read(ACCEPTED)
        try:
            return [] if content is None else parse_accepted(content)
        except ValueError as error:
            raise self.damaged(ACCEPTED, str(error)) from None

    def is_pending(self, one: Accepted) -> bool:
        """Did the process that accepted a gap die before it moved the offsets?"""
        content = self.read(f"offsets/{one.epoch}")
        return content is not None and hashlib.sha256(content).hexdigest() != one.moved

    def gaps(self) -> tuple[Gap, ...]:
        """The gaps that this checkpoint has skipped."""
        return tuple(gap for one in self.accepted() if not self.is_pending(one) for gap in one.gaps)

    def query(self) -> str | None:
        """Spark's id of the query, from the checkpoint."""
        content = self.read("metadata")
        try:
            return None if content is None else take(read_object(content), "id", str)
        except ValueError as error:
            raise self.damaged("metadata", str(error)) from None

    def epoch(self, number: int, query: str) -> Epoch:
        """An epoch in the form that a ledger compares."""
        digest = self.digest(number)
        if digest is None:
            raise Failed(
                f"the checkpoint has no offsets for epoch {number}, so no run could tell later whether it is committed",
                where=f"checkpoint {self.root}",
                fix="run the query without asynchronous progress tracking and without a real-time trigger",
            )
        return Epoch(number, digest, self.digest(number - 1), query, gaps=self.gaps())

    def kafka_offsets(self, epoch: int) -> dict[tuple[str, int], int]:
        """The offsets after the last record of an epoch, for every Kafka source."""
        lines = (self.read(f"offsets/{epoch}") or b"").decode().splitlines()[2:]
        found: dict[tuple[str, int], int] = {}
        for line in lines:
            for topic, partitions in as_offsets(line).items():
                for partition, offset in partitions.items():
                    place = (topic, int(partition))
                    # A source that two branches read appears twice; the events of the slower one are done.
                    found[place] = min(found.get(place, offset), offset)
        return found

    def rename(self, place: str) -> None:
        """Move the whole checkpoint, within its file system."""
        system, path = self._remote("")
        if not system.rename(path, self._jvm().org.apache.hadoop.fs.Path(place)):
            raise Failed(f"it cannot be moved to {place}", where=f"checkpoint {self.root}", fix="move it manually")

    def damaged(self, name: str, why: str) -> CheckpointDamaged:
        """The error for a damaged file."""
        return CheckpointDamaged(
            f"the checkpoint's file {name} is damaged: {why}",
            where=f"checkpoint {self.root}",
            fix="restore it from a copy of the checkpoint, and check its disk; nothing was delivered from it",
        )

    def _remote(self, name: str) -> tuple[Any, Any]:
        path = self._jvm().org.apache.hadoop.fs.Path(f"{self.root}/{name}")
        assert self.spark is not None
        return path.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration()), path

    def _jvm(self) -> Any:
        if self.spark is None:
            raise Refused(
                f"{self.root} is not on this machine's disk",
                where=f"checkpoint {self.root}",
                fix="name a local directory",
            )
        return self.spark.sparkContext._jvm


def as_offsets(line: str) -> Mapping[str, Mapping[str, int]]:
    """The offsets of a Kafka source, {topic: {partition: offset}}; empty for other sources."""
    try:
        told = read_object(line)
    except ValueError:
        return {}
    if not all(isinstance(one, dict) for one in told.values()):
        return {}
    numbers = [(key, value) for one in told.values() for key, value in one.items()]
    if not all(str(key).isdecimal() and isinstance(value, int) for key, value in numbers):
        return {}
    return told


@dataclass(frozen=True)
class RunningQuery:
    """The query of an epoch, as Spark names it in the thread that runs the epoch."""

    id: str
    run: str
    checkpoint: Checkpoint


def running_query(spark: SparkSession) -> RunningQuery:
    """The query whose epoch is being written; `spark` is the session that started it, not the session of the epoch."""
    query = query_of_epoch(spark)
    root = query.streamingQuery().resolvedCheckpointRoot()
    return RunningQuery(
        id=str(query.id().toString()),
        run=str(query.runId().toString()),
        checkpoint=Checkpoint(root=str(root), spark=spark),
    )


def query_of_epoch(spark: SparkSession) -> Any:
    """The same query as an object of the JVM; the thread that runs the epoch has its id."""
    id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    query = spark._jsparkSession.streams().get(id) if id else None
    if query is None:
        raise Failed(
            "an epoch is written outside of a streaming query",
            where="the function that Spark calls for every epoch",
            fix="start the writer with .start(), and do not call its function yourself",
        )
    return query


def put_aside(checkpoint: Checkpoint) -> str | None:
    """Rename a checkpoint, so that the next run starts without one; nothing is deleted."""
    if not checkpoint.epochs("offsets") and checkpoint.query() is None:
        return None
    aside = f"{checkpoint.root.rstrip('/')}.before-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    local = checkpoint.local
    if local is not None:
        local.rename(local.with_name(aside.rsplit("/", 1)[-1]))
    else:
        checkpoint.rename(aside)
    return aside


@dataclass(frozen=True)
class NextEpoch:
    """The first epoch of the next run from this checkpoint."""

    epoch: Epoch
    is_planned: bool  # its offsets are logged and its commit is not, so the run uses them again


@dataclass(frozen=True)
class SourceRange:
    """What some epochs read from one partition of a Kafka source."""

    topic: str
    partition: int
    start: int | None  # None if the checkpoint does not have the epoch before them any more
    end: int  # after the last record


_NOT_PLANNED = ""  # no digest is empty, so it equals none


def next_epoch(checkpoint: Checkpoint) -> NextEpoch | None:
    """The first epoch of a next run; None if there is no checkpoint."""
    query = checkpoint.query()
    if query is None:
        return None
    planned = checkpoint.epochs("offsets")
    if planned and planned[-1] not in checkpoint.epochs("commits"):
        return NextEpoch(epoch=checkpoint.epoch(planned[-1], query), is_planned=True)
    number = planned[-1] + 1 if planned else 0
    previous = checkpoint.digest(number - 1)
    epoch = Epoch(number, _NOT_PLANNED, previous, query, gaps=checkpoint.gaps())
    return NextEpoch(epoch=epoch, is_planned=False)


def source_ranges(checkpoint: Checkpoint, first: int, last: int) -> tuple[SourceRange, ...]:
    """What the epochs from first to last read from Kafka, as far as the checkpoint still has their offsets."""
    known = [number for number in checkpoint.epochs("offsets") if first <= number <= last]
    if not known:
        return ()
    starts = checkpoint.kafka_offsets(first - 1) if first > 0 else initial_offsets(checkpoint)
    ends = checkpoint.kafka_offsets(known[-1])
    return tuple(
        SourceRange(topic=place[0], partition=place[1], start=starts.get(place), end=end)
        for place, end in sorted(ends.items())
    )


def offsets_done(checkpoint: Checkpoint) -> dict[tuple[str, int], int]:
    """The end of the newest planned epoch in Kafka; the start of the sources if there is none."""
    planned = checkpoint.epochs("offsets")
    return checkpoint.kafka_offsets(planned[-1]) if planned else initial_offsets(checkpoint)


def initial_offsets(checkpoint: Checkpoint) -> dict[tuple[str, int], int]:
    """The start of a checkpoint's Kafka sources; their connector notes it in one file for each source."""
    found: dict[tuple[str, int], int] = {}
    number = 0
    while (content := checkpoint.read(f"sources/{number}/0")) is not None:
        for line in content.decode(errors="replace").splitlines():
            for topic, partitions in as_offsets(line).items():
                found.update({(topic, int(partition)): offset for partition, offset in partitions.items()})
        number += 1
    return found
