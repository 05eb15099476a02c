"""Passes: which outputs are made together, in one pass over the rows of a step, and which steps each pass computes.

    output                                                    goes over
    a part of a split, by where and a select in SQL           the rows that are split
    rows of a step that must be computed once, by where and   the rows of that step
    a select in SQL
    what leaves an operator by a side, as above; its log      all that leaves the operator
    of late events
    anything else                                             a pass of its own

Spark computes every pass from the sources on. If several ways of one pass start at a step, Spark computes that step
once for each of them. Most steps give the same rows each time. A step that is not deterministic gives every way other
values: an event would be in none of two branches that exclude each other, or in both, without any failure and whatever
is declared. A window that adds fractions does so too, because its ways may add in another order (fractions.py). So such
a step has one place in all passes together. If it had several, the query ends there: its rows are computed once per
epoch and kept, and the steps after it are applied to them. If these cannot be applied to kept rows, the job is refused.

    the step has       after it                                   what happens
    one place          anything                                   it is a step of the query
    several places     steps without state, time or transform     the query ends there, its rows are kept
    several places     state, time, the clock or a transform      the job is refused
    several places     anything, in real-time mode                the job is refused
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lockgate.dataflow.eventtime import Late
from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.steps import (
    DeadLetterStep,
    LateEvents,
    Part,
    Select,
    TableJoin,
    Timed,
    TimedOut,
    Transform,
    Where,
    Write,
)
from lockgate.errors import BadJob
from lockgate.guarantees import Mode
from lockgate.planner.forms import has_late_events
from lockgate.planner.fractions import depends_on_order
from lockgate.planner.logical import LogicalGraph, Node, is_operator
from lockgate.planner.nondeterminism import expressions_of, is_nondeterministic
from lockgate.planner.physical import has_state
from lockgate.planner.sql import read_expression, reads_epoch_clock


@dataclass(frozen=True)
class Way:
    """How rows get from a step to an output, if only conditions and at most one select stand between."""

    base: Node
    is_by_side: bool  # does it take what leaves the operator `base` by one of its sides?
    conditions: tuple[Node, ...]  # where, and part of a split, from the first to the last
    select: Node | None
    side: Node | None = None  # the step that takes late or timed-out events of an operator; None for its results

    @property
    def shared(self) -> str:
        """What the pass goes over; ways with the same are one pass."""
        return sides_of(self.base.name) if self.is_by_side else self.base.name


def way_of(graph: LogicalGraph, output: Node) -> Way | None:
    """The way that ends in this output, or None if more stands between."""
    if isinstance(output.step, Write) and output.step.sink.expressions():
        return None  # the sink's own SQL uses the output's columns, which have no names inside a struct
    conditions: list[Node] = []
    select, node = None, graph.node(output.inputs[0])
    if isinstance(node.step, Select) and not is_nondeterministic(node):
        expressions = node.step.expressions
        # An expression that uses another one of the same select has no place in a struct.
        if any({name.lower() for name in expressions} & _names(sql) for sql in expressions.values()):
            return None
        select, node = node, graph.node(node.inputs[0])
    while isinstance(node.step, Where) and isinstance(node.step.condition, str) and not is_nondeterministic(node):
        conditions.insert(0, node)
        node = graph.node(node.inputs[0])
    if isinstance(node.step, Part) and not is_nondeterministic(
        node
    ):  # else each output of the part would have other events
        return Way(graph.node(node.inputs[0]), False, (node, *conditions), select)
    side = node if is_side_of_operator(graph, node) else None
    base = node if side is None else graph.node(side.inputs[0])
    if is_operator(graph, base):
        return Way(base, True, tuple(conditions), select, side)
    return Way(node, False, tuple(conditions), select) if computes_once(graph, node) else None


def sides_of(name: str) -> str:
    """The name of everything that leaves an operator, by whichever side."""
    return f"sides of {name}"


def share_passes(shared: Sequence[str | None]) -> list[list[int]]:
    """The places of outputs, grouped by pass, from what each goes over; None is a pass of its own."""
    passes: dict[str | int, list[int]] = {}
    for place, one in enumerate(shared):
        passes.setdefault(place if one is None else one, []).append(place)
    return list(passes.values())


def steps_before(graph: LogicalGraph, name: str) -> tuple[str, ...]:
    """A step and all that feed it, in the order of the plan."""
    reached, left = set[str](), [name]
    while left:
        one = left.pop()
        if one not in reached:  # there may be very many ways to a step
            reached.add(one)
            left += takes_from(graph, graph.node(one))
    return tuple(node.name for node in graph.nodes if node.name in reached)


def takes_from(graph: LogicalGraph, node: Node) -> tuple[str, ...]:
    """The steps whose rows a step takes: late events are not results of a native window, but rows of its input."""
    if isinstance(node.step, TableJoin):
        return node.inputs[:1]
    return graph.node(node.inputs[0]).inputs if isinstance(node.step, LateEvents) else node.inputs


def fed_by(graph: LogicalGraph, node: Node) -> tuple[str, ...]:
    """The steps that must be computed for a step: a side of an operator is a part of what leaves the operator.

    Dead letters are not computed from the rows of a step. The run adds them.
    """
    if isinstance(node.step, DeadLetterStep):
        return ()
    return node.inputs if is_side_of_operator(graph, node) else takes_from(graph, node)


def is_side_of_operator(graph: LogicalGraph, node: Node) -> bool:
    """Does it take what leaves an operator beside its results?"""
    return isinstance(node.step, LateEvents | TimedOut) and is_operator(graph, graph.node(node.inputs[0]))


def logs_late_events(graph: LogicalGraph, node: Node) -> bool:
    """Are events written to the log that are late for a step?"""
    if not has_late_events(node.step):
        return False
    time = graph.node(node.inputs[0]).flow.time
    return time is not None and time.late is Late.LOG


@dataclass(frozen=True)
class Cuts:
    """Where the query ends before its outputs, and what remains to do with the rows of each epoch.

    Args:
        branches: The steps whose rows are computed once per epoch and kept, and for how many branches.
        below: The steps that are applied to rows that are kept. All others are steps of the query.
        ends: The steps of the query whose rows steps below need, in the order of the plan.
    """

    branches: Mapping[str, int] = field(default_factory=dict)
    below: frozenset[str] = frozenset()
    ends: tuple[str, ...] = ()


def find_cuts(graph: LogicalGraph) -> Cuts:
    """Where rows are kept so that a step that may give other rows is computed once; BadJob if that is impossible."""
    if not any(computes_once(graph, node) for node in graph.nodes):
        return Cuts()
    places = _roots(graph)
    below: set[str] = set()
    branches: dict[str, int] = {}
    for node in reversed(graph.nodes):  # every step comes after those that feed it
        if computes_once(graph, node) and places[node.name] > 1:
            behind = _steps_behind(graph, node)
            _refuse_uncuttable(graph, node, behind, places[node.name])
            branches[node.name] = places[node.name]
            below |= {one.name for one in behind}
        for name in fed_by(graph, node):
            places[name] += 1 if node.name in branches else places[node.name]
    needed = {name for node in graph.nodes if node.name in below for name in fed_by(graph, node)}
    return Cuts(branches, frozenset(below), tuple(one.name for one in graph.nodes if one.name in needed - below))


def is_computed_once(graph: LogicalGraph, one: Node, cuts: Cuts) -> bool:
    """Has a step one place in all passes together?"""
    places = _roots(graph)
    for node in reversed(graph.nodes):  # every step comes after those that feed it
        for name in fed_by(graph, node):
            places[name] += 1 if node.name in cuts.branches else places[node.name]
    return places[one.name] <= 1


def computes_once(graph: LogicalGraph, node: Node) -> bool:
    """Must it be computed once, because it may give other rows each time? (The SQL of a sink has one place.)"""
    return not isinstance(node.step, Write) and (is_nondeterministic(node) or depends_on_order(graph, node))


def _steps_behind(graph: LogicalGraph, first: Node) -> list[Node]:
    """All steps that a step feeds, directly or through others."""
    reached, found = {first.name}, list[Node]()
    for node in graph.nodes:
        if reached & set(fed_by(graph, node)):
            reached.add(node.name)
            found.append(node)
    return found


def _refuse_uncuttable(graph: LogicalGraph, cause: Node, behind: Sequence[Node], places: int) -> None:
    """Refuse a step with several branches that cannot be applied to rows that an epoch keeps."""
    # A batch has no state from one epoch to the next, no watermark, and not the time of the epoch. It is unknown what a
    # transform uses.
    hindrance = next((one for one in behind if _belongs_to_query(one)), None)
    if hindrance is not None:
        reason = f"{hindrance.kind} {hindrance.name!r} after it must be a part of the query"
    elif graph.job.mode is Mode.REAL_TIME:
        reason = "in real-time mode rows leave before their epoch ends"
    else:
        return
    if is_nondeterministic(cause):
        danger = "each way would get other values: an event could be in none of them, or in several"
        change = "make it deterministic (derive random values from the event), or "
    else:
        danger = (
            "each way may add its fractions in another order and round otherwise: a row could be in none of them, or"
            " in several"
        )
        change = "add DECIMAL or whole numbers of a type that the plan knows, as in sum(CAST(x AS DECIMAL(18, 2))), or "
    raise BadJob(
        f"{cause.kind} {cause.name!r} would be computed {places:,} times, because its rows go several"
        f" ways, and {danger}. Its rows cannot be kept for all ways, because {reason}",
        where=cause.where,
        fix=("" if isinstance(cause.step, FanOut) else change)
        + "let its outputs differ by split, or by where and a select in SQL alone, which is one pass; or write"
        " its rows to a topic, and continue from there in a job of its own",
    )


def _belongs_to_query(node: Node) -> bool:
    is_bound = has_state(node) or isinstance(node.step, Timed | Transform)
    return is_bound or any(map(reads_epoch_clock, expressions_of(node)))


def _roots(graph: LogicalGraph) -> Counter[str]:
    """The steps that passes go over, and how many passes go over each."""
    roots: list[str] = []
    shared: list[str | None] = []
    for node in graph.nodes:
        if isinstance(node.step, Write) and not isinstance(graph.node(node.inputs[0]).step, DeadLetterStep):
            way = way_of(graph, node)
            roots.append(node.name if way is None else way.base.name)
            shared.append(None if way is None else way.shared)
        elif logs_late_events(graph, node):
            is_side = is_operator(graph, node)
            roots.append(node.name if is_side else node.inputs[0])
            shared.append(sides_of(node.name) if is_side else None)
    return Counter(roots[members[0]] for members in share_passes(shared))


def _names(sql: str) -> set[str]:
    facts = read_expression(sql)
    return {name.lower() for name in facts.columns} if facts is not None else set()
