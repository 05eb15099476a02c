"""Branching: how the rows of one step become those of several outputs in one pass, by conditions and a select in SQL.

A branch is what stands between the step and its output (planner/passes.py says which outputs share a step). It adds
columns to the rows of the step: the output's row as a struct, and, if its SQL can fail and failed rows are put aside,
the reason why there is none. spark/tagging.py makes the rows of the outputs from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from lockgate.dataflow.endpoints import ORIGINAL, ORIGINAL_DDL, POSITION, POSITION_DDL
from lockgate.dataflow.schema import quote
from lockgate.dataflow.steps import Part, Select, Where
from lockgate.errors import InvariantBroken
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.passes import computes_once, way_of
from lockgate.spark.keyed import SIDE, side_column
from lockgate.spark.operatorsteps import side_number, wanted_sides
from lockgate.spark.trials import Trial, attempt, can_fail, row_as_json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class _Sql:
    """SQL of the user: a condition, or the expression of a column with that name."""

    step: str
    text: str
    name: str | None = None


@dataclass(frozen=True)
class Branch:
    """A part of a split, or a step's side, that goes to its sink by conditions and at most one select, all native."""

    base: str
    conditions: tuple[_Sql, ...] = ()
    select: Select | None = None
    side: int | None = None
    select_step: str = ""
    is_tried: bool = False  # are rows put aside if its SQL fails on them?

    def open(self, frame: DataFrame, tag: int, names: list[str]) -> DataFrame:
        """The frame with the columns that the tag needs: the row of a side, whose columns have names only here."""
        from pyspark.sql import functions as F

        if self.is_tried:
            return self._open_tried(frame, tag, names)
        if self.side is None:
            return frame
        opened = self._seen(frame)
        # In a `when`, so that nothing is computed for rows of another side, which are null here.
        is_here = F.when(F.col(SIDE) == self.side, self._holds()).otherwise(F.lit(False))
        row = F.when(is_here, F.struct(*self._columns(names)))
        return opened.select(*frame.columns, row.alias(_row(tag)))

    def condition(self, tag: int) -> Column:
        """Is a row of the frame one of this branch?"""
        from pyspark.sql import functions as F

        if self.is_tried:
            return F.col(_row(tag)).isNotNull() | self.failure(tag).isNotNull()
        return self._holds() if self.side is None else F.col(_row(tag)).isNotNull()

    def row(self, tag: int, names: list[str]) -> Column:
        """The row of the output, as a struct."""
        from pyspark.sql import functions as F

        is_open = self.is_tried or self.side is not None
        return F.col(_row(tag)) if is_open else F.struct(*self._columns(names))

    def failure(self, tag: int) -> Column:
        """Why there is no row of the output, of a branch that is tried: null, or a struct that `Rejects` can take."""
        from pyspark.sql import functions as F

        return F.col(_failed(tag))

    def can_fail(self, frame: DataFrame) -> bool:
        """Can its SQL fail on rows of the frame?"""
        seen = self._seen(frame)
        return any(can_fail(seen, one.text) for one in (*self.conditions, *self._made()))

    def _open_tried(self, frame: DataFrame, tag: int, names: list[str]) -> DataFrame:
        """The frame with the row of the output, or the reason why there is none: the failed SQL, and its step."""
        from pyspark.sql import functions as F

        opened = self._seen(frame)
        shown = row_as_json(opened if self.side is None else opened.drop(*frame.columns))
        holds = F.lit(True) if self.side is None else F.col(SIDE) == self.side
        failures: list[Column] = []
        values: dict[str, Column] = {}
        for place, one in enumerate((*self.conditions, *self._made())):
            if not can_fail(opened, one.text):
                if one.name is None:
                    holds = holds & F.coalesce(F.expr(one.text), F.lit(False))
                continue
            trial = Trial(f"__trial_{place}", one.text if one.name is None else f"{one.name} = {one.text}")
            opened = opened.select("*", attempt(one.text, only=holds).alias(trial.column))
            told = F.struct(
                F.lit(one.step).alias("step"),
                trial.reason.alias("reason"),
                shown.alias("shown"),
                hidden_column(opened, POSITION).cast(POSITION_DDL).alias("position"),
                hidden_column(opened, ORIGINAL).cast(ORIGINAL_DDL).alias("original"),
            )
            failures.append(F.when(holds & trial.failed, told))
            if one.name is None:
                holds = holds & trial.holds
            else:
                values[one.name] = trial.value
        failed = F.coalesce(*failures)
        columns = [values[name].alias(name) if name in values else column for name, column in self._named(names)]
        row = F.when(holds & failed.isNull(), F.struct(*columns))
        return opened.select(*map(quote, frame.columns), row.alias(_row(tag)), failed.alias(_failed(tag)))

    def _seen(self, frame: DataFrame) -> DataFrame:
        """The frame with the columns that its SQL uses."""
        return frame if self.side is None else frame.select("*", f"{side_column(self.side)}.*")

    def _made(self) -> list[_Sql]:
        """The columns that its select computes."""
        made = {} if self.select is None else self.select.expressions
        return [_Sql(self.select_step, sql, name) for name, sql in made.items()]

    def _holds(self) -> Column:
        from pyspark.sql import functions as F

        return reduce(lambda one, two: one & two, (F.expr(one.text) for one in self.conditions), F.lit(True))

    def _columns(self, names: list[str]) -> list[Column]:
        return [column for _, column in self._named(names)]

    def _named(self, names: list[str]) -> list[tuple[str, Column]]:
        from pyspark.sql import functions as F

        sql = self.select.expressions if self.select is not None else {}
        return [(name, F.expr(sql[name]).alias(name) if name in sql else F.col(quote(name))) for name in names]


def branch_of(graph: LogicalGraph, output: Node) -> Branch | None:
    """The branch that ends in this output, or None if more than conditions and a select are between."""
    way = way_of(graph, output)
    if way is None:
        return None
    # If an operator has only one side, its columns have their plain names.
    has_sides = way.is_by_side and len(wanted_sides(graph, way.base)) > 1
    side = 0 if way.side is None else side_number(graph, way.side)
    select = None if way.select is None else way.select.step
    if any(computes_once(graph, one) for one in (*way.conditions, *([] if way.select is None else [way.select]))):
        raise InvariantBroken("SQL that gives other values each time in a pass", where=output.where, fix="report this")
    return Branch(
        base=way.shared,
        conditions=tuple(_Sql(node.name, _condition(node)) for node in way.conditions),
        select=select if isinstance(select, Select) else None,
        side=side if has_sides else None,
        select_step="" if way.select is None else way.select.name,
    )


def _condition(node: Node) -> str:
    if not isinstance(node.step, Where | Part) or not isinstance(node.step.condition, str):
        raise InvariantBroken("a condition that is not SQL", where=node.where, fix="report this")
    return node.step.condition


def hidden_column(frame: DataFrame, name: str) -> Column:
    """The column of this name beside the rows, or null if they do not have it any more."""
    from pyspark.sql import functions as F

    return F.col(name) if name in frame.columns else F.lit(None)


def _row(tag: int) -> str:
    return f"__row_{tag}"


def _failed(tag: int) -> str:
    return f"__failed_{tag}"
