"""Which form a keyed step takes: Spark's own operators, or one of ours in Python; and what late events are to it.

Spark's operators are much faster, and are used whenever they can express the step. The plan says which form was chosen,
and why.
"""

from __future__ import annotations

from lockgate.dataflow.aggregates import Aggregate
from lockgate.dataflow.eventtime import EventTime, Late
from lockgate.dataflow.steps import Detect, Keyed, Process, Rolling, Step, WindowAggregate, WindowApply, Windowed
from lockgate.dataflow.windows import TimeWindow

_WHY_OPERATOR: dict[type[Step], str] = {
    Rolling: "Spark has no aggregate up to every event",
    Process: "a function of the user keeps the state",
    Detect: "Spark has no patterns over a stream",
}


def why_operator(step: Keyed, time: EventTime | None) -> str | None:
    """Why a keyed step is one of our operators, in Python; None if it is Spark's own."""
    if not isinstance(step, Windowed):
        return _WHY_OPERATOR[type(step)]
    if not isinstance(step.window, TimeWindow):
        return "Spark has no windows that end with an event, only by time"
    if isinstance(step, WindowApply):
        return "a function of the user gets all events of a window"
    if step.trigger is not None:
        return "Spark's windows give one result, and no early results"
    if time is not None and time.late is Late.CORRECT:
        return "Spark's windows give one result, which is not corrected"
    if isinstance(step, WindowAggregate):
        own = [name for name, one in step.aggregates.items() if isinstance(one, Aggregate) and not one.is_native]
        if own:
            return f"SQL has no aggregate like {', '.join(own)}"
    return None


def has_late_events(step: Step) -> bool:
    """May an event be late for a step? Only if it closes something by event time."""
    return isinstance(step, Detect) or (isinstance(step, Windowed) and isinstance(step.window, TimeWindow))


def has_revisions(step: Windowed, time: EventTime | None) -> bool:
    """May a window emit more than one result?"""
    is_corrected = time is not None and time.late is Late.CORRECT and isinstance(step.window, TimeWindow)
    return is_corrected or (step.trigger is not None and step.trigger.every is not None)


def as_sql(aggregate: str | Aggregate) -> str:
    """An aggregate as Spark's own operators take it, or as the plan shows it."""
    if isinstance(aggregate, str):
        return aggregate
    return aggregate.typed_by if aggregate.is_native and aggregate.typed_by is not None else str(aggregate)
