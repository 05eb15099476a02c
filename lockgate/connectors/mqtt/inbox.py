"""The messages that a broker waits to hear about: which message gets which number, and when it is acknowledged.

    received   -> waiting    in no epoch yet
    numbered   -> given      in an epoch that Spark has planned
    complete   -> answered   its epoch is in Spark's commit log; only now it is acknowledged

An MQTT identifier (`mid`) means a message only while the broker keeps the session; later the broker uses it for other
messages. So an acknowledgement goes over the same connection that brought the message. After a lost connection the
broker sends unacknowledged messages again, with the same identifier. The inbox recognizes such a message: it keeps its
number, and is acknowledged at once if its epoch is complete. If the broker has lost the session, older messages are not
acknowledged at all. No I/O, no threads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(eq=False)
class Message:
    """One message, as the broker delivered it."""

    topic: str
    payload: bytes
    at_ms: int  # when it arrived; MQTT 3.1.1 does not say when it was sent
    is_retained: bool
    mid: int = 0  # 0 if the broker expects no acknowledgement: QoS 0
    is_complete: bool = False
    is_answerable: bool = True  # did it come over the current connection?


class Inbox:
    """The messages of one session that are not acknowledged yet."""

    def __init__(self) -> None:
        self.waiting: deque[Message] = deque()
        self._given: deque[tuple[int, Message]] = deque()
        self._unanswered: dict[int, Message] = {}
        self._next = 0

    def connect(self, *, is_session_kept: bool) -> None:
        """Note a new connection, over which nothing has come yet."""
        for message in self._unanswered.values():
            message.is_answerable = False
        if not is_session_kept:
            self._unanswered.clear()

    def receive(self, message: Message, *, is_repeated: bool) -> list[int]:
        """Take a message, and return the identifiers that can be acknowledged now."""
        known = self._unanswered.get(message.mid) if is_repeated else None
        if known is not None and (known.topic, known.payload) == (message.topic, message.payload):
            known.is_answerable = True
            return self._answer(known)
        self.waiting.append(message)
        if message.mid:
            self._unanswered[message.mid] = message
        return []

    def number(self, start: int, count_max: int) -> int:
        """Number the waiting messages, from `start` on, and return the number after the last one of the epoch."""
        self._next = max(self._next, start)  # a restart continues after the numbers of the checkpoint
        while self.waiting and self._next < start + count_max:
            self._given.append((self._next, self.waiting.popleft()))
            self._next += 1
        return min(self._next, start + count_max)

    def numbered(self, start: int, end: int) -> list[tuple[int, Message]]:
        """The messages of an epoch; none if a dead driver planned it: they come again with later numbers."""
        self._next = max(self._next, end)
        return [(number, message) for number, message in self._given if start <= number < end]

    def complete(self, end: int) -> list[int]:
        """Note that all before `end` are in complete epochs, and return what can be acknowledged now."""
        answers = []
        while self._given and self._given[0][0] < end:
            _, message = self._given.popleft()
            message.is_complete = True
            answers += self._answer(message)
        return answers

    def _answer(self, message: Message) -> list[int]:
        is_expected = self._unanswered.get(message.mid) is message and message.is_answerable
        if not (is_expected and message.is_complete):
            return []
        del self._unanswered[message.mid]
        return [message.mid]
