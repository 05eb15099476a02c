"""A plan as text for people, as JSON for programs and as pictures for both."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

from lockgate.dataflow.duration import as_people_text
from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import (
    DeadLetterStep,
    Detect,
    Exchanged,
    FlatMap,
    Join,
    Keyed,
    Map,
    Part,
    Process,
    Read,
    Rolling,
    Select,
    Step,
    TableJoin,
    Timed,
    Transform,
    Where,
    WindowAggregate,
    WindowApply,
    Windowed,
    Write,
)
from lockgate.dataflow.table import ReadTable
from lockgate.planner.derive import PathGuarantee
from lockgate.planner.drawing import draw_text
from lockgate.planner.forms import as_sql
from lockgate.planner.logical import Node
from lockgate.planner.picture import Arrow, Box, Picture
from lockgate.planner.plan import Plan, plan
from lockgate.planner.svg import draw_svg


def explain(job: Job, *, width: int = 100) -> str:
    """Return the plan of a job as text: both graphs, the guarantee and its reasons.

    Args:
        job: the job.
        width: the most characters in a line of a graph.

    Raises:
        BadJob: the description cannot be valid.

    >>> text = explain(Job("orders", orders.to("screen", ConsoleSink()), guarantee=Guarantee.AT_LEAST_ONCE))
    >>> text.splitlines()[0]
    'Job orders, micro-batch, epochs of 1 second'
    """
    return explain_plan(plan(job), width=width)


def explain_plan(planned: Plan, *, width: int = 100) -> str:
    """A plan as text."""
    logical, physical = pictures(planned)
    physical_form = planned.physical
    return "\n".join(
        [
            f"Job {planned.job.name}, {physical_form.mode.value}, epochs of {as_people_text(physical_form.epoch)}",
            "",
            draw_text(logical, width=width),
            "",
            draw_text(physical, width=width),
            "",
            *_step_lines(planned),
            "",
            *guarantee_lines(planned),
        ]
    )


def explain_svg(planned: Plan) -> str:
    """A plan as a picture that stands alone."""
    return draw_svg(pictures(planned), footer=[planned.job.name, *guarantee_lines(planned)])


def explain_json(planned: Plan) -> dict[str, Any]:
    """A plan as plain data; the names are those of `Plan`."""
    return {
        "job": planned.job.name,
        "declared": planned.declared.name,
        "reached": planned.reached.name,
        "holds": planned.refusal() is None,
        "reasons": list(planned.reasons),
        "mode": planned.physical.mode.value,
        "epoch_seconds": planned.physical.epoch.total_seconds(),
        "paths": [_path_json(path) for path in planned.paths],
        "logical": {
            "steps": [
                {
                    "name": node.name,
                    "kind": node.kind,
                    "inputs": list(node.inputs),
                    "columns": None if node.flow.columns is None else list(node.flow.columns.names),
                    "declared_at": str(node.step.origin),
                }
                for node in planned.logical.nodes
            ]
        },
        "physical": {
            "state_partitions": planned.physical.state_partitions,
            "steps": [
                {
                    "name": step.name,
                    "kind": step.kind,
                    "stage": step.stage,
                    "tasks": step.tasks,
                    "execution": step.execution,
                    "reason": step.reason,
                    "has_state": step.has_state,
                    "kept_for_branches": planned.cuts.branches.get(step.name),
                }
                for step in planned.physical.steps
            ],
            "edges": [
                {
                    "from": edge.source,
                    "to": edge.target,
                    "exchange": edge.exchange.strategy.value,
                    "keys": list(edge.exchange.keys),
                    "chosen_by": edge.chosen_by,
                    "reason": edge.reason,
                }
                for edge in planned.physical.edges
            ],
        },
    }


def pictures(planned: Plan) -> tuple[Picture, Picture]:
    """The logical and the physical graph, ready to be drawn."""
    logical = Picture(
        title="Logical graph",
        boxes=tuple(_box(node, _details(node.step)) for node in planned.logical.nodes),
        arrows=tuple(Arrow(source=name, target=node.name) for node in planned.logical.nodes for name in node.inputs),
    )
    tasks = {step.name: step for step in planned.physical.steps}
    physical = Picture(
        title="Physical graph",
        boxes=tuple(
            _box(
                node,
                (
                    _tasks_text(tasks[node.name].tasks),
                    f"stage {tasks[node.name].stage}, {tasks[node.name].execution}",
                    *(f"kept for {n} branches" for n in [planned.cuts.branches.get(node.name)] if n is not None),
                ),
            )
            for node in planned.logical.nodes
        ),
        arrows=tuple(
            Arrow(source=edge.source, target=edge.target, label=str(edge.exchange)) for edge in planned.physical.edges
        ),
    )
    return logical, physical


def guarantee_lines(planned: Plan) -> list[str]:
    """The guarantee, path by path, and what would lift it."""
    tracking = planned.job.tracking
    lines = [
        f"Guarantee declared: {planned.declared.label}",
        f"Guarantee reached:  {planned.reached.label}",
        *([] if tracking is None else [f"Tracked by acknowledgement: {tracking}, then a dead letter; order changes"]),
        *(f"  {reason}" for reason in planned.reasons),
    ]
    cures = dict.fromkeys(f"  to lift it: {cap.cure} ({cap.part})" for path in planned.paths for cap in path.deciding)
    return [*lines, *cures]


def _step_lines(planned: Plan) -> list[str]:
    width = max(len(step.name) for step in planned.physical.steps)
    lines = ["Steps"]
    for step in planned.physical.steps:
        state = ", keeps state" if step.has_state else ""
        branches = planned.cuts.branches.get(step.name)
        kept = "" if branches is None else f"; computed once per epoch, its rows are kept for {branches} branches"
        how = f"{_tasks_text(step.tasks)}, {step.execution}{state}"
        lines.append(f"  {step.name:{width}}  {step.kind}, {how}: {step.reason}{kept}")
    moves = [edge for edge in planned.physical.edges if edge.exchange.strategy.value != "forward"]
    if moves:
        lines.append("Exchanges (all other edges are forward)")
        lines.extend(
            f"  {edge.source} -> {edge.target}: {edge.exchange}, chosen by the {edge.chosen_by}: {edge.reason}"
            for edge in moves
        )
    return lines


def _box(node: Node, lines: tuple[str, ...]) -> Box:
    kinds = {"source": "source", "table": "source", "sink": "sink"}
    kinds |= dict.fromkeys(("rolling", "window", "join"), "state")
    return Box(id=node.name, title=node.name, lines=lines, kind=kinds.get(node.kind, "step"))


def _tasks_text(tasks: str) -> str:
    if tasks == "1":
        return "1 task"
    return f"{tasks} tasks" if tasks.removeprefix("at most ").isdigit() else tasks


def _path_json(path: PathGuarantee) -> dict[str, Any]:
    return {
        "source": path.source,
        "output": path.output,
        "declared": path.declared.name,
        "reached": path.reached.name,
        "caps": [
            {
                "guarantee": cap.guarantee.name,
                "part": cap.part,
                "where": cap.where,
                "reason": cap.reason,
                "cure": cap.cure,
            }
            for cap in path.caps
        ],
        "lifts": list(path.lifts),
    }


@singledispatch
def _details(step: Step) -> tuple[str, ...]:
    """A step in a few words."""
    return ()


@_details.register
def _(step: Read) -> tuple[str, ...]:
    return step.source.summary()


@_details.register
def _(step: DeadLetterStep) -> tuple[str, ...]:
    return ("events that cannot be used",)


@_details.register
def _(step: Write) -> tuple[str, ...]:
    return step.sink.summary()


@_details.register
def _(step: Where) -> tuple[str, ...]:
    return ("where", step.condition if isinstance(step.condition, str) else _function_name(step.condition))


@_details.register
def _(step: Part) -> tuple[str, ...]:
    return ("split", step.condition)


@_details.register
def _(step: Select) -> tuple[str, ...]:
    return ("select", ", ".join([*step.columns, *step.expressions]))


@_details.register
def _(step: Map) -> tuple[str, ...]:
    return ("map", _function_name(step.function))


@_details.register
def _(step: FlatMap) -> tuple[str, ...]:
    return ("flat_map", _function_name(step.function))


@_details.register
def _(step: FanOut) -> tuple[str, ...]:
    return (
        f"fan_out {', '.join(step.functions)}",
        f"within {as_people_text(step.deadline)}, partial: {step.partial.value}",
    )


@_details.register
def _(step: Transform) -> tuple[str, ...]:
    return ("transform", _function_name(step.function))


@_details.register
def _(step: Join) -> tuple[str, ...]:
    bound = as_people_text(step.within) if step.within is not None else "no bound"
    return (f"{step.how} join on {', '.join(step.on)}", f"within {bound}")


@_details.register
def _(step: ReadTable) -> tuple[str, ...]:
    return (*step.rows.summary(), f"read every {as_people_text(step.refresh)}")


@_details.register
def _(step: TableJoin) -> tuple[str, ...]:
    return (f"{step.how} join on {', '.join(step.on)}", "with a table")


@_details.register
def _(step: Timed) -> tuple[str, ...]:
    if step.time.is_arrival:
        return ("processing time", "a replay of history gives other windows")
    return (f"event time: {step.time.column}", f"lateness {as_people_text(step.time.lateness)}")


@_details.register
def _(step: Exchanged) -> tuple[str, ...]:
    lines = [str(step.exchange)] if step.exchange is not None else []
    return (*lines, f"parallel {step.tasks}") if step.tasks else tuple(lines)


@_details.register
def _(step: Rolling) -> tuple[str, ...]:
    return (f"rolling{_by(step)}", ", ".join(map(as_sql, step.aggregates.values())))


@_details.register
def _(step: WindowAggregate) -> tuple[str, ...]:
    return (f"{step.window}{_by(step)}", ", ".join(map(as_sql, step.aggregates.values())), *_window_text(step))


@_details.register
def _(step: WindowApply) -> tuple[str, ...]:
    return (f"{step.window}{_by(step)}", _function_name(step.function), *_window_text(step))


@_details.register
def _(step: Process) -> tuple[str, ...]:
    return (f"process{_by(step)}", type(step.function).__name__)


@_details.register
def _(step: Detect) -> tuple[str, ...]:
    return (f"pattern{_by(step)}", str(step.pattern))


def _by(step: Keyed) -> str:
    return f" by {', '.join(step.keys)}" if step.keys else ""


def _window_text(step: Windowed) -> tuple[str, ...]:
    return () if step.trigger is None else (str(step.trigger),)


def _function_name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", type(function).__name__).rsplit(".", 1)[-1]
