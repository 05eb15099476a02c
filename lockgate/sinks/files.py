"""FileSink: the rows of each epoch as new files in a directory.

Files are only added. An epoch that is repeated after a failure adds its rows again (at-least-once).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockgate.dataflow.endpoints import Sink, SinkAbility
from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob
from lockgate.guarantees import Delivery
from lockgate.sources.files import name_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("parquet", "json", "csv")


@dataclass(frozen=True)
class FileSink(Sink):
    """Files below `path`, in one of three formats."""

    path: str
    format: str = "parquet"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise BadJob(
                f"format={self.format!r} is not known",
                where=f"FileSink, declared at {caller()}",
                fix=f"use one of {', '.join(FORMATS)}",
            )

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(
            delivery=Delivery.PLAIN,
            reason="files are only added, so an epoch that is repeated after a failure adds its rows again",
            cure="make readers drop what they have seen; whole-epoch files are not part of this version",
        )

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        return name_directory(self.path)

    def columns_needed(self) -> Sequence[str]:
        return ()

    def summary(self) -> tuple[str, ...]:
        return ("FileSink", f"{self.format}: {self.path}")

    def write(self, rows: DataFrame, epoch: int) -> None:
        # An epoch without rows would leave a file without rows behind; and looking first must not compute them twice.
        rows = rows.persist()
        try:
            if not rows.isEmpty():
                writer = rows.write.mode("append").format(self.format)
                writer.option("timestampFormat", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX").save(self.path)
        finally:
            rows.unpersist()
