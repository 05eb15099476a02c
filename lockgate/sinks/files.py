"""FileSink: the rows of each epoch as new files in a directory.

An output that is declared end-to-end exactly-once is written as whole epochs: files count once a manifest names them,
and readers go by manifests (see lockgate/files/store.py, and read_files in lockgate/files/reading.py). For less than
that, files are only added, and an epoch that is repeated after a failure adds its rows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockgate.commit.mending import MendableLedger
from lockgate.commit.resource import CommittingSink, Opening
from lockgate.dataflow.endpoints import SinkAbility
from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob
from lockgate.files.mending import FileLedger
from lockgate.files.rows import FORMATS, check_kind
from lockgate.files.size import Size, as_bytes
from lockgate.files.store import FileStore, check_place
from lockgate.files.system import normalise, open_system
from lockgate.guarantees import Delivery
from lockgate.sources.files import name_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class FileSink(CommittingSink):
    """Files below `path`, in one of three formats, in a directory for each value of the columns of `partition_by`.

    With exactly-once, files are cut at about `roll`: after as many rows as were that large in the epoch before.
    """

    path: str
    format: str = "parquet"
    partition_by: Sequence[str] = field(default=(), kw_only=True)
    roll: Size = field(default="128 MB", kw_only=True)

    def __post_init__(self) -> None:
        where = f"FileSink, declared at {caller()}"
        if self.format not in FORMATS:
            raise BadJob(f"format={self.format!r} is not known", where=where, fix=f"use one of {', '.join(FORMATS)}")
        names = (self.partition_by,) if isinstance(self.partition_by, str) else tuple(self.partition_by)
        if not all(isinstance(name, str) and name for name in names):
            raise BadJob(
                f"partition_by={self.partition_by!r} does not name columns", where=where, fix='partition_by=("day",)'
            )
        if len({name.lower() for name in names}) < len(names):
            raise BadJob(
                f"partition_by={self.partition_by!r} names a column twice", where=where, fix="name each column once"
            )
        as_bytes(self.roll, of="roll")
        object.__setattr__(self, "partition_by", names)

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(
            delivery=Delivery.TRANSACTIONAL,
            reason="readers go by manifests, and an epoch is in one whole or not at all",
            cure="declare Guarantee.END_TO_END_EXACTLY_ONCE",
        )

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        return name_directory(self.path)

    @property
    def resource(self) -> str:
        return normalise(self.path)

    def columns_needed(self) -> Sequence[str]:
        return tuple(self.partition_by)

    def summary(self) -> tuple[str, ...]:
        return ("FileSink", f"{self.format}: {self.path}")

    def check_rows(self, rows: DataFrame, where: str) -> None:
        for column in rows.schema:
            check_kind(self.format, column.name, column.dataType, where)

    def execution(self, *, is_exact: bool) -> tuple[str, str]:
        return "native", "Spark writes the files"

    def write(self, rows: DataFrame, epoch: int) -> None:
        # An epoch without rows would leave a file without rows behind; and looking first must not compute them twice.
        rows = rows.persist()
        try:
            if not rows.isEmpty():
                writer = rows.write.mode("append").format(self.format).partitionBy(*self.partition_by)
                writer.option("timestampFormat", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX").save(self.path)
        finally:
            rows.unpersist()

    def open(self, opening: Opening) -> FileStore:
        if len(opening.sinks) > 1:
            raise BadJob(
                f"outputs {', '.join(sorted(opening.sinks))} of job {opening.job!r} write to the same directory,"
                f" {self.path}",
                where=opening.where,
                fix="give each a path of its own, or merge the streams before one output",
            )
        system = open_system(self.path, opening.spark, opening.where)
        check_place(system, opening.where)
        return FileStore(
            system,
            opening.job,
            kind=self.format,
            partition_by=tuple(self.partition_by),
            roll_bytes=as_bytes(self.roll, of="roll"),
        )

    def ledger(self, job: str, where: str) -> MendableLedger:
        return FileLedger(self.path, job, where=where)
