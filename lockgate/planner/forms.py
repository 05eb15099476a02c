"""Which form a window takes: Spark's own operators, or one of ours in Python; and what late events are to it.

Spark's are faster by far and are taken wherever they can say what is asked. The plan tells which was chosen, and why.
"""

from __future__ import annotations

from lockgate.dataflow.aggregates import Aggregate
from lockgate.dataflow.eventtime import EventTime, Late
from lockgate.dataflow.steps import Detect, Step, WindowAggregate, WindowApply, Windowed
from lockgate.dataflow.windows import TimeWindow


def why_operator(step: Windowed, time: EventTime | None) -> str | None:
    """Why a window cannot be Spark's own; None where it can."""
    if not isinstance(step.window, TimeWindow):
        return "Spark has no windows by what comes, only by time"
    if isinstance(step, WindowApply):
        return "a function of the author's sees all events of a window"
    if step.trigger is not None:
        return "Spark's windows are told once, without early results"
    if time is not None and time.late is Late.CORRECT:
        return "Spark's windows are told once, and not corrected"
    if isinstance(step, WindowAggregate):
        own = [name for name, one in step.aggregates.items() if isinstance(one, Aggregate) and not one.is_native]
        if own:
            return f"SQL has no aggregate like {', '.join(own)}"
    return None


def has_late_events(step: Step) -> bool:
    """May an event be late for a step? Only where it closes something by event time."""
    return isinstance(step, Detect) or (isinstance(step, Windowed) and isinstance(step.window, TimeWindow))


def has_revisions(step: Windowed, time: EventTime | None) -> bool:
    """May a window be told more than once?"""
    is_corrected = time is not None and time.late is Late.CORRECT and isinstance(step.window, TimeWindow)
    return is_corrected or (step.trigger is not None and step.trigger.every is not None)


def as_sql(aggregate: str | Aggregate) -> str:
    """An aggregate as Spark's own operators take it, or as the plan shows it."""
    if isinstance(aggregate, str):
        return aggregate
    return aggregate.typed_by if aggregate.is_native and aggregate.typed_by is not None else str(aggregate)
