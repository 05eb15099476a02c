"""Event time: when a thing happened, as its record says, and what becomes of records that come too late.

The watermark of a stream is the greatest event time seen, less `lateness`; it says that nothing older is expected.
A record behind it is late: its window may have been emitted already.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum


class Late(Enum):
    """What becomes of an event whose window has closed."""

    DROP = "drop"
    LOG = "log"
    TO_SIDE_OUTPUT = "to side output"
    CORRECT = "correct"


@dataclass(frozen=True)
class EventTime:
    """Which column tells the time, how long stragglers are awaited, and what becomes of the later ones."""

    column: str
    lateness: timedelta
    late: Late
    allowed: timedelta | None
    idle: timedelta | None
    max_ahead: timedelta | None
