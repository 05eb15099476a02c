"""The physical graph: the tasks that run each step, and the exchange on every edge.

    edge into               exchange               chosen by
    rolling, window, join   by key                 the planner: rows of a key must meet in one task
    a transactional sink    by key                 the planner: each part of the sink has one writer (none if rows have
                                                   no key, or source and sink are partitioned alike)
    a join, from a table    broadcast              the planner: every task holds the whole table
    anything else           forward                the planner: nothing has to move
    the step after an       what it says           the user
    `.exchange(...)`
    the step after a        random                 the planner, to distribute rows over that many tasks
    `.parallel(n)`

Steps that are joined by forward edges run in one task, one row after the other (a stage). All steps with state of one
query share one number of partitions, because Spark keeps one for the whole query.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lockgate.dataflow.aggregates import Aggregate
from lockgate.dataflow.duration import as_people_text
from lockgate.dataflow.exchange import Exchange, Strategy
from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.steps import (
    DeadLetterStep,
    Exchanged,
    FlatMap,
    Join,
    Keyed,
    Map,
    Merge,
    Part,
    Read,
    Rolling,
    Select,
    TableJoin,
    Timed,
    Transform,
    Where,
    WindowAggregate,
    WindowApply,
    Write,
)
from lockgate.dataflow.table import ReadTable
from lockgate.errors import BadJob
from lockgate.guarantees import Delivery, Guarantee, Mode
from lockgate.planner.forms import why_operator
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.nondeterminism import is_nondeterministic_above_state

REAL_TIME_EPOCH = timedelta(seconds=60)
"""In real-time mode rows do not wait for the end of an epoch, and each end costs a pause: epochs are at least this."""

STATE_PARTITIONS = 4
"""Partitions of keyed state, unless `.parallel(n)` declares or a checkpoint has another number."""

_NATIVE = "Spark has it natively"


@dataclass(frozen=True)
class PhysicalStep:
    """A step as it runs."""

    name: str
    kind: str
    stage: int
    tasks: str
    execution: str  # "native", "Python" or, of a sink or a table, "driver"
    reason: str
    has_state: bool


@dataclass(frozen=True)
class Edge:
    """How rows get from one step to the next."""

    source: str
    target: str
    exchange: Exchange
    chosen_by: str  # "planner" or "author"
    reason: str


@dataclass(frozen=True)
class PhysicalGraph:
    """The graph as it runs."""

    mode: Mode
    epoch: timedelta
    steps: tuple[PhysicalStep, ...]
    edges: tuple[Edge, ...]
    state_partitions: int
    asked_partitions: int | None = None  # by `.parallel(n)` of a step with state

    def step(self, name: str) -> PhysicalStep:
        """The step of that name."""
        return next(step for step in self.steps if step.name == name)


def build_physical(graph: LogicalGraph, kept: int | None = None) -> PhysicalGraph:
    """The physical graph of a logical one; raises BadJob if placements contradict each other.

    Args:
        kept: how many partitions existing state has; the user's number counts more.
    """
    asked = _asked_partitions(graph)
    state_partitions = asked or kept or STATE_PARTITIONS
    stages: dict[str, int] = {}
    tasks: dict[str, str] = {}
    steps: list[PhysicalStep] = []
    edges: list[Edge] = []
    next_stage = 0
    for node in graph.nodes:
        incoming = [_edge(graph, graph.node(name), node) for name in node.inputs]
        edges.extend(incoming)
        # A table is sent to the tasks that hold the events; these do not move for it.
        events = [edge for edge in incoming if not isinstance(graph.node(edge.source).step, ReadTable)]
        moves = [edge for edge in events if edge.exchange.strategy is not Strategy.FORWARD]
        if not events or moves or len({stages[edge.source] for edge in events}) > 1:
            stages[node.name] = next_stage
            next_stage += 1
        else:
            stages[node.name] = stages[events[0].source]
        tasks[node.name] = _tasks(node, [tasks[name] for name in node.inputs], state_partitions)
        execution, reason = _execution(graph, node)
        steps.append(
            PhysicalStep(
                name=node.name,
                kind=node.kind,
                stage=stages[node.name],
                tasks=tasks[node.name],
                execution=execution,
                reason=reason,
                has_state=has_state(node),
            )
        )
    is_real_time = graph.job.mode is Mode.REAL_TIME
    epoch = max(graph.job.epoch, REAL_TIME_EPOCH) if is_real_time else graph.job.epoch
    return PhysicalGraph(
        mode=graph.job.mode,
        epoch=epoch,
        steps=tuple(steps),
        edges=tuple(edges),
        state_partitions=state_partitions,
        asked_partitions=asked,
    )


def has_state(node: Node) -> bool:
    """Does the step remember anything from one epoch to the next?"""
    return isinstance(node.step, Keyed | Join)


def is_exact(graph: LogicalGraph, node: Node) -> bool:
    """Is this output written in transactions, together with the job's ledger?

    It is if it declares end-to-end exactly-once. An upsert by key that declares less is, too: without the ledger, a
    driver that slept while another driver took over would write its older rows over the newer ones.
    """
    step = node.step
    if not isinstance(step, Write) or graph.job.mode is Mode.REAL_TIME:
        return False
    ability = step.sink.ability
    if ability.delivery is not Delivery.TRANSACTIONAL:
        return False
    if declared_of(graph, step) is Guarantee.END_TO_END_EXACTLY_ONCE:
        return True
    # At-most-once runs keep no epochs that a ledger could name; acknowledged events change their epoch. A ledger lets a
    # replay skip an epoch, which loses events if the replay gives state other values than the rows that are committed.
    is_kept = graph.job.guarantee is not Guarantee.AT_MOST_ONCE and graph.job.tracking is None
    return is_kept and ability.otherwise is Delivery.IDEMPOTENT and not is_nondeterministic_above_state(graph, node)


def declared_of(graph: LogicalGraph, write: Write) -> Guarantee:
    """What is declared for an output: its own guarantee, or the job's."""
    return graph.job.guarantee if write.guarantee is None else write.guarantee


