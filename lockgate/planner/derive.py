"""The guarantee of a job, derived: every path from a source to a sink is worth what its weakest part is worth.

    part of a path                                          caps the path at
    a source that cannot be replayed                        at-most-once
    such a source that is acknowledged after an epoch       at-least-once
    a function that is not deterministic, above state       at-least-once
      (a fan-out never is: its deadline decides)
    state in real-time mode, unless it is a max or min      at-least-once
    a plain sink, below state                               exactly-once (state)
    a plain sink, without state                             at-least-once
    a transactional sink in real-time mode                  as a plain one
    a sink that is idempotent by key, below a function      as a plain one
      that is not deterministic
    a sink that is idempotent by key and not fenced         as a plain one, but an older row may replace a newer one
    a sink in a second Kafka cluster, below a function      as a plain one
      that is not deterministic, or that adds fractions
    any other sink that is transactional or idempotent      nothing: end-to-end exactly-once

A transactional sink without a transaction (less is declared, or real-time mode) is plain. A database that replaces rows
by key always has one: its ledger stops a driver that was replaced (see `is_exact`).

Idempotence lifts: what is applied twice has the effect of once, so at-least-once below it is as good as exactly-once.
It does not lift what only an acknowledgement keeps: that may come again after something newer.
A `transform` is opaque. It counts as state if state would lower the guarantee, and as no state if state would raise it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockgate.dataflow.endpoints import SourceAbility
from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.steps import (
    DeadLetterStep,
    Read,
    Rolling,
    TableJoin,
    Transform,
    WindowAggregate,
    Write,
)
from lockgate.dataflow.table import ReadTable
from lockgate.dataflow.windows import TimeWindow
from lockgate.guarantees import Delivery, Guarantee, Mode
from lockgate.planner.fractions import depends_on_order
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.nondeterminism import is_nondeterministic
from lockgate.planner.physical import declared_of, has_state, is_exact
from lockgate.planner.sql import is_idempotent_aggregate

_UNFENCED = (
    "a driver that slept while another driver took over can replace a newer row of a key by an older one, so the table"
    " lacks the effect of the newer event until the next row of that key"
)


@dataclass(frozen=True)
class Cap:
    """A part of a path that limits what the path can promise, and how to lift it."""

    guarantee: Guarantee
    part: str
    where: str
    reason: str
    cure: str


@dataclass(frozen=True)
class PathGuarantee:
    """What one way from a source to a sink is worth, and why."""

    source: str
    output: str
    declared: Guarantee
    reached: Guarantee
    caps: tuple[Cap, ...]  # the weakest first; empty if nothing limits the path
    lifts: tuple[str, ...]  # what was made harmless, and how

    @property
    def deciding(self) -> tuple[Cap, ...]:
        """The parts that limit it most, each once: all of them must be fixed before it is worth more."""
        return tuple({cap.part: cap for cap in reversed(self.caps) if cap.guarantee is self.reached}.values())[::-1]

    @property
    def is_kept(self) -> bool:
        """Does the path reach what is declared for its output?"""
        return self.reached >= self.declared


@dataclass(frozen=True)
class _Trail:
    """What matters of a path so far: enough to judge it at its sink, and no more."""

    source: Node
    state: Node | None = None  # a step that certainly keeps state
    may_have_state: bool = False
    is_state_idempotent: bool = True
    nondeterministic: Node | None = None  # a function that is not deterministic
    nondeterministic_above_state: Node | None = None
    adding: Node | None = None  # a window that adds fractions, so that a replay may round otherwise
    tables: tuple[Node, ...] = ()  # joins with tables that change while the job runs


def derive(graph: LogicalGraph) -> tuple[PathGuarantee, ...]:
    """The guarantee of every path, one for each source and output (the weakest if there are several)."""
    # Without duplicates and in the order of the graph, so that a plan reads the same every time.
    trails: dict[str, tuple[_Trail, ...]] = {}
    paths: dict[tuple[str, str], PathGuarantee] = {}
    for node in graph.nodes:
        if isinstance(node.step, Read):
            trails[node.name] = (_Trail(source=node),)
            continue
        if isinstance(node.step, ReadTable):
            trails[node.name] = ()  # no event comes from a table
            continue
        # Dead letters come from everything before an output, and from it: SQL fails on a row, or a sink refuses it.
        inputs = tuple(trails) if isinstance(node.step, DeadLetterStep) else node.inputs
        before = dict.fromkeys(trail for name in inputs for trail in trails[name])
        trails[node.name] = tuple(dict.fromkeys(_extend(graph, trail, node) for trail in before))
        if isinstance(node.step, Write):
            for trail in trails[node.name]:
                path = _judge(graph, trail, node, node.step)
                key = (path.source, path.output)
                if key not in paths or path.reached < paths[key].reached:
                    paths[key] = path
    return tuple(paths.values())


def needs_same_rows(graph: LogicalGraph, step: Node) -> bool:
    """Does an output after a step promise what it can keep only if a repeated epoch gives it the same rows?"""
    behind = {step.name}
    for node in graph.nodes:  # every step comes after those that feed it
        if not behind & {*node.inputs} and not isinstance(node.step, DeadLetterStep):
            continue
        behind.add(node.name)
        if not isinstance(node.step, Write) or declared_of(graph, node.step) is not Guarantee.END_TO_END_EXACTLY_ONCE:
            continue
        if node.step.sink.ability.delivery is Delivery.IDEMPOTENT or _other_cluster(graph, node) is not None:
            return True
    return False


def _extend(graph: LogicalGraph, trail: _Trail, node: Node) -> _Trail:
    is_opaque = isinstance(node.step, Transform)
    if has_state(node) or is_opaque:
        trail = replace(
            trail,
            state=trail.state if is_opaque else node,
            may_have_state=True,
            is_state_idempotent=trail.is_state_idempotent and _is_idempotent(node),
            nondeterministic_above_state=trail.nondeterministic_above_state or trail.nondeterministic,
        )
    if trail.nondeterministic is None and is_nondeterministic(node):
        trail = replace(
            trail,
            nondeterministic=node,
            # An aggregate over a random value, or an opaque step, is both not deterministic and state.
            nondeterministic_above_state=trail.nondeterministic_above_state
            or (node if has_state(node) or is_opaque else None),
        )
    if trail.adding is None and depends_on_order(graph, node):
        trail = replace(trail, adding=node)
    if isinstance(node.step, TableJoin):
        trail = replace(trail, tables=(*trail.tables, node))
    return trail


def _judge(graph: LogicalGraph, trail: _Trail, output: Node, write: Write) -> PathGuarantee:
    caps: list[Cap] = []
    lifts: list[str] = []
    sink = write.sink.ability
    source = trail.source
    declared = declared_of(graph, write)
    has_transaction = is_exact(graph, output)
    # If only the rows may be written twice, state still counts every event once.
    rows_twice = Guarantee.EXACTLY_ONCE if trail.state is not None else Guarantee.AT_LEAST_ONCE
    if isinstance(source.step, Read) and not source.step.source.ability.is_replayable:
        caps.append(_source_cap(source, source.step.source.ability))
    if graph.job.guarantee is Guarantee.AT_MOST_ONCE:
        caps.append(
            Cap(
                guarantee=Guarantee.AT_MOST_ONCE,
                part=f"job {graph.job.name!r}",
                where=f"job {graph.job.name!r}, declared at {graph.job.origin}",
                reason="it is run at most once: a failure costs the events in hand and all state",
                cure="declare guarantee=Guarantee.AT_LEAST_ONCE, or more",
            )
        )
    if trail.nondeterministic_above_state is not None:
        danger = "state after a replay could differ from rows that are already committed"
        caps.append(_nondeterminism_cap(trail.nondeterministic_above_state, Guarantee.AT_LEAST_ONCE, danger))
    elif trail.nondeterministic is not None and sink.delivery is Delivery.IDEMPOTENT:
        caps.append(
            _nondeterminism_cap(
                trail.nondeterministic, rows_twice, "a repeated row could have another key and not replace the first"
            )
        )
    if graph.job.tracking is not None:
        caps.append(
            Cap(
                guarantee=Guarantee.AT_LEAST_ONCE,
                part="tracking by acknowledgement",
                where=f"job {graph.job.name!r}, declared at {graph.job.origin}",
                reason="an event that is retried may have reached state or sinks before, and order changes",
                cure="remove tracking=: events are tracked by checkpoint",
            )
        )
    if graph.job.mode is Mode.REAL_TIME:
        if trail.may_have_state and not trail.is_state_idempotent:
            caps.append(
                Cap(
                    guarantee=Guarantee.AT_LEAST_ONCE,
                    part="real-time mode",
                    where=f"job {graph.job.name!r}, declared at {graph.job.origin}",
                    reason="an epoch may hold other rows after a restart, so an event can reach state twice",
                    cure="declare mode=Mode.MICRO_BATCH",
                )
            )
        elif trail.state is not None:
            lifts.append(
                f"{trail.state.kind} {trail.state.name!r} keeps a max or min: an event that comes twice changes nothing"
            )
    if sink.delivery is Delivery.IDEMPOTENT and sink.is_fenced:
        if trail.nondeterministic is None:
            lifts.append(f"sink {output.name!r} is idempotent by key: a row that comes twice replaces itself")
    elif sink.delivery is Delivery.IDEMPOTENT:
        caps.append(
            Cap(
                guarantee=rows_twice,
                part=f"sink {output.name!r}",
                where=output.where,
                reason=f"it is idempotent by key, but not fenced: {_UNFENCED}",
                cure="use a sink that commits rows together with a ledger (CommittingSink); or let the sink refuse"
                " rows that are older than its own, and say so: SinkAbility(is_fenced=True)",
            )
        )
    elif sink.delivery is Delivery.PLAIN:
        caps.append(
            Cap(
                guarantee=rows_twice,
                part=f"sink {output.name!r}",
                where=output.where,
                reason=sink.reason,
                cure=sink.cure,
            )
        )
    elif graph.job.mode is Mode.REAL_TIME:
        caps.append(
            Cap(
                guarantee=rows_twice,
                part="real-time mode",
                where=f"job {graph.job.name!r}, declared at {graph.job.origin}",
                reason="rows leave before their epoch ends, so no transaction can hold them together",
                cure="declare mode=Mode.MICRO_BATCH",
            )
        )
    elif not has_transaction:
        caps.append(
            Cap(
                guarantee=rows_twice,
                part=f"sink {output.name!r}",
                where=output.where,
                reason="no more is declared for it, so its rows are written as they come, without a transaction"
                + (f"; and {_UNFENCED}" if sink.otherwise is Delivery.IDEMPOTENT else ""),
                cure=sink.cure,
            )
        )
    elif (first := _other_cluster(graph, output)) is not None:
        danger = f"sink {output.name!r} commits after sink {first!r}, in another cluster: it could get other rows"
        if trail.nondeterministic is not None:
            caps.append(_nondeterminism_cap(trail.nondeterministic, rows_twice, danger))
        elif trail.adding is not None:
            caps.append(_adding_cap(trail.adding, rows_twice, danger))
        else:
            lifts.append(
                f"sink {output.name!r} commits after sink {first!r}, in another cluster: all steps are deterministic,"
                " so after a crash in between it gets the same rows"
            )
    elif (
        trail.nondeterministic is not None
        and isinstance(trail.nondeterministic.step, FanOut)
        and trail.nondeterministic_above_state is None
    ):
        lifts.append(
            f"{trail.nondeterministic.kind} {trail.nondeterministic.name!r} may give other scores when an epoch is"
            " repeated, but nothing of the"
            " first try is committed then"
        )
    if has_transaction and declared is not Guarantee.END_TO_END_EXACTLY_ONCE:
        lifts.append(
            f"sink {output.name!r} upserts by key, and commits its rows together with the job's ledger, although less"
            " is declared: a driver that was replaced cannot write older rows over newer ones"
        )
    if has_transaction and sink.otherwise is Delivery.IDEMPOTENT and trail.state and trail.is_state_idempotent:
        lifts.append(
            f"if {source.name!r} has an event twice, as an at-least-once job leaves it there, nothing changes:"
            f" {trail.state.kind} {trail.state.name!r} keeps a max or min, and sink {output.name!r} upserts by key"
        )
    lifts.extend(
        f"table {node.inputs[1]!r} changes while the job runs, but a repeated epoch sees the snapshot that it saw"
        f" first: {node.kind} {node.name!r} gives the same rows"
        for node in trail.tables
    )
    caps.sort(key=lambda cap: cap.guarantee)
    return PathGuarantee(
        source=source.name,
        output=output.name,
        declared=declared,
        reached=caps[0].guarantee if caps else Guarantee.END_TO_END_EXACTLY_ONCE,
        caps=tuple(caps),
        lifts=tuple(lifts),
    )


def _other_cluster(graph: LogicalGraph, output: Node) -> str | None:
    """The first output of the job that commits in a cluster, if this one commits in another cluster."""
    hosts = {
        node.name: node.step.sink.commits_at
        for node in graph.nodes
        if is_exact(graph, node) and isinstance(node.step, Write) and node.step.sink.commits_at
    }
    first = next(iter(hosts), None)
    if first is None or output.name not in hosts or hosts[first] & hosts[output.name]:
        return None
    return first


def _source_cap(node: Node, ability: SourceAbility) -> Cap:
    log = "read from a log that can be replayed (KafkaSource, FileSource)"
    in_front = (
        "put a log in front of it: an at-least-once job from this source into a topic (KafkaSink), and this job from"
        " that topic (KafkaSource); everything after the log can then be exactly-once"
    )
    return Cap(
        guarantee=Guarantee.AT_LEAST_ONCE if ability.is_acknowledged else Guarantee.AT_MOST_ONCE,
        part=f"source {node.name!r}",
        where=node.where,
        reason=ability.reason,
        cure=in_front if ability.is_acknowledged else log,
    )


def _nondeterminism_cap(node: Node, guarantee: Guarantee, danger: str) -> Cap:
    if isinstance(node.step, FanOut):
        return Cap(
            guarantee=guarantee,
            part=f"{node.kind} {node.name!r}",
            where=node.where,
            reason=f"its deadline decides which scores are in a result: a replay has others, and {danger}",
            cure="write its results first: to a table by the event's id (an upsert), or exactly-once to a topic from"
            " which a second job continues",
        )
    return Cap(
        guarantee=guarantee,
        part=f"{node.kind} {node.name!r}",
        where=node.where,
        reason=f"it is not deterministic: on a replay it gives other results, and {danger}",
        cure="make it deterministic (derive ids and random values from the event), and declare it so",
    )


def _adding_cap(node: Node, guarantee: Guarantee, danger: str) -> Cap:
    return Cap(
        guarantee=guarantee,
        part=f"{node.kind} {node.name!r}",
        where=node.where,
        reason=f"it adds fractions: a replay may add in another order and round otherwise, and {danger}",
        cure="add DECIMAL or whole numbers of a type that the plan knows, as in sum(CAST(x AS DECIMAL(18, 2)))",
    )


def _is_idempotent(node: Node) -> bool:
    step = node.step
    if not isinstance(step, Rolling | WindowAggregate):
        return False
    if isinstance(step, WindowAggregate) and not isinstance(step.window, TimeWindow):
        return False  # an event that comes twice ends the window earlier
    return all(isinstance(one, str) and is_idempotent_aggregate(one) for one in step.aggregates.values())
