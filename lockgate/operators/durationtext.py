"""Durations as text: `"10 seconds"`, `"1 hour 30 minutes"`, and shorter `"5m"`, `"1h30m"`, `"250ms"`, `"2d"`.

Job files and the functions that run in workers use the same texts. Both import this module, so there is one parser.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache

UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SHORT = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "secs": "second",
    "m": "minute",
    "min": "minute",
    "mins": "minute",
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "d": "day",
    "w": "week",
}
_WHOLE = re.compile(r"(-?\d+\s*[a-z]+\s*)+", re.IGNORECASE)
_BARE_NUMBER = re.compile(r"-?\d+(\.\d+)?")

ADVICE = 'a timedelta or a text such as "10 seconds", "5m", "1h30m" or "250ms" (units: us, ms, s, m, h, d, w)'
"""What a duration can be, for errors."""


@lru_cache(maxsize=256)
def read_duration(text: str) -> timedelta:
    """Read a duration.

    Args:
        text: whole numbers, each with its unit. A unit is a word, one or many (`hour`, `hours`), or short (`h`).

    Raises:
        ValueError: the text is no duration; the message says why.

    >>> read_duration("1 minute 30 seconds"), read_duration("1m30s")
    (datetime.timedelta(seconds=90), datetime.timedelta(seconds=90))
    >>> read_duration("5 parsecs")
    Traceback (most recent call last):
    ValueError: 'parsecs' is not a unit of time
    """
    text = text.strip()
    if _BARE_NUMBER.fullmatch(text):
        raise ValueError("the number has no unit")
    if not _WHOLE.fullmatch(text):
        raise ValueError("a duration is whole numbers, each with its unit")
    total_us = sum(int(count) * _size_us(unit) for count, unit in re.findall(r"(-?\d+)\s*([A-Za-z]+)", text))
    try:
        return timedelta(microseconds=total_us)
    except OverflowError as error:
        raise ValueError("it is longer than a timedelta can be") from error


def _size_us(unit: str) -> int:
    if unit == "M":  # in other systems "1M" is a month
        raise ValueError("'M' can be read as minutes or months: write 'm' or 'minutes'")
    word = unit.lower()
    size = UNITS_US.get(_SHORT.get(word, word.removesuffix("s")))
    if size is None:
        raise ValueError(f"{unit!r} is not a unit of time")
    return size
