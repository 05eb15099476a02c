"""The time of a stream: when something happened or when it was read, and what happens to records that come too late.

The watermark of a stream is the greatest event time so far, minus `lateness`: nothing older is expected. Of several
streams the least watermark counts. A record is late if the window to which it belongs ended at or before the
watermark: that window may have emitted its result already.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

ARRIVED = "_arrived"
"""Hidden column of a stream in processing time: when the epoch that reads an event was planned."""

_ARRIVAL_IDLE = timedelta(seconds=1)


class Late(Enum):
    """What happens to an event whose window has closed.

    | member | the event |
    |---|---|
    | `DROP` | is dropped and counted |
    | `LOG` | is dropped, counted and written to the log |
    | `TO_SIDE_OUTPUT` | goes to the stream `.late` of the step |
    | `CORRECT` | corrects the result, which is emitted again |

    >>> timed = orders.event_time("at", lateness="10s", late=Late.CORRECT, allowed="1h")
    """

    DROP = "drop"
    LOG = "log"
    TO_SIDE_OUTPUT = "to side output"
    CORRECT = "correct"


@dataclass(frozen=True)
class EventTime:
    """Which column has the time, how long the stream waits for late events, and what happens to later ones."""

    column: str
    lateness: timedelta
    late: Late
    allowed: timedelta | None
    idle: timedelta | None
    max_ahead: timedelta | None

    @property
    def is_arrival(self) -> bool:
        """Is it the time at which events are read, and not one that they carry?"""
        return self.column == ARRIVED


def arrival_time() -> EventTime:
    """Processing time: the clock of the epoch, which continues whether events come or not."""
    return EventTime(
        column=ARRIVED, lateness=timedelta(0), late=Late.DROP, allowed=None, idle=_ARRIVAL_IDLE, max_ahead=None
    )
