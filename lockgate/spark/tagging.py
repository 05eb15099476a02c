"""Tagging: all outputs of a query as the rows of one frame, and the rows of each output again from that frame.

    __output    output_0            output_1            beside the tag
    0           {id: 7, n: 1}       null                MISSED, PLACE and ORIGINAL, if an output needs them
    1           null                {id: 7, why: x}

A row has the tag of its output, and a struct for each output that is null in the rows of the others. Rows that are kept
for steps below the end of the query have tags after those of all outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockgate.connectors.rejects import Rejects
from lockgate.dataflow.endpoints import ORIGINAL, ORIGINAL_DDL, PLACE, POSITION, POSITION_DDL, Sink
from lockgate.dataflow.schema import quote
from lockgate.planner.flow import MISSED
from lockgate.spark.branching import Branch, hidden_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

TAG = "__output"
MARKS = {MISSED: "timestamp", PLACE: POSITION_DDL, ORIGINAL: ORIGINAL_DDL}
"""Columns that accompany the rows of an output until the end of the query, and their types."""


@dataclass(frozen=True)
class CompiledOutput:
    """An output of the query: its name, its sink, and the tag of its rows (None if it is the only one)."""

    name: str
    where: str
    sink: Sink
    tag: int | None
    is_exact: bool  # is it written in transactions?

    @property
    def struct(self) -> str | None:
        """The column of a tagged frame that holds this output's rows, as structs."""
        return None if self.tag is None else _column(self.tag)

    def rows_of(self, frame: DataFrame) -> DataFrame:
        """This output's rows of a frame that holds all outputs."""
        if self.tag is None:
            return frame
        beside = [PLACE] if self.sink.wants_place and PLACE in frame.columns else []
        return frame.where(f"{TAG} = {self.tag}").select(f"{_column(self.tag)}.*", *beside)


@dataclass(frozen=True)
class Written:
    """The rows of an output, and the point at which they branch off from rows of other outputs."""

    name: str
    where: str
    sink: Sink
    frame: DataFrame
    is_exact: bool
    branch: Branch | None
    end: str  # the last step that its rows go through
    is_letters: bool = False

    @property
    def columns(self) -> list[str]:
        """The names of the output's own columns."""
        return [name for name in self.frame.columns if name not in MARKS]


@dataclass(frozen=True)
class Tags:
    """The columns of the frame that holds all outputs."""

    shapes: Mapping[int, StructType]
    marks: tuple[str, ...]  # the columns beside the tag

    @classmethod
    def of(cls, outputs: Sequence[Written], ends: Mapping[int, DataFrame] | None = None) -> Tags:
        """The tags of outputs, and of rows that are kept for more outputs."""
        kept = {} if ends is None else ends
        shapes = {tag: one.frame.drop(*MARKS).schema for tag, one in enumerate(outputs)}
        shapes |= {tag: rows.select(*map(quote, _kept_columns(rows))).schema for tag, rows in kept.items()}
        wanted = {name for one in outputs for name in one.frame.columns}
        wanted |= {name for rows in kept.values() for name in rows.columns if name == MISSED}
        return cls(shapes, tuple(name for name in MARKS if name in wanted))

    def without(self, mark: str) -> Tags:
        """The same without one of the marks."""
        return replace(self, marks=tuple(name for name in self.marks if name != mark))

    def tag(self, frame: DataFrame, tag: int, names: Sequence[str]) -> DataFrame:
        """All rows of a frame as those of one output."""
        from pyspark.sql import functions as F

        row = F.struct(*map(quote, names))
        return frame.select(F.lit(tag).alias(TAG), *mark_columns(frame, self.marks), *self.columns({tag: row}))

    def tag_kept(self, rows: DataFrame, tag: int) -> DataFrame:
        """Rows that are kept for steps below the end of the query; `open_tag` returns them."""
        return self.tag(rows, tag, _kept_columns(rows))

    def pass_on(self, frame: DataFrame, tags: range) -> DataFrame:
        """The rows of these outputs, which are tagged already."""
        from pyspark.sql import functions as F

        rows = frame.where(F.col(TAG).isin(list(tags)))
        structs = {tag: F.col(_column(tag)) for tag in tags}
        return rows.select(TAG, *mark_columns(rows, self.marks), *self.columns(structs))

    def columns(self, made: Mapping[int, Column]) -> list[Column]:
        """The structs of all outputs; those that are not in `made` are null."""
        from pyspark.sql import functions as F

        shapes = self.shapes.items()
        return [made.get(tag, F.lit(None)).cast(shape).alias(_column(tag)) for tag, shape in shapes]