def is_partitioned_alike(graph: LogicalGraph, output: Node) -> bool:
    """Do rows leave in tasks that each hold the rows of one part of the sink, as far as the plan knows?

    True if the one transactional output is partitioned by a column by which its source is partitioned too, and which
    is not changed on the way. The sender may have placed its records otherwise; the run finds out.
    """
    if not isinstance(output.step, Write) or sum(is_exact(graph, node) for node in graph.nodes) != 1:
        return False
    wanted = output.step.sink.partitioned_by
    if len(wanted) != 1:
        return False
    name, node = wanted[0], graph.node(output.inputs[0])
    while not isinstance(node.step, Read):
        step = node.step
        if isinstance(step, Select) and not {name, "*"} & set(step.columns):
            return False
        if not isinstance(step, Where | Part | Select | Timed | TableJoin):
            return False
        node = graph.node(node.inputs[0])
    return name in node.step.source.partitioned_by


def _edge(graph: LogicalGraph, source: Node, target: Node) -> Edge:
    step = target.step
    exchange, chosen_by, reason = Exchange(strategy=Strategy.FORWARD), "planner", "nothing has to move"
    if isinstance(source.step, ReadTable):
        exchange = Exchange(strategy=Strategy.BROADCAST)
        reason = f"every task holds the whole table, and rereads it every {as_people_text(source.step.refresh)}"
    elif isinstance(step, Exchanged):
        if step.exchange is not None:
            exchange, chosen_by, reason = step.exchange, "author", f"imposed at {step.origin}"
        else:
            exchange = Exchange(strategy=Strategy.RANDOM)
            reason = f"distributed over the {step.tasks} tasks asked for at {step.origin}"
    elif has_state(target):
        keys = step.on if isinstance(step, Join) else getattr(step, "keys", ())
        if isinstance(source.step, Exchanged) and source.step.exchange is not None:
            _refuse_unless_by_key(source, target, keys)
        exchange = Exchange(strategy=Strategy.BY_KEY, keys=keys or ("window",))
        reason = "rows of a key must meet in one task"
    elif isinstance(step, Write) and is_exact(graph, target) and step.sink.partitioned_by:
        if is_partitioned_alike(graph, target):
            reason = "source and sink are partitioned alike; rows are exchanged if that turns out wrong"
        else:
            exchange = Exchange(strategy=Strategy.BY_KEY, keys=step.sink.partitioned_by)
            reason = "each partition of the topic has one writer"
    return Edge(source=source.name, target=target.name, exchange=exchange, chosen_by=chosen_by, reason=reason)


