"""Durations as users write them: a `timedelta`, or text as in Spark (`"10 seconds"`, `"1 hour 30 minutes"`)."""

from datetime import timedelta

from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob
from lockgate.operators.durations import UNITS_US, read_duration

Duration = timedelta | str


def as_duration(value: object, *, of: str, is_zero_allowed: bool = False) -> timedelta:
    """The duration that was meant; `of` names the argument in the error.

    >>> as_duration("1 minute 30 seconds", of="gap")
    datetime.timedelta(seconds=90)
    """
    duration = read_duration(value) if isinstance(value, str) else value
    if not isinstance(duration, timedelta):
        raise BadJob(
            f"{of} is not a duration: {value!r}",
            where=f"declared at {caller()}",
            fix='write a timedelta or a text such as "10 seconds" (microseconds to weeks)',
        )
    if duration < timedelta(0) or (duration == timedelta(0) and not is_zero_allowed):
        raise BadJob(
            f"{of} must be {'zero or more' if is_zero_allowed else 'more than zero'}, but is {value!r}",
            where=f"declared at {caller()}",
            fix=f"give {of} a longer duration",
        )
    return duration


def as_spark_text(duration: timedelta) -> str:
    """The duration as Spark's interval text, exact to the microsecond."""
    return f"{duration // timedelta(microseconds=1)} microseconds"


def as_people_text(duration: timedelta) -> str:
    """The duration in its largest whole unit, for plans and errors: `1 minute`, `90 seconds`."""
    microseconds = duration // timedelta(microseconds=1)
    for unit, size in reversed(UNITS_US.items()):
        if microseconds and microseconds % size == 0:
            count = microseconds // size
            return f"{count} {unit}" + ("" if count == 1 else "s")
    return "0 seconds"
