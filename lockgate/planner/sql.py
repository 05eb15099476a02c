"""What can be known about a SQL expression without a JVM: its columns, its aggregates, and whether it can be replayed.

Only what sqlglot parses is judged. An expression that it cannot read is left to Spark's analyser, which checks it
before anything runs; so a refusal from here is always right, and silence is not a promise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

# Spark fixes current_timestamp per epoch and logs it with the epoch, so it is replayed as it was; these are not.
_NONDETERMINISTIC = (
    *("rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle", "now", "current_time"),
    *("spark_partition_id", "monotonically_increasing_id", "reflect", "try_reflect", "java_method"),
    *("input_file_name", "input_file_block_start", "input_file_block_length"),
    # The rows of an epoch are replayed in another order, and these depend on it.
    *("first", "first_value", "last", "last_value", "any_value", "collect_list", "collect_set", "array_agg"),
    *("listagg", "string_agg", "max_by", "min_by", "mode", "percentile_approx", "approx_percentile"),
)
_NONDETERMINISTIC_CALL = re.compile(rf"\b({'|'.join(_NONDETERMINISTIC)})\s*\(", re.IGNORECASE)
_GENERATOR_CALL = re.compile(
    r"\b(explode|explode_outer|posexplode|posexplode_outer|inline|inline_outer|stack|variant_explode\w*)\s*\(",
    re.IGNORECASE,
)
_NO_CODE = re.compile(r"/\*.*?\*/|--[^\n]*|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`", re.DOTALL)

# Adding the same event a second time leaves these as they were.
_IDEMPOTENT = frozenset(
    {
        "MAX",
        "MIN",
        "BIT_AND",
        "BIT_OR",
        "BITWISE_AND_AGG",
        "BITWISE_OR_AGG",
        "BOOL_AND",
        "BOOL_OR",
        "EVERY",
        "SOME",
        "ANY",
    }
    | {"LOGICAL_AND", "LOGICAL_OR", "APPROX_COUNT_DISTINCT", "APPROX_DISTINCT", "COLLECT_SET", "ARRAY_UNIQUE_AGG"}
)

# Spark reads these as functions where no column has the name.
_WITHOUT_BRACKETS = frozenset({"user", "session_user", "current_user", "current_time"})


@dataclass(frozen=True)
class Facts:
    """What an expression uses."""

    columns: frozenset[str]
    functions: frozenset[str]
    is_aggregate: bool
    is_distinct: bool  # an aggregate over distinct values, which Spark does not have in a stream


@lru_cache(maxsize=2048)
def read_expression(sql: str) -> Facts | None:
    """The facts of an expression, or None where only Spark can tell."""
    tree = _parse(sql)
    if tree is None or any(isinstance(node, exp.Query | exp.Star) and not _is_count_star(node) for node in tree.walk()):
        return None
    bound = {parameter.name.lower() for node in tree.find_all(exp.Lambda) for parameter in node.expressions}
    # `a.b` is field b of column a: what must exist is the first part.
    columns = {node.parts[0].name for node in tree.find_all(exp.Column) if not _is_no_column(node)}
    return Facts(
        columns=frozenset(name for name in columns if name.lower() not in bound | _WITHOUT_BRACKETS),
        functions=frozenset(_function_name(node) for node in tree.find_all(exp.Func, exp.Any)),
        is_aggregate=any(_is_aggregate(node) for node in tree.walk()),
        is_distinct=tree.find(exp.Distinct) is not None,
    )


@lru_cache(maxsize=2048)
def find_nondeterministic(sql: str) -> str | None:
    """The function that gives another result on a replay, if the expression calls one.

    A guarantee hangs on it, so it is searched in the text, where no parser's own names come in between.
    """
    found = _NONDETERMINISTIC_CALL.search(_NO_CODE.sub(" ", sql.replace("`", "")))
    return found.group(1).upper() if found else None


def makes_rows(sql: str) -> bool:
    """Does an expression make any number of rows of one?

    >>> makes_rows("explode(parts)"), makes_rows("concat('explode(', k)")
    (True, False)
    """
    return _GENERATOR_CALL.search(_NO_CODE.sub(" ", sql.replace("`", ""))) is not None


@lru_cache(maxsize=2048)
def is_idempotent_aggregate(sql: str) -> bool:
    """Is every aggregate of the expression one that a repeated event does not change?

    >>> is_idempotent_aggregate("max(temperature)"), is_idempotent_aggregate("max(a) + count(*)")
    (True, False)
    """
    tree = _parse(sql)
    # A function that sqlglot does not know could be anything.
    if tree is None or not all(_is_aggregate(node) for node in tree.find_all(exp.Anonymous)):
        return False
    aggregates = [_function_name(node) for node in tree.walk() if _is_aggregate(node)]
    return bool(aggregates) and set(aggregates) <= _IDEMPOTENT


@dataclass(frozen=True)
class Fold:
    """A rolling aggregate: a function folded over the values of an expression."""

    function: str  # sum, min, max, avg or count
    argument: str | None  # None for count(*)


_FOLDS: dict[type[exp.Expr], str] = {
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


def _parse(sql: str) -> exp.Expr | None:
    try:
        return sqlglot.parse_one(sql, read="spark")
    except SqlglotError:
        return None


def _function_name(node: exp.Expr) -> str:
    if isinstance(node, exp.Any):
        return "ANY"
    return (node.name if isinstance(node, exp.Anonymous) else node.sql_name()).upper()  # type: ignore[attr-defined]


def _is_aggregate(node: exp.Expr) -> bool:
    # `any(x)` is an aggregate, `like any (...)` is none.
    is_quantifier = isinstance(node.parent, exp.Binary) and node.arg_key == "expression"
    if isinstance(node, exp.Any | exp.Anonymous):
        return _function_name(node) in _IDEMPOTENT and not is_quantifier
    return isinstance(node, exp.AggFunc)


def _is_no_column(node: exp.Column) -> bool:
    if isinstance(node.this, exp.Star):
        return True
    # timediff(HOUR, a, b): the first word is a unit, which sqlglot knows of the other such functions only.
    call = node.parent
    return isinstance(call, exp.Anonymous) and call.name.upper() == "TIMEDIFF" and call.expressions[0] is node


def _is_count_star(node: exp.Expr) -> bool:
    return isinstance(node, exp.Star) and isinstance(node.parent, exp.Count)
