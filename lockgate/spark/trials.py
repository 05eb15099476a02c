"""Try the user's SQL on every row, so that a row on which it fails can be put aside natively.

Spark builds its `try_` functions from one expression: `TryEval` is null if its child throws. A trial is `TryEval` of a
struct of one value. So null means that the SQL failed, and a null inside is a null. This works only after a wall:

    CASE WHEN spark_partition_id() >= 0 THEN struct(total / pieces AS value) END

An expression in a branch is computed only there. Without the wall, Spark extracts what several expressions share and
computes it once before them all, and an exception there is not caught. And Spark cannot see through the wall: a trial
counts as not deterministic, so Spark neither moves it nor computes it a second time for the users of its value.

SQL that cannot fail is not tried: rows pass it as fast as ever, and Spark may still give a filter to the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockgate.connectors.rejects import JSON_OPTIONS, Rejects
from lockgate.dataflow.schema import quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_VALUE = "value"
_TRIAL = "__trial"

# The nodes of Spark's analysed expressions that give a value for every row, whatever it contains. A cast is one of them
# if it widens. What is not known to be harmless is tried.
_HARMLESS = frozenset(
    {
        *("Alias", "AttributeReference", "Literal", "GetStructField", "CreateNamedStruct"),
        *("And", "Or", "Not", "IsNull", "IsNotNull", "In", "If", "CaseWhen", "Coalesce"),
        *("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"),
        *("Upper", "Lower", "StringTrim", "Length", "Concat", "StartsWith", "EndsWith", "Contains"),
    }
)
_NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double", "decimal"})


@dataclass(frozen=True)
class Trial:
    """A trial that is a column of a frame: its name there, and the SQL."""

    column: str
    told: str

    @property
    def failed(self) -> Column:
        """Did the SQL fail on the row? Also true if it was not tried."""
        from pyspark.sql import functions as F

        return F.col(self.column).isNull()

    @property
    def reason(self) -> Column:
        """Why a row on which the SQL fails cannot be used."""
        from pyspark.sql import functions as F

        return F.lit(f"SQL fails: {self.told}")

    @property
    def value(self) -> Column:
        """The value of the SQL; for Spark it may always be null, since also rows that are about to leave have one."""
        return self._column[_VALUE]

    @property
    def holds(self) -> Column:
        """Is it a condition that was tried and is true?"""
        from pyspark.sql import functions as F

        return F.coalesce(self._column[_VALUE], F.lit(False))

    @property
    def _column(self) -> Column:
        from pyspark.sql import functions as F

        return F.col(self.column)


def attempt(sql: str, *, only: Column | None = None) -> Column:
    """A trial of SQL, for the rows for which `only` holds."""
    from pyspark.sql import functions as F

    wall = F.spark_partition_id() >= 0
    value = F.struct(F.expr(sql).alias(_VALUE))
    return wrapped("TryEval", F.when(wall if only is None else wall & only, value))


def can_fail(frame: DataFrame, sql: str) -> bool:
    """May SQL fail on rows of a frame? True if it is unknown, False if the SQL makes rows (`explode`)."""
    return any(not _is_harmless(node) for node in _nodes(_analysed(frame, sql)))


def row_as_json(frame: DataFrame) -> Column:
    """A row of the frame as JSON for people."""
    from pyspark.sql import functions as F

    shown = [F.col(quote(name)) for name in frame.columns if not name.startswith("_")]
    return F.to_json(F.struct(*shown), JSON_OPTIONS) if shown else F.lit("{}")


def where_tried(frame: DataFrame, sql: str, *, step: str, rejects: Rejects) -> DataFrame:
    """The rows for which a condition holds, without those on which it fails."""
    if not can_fail(frame, sql):
        return frame.where(sql)
    trial = Trial(_TRIAL, sql)
    kept = _watched(frame, {trial: attempt(sql)}, step=step, shown=row_as_json(frame), rejects=rejects)
    return kept.where(trial.holds).drop(trial.column)


def select_tried(
    frame: DataFrame,
    columns: Sequence[str],
    expressions: Mapping[str, str],
    *,
    step: str,
    kept: Sequence[str],
    rejects: Rejects,
) -> DataFrame:
    """The columns and the results of SQL, for rows on which no SQL fails; the columns in `kept` follow them."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    shown = row_as_json(frame)
    opened = frame
    trials: dict[Trial, Column] = {}
    made: dict[str, Column] = {}
    for place, (name, sql) in enumerate(expressions.items()):
        try:
            is_tried = can_fail(opened, sql)
        except AnalysisException:
            # It uses others of the same select, which must be computed first. A column of the frame wins over them.
            opened = _watched(opened, trials, step=step, shown=shown, rejects=rejects)
            before = {other: column for other, column in made.items() if not _has(opened, other)}
            opened = opened.select("*", *(column.alias(other) for other, column in before.items()))
            trials, made = {}, made | {other: F.col(quote(other)) for other in before}
            is_tried = can_fail(opened, sql)
        made[name] = F.expr(sql)
        if is_tried:
            trial = Trial(f"{_TRIAL}_{place}", f"{name} = {sql}")
            trials[trial], made[name] = attempt(sql), trial.value
    opened = _watched(opened, trials, step=step, shown=shown, rejects=rejects)
    return opened.select(*map(quote, columns), *(made[name].alias(name) for name in expressions), *map(quote, kept))


def _watched(
    frame: DataFrame, trials: Mapping[Trial, Column], *, step: str, shown: Column, rejects: Rejects
) -> DataFrame:
    """The frame with the trials, without the rows on which one failed."""
    from pyspark.sql import functions as F

    if not trials:
        return frame
    tried = frame.select("*", *(column.alias(trial.column) for trial, column in trials.items()))
    reason = F.coalesce(*(F.when(trial.failed, trial.reason) for trial in trials))
    return rejects.watch(tried, reason, step=step, shown=shown)


def _has(frame: DataFrame, name: str) -> bool:
    return name.lower() in {column.lower() for column in frame.columns}


def wrapped(expression: str, column: Column) -> Column:
    """A column inside a Spark expression that has no function of its own."""
    from pyspark.sql import Column, SparkSession

    spark = SparkSession.active()
    jvm: Any = spark.sparkContext._jvm
    bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
    make = getattr(jvm.org.apache.spark.sql.catalyst.expressions, expression)
    return Column(bridge.column(make(bridge.expression(column._jc))))


def _analysed(frame: DataFrame, sql: str) -> Any:
    """SQL over a frame, as Spark has analysed it."""
    from pyspark.sql import functions as F

    tried: Any = frame.select(F.expr(sql).alias(_VALUE))
    return tried._jdf.queryExecution().analyzed().expressions().head()


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    children = expression.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _is_harmless(node: Any) -> bool:
    kind = node.getClass().getSimpleName()
    if kind != "Cast":
        return kind in _HARMLESS
    given = node.child().dataType()
    return given.typeName().split("(")[0] in _NUMBERS and bool(node.canUpCast(given, node.dataType()))