def _refuse_unless_by_key(exchanged: Node, target: Node, keys: tuple[str, ...]) -> None:
    step = exchanged.step
    if not isinstance(step, Exchanged) or step.exchange is None:
        return
    imposed = step.exchange
    if imposed.strategy is Strategy.BY_KEY and {key.lower() for key in imposed.keys} == {key.lower() for key in keys}:
        return
    if imposed.strategy is Strategy.RANDOM:
        return  # harmless: the planner's exchange by key follows it
    raise BadJob(
        f"an exchange {imposed} is imposed before {target.kind} {target.name!r}, which needs its rows by key"
        f" ({', '.join(keys) or 'one for all'})",
        where=f"{exchanged.where}; {target.where}",
        fix="remove the exchange; the planner chooses the one by key",
    )


def _asked_partitions(graph: LogicalGraph) -> int | None:
    asked: dict[int, Node] = {}
    for node in graph.nodes:
        tasks = getattr(node.step, "tasks", None)
        if has_state(node) and tasks is not None:
            asked.setdefault(tasks, node)
    if len(asked) > 1:
        (one, first), (two, second) = list(asked.items())[:2]
        raise BadJob(
            f"two steps with state ask for {one} and {two} tasks, but Spark keeps one number of state partitions"
            " for a whole query",
            where=f"{first.where}; {second.where}",
            fix="ask for the same number in both, or make two jobs",
        )
    return next(iter(asked), None)


def _tasks(node: Node, inputs: list[str], state_partitions: int) -> str:
    step = node.step
    if isinstance(step, Read):
        return step.source.tasks
    if isinstance(step, ReadTable | DeadLetterStep):
        return "1"
    if has_state(node):
        return str(state_partitions)
    if isinstance(step, Exchanged) and step.tasks is not None:
        is_forward = step.exchange is not None and step.exchange.strategy is Strategy.FORWARD
        return f"at most {step.tasks}" if is_forward else str(step.tasks)
    if isinstance(step, Exchanged) and step.exchange is not None and step.exchange.strategy is not Strategy.FORWARD:
        return str(state_partitions)
    if isinstance(step, Merge):
        return " + ".join(inputs)
    return inputs[0]


def _history(step: Keyed) -> str:
    """What a step keeps without bound, for the plan."""
    if isinstance(step, WindowApply):
        return "; all events are kept until the window closes"
    aggregates = step.aggregates if isinstance(step, Rolling | WindowAggregate) else {}
    kept = [name for name, one in aggregates.items() if isinstance(one, Aggregate) and not one.is_bounded]
    return f"; all values are kept for {', '.join(kept)}" if kept else ""


def _execution(graph: LogicalGraph, node: Node) -> tuple[str, str]:
    step = node.step
    if isinstance(step, Write):
        return step.sink.execution(is_exact=is_exact(graph, node))
    if isinstance(step, Map | FlatMap) or (isinstance(step, Where) and callable(step.condition)):
        return "Python", "a function of the user runs in Python workers, in Arrow batches"
    if isinstance(step, FanOut):
        return "Python", (
            f"{', '.join(step.functions)} side by side, in threads of Python workers, in micro-batches: the deadline of"
            f" {as_people_text(step.deadline)} starts when the task gives them the event, and not at its arrival;"
            " real-time mode, which has no such wait, runs no Python"
        )
    if isinstance(step, Keyed):
        reason = why_operator(step, graph.node(node.inputs[0]).flow.time)
        return ("native", _NATIVE) if reason is None else ("Python", f"{reason}{_history(step)}")
    if isinstance(step, ReadTable):
        every = as_people_text(step.refresh)
        return "driver", f"read whole at the start and every {every}; an epoch keeps the snapshot that it saw first"
    if isinstance(step, TableJoin):
        return "Python", "the key alone goes to Python workers, which hold the table; all other columns stay in Spark"
    if isinstance(step, DeadLetterStep):
        return "driver", "added to the rows of their epoch, when these are computed"
    if isinstance(step, Transform):
        return "native", "as the user's function says"
    if isinstance(step, Read) and not step.source.is_native:
        return "Python", "its rows are made in Python workers, in Arrow batches"
    return "native", _NATIVE
