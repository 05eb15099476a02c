"""Passes: which outputs are made together, in one pass over the rows of a step, and which steps each pass computes.

    output                                                    goes over
    a part of a split, by where and a select in SQL           the rows that are split
    rows of a step that is not deterministic, by where and    the rows of that step
    a select in SQL
    what leaves an operator by a side, as above; its log      all that leaves the operator
    of late events
    anything else                                             a pass of its own

Spark computes every pass from the sources on, and a step that several ways of one pass come from once for each of them.
Most steps give the same each time. One that is not deterministic gives every way other values: an event would be in
none of two branches that exclude each other, or in both, without any failure and whatever is declared. So such a step
has one place in all passes together, or the job is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lockgate.dataflow.eventtime import Late
from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.steps import LateEvents, Letters, Part, Select, TableJoin, TimedOut, Where, Write
from lockgate.errors import BadJob
from lockgate.planner.derive import is_wild
from lockgate.planner.forms import has_late_events
from lockgate.planner.logical import LogicalGraph, Node, is_operator
from lockgate.planner.sql import read_expression


@dataclass(frozen=True)
class Way:
    """How rows get from a step to an output, where nothing but conditions and at most one select stand between."""

    base: Node
    is_by_side: bool  # does it take what leaves the operator `base` by one of its sides?
    conditions: tuple[Node, ...]  # where, and part of a split, from the first to the last
    select: Node | None
    side: Node | None = None  # the step that takes late or timed-out events of an operator; None for its results

    @property
    def shared(self) -> str:
        """What the pass goes over; ways that have the same are one pass."""
        return sides_of(self.base.name) if self.is_by_side else self.base.name


def way_of(graph: LogicalGraph, output: Node) -> Way | None:
    """The way that ends in this output, or None where more stands between."""
    if isinstance(output.step, Write) and output.step.sink.expressions():
        return None  # the sink's own SQL speaks of the output's columns, which have no names inside a struct
    conditions: list[Node] = []
    select, node = None, graph.node(output.inputs[0])
    if isinstance(node.step, Select) and not is_wild(node):
        expressions = node.step.expressions
        # An expression that uses another one of the same select has no place in a struct.
        if any({name.lower() for name in expressions} & _names(sql) for sql in expressions.values()):
            return None
        select, node = node, graph.node(node.inputs[0])
    while isinstance(node.step, Where) and isinstance(node.step.condition, str) and not is_wild(node):
        conditions.insert(0, node)
        node = graph.node(node.inputs[0])
    if isinstance(node.step, Part):
        return Way(graph.node(node.inputs[0]), False, (node, *conditions), select)
    side = node if is_side_of_operator(graph, node) else None
    base = node if side is None else graph.node(side.inputs[0])
    if is_operator(graph, base):
        return Way(base, True, tuple(conditions), select, side)
    return Way(node, False, tuple(conditions), select) if is_wild(node) else None


def sides_of(name: str) -> str:
    """What all that leaves an operator is called, by whichever side."""
    return f"sides of {name}"


def share_passes(shared: Sequence[str | None]) -> list[list[int]]:
    """The places of outputs, those together that are one pass, by what each goes over; None is a pass of its own."""
    passes: dict[str | int, list[int]] = {}
    for place, one in enumerate(shared):
        passes.setdefault(place if one is None else one, []).append(place)
    return list(passes.values())


def steps_before(graph: LogicalGraph, name: str) -> tuple[str, ...]:
    """A step and all that feed it, in the order of the plan."""
    reached, left = set[str](), [name]
    while left:
        one = left.pop()
        if one not in reached:  # there may be more ways to a step than anybody can go
            reached.add(one)
            left += takes_from(graph, graph.node(one))
    return tuple(node.name for node in graph.nodes if node.name in reached)


def takes_from(graph: LogicalGraph, node: Node) -> tuple[str, ...]:
    """The steps whose rows a step takes: late events are not results of a native window, but what came to it."""
    if isinstance(node.step, TableJoin):
        return node.inputs[:1]
    return graph.node(node.inputs[0]).inputs if isinstance(node.step, LateEvents) else node.inputs


def is_side_of_operator(graph: LogicalGraph, node: Node) -> bool:
    """Does it take what leaves an operator beside its results?"""
    return isinstance(node.step, LateEvents | TimedOut) and is_operator(graph, graph.node(node.inputs[0]))


def logs_late_events(graph: LogicalGraph, node: Node) -> bool:
    """Are events written to the log that are late for a step?"""
    if not has_late_events(node.step):
        return False
    time = graph.node(node.inputs[0]).flow.time
    return time is not None and time.late is Late.LOG


def refuse_repeated_chance(graph: LogicalGraph) -> None:
    """Refuse a step that is not deterministic and would be computed more than once: it gives other values each time."""
    wild = [node for node in graph.nodes if not isinstance(node.step, Write) and is_wild(node)]
    places = _places(graph) if wild else Counter[str]()
    for node in wild:
        if places[node.name] > 1:
            cure = "make it deterministic (derive random values from the event), or "
            raise BadJob(
                f"{node.kind} {node.name!r} would be computed {places[node.name]:,} times, because its rows go several"
                " ways, and each way would get other values: an event could be in none of them, or in several",
                where=node.where,
                fix=("" if isinstance(node.step, FanOut) else cure)
                + "let its outputs differ by split, or by where and a select in SQL alone, which is one pass; or write"
                " its rows to a topic, and go on from there in a job of its own",
            )


def _places(graph: LogicalGraph) -> Counter[str]:
    """How often each step is computed in an epoch: its places in the trees of all passes."""
    roots: list[str] = []
    shared: list[str | None] = []
    for node in graph.nodes:
        if isinstance(node.step, Write) and not isinstance(graph.node(node.inputs[0]).step, Letters):
            way = way_of(graph, node)
            roots.append(node.name if way is None else way.base.name)
            shared.append(None if way is None else way.shared)
        elif logs_late_events(graph, node):
            is_side = is_operator(graph, node)
            roots.append(node.name if is_side else node.inputs[0])
            shared.append(sides_of(node.name) if is_side else None)
    places = Counter(roots[members[0]] for members in share_passes(shared))
    for node in reversed(graph.nodes):  # every step stands behind those that feed it
        for name in node.inputs if is_side_of_operator(graph, node) else takes_from(graph, node):
            places[name] += places[node.name]
    return places


def _names(sql: str) -> set[str]:
    facts = read_expression(sql)
    return {name.lower() for name in facts.columns} if facts is not None else set()
