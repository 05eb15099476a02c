"""Find in Spark's own plan what may give other rows when an epoch is repeated.

The planner reads SQL as text, and cannot look into a `transform`. Spark knows more when the frame exists: which
function a name without brackets means, which texts it casts to moments, and what a transform does. And it shows how
often a step stands in a query: one that gives other values each time must stand there once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.steps import Part, Rolling, Select, Where, Windowed
from lockgate.errors import BadJob, InvariantBroken
from lockgate.planner.logical import Node
from lockgate.planner.nondeterminism import expressions_of, is_nondeterministic
from lockgate.planner.passes import computes_once
from lockgate.planner.plan import Plan
from lockgate.planner.sql import find_changing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TEXT_MAX = 100
_ID = re.compile(r"#\d+L?|@[0-9a-f]+")
_MARK = "lockgate step "
_DEPTH_MAX = 8

_BY_ORDER = frozenset({"Deduplicate", "DeduplicateWithinWatermark", "GlobalLimit", "LocalLimit", "Offset", "Tail"})
"""The rows that these keep depend on the order of rows, and a repeated epoch has another. Their state does not."""

_BY_CHANCE = frozenset(
    {
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "Sample",
        "TransformWithState",
        "TransformWithStateInPandas",
        "TransformWithStateInPySpark",
    }
)
"""The rows and the state that these keep depend on the order of rows."""

_STORED = frozenset({"DataSourceV2Relation", "DataSourceV2ScanRelation", "HiveTableRelation", "LogicalRelation"})
"""Rows of files and tables. Those that a program makes itself are others."""

_REMEMBERING = (frozenset({"Aggregate", "Distinct"}) | _BY_CHANCE | _BY_ORDER) - {"Sample"}
"""These keep state of a stream, and a join of two streams does too."""

_ADDING = re.compile(
    r"(Try)?(Sum|Average)|Stddev\w+|Variance\w+|Corr|PearsonCorrelation|Cov\w+|Regr\w+|Skewness|Kurtosis"
)
_FRACTIONS = ("double", "float")


def find_nondeterminism(frame: DataFrame, before: DataFrame | None = None, *, feeds_state: bool = True) -> str | None:
    """An expression or a step that is not deterministic, between two frames; None if there is none.

    Args:
        before: None for everything that the frame is computed from.
        feeds_state: does a step below keep state of the rows? Otherwise their order does no harm.
    """
    wild = _BY_CHANCE | _BY_ORDER if feeds_state else _BY_CHANCE
    nodes, earlier = [*_nodes(frame)], [] if before is None else [*_nodes(before)]
    added = Counter(map(_kind, nodes)) - Counter(map(_kind, earlier))
    if (kind := next((one for one in added if one in wild), None)) is not None:
        return kind
    known = Counter(text for text, _ in _expressions(earlier))
    for text, is_steady in _expressions(nodes):
        if known[text] > 0:
            known[text] -= 1
        elif not is_steady or find_changing(text) is not None:
            return _shortened(text)
    return None


def find_unplanned(frame: DataFrame, before: DataFrame, *, is_stream: bool) -> str | None:
    """Something that a frame reads, and that the frame before it does not; None if there is none.

    Args:
        is_stream: another stream? Otherwise files or a table that may change before an epoch is repeated.
    """
    known = {_without_ids(node) for node in _nodes(before) if not _items(node.children())}
    for node in _nodes(frame):
        if _items(node.children()) or _without_ids(node) in known:
            continue
        if bool(node.isStreaming()) if is_stream else _kind(node) in _STORED:
            return _shortened(_without_ids(node))
    return None


def find_repeated_nondeterminism(frame: DataFrame) -> str | None:
    """Something that may give other rows each time, and that a frame computes for several branches; None if nothing.

    Sums of fractions count, because every branch may add in another order.
    """
    seen: set[str] = set()
    for node in _nodes(frame):
        if (cause := _own_cause(node)) is not None:
            same = _told(node)
            if same in seen:
                return cause
            seen.add(same)
    return None


def find_stored_above_state(frame: DataFrame) -> str | None:
    """Files or a table that a frame reads, and whose rows feed state of its stream; None if there are none."""
    for node in _nodes(frame):
        if not _remembers(node):
            continue
        for one in _nodes_below(node):
            if _kind(one) in _STORED and not bool(one.isStreaming()):
                return _shortened(_without_ids(one))
    return None


def _own_cause(node: Any) -> str | None:
    """What may give other rows each time, in a part of a plan alone; None if nothing."""
    if (kind := _kind(node)) in _BY_CHANCE | _BY_ORDER:
        return kind
    for text, is_steady in _expressions([node]):
        if not is_steady or find_changing(text) is not None:
            return _shortened(text)
    if kind == "Aggregate" and bool(node.isStreaming()):
        return next((_shortened(str(one.sql())) for one in _items(node.expressions()) if _adds_fractions(one)), None)
    return None


def _adds_fractions(expression: Any) -> bool:
    if match := _ADDING.fullmatch(_kind(expression)):
        added = [str(one.dataType().typeName()) for one in _items(expression.children())]
        return match[2] is None or any(kind in _FRACTIONS for kind in added)
    return any(_adds_fractions(one) for one in _items(expression.children()))


def _remembers(node: Any) -> bool:
    """Does a part of a plan keep state of a stream?"""
    children = _items(node.children())
    if _kind(node) == "Join":
        return all(bool(one.isStreaming()) for one in children)
    return _kind(node) in _REMEMBERING and any(bool(one.isStreaming()) for one in children)


def _told(node: Any) -> str:
    """A part of a plan with all below it, as text that is the same if it computes the same."""
    below = _items(node.children())
    read = str(node.extraOptions()) if _kind(node) == "StreamingRelationV2" else ""
    return f"{_without_ids(node)}{read}[{'; '.join(map(_told, below))}]"


def find_nondeterminism_in_sql(frame: DataFrame, expressions: Mapping[str, str]) -> str | None:
    """What is not deterministic in expressions over a frame, by name; None if nothing is, or Spark refuses them."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        made = frame.select(*(F.expr(sql).alias(name) for name, sql in expressions.items()))
    except PySparkException:
        return None  # it is refused when the step is compiled
    end = frame._jdf.queryExecution().analyzed()
    node = made._jdf.queryExecution().analyzed()
    for _ in range(_DEPTH_MAX):  # names of the same select are steps of their own
        if node.equals(end):
            break
        for text, is_steady in _expressions([node]):
            if not is_steady or find_changing(text) is not None:
                return _shortened(text)
        node = node.children().head()
    return None


