"""Send events into the sources of a job: records of topics, lines of files, in their order.

The law: the job gets every event once, or nothing is said about the job. An idempotent producer alone does not ensure
that: a broker that died with records on their way has made this client send a batch twice. So

    nothing is on its way after `send`      a fault between two sends cannot double a record
    every record has the next offset        a record between two of ours stops the trial

A file is put in place as a whole, and its name sorts after the names before it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from lockgate.errors import Failed

_BURST_SECONDS = 0.25
_LINGER_MS = 60_000  # a batch leaves when it is full or when `send` ends, so few events of a partition stay together
_ANSWER_SECONDS = 60


@dataclass(frozen=True)
class Event:
    """What a source gets: a record, or a line of a file."""

    topic: str  # the label of the source; the feed knows its place
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


def send_all(
    servers: str, events: Sequence[Event], topics: Mapping[str, str], directories: Mapping[str, Path] | None = None
) -> None:
    """Send all events at once."""
    feed = Feed(servers, events, topics, directories)
    try:
        feed.send(len(events))
    finally:
        feed.close()


class Feed:
    """Sends events in order, and notes when.

    Args:
        events: may be endless.
        topics, directories: where the events of each label go.
        rate: events a second; without it, everything that may be sent is sent at once.
        wave: no partition is ahead of another by more than so many events; windows depend on it if lateness is short.
    """

    def __init__(
        self,
        servers: str,
        events: Iterable[Event],
        topics: Mapping[str, str],
        directories: Mapping[str, Path] | None = None,
        *,
        rate: float = float("inf"),
        wave: int | None = None,
    ) -> None:
        self.sent_at: list[float] = []
        self._events, self._topics, self._directories = iter(events), topics, directories or {}
        self.rate, self._wave = rate, wave
        self._waiting: list[Any] = []
        self._ends: dict[tuple[str, int], int] = {}  # the offset of the last record of each partition
        self._producer = _producer(servers) if topics else None
        self._last = time.monotonic()
        self._due = 0.0

    @property
    def sent(self) -> int:
        """How many events are sent."""
        return len(self.sent_at)

    def send(self, limit: float) -> None:
        """Send what is due by now, up to so many events in total; each is in its place when this returns."""
        now = time.monotonic()
        # Events that could not be sent for a while do not come in a rush afterwards.
        most = max(1.0, self.rate * _BURST_SECONDS)
        self._due = min(most, self._due + self.rate * (now - self._last)) if self.rate < float("inf") else most
        self._last = now
        count = int(min(self._due, limit - self.sent))
        lines: dict[str, list[bytes]] = {}
        for number, event in enumerate(islice(self._events, max(0, count)), start=self.sent):
            if event.topic in self._directories:
                lines.setdefault(event.topic, []).append(event.value or b"")
            else:
                self._send(event)
            self.sent_at.append(now)
            self._due -= 1
            if self._wave is not None and number % self._wave == 0:
                self._settle()
        for topic, some in lines.items():
            _put(self._directories[topic], self.sent, some)
        self._settle()

    def _send(self, event: Event) -> None:
        assert self._producer is not None
        self._waiting.append(
            self._producer.send(
                self._topics[event.topic],
                partition=event.partition,
                key=event.key,
                value=event.value,
                headers=list(event.headers),
                timestamp_ms=event.timestamp_ms,
            )
        )

    def _settle(self) -> None:
        """Wait until each record is in its place; raises what became of a record that was not taken."""
        if self._producer is None or not self._waiting:
            return
        self._producer.flush()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            placed = future.get(timeout=_ANSWER_SECONDS)
            place = placed.topic, placed.partition
            if self._ends.get(place, placed.offset - 1) != placed.offset - 1:
                raise Failed(
                    "the client that sends events has put other records between two consecutive ones,"
                    f" before offset {placed.offset} of {placed.topic}-{placed.partition}",
                    where="the events of the trial",
                    fix="this says nothing about the job: run the trial again",
                )
            self._ends[place] = placed.offset

    def close(self) -> None:
        """Close the connection."""
        if self._producer is not None:
            self._producer.close()


def _producer(servers: str) -> Any:
    from kafka import KafkaProducer

    return KafkaProducer(
        bootstrap_servers=servers.split(","), acks="all", enable_idempotence=True, linger_ms=_LINGER_MS
    )


def _put(directory: Path, number: int, lines: Sequence[bytes]) -> None:
    """Write a file of lines; Spark takes the oldest file first, and ignores names that begin with a dot."""
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / f".{number:09}"
    aside.write_bytes(b"\n".join(lines) + b"\n")
    aside.replace(directory / f"{number:09}.txt")
