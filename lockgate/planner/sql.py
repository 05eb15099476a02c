"""What can be known about a SQL expression without a JVM: its columns, its aggregates, and whether it can be replayed.

Only what sqlglot parses is judged. An expression that it cannot read is left to Spark's analyser, which checks it
before anything runs; so a refusal from here is always right, and silence is not a promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

# Spark fixes current_timestamp per epoch and logs it with the epoch, so it is replayed as it was; these are not.
_NONDETERMINISTIC = frozenset(
    {"RAND", "RANDN", "RANDOM", "RANDSTR", "UNIFORM", "UUID", "SHUFFLE", "SPARK_PARTITION_ID"}
    | {"MONOTONICALLY_INCREASING_ID", "REFLECT", "JAVA_METHOD", "INPUT_FILE_NAME"}
)

# Adding the same event a second time leaves these as they were.
_IDEMPOTENT = frozenset(
    {"MAX", "MIN", "BIT_AND", "BIT_OR", "BITWISE_AND_AGG", "BITWISE_OR_AGG", "BOOL_AND", "BOOL_OR", "EVERY", "SOME"}
    | {"LOGICAL_AND", "LOGICAL_OR", "APPROX_COUNT_DISTINCT", "APPROX_DISTINCT", "COLLECT_SET", "ARRAY_UNIQUE_AGG"}
)


@dataclass(frozen=True)
class Facts:
    """What an expression uses."""

    columns: frozenset[str]
    functions: frozenset[str]
    is_aggregate: bool

    @property
    def nondeterministic(self) -> str | None:
        """The function that gives another result on a replay, if there is one."""
        return next(iter(sorted(self.functions & _NONDETERMINISTIC)), None)


@lru_cache(maxsize=2048)
def read_expression(sql: str) -> Facts | None:
    """The facts of an expression, or None where only Spark can tell."""
    tree = _parse(sql)
    if tree is None or any(isinstance(node, exp.Query | exp.Star) and not _is_count_star(node) for node in tree.walk()):
        return None
    bound = {parameter.name.lower() for node in tree.find_all(exp.Lambda) for parameter in node.expressions}
    # `a.b` is field b of column a: what must exist is the first part.
    columns = {node.parts[0].name for node in tree.find_all(exp.Column) if not isinstance(node.this, exp.Star)}
    functions = {_function_name(node) for node in tree.find_all(exp.Func)}
    return Facts(
        columns=frozenset(name for name in columns if name.lower() not in bound),
        functions=frozenset(functions),
        is_aggregate=any(isinstance(node, exp.AggFunc) for node in tree.walk()),
    )


@lru_cache(maxsize=2048)
def is_idempotent_aggregate(sql: str) -> bool:
    """Is every aggregate of the expression one that a repeated event does not change?

    >>> is_idempotent_aggregate("max(temperature)"), is_idempotent_aggregate("max(a) + count(*)")
    (True, False)
    """
    tree = _parse(sql)
    if tree is None or tree.find(exp.Anonymous):  # a function of the author's own could be anything
        return False
    aggregates = [_function_name(node) for node in tree.find_all(exp.AggFunc)]
    return bool(aggregates) and set(aggregates) <= _IDEMPOTENT


@dataclass(frozen=True)
class Fold:
    """A rolling aggregate: a function folded over the values of an expression."""

    function: str  # sum, min, max, avg or count
    argument: str | None  # None for count(*)


_FOLDS: dict[type[exp.Expression], str] = {
    exp.Sum: "sum",
    exp.Min: "min",
    exp.Max: "max",
    exp.Avg: "avg",
    exp.Count: "count",
}


@lru_cache(maxsize=2048)
def read_fold(sql: str) -> Fold | None:
    """The fold that a rolling aggregate means, or None where it is none of sum, min, max, avg and count."""
    tree = _parse(sql)
    name = _FOLDS.get(type(tree)) if tree is not None else None
    if tree is None or name is None:
        return None
    inner = tree.this
    if isinstance(inner, exp.Distinct) or tree.expressions or (inner and inner.find(exp.AggFunc)):
        return None
    if inner is None or isinstance(inner, exp.Star):
        return Fold(function=name, argument=None) if name == "count" else None
    # The author's own text: a rendering could mean something else to Spark.
    return Fold(function=name, argument=sql[sql.index("(") + 1 : sql.rindex(")")].strip())


def _parse(sql: str) -> exp.Expression | None:
    try:
        return sqlglot.parse_one(sql, read="spark")
    except SqlglotError:
        return None


def _function_name(node: exp.Func) -> str:
    return (node.name if isinstance(node, exp.Anonymous) else node.sql_name()).upper()


def _is_count_star(node: exp.Expression) -> bool:
    return isinstance(node, exp.Star) and isinstance(node.parent, exp.Count)
