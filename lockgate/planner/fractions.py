"""Fractions: which windows of Spark's own add FLOAT or DOUBLE, so that their results depend on the order of addition.

Every addition of fractions is rounded. If Spark computes such a window once for each branch, one branch may get another
last digit than the other, and a row whose sum is just at a limit is in none of them, or in both. So the branches need
results that were computed once (planner/passes.py). A replay alone does no harm: no event is lost or counted twice.

    aggregate                                           depends on the order
    sum, avg of whole numbers or DECIMAL                no
    sum, avg of anything else, or of an unknown type    yes
    deviations, variances, correlations, regressions    yes, because they divide on the way
    any other                                           no (those that choose a row are not deterministic: functions.py)

Our operators in Python add in the order of the source, in every pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from lockgate.dataflow.steps import FlatMap, Map, Process, Read, Select, Transform, WindowAggregate, WindowApply
from lockgate.dataflow.table import ReadTable
from lockgate.planner.forms import as_sql
from lockgate.planner.logical import LogicalGraph, Node, is_operator
from lockgate.planner.sql import parse_sql
from lockgate.planner.sqltext import read_text

_SUM = re.compile(r"\b(sum|try_sum|avg|try_avg|mean)\s*\(", re.IGNORECASE)
_MOMENTS = re.compile(
    r"\b(std|stddev|stddev_pop|stddev_samp|variance|var_pop|var_samp|corr|covar_pop|covar_samp|regr_\w+|kurtosis"
    r"|skewness)\s*\(",
    re.IGNORECASE,
)
_WHOLE = re.compile(r"(tinyint|byte|smallint|short|int|integer|bigint|long|interval\b.*)", re.IGNORECASE)
_DECIMAL = re.compile(r"(decimal|dec|numeric)\b.*", re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"\d+")
_DECIMAL_NUMBER = re.compile(r"\d*\.\d+|\d+\.")  # Spark reads 1.5 as a DECIMAL, and 1e3 as a DOUBLE
_OF_ALL = (exp.Add, exp.Sub, exp.Mul, exp.Mod, exp.Neg, exp.Paren, exp.Abs, exp.Coalesce, exp.Greatest, exp.Least)

_Kind = str | None
"""`whole`, `decimal`, or None for fractions and all that is not known."""


def depends_on_order(graph: LogicalGraph, node: Node) -> bool:
    """Is the step a window of Spark's own whose results depend on the order in which fractions are added?"""
    step = node.step
    if not isinstance(step, WindowAggregate) or is_operator(graph, node):
        return False
    before = graph.node(node.inputs[0])
    return any(
        _adds_fractions(as_sql(one), lambda name: _kind_at(graph, before, name)) for one in step.aggregates.values()
    )


def _adds_fractions(sql: str, kind_of: Callable[[str], _Kind]) -> bool:
    code = read_text(sql).code
    if _MOMENTS.search(code):
        return True
    calls = len(_SUM.findall(code))
    if not calls:
        return False
    tree = parse_sql(sql)
    added = [] if tree is None else [one for one in tree.find_all(exp.Func) if _SUM.match(f"{_name(one)}(")]
    # Doubt counts as fractions: what sqlglot reads otherwise than the text says is not known.
    return len(added) != calls or any(_kind(_argument(one), kind_of) is None for one in added)


def _name(call: exp.Func) -> str:
    return str(call.name if isinstance(call, exp.Anonymous) else call.sql_name())


def _argument(call: exp.Func) -> exp.Expr | None:
    first = call.expressions[0] if isinstance(call, exp.Anonymous) and call.expressions else call.this
    return first if isinstance(first, exp.Expr) else None


def _kind(tree: exp.Expr | None, kind_of: Callable[[str], _Kind]) -> _Kind:
    """The type of an expression, as far as simple rules say it."""
    match tree:
        case exp.Literal() if not tree.is_string:
            text = str(tree.this)
            return "whole" if _WHOLE_NUMBER.fullmatch(text) else "decimal" if _DECIMAL_NUMBER.fullmatch(text) else None
        case exp.Column() if len(tree.parts) == 1:
            return kind_of(tree.name)
        case exp.Cast() | exp.TryCast():
            return kind_in(tree.to.sql(dialect="spark"))
        case exp.Count() | exp.Length():
            return "whole"
        case exp.IntDiv():
            return "whole"
        case exp.Div():  # whole numbers divide to a DOUBLE
            kinds = _kinds([tree.this, tree.expression], kind_of)
            return "decimal" if kinds == "decimal" else None
        case exp.If():
            return _kinds([tree.args.get("true"), tree.args.get("false")], kind_of)
        case exp.Case():
            results = [one.args.get("true") for one in tree.args.get("ifs") or []]
            return _kinds([*results, tree.args.get("default")], kind_of)
        case exp.Anonymous() if tree.name.lower() == "pmod":
            return _kinds(tree.expressions, kind_of)
    if isinstance(tree, _OF_ALL):
        return _kinds([*tree.iter_expressions()], kind_of)
    return None


def _kinds(trees: list[exp.Expr | None], kind_of: Callable[[str], _Kind]) -> _Kind:
    """What several expressions have in common: one fraction makes fractions of all. A null has any type."""
    kinds = {_kind(one, kind_of) for one in trees if one is not None and not isinstance(one, exp.Null)}
    if not kinds or None in kinds:
        return None
    return "decimal" if "decimal" in kinds else "whole"


def kind_in(ddl: str) -> _Kind:
    """The kind of a type as DDL writes it.

    >>> kind_in("BIGINT"), kind_in("DECIMAL(10, 2)"), kind_in("FLOAT")
    ('whole', 'decimal', None)
    """
    text = ddl.strip()
    return "whole" if _WHOLE.fullmatch(text) else "decimal" if _DECIMAL.fullmatch(text) else None


def _kind_at(graph: LogicalGraph, node: Node, name: str) -> _Kind:
    """The type of a column of a step, from where it was made: a merge has the widest of its inputs."""
    step, columns = node.step, node.flow.columns
    if isinstance(step, Select):
        made = {one.lower(): sql for one, sql in step.expressions.items()}
        if (sql := made.get(name.lower())) is not None:
            return _kind_in_select(graph, graph.node(node.inputs[0]), sql, {*made})
    if isinstance(step, Transform):
        return None
    own = columns.find(name) if columns is not None else None
    if isinstance(step, Read | ReadTable | Map | FlatMap | Process | WindowApply):
        return kind_in(own.type) if own is not None and own.type is not None else None
    before = [graph.node(one) for one in node.inputs]
    holding = [one for one in before if one.flow.columns is None or one.flow.columns.find(name)]
    if holding:
        kinds = {_kind_at(graph, one, name) for one in holding}
        return None if None in kinds else "decimal" if "decimal" in kinds else "whole"
    return kind_in(own.type) if own is not None and own.type is not None else None


def _kind_in_select(graph: LogicalGraph, before: Node, sql: str, beside: set[str]) -> _Kind:
    def kind_of(name: str) -> _Kind:
        # Spark may mean another column of the same select.
        return None if name.lower() in beside and not _has(before, name) else _kind_at(graph, before, name)

    return _kind(parse_sql(sql), kind_of)


def _has(node: Node, name: str) -> bool:
    return node.flow.columns is None or node.flow.columns.find(name) is not None
