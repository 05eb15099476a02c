"""The logical graph: what a job asks for, walked back from its outputs, with a name and columns for every step.

Everything without a meaning is refused while the graph is built, with the user's own line, before a JVM or a broker is
used. This file refuses what the walk itself finds: a step without a source, a cycle, a name used twice. columns.py and
keyed.py refuse what does not fit a step, refusals.py everything else. Columns are followed as far as SQL can be parsed.
After a `transform` they are unknown (None), and Spark's analyser checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockgate.dataflow.deadletters import NAME
from lockgate.dataflow.exchange import Strategy
from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.job import Job
from lockgate.dataflow.origin import Origin
from lockgate.dataflow.steps import (
    DeadLetterStep,
    Detect,
    Exchanged,
    FlatMap,
    Join,
    Keyed,
    LateEvents,
    Map,
    Merge,
    Part,
    Process,
    Read,
    Rolling,
    Select,
    Step,
    TableJoin,
    Timed,
    TimedOut,
    Transform,
    Where,
    WindowAggregate,
    WindowApply,
    Write,
)
from lockgate.dataflow.table import ReadTable
from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee
from lockgate.planner.columns import step_flow
from lockgate.planner.flow import Flow
from lockgate.planner.forms import why_operator
from lockgate.planner.refusals import refuse_graph, refuse_job, refuse_step

KINDS: dict[type[Step], str] = {
    Read: "source",
    ReadTable: "table",
    Where: "where",
    Select: "select",
    Map: "map",
    FlatMap: "flat_map",
    Transform: "transform",
    FanOut: "fan_out",
    Part: "part",
    Merge: "merge",
    Join: "join",
    TableJoin: "table_join",
    Timed: "event_time",
    Exchanged: "exchange",
    Rolling: "rolling",
    WindowAggregate: "window",
    WindowApply: "window",
    Process: "process",
    Detect: "detect",
    LateEvents: "late",
    TimedOut: "timed_out",
    DeadLetterStep: "dead_letters",
    Write: "sink",
}


@dataclass(frozen=True, eq=False)
class Node:
    """A step with its name in this job and what leaves it."""

    name: str
    kind: str
    step: Step
    inputs: tuple[str, ...]
    flow: Flow

    @property
    def where(self) -> str:
        """The step as errors name it."""
        return _where(self.kind, self.name, self.step.origin)


@dataclass(frozen=True, eq=False)
class LogicalGraph:
    """All steps of a job, every one after those that feed it."""

    job: Job
    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def of_kind(self, kind: str) -> tuple[Node, ...]:
        """The nodes of a kind, e.g. all sinks."""
        return tuple(node for node in self.nodes if node.kind == kind)


def is_operator(graph: LogicalGraph, node: Node) -> bool:
    """Is it a keyed step that runs in Python?"""
    step = node.step
    return isinstance(step, Keyed) and why_operator(step, graph.node(node.inputs[0]).flow.time) is not None


def build_logical(job: Job) -> LogicalGraph:
    """The logical graph of a job; raises BadJob if it has no meaning."""
    refuse_job(job)
    steps = _walk(job)
    steps += _letters(job, steps)
    names = _name(job, steps)
    nodes: dict[Step, Node] = {}
    for step in steps:
        kind = KINDS[type(step)]
        where = _where(kind, names[step], step.origin)
        inputs = [nodes[before] for before in step.inputs]
        flows = [before.flow for before in inputs]
        flow = step_flow(step, flows, where)
        refuse_step(step, flows, where)
        nodes[step] = Node(names[step], kind, step, tuple(one.name for one in inputs), _carry(flow, flows, step))
    graph = LogicalGraph(job=job, nodes=tuple(nodes.values()))
    refuse_graph(graph)
    return graph


def _walk(job: Job) -> list[Step]:
    """All steps, inputs first; refuses steps without a source, and cycles."""
    ordered: list[Step] = []
    done: set[Step] = set()
    for output in job.outputs:
        # Depth first with our own stack: a long chain of steps must not exhaust Python's.
        open_steps: list[tuple[Step, list[Step]]] = [(output.step, list(output.step.inputs))]
        on_path: set[Step] = {output.step}
        while open_steps:
            step, waiting = open_steps[-1]
            if not step.inputs and not isinstance(step, Read | ReadTable):
                raise BadJob(
                    f"job {job.name!r} has a {KINDS[type(step)]} step without a source",
                    where=f"step declared at {step.origin}",
                    fix="begin with stream(name, source)",
                )
            if not waiting:
                open_steps.pop()
                on_path.discard(step)
                if step not in done:
                    done.add(step)
                    ordered.append(step)
                continue
            before = waiting.pop(0)
            if before in on_path:
                raise BadJob(
                    f"job {job.name!r} has a cycle: a {KINDS[type(before)]} step feeds itself",
                    where=f"step declared at {before.origin}",
                    fix="let every step read from steps that were described before it",
                )
            if before in done:
                continue
            on_path.add(before)
            open_steps.append((before, list(before.inputs)))
    return ordered


def _letters(job: Job, steps: Sequence[Step]) -> list[Step]:
    """The way of events that cannot be used: from every step that may find one to the sink of dead letters."""
    if job.dead_letters is None:
        return []
    letters = DeadLetterStep(inputs=tuple(step for step in steps if may_reject(step)), origin=job.origin)
    # Exactly-once (state) says something about state, which dead letters do not have: their id distinguishes them.
    declared = Guarantee.AT_LEAST_ONCE if job.guarantee is Guarantee.EXACTLY_ONCE else None
    return [
        letters,
        Write(inputs=(letters,), origin=job.origin, name=NAME, sink=job.dead_letters.sink, guarantee=declared),
    ]


def may_reject(step: Step) -> bool:
    """Can a step find that it cannot use an event?"""
    if isinstance(step, Where):
        return callable(step.condition)
    return isinstance(step, Read | Map | FlatMap | FanOut | Timed | Keyed)


def _name(job: Job, steps: Sequence[Step]) -> dict[Step, str]:
    """A name for every step: the user's, or its kind with a number."""
    names: dict[Step, str] = {}
    owners: dict[str, Step] = {}
    for step in steps:
        if step.name is None:
            continue
        other = owners.setdefault(step.name, step)
        if other is not step:
            raise BadJob(
                f"job {job.name!r} uses the name {step.name!r} twice",
                where=f"{KINDS[type(other)]} declared at {other.origin}, {KINDS[type(step)]} declared at {step.origin}",
                fix="give each source, output and named step a name of its own: state and metrics use it",
            )
        names[step] = step.name
    taken = set(owners)
    numbers: dict[str, int] = {}
    for step in steps:
        if step in names:
            continue
        base = step.part if isinstance(step, Part) else KINDS[type(step)]
        name = base
        while name in taken:
            numbers[base] = numbers.get(base, 1) + 1
            name = f"{base}-{numbers[base]}"
        taken.add(name)
        names[step] = name
    return names


def _where(kind: str, name: str, origin: Origin) -> str:
    return f"{kind} {name!r}, declared at {origin}"


def _carry(flow: Flow, inputs: Sequence[Flow], step: Step) -> Flow:
    """What stays true of a flow: whether it has a time, and whether events come several times."""
    told = step.origin if isinstance(step, Timed) else next((one.timed_at for one in inputs if one.timed_at), None)
    exchange = step.exchange if isinstance(step, Exchanged) else None
    copies = exchange is not None and exchange.strategy is Strategy.BROADCAST
    return replace(flow, timed_at=told, is_broadcast=copies or any(before.is_broadcast for before in inputs))
