"""The time of a stream: when a thing happened or when it came, and what becomes of records that come too late.

The watermark of a stream is the greatest event time seen, less `lateness`; it says that nothing older is expected. Of
several streams the least watermark counts. A record is late where the window it belongs to ended at or before the
watermark: that window may have been emitted already.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

ARRIVED = "_arrived"
"""Hidden column of a stream in processing time: when the epoch that reads an event was planned."""

_ARRIVAL_IDLE = timedelta(seconds=1)


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

    @property
    def is_arrival(self) -> bool:
        """Is it the time at which events come, and not one that they carry?"""
        return self.column == ARRIVED


def arrival_time() -> EventTime:
    """Processing time: the clock of the epoch, which goes on whether events come or not."""
    return EventTime(
        column=ARRIVED, lateness=timedelta(0), late=Late.DROP, allowed=None, idle=_ARRIVAL_IDLE, max_ahead=None
    )
