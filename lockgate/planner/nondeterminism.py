"""Which steps are not deterministic, by declaration or by their SQL: they may give other results for the same rows.

Such a step does no harm if nothing remembers what it gave. State does: a replay would build other state than the first
try. So no ledger may skip an epoch with state after such a step (`is_nondeterministic_above_state`).
"""

from __future__ import annotations

from collections.abc import Iterable

from lockgate.dataflow.aggregates import Aggregate
from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.steps import (
    DeadLetterStep,
    Detect,
    FlatMap,
    Join,
    Keyed,
    Map,
    Part,
    Process,
    Rolling,
    Select,
    Transform,
    Where,
    WindowAggregate,
    WindowApply,
    Windowed,
    Write,
)
from lockgate.dataflow.windows import UntilWindow
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.sql import find_nondeterministic


def is_nondeterministic_above_state(graph: LogicalGraph, output: Node) -> bool:
    """Does an output depend on state that a replay could build otherwise?

    Dead letters come from any step, and one that comes only in the replay is missing in the state that counts.
    """
    before = graph.node(output.inputs[0])
    wanted = {node.name for node in graph.nodes} if isinstance(before.step, DeadLetterStep) else {before.name}
    for node in reversed(graph.nodes):  # every step comes after those that feed it
        if node.name in wanted:
            wanted.update(node.inputs)
    by_chance = set[str]()
    for node in graph.nodes:
        if is_nondeterministic(node) or by_chance & {*node.inputs}:
            by_chance.add(node.name)
    return any(
        node.name in wanted & by_chance and isinstance(node.step, Keyed | Join | Transform) for node in graph.nodes
    )


def feeds_state(graph: LogicalGraph, node: Node) -> bool:
    """Does anything after a step remember its rows? A transform may."""
    behind = {node.name}
    for one in graph.nodes:  # every step comes after those that feed it
        if behind & {*one.inputs}:
            if isinstance(one.step, Keyed | Join | Transform):
                return True
            behind.add(one.name)
    return False


def is_nondeterministic(node: Node) -> bool:
    """May the step give other results for the same rows, by the declaration of its functions or by its SQL?"""
    step = node.step
    if isinstance(step, FanOut):
        return True
    if isinstance(step, Map | FlatMap | Transform | WindowApply | Process) and not step.is_deterministic:
        return True
    if isinstance(step, Rolling | WindowAggregate) and not all(map(_is_steady, step.aggregates.values())):
        return True
    if isinstance(step, Where) and callable(step.condition):
        return not step.is_deterministic
    return any(find_nondeterministic(sql) is not None for sql in expressions_of(node))


def expressions_of(node: Node) -> Iterable[str]:
    """The SQL of a step, or of its sink."""
    step = node.step
    if isinstance(step, Where | Part):
        return [step.condition] if isinstance(step.condition, str) else []
    if isinstance(step, Select):
        return step.expressions.values()
    if isinstance(step, Rolling | Windowed):
        aggregates = step.aggregates if isinstance(step, Rolling | WindowAggregate) else {}
        until = [step.window.condition] if isinstance(step, Windowed) and isinstance(step.window, UntilWindow) else []
        return [*map(_as_code, aggregates.values()), *until]
    if isinstance(step, Detect):
        return step.pattern.conditions
    if isinstance(step, Write):
        return step.sink.expressions()
    return []


def _as_code(aggregate: str | Aggregate) -> str:
    """The SQL of an aggregate, without the name of a function that only looks like SQL's."""
    return aggregate if isinstance(aggregate, str) else aggregate.argument or ""


def _is_steady(aggregate: str | Aggregate) -> bool:
    """Does it give the same result again? SQL text is checked separately."""
    return isinstance(aggregate, str) or aggregate.is_deterministic
