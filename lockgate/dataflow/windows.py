"""Windows: by time, by the number of events, or by a property of the data.

A window turns an endless stream into finite groups. One by time (tumbling, sliding, session) closes when the watermark
reaches its end. One by count, or until a condition holds, closes with an event, in the order of the source. Results
have the key columns, `window_start` and `window_end`; for the second kind these are the least and the greatest time
among the events.
"""

from dataclasses import dataclass
from datetime import timedelta

from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.duration import Duration, as_duration, as_people_text
from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob

__all__ = ["session", "sliding", "sliding_count", "tumbling", "tumbling_count", "until"]

_WINDOWS_MAX = 10_000
"""An event becomes a row for every window that it is in."""


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


@dataclass(frozen=True)
class CountWindow:
    """Windows of the last `size` events, one ending with every `every`-th; tumbling if the two are equal."""

    size: int
    every: int

    def __str__(self) -> str:
        if self.every == self.size:
            return f"tumbling {_as_events(self.size)}"
        return f"sliding {_as_events(self.size)} every {self.every}"


@dataclass(frozen=True)
class UntilWindow:
    """Windows that end with an event for which a SQL condition holds; null does not hold."""

    condition: str

    def __str__(self) -> str:
        return f"until {self.condition}"


@dataclass(frozen=True)
class Trigger:
    """When a window emits a result, in addition to the moment when the watermark reaches its end.

    `every` is a span of processing time, or a number of events. With `on_late`, if results are corrected, every late
    event gives a result.
    """

    every: timedelta | int | None
    on_late: bool

    def __str__(self) -> str:
        early = [] if self.every is None else [f"early every {_as_span(self.every)}"]
        return ", ".join([*early, *(["on every late event"] if self.on_late else [])])


TimeWindow = TumblingWindow | SlidingWindow | SessionWindow
Window = TimeWindow | CountWindow | UntilWindow


def tumbling(size: Duration) -> TumblingWindow:
    """Make windows of one length, side by side.

    Args:
        size: how long a window is.

    >>> str(tumbling("5m"))
    'tumbling 5 minutes'
    """
    return TumblingWindow(size=as_duration(size, of="the size of a tumbling window"))


@explain_wrong_calls('windows.sliding("1 hour", every="5 minutes")')
def sliding(size: Duration, *, every: Duration) -> SlidingWindow:
    """Make windows of one length that overlap. An event is in several of them.

    Args:
        size: how long a window is.
        every: how far the next window starts after this one; at most `size`.

    >>> str(sliding("1h", every="5m"))
    'sliding 1 hour every 5 minutes'
    """
    window = SlidingWindow(
        size=as_duration(size, of="the size of a sliding window"),
        every=as_duration(every, of="the slide of a sliding window"),
    )
    if window.every > window.size:
        raise BadJob(
            f"the slide of a window ({as_people_text(window.every)}) is longer than its size "
            f"({as_people_text(window.size)}): events in between would be in no window",
            where=f"declared at {caller()}",
            fix="make `every` at most as long as the size, or filter these events in a step before",
        )
    if window.size > window.every * _WINDOWS_MAX:
        raise BadJob(
            f"every event would be in {-(-window.size // window.every):,} windows: they are"
            f" {as_people_text(window.size)} long and begin every {as_people_text(window.every)}",
            where=f"declared at {caller()}",
            fix=f"let windows begin less often, so that an event is in at most {_WINDOWS_MAX:,}",
        )
    return window


@explain_wrong_calls('windows.session(gap="30 minutes")')
def session(*, gap: Duration) -> SessionWindow:
    """Make a window for each burst of events.

    Args:
        gap: the window ends when no event came for this long.

    >>> str(session(gap="30m"))
    'session, gap 30 minutes'
    """
    return SessionWindow(gap=as_duration(gap, of="the gap of a session window"))


def tumbling_count(size: int) -> CountWindow:
    """Make windows of a number of events, one after the other.

    Args:
        size: how many events a window has.

    >>> str(tumbling_count(100))
    'tumbling 100 events'
    """
    _require_count(size, of="the size of a tumbling_count window", fix="windows.tumbling_count(100)")
    return CountWindow(size=size, every=size)


@explain_wrong_calls("windows.sliding_count(100, every=10)")
def sliding_count(size: int, *, every: int) -> CountWindow:
    """Make windows of the last events. The first windows have fewer.

    Args:
        size: how many events a window has.
        every: after how many events the next window ends; at most `size`.

    >>> str(sliding_count(100, every=10))
    'sliding 100 events every 10'
    """
    fix = "windows.sliding_count(100, every=10)"
    _require_count(size, of="the size of a sliding_count window", fix=fix)
    _require_count(every, of="the slide of a sliding_count window", fix=fix)
    if every > size:
        raise BadJob(
            f"the slide of a window ({_as_events(every)}) is longer than its size ({_as_events(size)}): "
            "events in between would be in no window",
            where=f"declared at {caller()}",
            fix="make `every` at most the size, or filter these events in a step before",
        )
    return CountWindow(size=size, every=every)


def until(condition: str) -> UntilWindow:
    """Make windows that end with an event for which a condition holds. That event is in the window.

    Args:
        condition: SQL. Null does not end a window.

    >>> str(until("status = 'done'"))
    "until status = 'done'"
    """
    if not isinstance(condition, str) or not condition.strip():
        raise BadJob(
            f"until takes a SQL condition, not {condition!r}",
            where=f"declared at {caller()}",
            fix="windows.until(\"status = 'done'\")",
        )
    return UntilWindow(condition=condition)


def _require_count(count: object, *, of: str, fix: str) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise BadJob(
            f"{of} must be a whole number of events above zero, but is {count!r}",
            where=f"declared at {caller()}",
            fix=fix,
        )


def _as_span(span: timedelta | int) -> str:
    return as_people_text(span) if isinstance(span, timedelta) else _as_events(span)


def _as_events(count: int) -> str:
    return f"{count} event" + ("" if count == 1 else "s")
