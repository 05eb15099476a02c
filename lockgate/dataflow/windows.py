"""Windows over event time: tumbling, sliding and session.

A window turns an endless stream into finite groups. It closes when the watermark passes its end, and its result is
emitted then, once. Results carry the key columns, `window_start` and `window_end`.
"""

from dataclasses import dataclass
from datetime import timedelta

from lockgate.dataflow.duration import Duration, as_duration, as_people_text
from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob


@dataclass(frozen=True)
class TumblingWindow:
    """Windows of one length, side by side."""

    size: timedelta

    def __str__(self) -> str:
        return f"tumbling {as_people_text(self.size)}"


@dataclass(frozen=True)
class SlidingWindow:
    """Windows of one length, one beginning every `every`; an event is in several."""

    size: timedelta
    every: timedelta

    def __str__(self) -> str:
        return f"sliding {as_people_text(self.size)} every {as_people_text(self.every)}"


@dataclass(frozen=True)
class SessionWindow:
    """A window per burst of events: it ends when nothing has come for `gap`."""

    gap: timedelta

    def __str__(self) -> str:
        return f"session, gap {as_people_text(self.gap)}"


Window = TumblingWindow | SlidingWindow | SessionWindow


def tumbling(size: Duration) -> TumblingWindow:
    """Windows of `size`, side by side."""
    return TumblingWindow(size=as_duration(size, of="the size of a tumbling window"))


def sliding(size: Duration, *, every: Duration) -> SlidingWindow:
    """Windows of `size`, one beginning every `every`."""
    window = SlidingWindow(
        size=as_duration(size, of="the size of a sliding window"),
        every=as_duration(every, of="the slide of a sliding window"),
    )
    if window.every > window.size:
        raise BadJob(
            f"the slide of a window ({as_people_text(window.every)}) is longer than its size "
            f"({as_people_text(window.size)}): events in between would be in no window",
            where=f"declared at {caller()}",
            fix="make `every` at most as long as the size, or filter the events away in a step of their own",
        )
    return window


def session(*, gap: Duration) -> SessionWindow:
    """A window per burst of events that ends after `gap` without one."""
    return SessionWindow(gap=as_duration(gap, of="the gap of a session window"))
