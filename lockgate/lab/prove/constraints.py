"""What the steps of a job say about the columns and the times of its sources; workloads follow it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lockgate.dataflow.locations import Topic
from lockgate.dataflow.steps import (
    Detect,
    Exchanged,
    Join,
    Keyed,
    LateEvents,
    Merge,
    Part,
    Read,
    Rolling,
    Select,
    TableJoin,
    Timed,
    Where,
    Windowed,
    Write,
)
from lockgate.dataflow.windows import SessionWindow, SlidingWindow, TumblingWindow
from lockgate.lab.prove.determinism import order_keys
from lockgate.lab.prove.hints import hints_in_functions, hints_in_sql
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.nondeterminism import expressions_of


@dataclass(frozen=True)
class Constraints:
    """What the steps behind a source say about its columns."""

    domain: frozenset[str]  # columns that events are keyed or joined by, in lower case
    order: tuple[frozenset[str], ...]  # for each step that goes by order: the columns that hold what belongs together
    lateness: timedelta | None  # the shortest; None where no step goes by the time of events
    hints: Mapping[str, tuple[Any, ...]]

    @classmethod
    def of(cls, graph: LogicalGraph, streams: Collection[str], names: Set[str]) -> Constraints:
        """Those of a place that is read as these streams, for its columns, by their names in lower case."""
        untouched: dict[str, set[str]] = {}
        reached: set[str] = set()
        domain: set[str] = set()
        order: list[frozenset[str]] = []
        lateness: list[timedelta] = []
        hints: dict[str, list[Any]] = {}
        for node in graph.nodes:
            if isinstance(node.step, Read):
                if node.name in streams:
                    untouched[node.name] = set(names)
                    reached.add(node.name)
                continue
            before = [name for name in node.inputs if name in reached]
            if not before:
                continue
            reached.add(node.name)
            here = set[str]().union(*(untouched[name] for name in before))
            untouched[node.name] = _kept(node, here)
            domain |= here & {name.lower() for name in _key_names(node)}
            keys = order_keys(graph, node)
            if keys is not None:
                order.append(frozenset(here & {name.lower() for name in keys}))
            if isinstance(node.step, Timed) and not node.step.time.is_arrival:
                lateness.append(node.step.time.lateness)
            said = [hint for sql in expressions_of(node) for hint in hints_in_sql(sql)]
            for name, value in (*said, *hints_in_functions(node.step, sorted(here))):
                hints.setdefault(name, []).append(value)
        hinted = {name: tuple(dict.fromkeys(values)) for name, values in hints.items()}
        return cls(frozenset(domain), tuple(order), min(lateness, default=None), hinted)


def _kept(node: Node, names: set[str]) -> set[str]:
    """The columns of a source that are behind a step what they were before it."""
    step = node.step
    if isinstance(step, Select):
        return names & {name.lower() for name in step.columns}
    if isinstance(step, Where | Part | Timed | Exchanged | Merge | TableJoin | Rolling | LateEvents):
        return names
    return set()


def _key_names(node: Node) -> Sequence[str]:
    step = node.step
    if isinstance(step, Keyed):
        return step.keys
    if isinstance(step, Join | TableJoin):
        return step.on
    location = step.sink.location if isinstance(step, Write) else None
    if isinstance(location, Topic):
        return location.key
    return () if location is None else location.replaced_by


def longest_wait(graph: LogicalGraph) -> timedelta:
    """The longest time that the job waits for anything, by the time of events."""
    spans = [timedelta(0)]
    for step in (node.step for node in graph.nodes):
        if isinstance(step, Windowed):
            window = step.window
            spans += [window.size] if isinstance(window, TumblingWindow | SlidingWindow) else []
            spans += [window.gap] if isinstance(window, SessionWindow) else []
        elif isinstance(step, Join) and step.within is not None:
            spans.append(step.within)
        elif isinstance(step, Detect) and step.pattern.bound is not None:
            spans.append(step.pattern.bound)
    allowed = [node.step.time.allowed for node in graph.nodes if isinstance(node.step, Timed)]
    return max(spans) + max((one for one in allowed if one is not None), default=timedelta(0))