def mark_columns(frame: DataFrame, names: Iterable[str]) -> list[Column]:
    """The columns of MARKS with these names; null if the rows do not have them any more."""
    place = PLACE if PLACE in frame.columns else POSITION
    found = {name: hidden_column(frame, place if name == PLACE else name) for name in names}
    return [column.cast(MARKS[name]).alias(name) for name, column in found.items()]


def tag_passes(
    frames: Mapping[str, DataFrame],
    outputs: Sequence[Written],
    passes: list[list[int]],
    tags: Tags,
    rejects: Rejects | None,
) -> list[DataFrame]:
    """The outputs of each pass in one frame."""
    tagged: list[DataFrame] = []
    for members in passes:
        first = outputs[members[0]]
        if len(members) == 1 or first.branch is None:
            tagged.append(tags.tag(first.frame, members[0], first.columns))
        else:
            tagged.append(_tag_branches(frames[first.branch.base], outputs, members, tags, rejects))
    return tagged


def _tag_branches(
    opened: DataFrame, outputs: Sequence[Written], members: list[int], tags: Tags, rejects: Rejects | None
) -> DataFrame:
    """One pass over the rows of a step: each is tagged with every branch whose condition holds."""
    from pyspark.sql import functions as F

    branches = {tag: branch for tag in members if (branch := outputs[tag].branch) is not None}
    if rejects is not None and MISSED not in opened.columns:
        branches = {tag: replace(branch, is_tried=branch.can_fail(opened)) for tag, branch in branches.items()}
    for tag, branch in branches.items():
        opened = branch.open(opened, tag, outputs[tag].columns)
    holding = F.array(*(F.when(branch.condition(tag), F.lit(tag)) for tag, branch in branches.items()))
    marked = opened.select(F.explode(F.array_compact(holding)).alias(TAG), "*")
    tried = {tag: branch for tag, branch in branches.items() if branch.is_tried}
    if rejects is not None and tried:
        # Only the failed branch is put aside: the row continues to the others.
        failed = F.coalesce(*(F.when(F.col(TAG) == tag, branch.failure(tag)) for tag, branch in tried.items()))
        marked = rejects.watch(
            marked,
            failed["reason"],
            step=failed["step"],
            shown=failed["shown"],
            position=failed["position"],
            original=failed["original"],
        )
    rows = {tag: F.when(F.col(TAG) == tag, one.row(tag, outputs[tag].columns)) for tag, one in branches.items()}
    return marked.select(TAG, *mark_columns(marked, tags.marks), *tags.columns(rows))


def open_tag(rows: DataFrame, tag: int) -> DataFrame:
    """The rows of a tag, with the columns that they had before."""
    return rows.where(f"{TAG} = {tag}").select(f"{_column(tag)}.*")


def _kept_columns(rows: DataFrame) -> list[str]:
    """The columns of rows that are kept: without the mark of late rows, which are known when the rows are kept."""
    return [name for name in rows.columns if name != MISSED]


def without_refused(frame: DataFrame, outputs: Sequence[CompiledOutput], rejects: Rejects) -> DataFrame:
    """The tagged rows without those that their sink would refuse."""
    from pyspark.sql import functions as F

    reason: Column = F.lit(None).cast("string")
    names: Column = F.lit(None).cast("string")
    shown: Column = F.lit(None).cast("string")
    for output in outputs:
        looks = [output.sink.refusal, *([output.sink.refusal_if_exact] if output.is_exact else [])]
        reasons = [look(frame, within=output.struct, where=output.where) for look in looks]
        if known := [one for one in reasons if one is not None]:
            told = F.coalesce(*known)
            is_its = F.col(TAG) == F.lit(output.tag)
            reason = F.when(is_its, told).otherwise(reason)
            names = F.when(is_its, F.lit(output.name)).otherwise(names)
            shown = F.when(is_its, F.to_json(F.col(str(output.struct)))).otherwise(shown)
    if MISSED in frame.columns:
        reason = F.when(F.col(MISSED).isNull(), reason)  # rows that are in time are among late ones, and do not leave
    if any(output.sink.wants_place for output in outputs):
        placed = frame.withColumn(POSITION, F.col(PLACE))  # sinks still use theirs
    else:
        placed = frame.withColumnRenamed(PLACE, POSITION)
    return rejects.watch(placed, reason, step=names, shown=shown).drop(POSITION, ORIGINAL)


def _column(tag: int) -> str:
    return f"output_{tag}"
