"""The events on their way: at a steady rate, on while the driver is away, and never past what a fault needs.

    events    0 ........ bound 1 ........ bound 2 ........ all
               |  |         kill             kill
               |  until an epoch has ended with events whose latency counts
               until the first epoch has ended

The first epoch loads classes; but for a few events that it is made of, the feed waits for its end, so that no latency
is that of loading. Then it goes half the way to the first bound until a latency is known. A kill is due when the events
up to its bound are sent. Until it has happened an eighth of the way to the next bound may be sent, and half of it until
the driver is back: so on a slow machine, too, events come after every start, and every guarantee meets the same faults
at the same places.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from lockgate.compare.events import Event

_BURST_SECONDS = 0.25


def bounds_of(total: int, kills: int) -> tuple[int, ...]:
    """How many events are sent when each kill is due."""
    return tuple(total * (number + 1) // (kills + 1) for number in range(kills))


def may_be_sent(total: int, kills: int, *, killed: int, is_up: bool, is_warm: bool, is_measured: bool) -> int:
    """How many events may have been sent, by now.

    Args:
        is_warm: the first epoch has ended.
        is_measured: one has ended with events that were sent after that.
    """
    gap = total // (kills + 1)
    bounds = (0, *bounds_of(total, kills))
    if not is_up:
        return bounds[killed] + gap // 2 if killed else 0
    if not killed and not is_measured:
        return gap // 2 if is_warm else max(1, gap // 16)
    return total if killed == kills else bounds[killed + 1] + gap // 8


def send_all(servers: str, events: Sequence[Event], topics: Mapping[str, str]) -> None:
    """Send all events at once."""
    feed = Feed(servers, events, topics, rate=float("inf"))
    try:
        feed.send(len(events))
    finally:
        feed.close()


class Feed:
    """Sends events in order, and notes when; `topics` says where those of each topic go."""

    def __init__(self, servers: str, events: Sequence[Event], topics: Mapping[str, str], *, rate: float) -> None:
        from kafka import KafkaProducer

        self.sent_at: list[float] = []
        self._events, self._topics, self._rate = events, topics, rate
        self._futures: list[Any] = []
        # Idempotent: a sender that repeats after an error would have its own copies counted as the job's.
        self._producer = KafkaProducer(
            bootstrap_servers=servers.split(","), acks="all", enable_idempotence=True, linger_ms=5
        )
        self._last = time.monotonic()
        self._due = 0.0

    @property
    def sent(self) -> int:
        """How many events are sent."""
        return len(self.sent_at)

    def send(self, limit: int) -> None:
        """Send what is due by now, up to so many events in all."""
        now = time.monotonic()
        # What could not be sent while it was not allowed is not sent in a rush afterwards.
        most = self._rate * _BURST_SECONDS if self._rate < float("inf") else float("inf")
        self._due = min(max(1.0, most), self._due + self._rate * (now - self._last))
        self._last = now
        count = int(min(self._due, limit - self.sent))
        if count <= 0:
            return
        for event in self._events[self.sent : self.sent + count]:
            self._futures.append(
                self._producer.send(
                    self._topics[event.topic],
                    partition=event.partition,
                    key=event.key,
                    value=event.value,
                    headers=list(event.headers),
                    timestamp_ms=event.timestamp_ms,
                )
            )
        self.sent_at += [now] * count
        self._due -= count if self._rate < float("inf") else 0
        if self.sent == len(self._events):
            self._producer.flush()
            for future in self._futures:
                future.get(timeout=60)  # raises what became of one that was not taken

    def close(self) -> None:
        """Give the connection back."""
        self._producer.close()
