"""Durations as users write them: a `timedelta`, or a text such as `"10 seconds"`, `"5m"` or `"1h30m"`."""

from datetime import timedelta

from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob
from lockgate.operators.durationtext import ADVICE, UNITS_US, read_duration

Duration = timedelta | str


def as_duration(value: object, *, of: str, is_zero_allowed: bool = False) -> timedelta:
    """Return the duration that a user wrote.

    Args:
        value: a `timedelta`, or a text as `operators.durations.read_duration` takes it.
        of: the name of the argument in errors.
        is_zero_allowed: whether no time at all is a meaningful answer.

    Raises:
        BadJob: the value is no duration, or it is too short.

    >>> as_duration("1 minute 30 seconds", of="gap"), as_duration("90s", of="gap")
    (datetime.timedelta(seconds=90), datetime.timedelta(seconds=90))
    """
    reason = ""
    duration = value
    if isinstance(value, str):
        try:
            duration = read_duration(value)
        except ValueError as error:
            reason = f": {error}"
    if not isinstance(duration, timedelta):
        raise BadJob(
            f"{of} is not a duration: {value!r}{reason}",
            where=f"declared at {caller()}",
            fix=f"write {ADVICE}",
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
