"""Events on their way into a job's sources: records of topics, files of directories, in the order in which they stand.

Records are sent by an idempotent producer: a sender that repeats after an error would have its own copies counted as
the job's. Its word is not enough: a broker that dies with records on their way to it has made this client send a batch
twice. So nothing is on its way when a fault strikes (`settle`), and in the end every record has the offset right behind
the one before it. A file is put in place whole, under a name behind those before it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockgate.errors import Failed

_BURST_SECONDS = 0.25


@dataclass(frozen=True)
class Event:
    """What a source is given: a record, or a line of a file."""

    topic: str  # whom it is for; who sends it knows where that is
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 0


def send_all(
    servers: str, events: Sequence[Event], topics: Mapping[str, str], directories: Mapping[str, Path] | None = None
) -> None:
    """Send all events at once."""
    feed = Feed(servers, events, topics, directories, rate=float("inf"))
    try:
        feed.send(len(events))
    finally:
        feed.close()


class Feed:
    """Sends events in order, and notes when; `topics` and `directories` say where those for each go.

    Of several partitions none is ahead of another by more than `wave` events: what goes by the time of events hangs on
    it, where that does not wait for long.
    """

    def __init__(
        self,
        servers: str,
        events: Sequence[Event],
        topics: Mapping[str, str],
        directories: Mapping[str, Path] | None = None,
        *,
        rate: float,
        wave: int | None = None,
    ) -> None:
        self.sent_at: list[float] = []
        self._events, self._topics, self._directories = events, topics, directories or {}
        self._rate, self._wave = rate, wave
        self._futures: list[Any] = []
        self._producer = _producer(servers) if topics else None
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
        lines: dict[str, list[bytes]] = {}
        for number, event in enumerate(self._events[self.sent : self.sent + count], start=self.sent):
            if event.topic in self._directories:
                lines.setdefault(event.topic, []).append(event.value or b"")
            else:
                self._send(event)
            if self._wave is not None and number % self._wave == 0:
                self.settle()
        for topic, some in lines.items():
            _put(self._directories[topic], self.sent, some)
        self.sent_at += [now] * count
        self._due -= count if self._rate < float("inf") else 0
        if self.sent == len(self._events):
            self.settle()
            self._check()

    def _send(self, event: Event) -> None:
        assert self._producer is not None
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

    def settle(self) -> None:
        """Wait until all that was sent is in its place."""
        if self._producer is not None:
            self._producer.flush()

    def _check(self) -> None:
        """Each record once, in the order of sending; raises what became of one that was not taken."""
        last: dict[tuple[str, int], int] = {}
        for future in self._futures:
            told = future.get(timeout=60)
            place = told.topic, told.partition
            if last.get(place, told.offset - 1) != told.offset - 1:
                raise Failed(
                    "the client that sends events has put other records between two that it sent one after the other,"
                    f" before offset {told.offset} of {told.topic}-{told.partition}",
                    where="the proof's events",
                    fix="nothing is said of the job: run the trial again",
                )
            last[place] = told.offset

    def close(self) -> None:
        """Give the connection back."""
        if self._producer is not None:
            self._producer.close()


def _producer(servers: str) -> Any:
    from kafka import KafkaProducer

    return KafkaProducer(bootstrap_servers=servers.split(","), acks="all", enable_idempotence=True, linger_ms=5)


def _put(directory: Path, number: int, lines: Sequence[bytes]) -> None:
    """A file of lines; Spark takes the oldest file first, and passes over names that begin with a dot."""
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / f".{number:09}"
    aside.write_bytes(b"\n".join(lines) + b"\n")
    aside.replace(directory / f"{number:09}.txt")
