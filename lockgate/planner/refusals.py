"""What cannot be built or run: the refusals that need more than the columns of one step.

    looks at                        refuses
    the declarations of the job     what contradicts itself; a job without a sink
    a step, and what flows into it  steps that would count the copies of a broadcast, or events in time as late ones
    the whole graph                 a cycle through a topic, a table or a directory
                                    steps that real-time mode cannot run
                                    a stream whose time stands still in silence beside one whose time continues
                                    late events and missing scores that no sink takes

Columns are checked in columns.py and keyed.py, several places of a step that is not deterministic in passes.py, and
guarantees in derive.py. Every refusal names the step, the user's own line and the fix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockgate.dataflow.eventtime import EventTime, Late
from lockgate.dataflow.fanout import FanOut, Partial
from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import (
    FlatMap,
    Join,
    Keyed,
    LateEvents,
    Map,
    Read,
    Step,
    TableJoin,
    Timed,
    Transform,
    Where,
    Write,
)
from lockgate.dataflow.stream import Output
from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.flow import MISSED, Flow
from lockgate.planner.forms import has_late_events, why_operator

if TYPE_CHECKING:
    from lockgate.planner.logical import LogicalGraph, Node


def refuse_job(job: Job) -> None:
    """Refuse a job whose declarations contradict each other, and one without sinks."""
    where = f"job {job.name!r}, declared at {job.origin}"
    if job.dead_letters is not None and job.mode is Mode.REAL_TIME:
        raise BadJob(
            "dead letters are written with the rows of their epoch, and real-time mode has no such moment",
            where=where,
            fix="declare mode=Mode.MICRO_BATCH, or remove dead_letters=",
        )
    if job.tracking is not None and job.dead_letters is None:
        raise BadJob(
            "no sink takes the events that fail at every attempt",
            where=where,
            fix="say where they go: dead_letters=KafkaSink(...), or any other sink",
        )
    if job.tracking is not None and job.guarantee is not Guarantee.AT_LEAST_ONCE:
        raise BadJob(
            f"tracking by acknowledgement gives at-least-once: an event that is retried may be committed in part,"
            f" but {job.guarantee.label} is declared",
            where=where,
            fix="declare Guarantee.AT_LEAST_ONCE; or remove tracking=: events are tracked by checkpoint",
        )
    if not job.outputs:
        raise BadJob(
            f"job {job.name!r} has no sink: nothing it computes would go anywhere",
            where=f"declared at {job.origin}",
            fix='end a stream with .to("name", sink) and give the result to Job(...)',
        )
    for output in job.outputs:
        if not isinstance(output, Output):
            raise BadJob(
                f"job {job.name!r} is given a {type(output).__name__}, which ends in no sink",
                where=f"declared at {job.origin}",
                fix='end the stream with .to("name", sink)',
            )
        lower = output.step.guarantee
        if lower is not None and lower > job.guarantee:
            raise BadJob(
                f"output {output.step.name!r} declares {lower.label}, more than its job's {job.guarantee.label}",
                where=f"output {output.step.name!r}, declared at {output.step.origin}",
                fix="declare the stronger guarantee for the job; an output may only be lower",
            )


def refuse_step(step: Step, inputs: Sequence[Flow], where: str) -> None:
    """Refuse a step that must not get what flows into it."""
    if any(MISSED in flow.hidden for flow in inputs) and (_calls_function(step) or isinstance(step, Keyed | Join)):
        # Events in time pass beside the late ones, so nothing may count them or call functions on them.
        raise BadJob(
            "late events can pass where, select, split, merge and exchange in SQL on their way to a sink, nothing else",
            where=where,
            fix="write them to a sink first, and continue from there in another job",
        )
    if any(flow.is_broadcast for flow in inputs) and isinstance(step, Keyed | Join):
        raise BadJob(
            "every event comes several times after a broadcast, and would count several times in this step",
            where=where,
            fix="put the broadcast after the step, or use another exchange",
        )


def _calls_function(step: Step) -> bool:
    is_condition = isinstance(step, Where) and callable(step.condition)
    return is_condition or isinstance(step, Map | FlatMap | FanOut | Transform)


def refuse_graph(graph: LogicalGraph) -> None:
    """Refuse a graph that cannot run, or that would lose events silently."""
    for refuse in (
        _refuse_loops_outside,
        _refuse_unfit_for_real_time,
        _refuse_silence_without_idle,
        _refuse_late_events_without_sink,
        _refuse_dead_letters_without_sink,
    ):
        refuse(graph)


def _refuse_loops_outside(graph: LogicalGraph) -> None:
    read = {place: node for node in graph.nodes if isinstance(node.step, Read) for place in node.step.source.places}
    for node in graph.nodes:
        if not isinstance(node.step, Write):
            continue
        for place in node.step.sink.places & read.keys():
            raise BadJob(
                f"job {graph.job.name!r} has a cycle: it reads {place[1]}, which it writes",
                where=f"{read[place].where}; {node.where}",
                fix="write to another place",
            )


def _refuse_unfit_for_real_time(graph: LogicalGraph) -> None:
    if graph.job.mode is not Mode.REAL_TIME:
        return
    for node in graph.nodes:
        reason = _why_unfit_for_real_time(graph, node)
        if reason is not None:
            raise BadJob(
                f"{node.kind} {node.name!r} cannot run in real-time mode: {reason}",
                where=node.where,
                fix=_FIX_FAN_OUT if isinstance(node.step, FanOut) else _FIX_REAL_TIME,
            )
    if len(graph.of_kind("sink")) > 1:
        raise BadJob(
            f"job {graph.job.name!r} has several outputs, and real-time mode writes to one",
            where=f"job {graph.job.name!r}, declared at {graph.job.origin}",
            fix="make one job for each output, or declare mode=Mode.MICRO_BATCH",
        )


_FIX_REAL_TIME = "declare mode=Mode.MICRO_BATCH, or express the step in SQL between Kafka topics"
_FIX_FAN_OUT = (
    "declare mode=Mode.MICRO_BATCH, in which the deadline starts when a task gives the event to its"
    " functions; or write each function that SQL can express as a real-time job of its own, with a topic"
    " for its scores, and join these by the event's id"
)


def _why_unfit_for_real_time(graph: LogicalGraph, node: Node) -> str | None:
    """Why real-time mode cannot run a step; None if it can."""
    step = node.step
    if isinstance(step, Read) and not step.source.is_fit_for_real_time:
        return f"it cannot read from a {type(step.source).__name__}"
    if isinstance(step, Write) and not step.sink.is_fit_for_real_time:
        return f"it cannot write to a {type(step.sink).__name__}"
    if _calls_function(step) and not isinstance(step, Transform):
        return "it runs no Python functions"
    if isinstance(step, Keyed):
        reason = why_operator(step, graph.node(node.inputs[0]).flow.time)
        return None if reason is None else f"it runs no Python, and {reason}"
    if isinstance(step, TableJoin):
        return "it runs no Python workers, which hold the table"
    if isinstance(step, Join):
        return "it joins no streams"
    return _why_unfit_time(step.time) if isinstance(step, Timed) else None


def _why_unfit_time(time: EventTime) -> str | None:
    if time.late is not Late.DROP:
        return f"its epochs cannot be cut at the watermark, as late=Late.{time.late.name} needs"
    if time.idle is not None or time.max_ahead is not None:
        return "its epochs are long, and idle=, max_ahead= and processing time use the clock of an epoch"
    return None


def _refuse_silence_without_idle(graph: LogicalGraph) -> None:
    """The least watermark counts, so one stream whose time stands still in silence would hold back all others."""
    timed = [(node, node.step.time) for node in graph.nodes if isinstance(node.step, Timed)]
    speaking = [node for node, time in timed if time.idle is not None]
    for node, time in timed:
        if speaking and time.idle is None:
            raise BadJob(
                "time continues in silence for one stream of the job and not for this one, which would hold it back",
                where=f"{node.where}; {speaking[0].where}",
                fix="declare idle= here too",
            )


def _refuse_late_events_without_sink(graph: LogicalGraph) -> None:
    """The late= of a stream must have an effect on a step after it, or late events would be lost silently."""
    for node in graph.nodes:
        late = node.step.time.late if isinstance(node.step, Timed) else Late.DROP
        if late is Late.DROP:
            continue
        behind = _timed_by(graph, node)
        closing = [other for other in behind if has_late_events(other.step)]
        if not closing:
            raise BadJob(
                f"late=Late.{late.name} means nothing here: no window by time and no pattern is after it, and for all"
                " other steps no event is late",
                where=node.where,
                fix="remove late=",
            )
        taken = {name for other in graph.nodes if isinstance(other.step, LateEvents) for name in other.inputs}
        if late is Late.TO_SIDE_OUTPUT and not taken & {other.name for other in closing}:
            raise BadJob(
                "late events go to a side output that no sink takes: they would be lost",
                where=f"{node.where}; {closing[0].where}",
                fix='take them: counts.late.to("late", sink), where counts is the result of the step; or declare'
                " late=Late.DROP, which counts them, or late=Late.LOG",
            )


def _timed_by(graph: LogicalGraph, timed: Node) -> list[Node]:
    """The steps that use the time that is declared here."""
    reached = {timed.name}
    found: list[Node] = []
    for node in graph.nodes:
        before = [graph.node(name) for name in node.inputs if name in reached]
        if any(one.flow.time is not None for one in before):
            reached.add(node.name)
            found.append(node)
    return found


def _refuse_dead_letters_without_sink(graph: LogicalGraph) -> None:
    for node in graph.nodes:
        is_letter = isinstance(node.step, FanOut) and node.step.partial is Partial.DEAD_LETTER
        if is_letter and graph.job.dead_letters is None:
            raise BadJob(
                "events with a missing score become dead letters, and the job has no sink for these",
                where=node.where,
                fix="say where they go: Job(..., dead_letters=KafkaSink(...)), or declare partial=Partial.PUBLISH",
            )
