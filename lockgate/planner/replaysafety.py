"""Can an event be sent back without any step or output having it twice?

An event that became a dead letter at a step has left nothing after that step. If it is sent back, it takes its whole
way again, from the parser on. It arrives exactly once if that step alone stood between it and everything else:

    an output that can be reached past the step     has the event already
    a step with state before the step               has counted it already
    a step that made several rows of the event      has passed the other rows on
    a merge of several ways of the event            has passed the rows of the other ways on
"""

from __future__ import annotations

from collections.abc import Collection

from lockgate.dataflow.exchange import Strategy
from lockgate.dataflow.steps import DeadLetterStep, Exchanged, Join, Keyed, Merge, Select, Transform, Write
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.sql import makes_rows


def find_hindrances(graph: LogicalGraph, *, step: str, source: str, is_child: bool) -> tuple[str, ...]:
    """What would have an event of a source twice if it failed in a step, in words; nothing if it may be sent back.

    `is_child`: it was one of several rows that were made of the event.
    """
    if not {step, source} <= {node.name for node in graph.nodes}:
        return (f"{step!r} or {source!r} is not in the job any more, so it is unknown what has the event already",)
    past = _reached(graph, source, without=step)
    before = [node for node in graph.nodes if node.name in past and step in _reached(graph, node.name)]
    return (
        *(f"output {node.name!r} has the event already" for node in _outputs(graph, past)),
        *(f"{node.kind} {node.name!r} has it in its state already" for node in before if _has_state(node)),
        *(("the event was split into several rows, and the others have gone on",) if is_child else ()),
        *(
            f"{node.kind} {node.name!r} may have made several rows of it"
            for node in [*before, graph.node(step)]
            if _may_multiply(node)
        ),
        *(
            f"{node.kind} {node.name!r} brings several ways of the event together, and it may have failed on one only"
            for node in [*before, graph.node(step)]
            if isinstance(node.step, Merge) and len(past & set(node.inputs)) > 1
        ),
    )


def _reached(graph: LogicalGraph, start: str, *, without: str | None = None) -> set[str]:
    """The steps that rows of a step reach, itself among them, without passing another one."""
    reached = set() if start == without else {start}
    for node in graph.nodes:  # every node comes after those that feed it
        if node.name != without and not isinstance(node.step, DeadLetterStep) and reached & set(node.inputs):
            reached.add(node.name)
    return reached


def _outputs(graph: LogicalGraph, reached: Collection[str]) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.step, Write) and node.name in reached]


def _has_state(node: Node) -> bool:
    return isinstance(node.step, Keyed | Join)


def _may_multiply(node: Node) -> bool:
    """Rows of a flat_map and of a join with a table are numbered, so a dead letter says whether it is one of them."""
    step = node.step
    if isinstance(step, Exchanged):
        return step.exchange is not None and step.exchange.strategy is Strategy.BROADCAST
    if isinstance(step, Select):
        return any(map(makes_rows, step.expressions.values()))
    return isinstance(step, Transform)
