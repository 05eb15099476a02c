"""Durations as text, as Spark writes them: `"10 seconds"`, `"1 hour 30 minutes"`.

Job files and the functions that run in workers write them alike, so they are read here, where both can see it.
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
_WHOLE = re.compile(r"(-?\d+\s*[a-z]+\s*)+")


@lru_cache(maxsize=256)
def read_duration(text: str) -> timedelta | None:
    """The duration that a text means, or None where it means none.

    >>> read_duration("1 minute 30 seconds")
    datetime.timedelta(seconds=90)
    """
    text = text.strip().lower()
    if not _WHOLE.fullmatch(text):
        return None
    total_us = 0
    for count, unit in re.findall(r"(-?\d+)\s*([a-z]+)", text):
        size = UNITS_US.get("millisecond" if unit == "ms" else unit.removesuffix("s"))
        if size is None:
            return None
        total_us += int(count) * size
    try:
        return timedelta(microseconds=total_us)
    except OverflowError:  # more days than a timedelta holds
        return None