def mark(frame: DataFrame, step: str) -> DataFrame:
    """The same rows; Spark's plan shows their step, and how often it computes them."""
    return frame.alias(f"{_MARK}{step}")


def count_marks(frame: DataFrame) -> Counter[str]:
    """How often the marked steps are in the plan of a frame."""
    found: Counter[str] = Counter()
    for node in _nodes(frame):
        if _kind(node) == "SubqueryAlias" and (name := str(node.alias())).startswith(_MARK):
            found[name.removeprefix(_MARK)] += 1
    return found


def refuse_hidden_nondeterminism(node: Node, inputs: Sequence[DataFrame]) -> None:
    """Refuse a step that the plan calls deterministic by its SQL, if Spark's analyser knows that it is not."""
    step = node.step
    if not isinstance(step, Where | Part | Select | Rolling | Windowed) or is_nondeterministic(node):
        return
    sql = (
        step.expressions if isinstance(step, Select) else {f"_{at}": one for at, one in enumerate(expressions_of(node))}
    )
    asked = {name: one for name, one in sql.items() if one}
    chance = find_nondeterminism_in_sql(inputs[0], asked) if asked else None
    if chance is not None:
        raise BadJob(
            f"{node.kind} {node.name!r} is not deterministic, by {chance}: its guarantee would be derived wrongly",
            where=node.where,
            fix="derive such values from the event; or write them so that the plan knows them: a function with its"
            " brackets, as in current_user(), a moment with its cast, as in CAST('now' AS TIMESTAMP)",
        )


def require_once(frame: DataFrame, planned: Plan) -> DataFrame:
    """Check that the planner's rule holds: a step that gives other values each time is computed once."""
    is_needed = any(computes_once(planned.logical, node) for node in planned.logical.nodes)
    for name, times in count_marks(frame).items() if is_needed else ():
        if times > 1:
            node = planned.logical.node(name)
            raise InvariantBroken(
                f"{node.kind} {name!r} is compiled {times} times, and each would give other values",
                where=node.where,
                fix="report this",
            )
    return frame


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _without_ids(node: Any) -> str:
    """A node in words, without the numbers that Spark gives to its columns."""
    return _ID.sub("", str(node.simpleString(_TEXT_MAX)))


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


def _expressions(nodes: Iterable[Any]) -> Iterator[tuple[str, bool]]:
    """All expressions of parts of a plan as SQL, and whether Spark calls them deterministic."""
    for node in nodes:
        yield from ((str(one.sql()), bool(one.deterministic())) for one in _items(node.expressions()))


def _nodes(frame: DataFrame) -> Iterator[Any]:
    """Spark's plan of a frame, node by node, with the queries inside of its expressions."""
    return _nodes_below(frame._jdf.queryExecution().analyzed())


def _nodes_below(first: Any) -> Iterator[Any]:
    """A part of a plan and all below it, with the queries inside of their expressions."""
    waiting: list[Any] = [first]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _items(node.children())
        waiting += _items(node.subqueries())


def _items(found: Any) -> list[Any]:
    return [found.apply(index) for index in range(found.size())]
