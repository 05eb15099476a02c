"""FileSink: the rows of each epoch as new files in a directory.

An output that is declared end-to-end exactly-once is written as whole epochs: files count once a manifest names them,
and readers use manifests (see store.py, and read_files in reading.py). With a lower guarantee files are only added, and
an epoch that is repeated after a failure adds its rows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lockgate.commit.repair import MendableLedger
from lockgate.commit.resource import CommittingSink, Opening
from lockgate.connectors.files.filesystem import is_known, local_path, normalise, open_system
from lockgate.connectors.files.ledger import FileLedger
from lockgate.connectors.files.rows import FORMATS, check_kind
from lockgate.connectors.files.size import Size, as_bytes
from lockgate.connectors.files.source import name_directory
from lockgate.connectors.files.store import FileStore, check_place
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.endpoints import SinkAbility
from lockgate.dataflow.format import Format, require_format
from lockgate.dataflow.locations import Files
from lockgate.dataflow.origin import caller
from lockgate.dataflow.relocation import Relocation
from lockgate.errors import BadJob
from lockgate.guarantees import Delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@explain_wrong_calls('FileSink("counts", format="parquet")')
@dataclass(frozen=True)
class FileSink(CommittingSink):
    """Files below a directory. Readers use `read_files`, which goes by the manifests of committed epochs.

    Args:
        path: the directory.
        format: `"parquet"`, `"json"` or `"csv"`.
        partition_by: a directory for each value of these columns.
        roll: with exactly-once, the size at which the next file starts, about: the rows of the epoch before decide.

    Raises:
        BadJob: an argument cannot be valid.

    >>> counts = orders.to("counts", FileSink("counts", Format.JSON, partition_by="ip"))
    """

    path: str
    format: Format | str = Format.PARQUET
    partition_by: Sequence[str] = field(default=(), kw_only=True)
    roll: Size = field(default="128 MB", kw_only=True)

    def __post_init__(self) -> None:
        where = f"FileSink, declared at {caller()}"
        require_format(self.format, FORMATS, where)
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
            reason="readers use manifests, and an epoch is in one manifest as a whole or not at all",
            cure="declare Guarantee.END_TO_END_EXACTLY_ONCE",
        )

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        return name_directory(self.path)

    @property
    def location(self) -> Files:
        return Files(self.path, self.format, partition_by=tuple(self.partition_by))

    def relocate(self, to: Relocation) -> FileSink:
        if not is_known(self.path):
            raise to.refusal(
                f"writes to {self.path}, which is not known to publish a file only once",
                fix="write to a local disk or to HDFS; what is proven on a disk says nothing of another store",
            )
        return replace(self, path=to.path(self.path))

    @property
    def checks_rows_alone(self) -> bool:
        return True

    @property
    def resource(self) -> str:
        return normalise(self.path)

    def make_place(self) -> None:
        if (directory := local_path(self.path)) is not None:
            directory.mkdir(parents=True, exist_ok=True)

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
        # An epoch without rows would leave a file without rows behind. A check before would compute them twice.
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
