"""FileSource: the files of a directory that grows.

A file is its path, its size and its modification time. It is read once, whole, after it has appeared; so writers put
files in place by a rename, and never change one. Files that stay can be read again after a failure, which makes the
source replayable. A file that changes after it was read stops the job (runtime/sourcefiles.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.dataflow.endpoints import ORIGINAL, POSITION, Reading, Source, SourceAbility
from lockgate.dataflow.schema import Schema, parse_ddl, quote
from lockgate.errors import BadJob
from lockgate.files.inbox import is_local, names_below, plain_directory, root_of
from lockgate.sources.parsing import CORRUPT, parse_values, refuse_hidden_not_null
from lockgate.sources.position import UNKNOWN, number_rows, position
from lockgate.sources.rejects import JSON_OPTIONS, Guard, original

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("json", "csv", "parquet", "text")
HIDDEN = ("_file", POSITION)
# Spark forgets a file that is so much older than the newest one it has read, and passes over an unread one in silence.
FOREVER = "36500d"
REMEMBERED = timedelta(days=30)
"""The same for a FileSource: the run time stops at an unread file that is so old."""
KEPT = "kept"
BYTES_PER_ROW = 256
"""Files are taken whole, so an epoch is bounded by bytes; a row of this size is a common one."""


def name_directory(path: str) -> frozenset[tuple[str, str]]:
    """A directory as a place that is read or written, however its path is spelt."""
    return frozenset({("files", f"files in {path if '://' in path else Path(path).resolve()}")})


@dataclass(frozen=True)
class FileSource(Source):
    """The rows of all files below `path`, old and new; `header` says whether CSV files begin with column names.

    When the epoch of a file is committed, the file stays, or is moved below the directory `archive`, on the same file
    system, or is deleted (`delete=True`). An epoch whose files are moved or deleted cannot be gone back to.
    """

    path: str
    value: str
    format: str = "json"
    header: bool = False
    archive: str | None = None
    delete: bool = False

    @property
    def ability(self) -> SourceAbility:
        return SourceAbility(is_replayable=True, reason="files that stay in place are read again")

    @property
    def tasks(self) -> str:
        return "by file and size"

    @property
    def has_bytes(self) -> bool:
        return True

    @property
    def _has_lines(self) -> bool:
        """Are its rows parsed from lines here, and not read in columns by Spark?"""
        return self.format in ("json", "text")

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        return name_directory(self.path)

    @property
    def processed(self) -> str:
        """What becomes of a file when its epoch is committed, in words."""
        if self.delete:
            return "deleted"
        return KEPT if self.archive is None else f"moved to {self.archive}"

    @property
    def offsets_of(self) -> str:
        return next(place for _, place in self.places)

    def columns(self, where: str) -> Schema:
        columns = parse_ddl(self.value, where)
        refuse_hidden_not_null(columns, where)
        if self.format not in FORMATS:
            raise BadJob(f"format={self.format!r} is not known", where=where, fix=f"use one of {', '.join(FORMATS)}")
        if self.format == "text" and (len(columns.columns) != 1 or columns.columns[0].type != "STRING"):
            raise BadJob(
                f"a text file gives one column of type STRING, but the schema is ({columns})",
                where=where,
                fix='value="line STRING", then parse it in a step',
            )
        if self.archive is not None and self.delete:
            raise BadJob("archive= and delete= cannot both be", where=where, fix="give one of them")
        if self.archive is not None and self._reads(plain_directory(self.archive)):
            raise BadJob(
                f"{self.path} has the files below archive={self.archive!r}, so archived files would be read again",
                where=where,
                fix="name a directory elsewhere, on the same file system",
            )
        return columns

    def _reads(self, directory: str) -> bool:
        root = root_of(self.path).rstrip("/")
        name = directory.removeprefix(f"{root}/")
        return directory == root or (name != directory and names_below(self.path).match(name) is not None)

    def hidden_columns(self) -> Sequence[str]:
        return HIDDEN

    def summary(self) -> tuple[str, ...]:
        return ("FileSource", f"{self.format}: {self.path}")

    def check(self, reading: Reading) -> None:
        is_local = "://" not in self.path and not any(sign in self.path for sign in "*?[{")
        if is_local and not Path(self.path).is_dir():
            raise BadJob(
                f"there is no directory {self.path!r}",
                where=reading.where,
                fix="create it; files may arrive later",
            )
        if self.archive is not None and not _is_one_system(root_of(self.path), plain_directory(self.archive)):
            raise BadJob(
                f"archive={self.archive!r} is not on the file system of {self.path}, so files cannot be moved there",
                where=reading.where,
                fix="name a directory on the same file system",
            )
        if reading.start != "earliest":
            raise BadJob(
                f"files cannot be read from {reading.start!r} on",
                where=reading.where,
                fix="start at 'earliest', and move files away that should not be read",
            )

    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        from pyspark.sql import functions as F

        columns = parse_ddl(self.value, reading.where)
        limit = reading.rows_per_epoch * BYTES_PER_ROW
        reader = (
            spark.readStream.option("maxBytesPerTrigger", limit)
            .option("recursiveFileLookup", "true")
            .option("latestFirst", "false")
            .option("maxFileAge", f"{REMEMBERED.days}d")
        )
        if self.format == "parquet":
            rows = reader.schema(self.value).parquet(self.path)
        elif self.format == "csv":
            rows = (
                reader.schema(f"{self.value}, {CORRUPT} STRING")
                .option("columnNameOfCorruptRecord", CORRUPT)
                .option("header", str(self.header).lower())
                .option("enforceSchema", "false")
                .csv(self.path)
            )
        else:
            rows = reader.text(self.path).withColumnRenamed("value", "__raw")
            if self.format == "json":
                rows = rows.where("trim(__raw) != ''")  # a file may end with an empty line
        block = F.lpad(F.col("_metadata.file_block_start").cast("string"), 15, "0")
        placed = rows.select(
            "*",
            F.col("_metadata.file_path").alias("_file"),
            F.concat(F.lit("file "), F.col("_metadata.file_path")).alias("__part"),
            F.concat_ws("#", F.col("_metadata.file_path"), block).alias("__split"),
        )
        if reading.is_order_needed:
            placed = number_rows(placed, part="__split")
        else:
            placed = placed.withColumn("__at", F.lit(UNKNOWN).cast("bigint"))
        frame = placed.withColumn(
            POSITION, position(source=reading.name, part=F.col("__split"), at=F.col("__at"))
        ).drop("__split")
        guard, hidden = Guard.of(reading), [*HIDDEN]
        if reading.rejects is not None:
            frame, hidden = frame.withColumn(ORIGINAL, self._original(columns)), [*HIDDEN, ORIGINAL]
        if self._has_lines:
            if reading.returned is not None:
                frame = frame.unionByName(_returned(reading.returned))
            frame = parse_values(frame, raw="__raw", columns=columns, ddl=self.value, format=self.format, guard=guard)
        elif self.format == "csv":
            reason = F.when(F.col(CORRUPT).isNotNull(), F.lit(f"it is not CSV of ({self.value})"))
            frame = guard.keep(frame, reason, shown=F.col(CORRUPT))
        frame = frame.select(*columns.names, *hidden)
        if not self._has_lines and reading.returned is not None:
            # What was read in columns was kept as JSON; a line that was none of CSV is there as it was.
            is_typed = F.col("__raw").startswith("{")
            back = _returned(reading.returned)
            for some, format in ((back.where(is_typed), "json"), (back.where(~is_typed), "csv")):
                parsed = parse_values(some, raw="__raw", columns=columns, ddl=self.value, format=format, guard=guard)
                frame = frame.unionByName(parsed.select(*columns.names, *hidden))
        return frame

    def _original(self, columns: Schema) -> Column:
        """What a row was made of: its line, where there is one."""
        from pyspark.sql import functions as F

        if self._has_lines:
            return original(F.col("__raw"))
        typed = F.to_json(F.struct(*map(quote, columns.names)), JSON_OPTIONS)
        return original(F.coalesce(F.col(CORRUPT), typed) if self.format == "csv" else typed)


def _is_one_system(path: str, other: str) -> bool:
    if not (is_local(path) and is_local(other)):
        return path.split("/")[:3] == other.split("/")[:3]
    if not Path(path).exists():
        return True
    there = next(one for one in (Path(other), *Path(other).parents) if one.exists())
    return Path(path).stat().st_dev == there.stat().st_dev


def _returned(events: DataFrame) -> DataFrame:
    """Events that come once more, as lines of the files where they were."""
    from pyspark.sql import functions as F

    file = F.regexp_replace(F.col(POSITION)["part"], "#[0-9]+$", "")
    return events.select(
        F.col(ORIGINAL)["value"].cast("string").alias("__raw"),
        file.alias("_file"),
        F.concat(F.lit("file "), file).alias("__part"),
        F.col(POSITION)["at"].alias("__at"),
        POSITION,
        ORIGINAL,
    )
