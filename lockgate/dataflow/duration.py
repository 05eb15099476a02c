"""Durations as users write them: a `timedelta`, or text as in Spark (`"10 seconds"`, `"1 hour 30 minutes"`)."""

import re
from datetime import timedelta

from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob

Duration = timedelta | str

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_WHOLE = re.compile(r"(-?\d+\s*[a-z]+\s*)+")


def as_duration(value: object, *, of: str, is_zero_allowed: bool = False) -> timedelta:
    """The duration that was meant; `of` names the argument in the error.

    >>> as_duration("1 minute 30 seconds", of="gap")
    datetime.timedelta(seconds=90)
    """
    duration = _parse(value.strip().lower()) if isinstance(value, str) else value
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
    for unit, size in reversed(_UNITS_US.items()):
        if microseconds and microseconds % size == 0:
            count = microseconds // size
            return f"{count} {unit}" + ("" if count == 1 else "s")
    return "0 seconds"


def _parse(text: str) -> timedelta | None:
    if not _WHOLE.fullmatch(text):
        return None
    total_us = 0
    for count, unit in re.findall(r"(-?\d+)\s*([a-z]+)", text):
        size = _UNITS_US.get(unit.removesuffix("s"))
        if size is None:
            return None
        total_us += int(count) * size
    try:
        return timedelta(microseconds=total_us)
    except OverflowError:  # more days than a timedelta holds
        return None
