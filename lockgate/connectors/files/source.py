"""FileSource: the files of a directory that grows.

A file is its path, its size and its modification time. The job reads a file once, as a whole, after it appears. So
writers must put files in place by a rename, and never change one. Files that stay can be read again after a failure,
which makes the source replayable. If a file changes after it was read, the job stops (runtime/sourcefiles.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.connectors.files.listing import is_local, names_below, plain_directory, root_of
from lockgate.connectors.parsing import CORRUPT, parse_values, refuse_hidden_not_null
from lockgate.connectors.position import UNKNOWN, number_rows, position
from lockgate.connectors.rejects import JSON_OPTIONS, Guard, original
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.endpoints import ORIGINAL, POSITION, Encoding, Reading, Source, SourceAbility
from lockgate.dataflow.format import Format, require_format
from lockgate.dataflow.locations import Files
from lockgate.dataflow.relocation import Relocation
from lockgate.dataflow.schema import Schema, parse_ddl, quote
from lockgate.errors import BadJob

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = (Format.JSON, Format.CSV, Format.PARQUET, Format.TEXT)
HIDDEN = ("_file", POSITION)
# Spark forgets a file that is this much older than the newest one it has read, and skips an unread one in silence.
FOREVER = "36500d"
REMEMBERED = timedelta(days=30)
"""The same limit for a FileSource: the run time stops at an unread file that is older."""
BYTES_PER_ROW = 256
"""An epoch takes whole files, so bytes limit it; this is a common size of a row."""


def name_directory(path: str) -> frozenset[tuple[str, str]]:
    """A directory as a place that is read or written, the same for every spelling of its path."""
    return frozenset({("files", f"files in {path if '://' in path else Path(path).resolve()}")})


@explain_wrong_calls('FileSource(path="orders", value="id BIGINT, cents BIGINT", format="json")')
@dataclass(frozen=True)
class FileSource(Source):
    """The rows of all files below a directory: those that exist, and those that arrive.

    Args:
        path: the directory.
        value: the columns, as Spark DDL.
        format: how the files are written: `"json"`, `"csv"`, `"parquet"` or `"text"`.
        header: whether CSV files begin with the names of their columns.
        archive: move a file below this directory, on the same file system, when its epoch is committed.
        delete: delete a file when its epoch is committed. A rollback cannot reach such an epoch.

    >>> bought = stream("bought", FileSource(path="orders", value="id BIGINT, amount DOUBLE", format=Format.CSV))
    """

    path: str
    value: str
    format: Format | str = Format.JSON
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
        """Does this source parse its rows from lines? Otherwise Spark reads them in columns."""
        return self.format in ("json", "text")

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        return name_directory(self.path)

    @property
    def offsets_of(self) -> str:
        return next(place for _, place in self.places)

    @property
    def location(self) -> Files:
        return Files(self.path, self.format, has_header=self.header, archive=self.archive, delete=self.delete)

    @property
    def watched_files(self) -> Files:
        return self.location

    @property
    def encoding(self) -> Encoding:
        return Encoding(self.value, self.format)

    def relocate(self, to: Relocation) -> FileSource:
        return replace(self, path=to.path(self.path), archive=None, delete=False)

    def columns(self, where: str) -> Schema:
        columns = parse_ddl(self.value, where)
        refuse_hidden_not_null(columns, where)
        require_format(self.format, FORMATS, where)
        if self.format == "text" and (len(columns.columns) != 1 or columns.columns[0].type != "STRING"):
            raise BadJob(
                f"a text file gives one column of type STRING, but the schema is ({columns})",
                where=where,
                fix='value="line STRING", then parse it in a step',
            )
        if self.archive is not None and self.delete:
            raise BadJob("archive= and delete= cannot both be given", where=where, fix="give one of them")
        if self.archive is not None and self._reads(plain_directory(self.archive)):
            raise BadJob(
                f"{self.path} includes the files below archive={self.archive!r}, so archived files would be read again",
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
        try:
            names_below(self.path)
        except re.error as error:
            raise BadJob(
                f"the pattern {self.path!r} cannot be read: {error}",
                where=reading.where,
                fix="correct the part between [ and ], or write a backslash before a [ that is part of a name",
            ) from None
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
            # Rows that were read in columns were kept as JSON. A line that was not CSV was kept unchanged.
            is_typed = F.col("__raw").startswith("{")
            back = _returned(reading.returned)
            for some, format in ((back.where(is_typed), "json"), (back.where(~is_typed), "csv")):
                parsed = parse_values(some, raw="__raw", columns=columns, ddl=self.value, format=format, guard=guard)
                frame = frame.unionByName(parsed.select(*columns.names, *hidden))
        return frame

    def _original(self, columns: Schema) -> Column:
        """What a row was made of: its line, if there is one."""
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
    """Events that are read once more, as lines of their files."""
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
