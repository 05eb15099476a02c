"""Replies to lose: each is armed once, for one kind of request, and strikes once.

    armed      waiting for a request of its kind
    claimed    such a request is on its way; its reply will not arrive
    struck     the server has replied, so the request has taken effect; the reply was swallowed and the client reset

If the connection of a claimed one ends before the server has replied, it is armed again: a fault that has not struck
never counts as one that has.
"""

import threading
from collections.abc import Hashable
from datetime import timedelta


class LostReply:
    """One reply that is to be lost; says whether that has come about."""

    def __init__(self, kind: Hashable, skip: int) -> None:
        self.kind = kind
        self.skip = skip  # so many requests of the kind still pass unharmed
        self.struck = threading.Event()

    @property
    def has_struck(self) -> bool:
        """Whether the reply is lost."""
        return self.struck.is_set()

    def wait(self, limit: timedelta) -> bool:
        """Whether the reply was lost within the limit."""
        return self.struck.wait(limit.total_seconds())


class LostReplies:
    """All that are armed for some connections; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[LostReply] = []
        self._claimed: set[LostReply] = set()

    def arm(self, kind: Hashable, *, skip: int = 0) -> LostReply:
        """Lose the reply to the next request of this kind, behind those that are skipped."""
        if skip < 0:
            raise ValueError(f"{skip} requests cannot be skipped")
        reply = LostReply(kind, skip)
        with self._lock:
            self._armed.append(reply)
        return reply

    def disarm(self) -> None:
        """Lose no reply that is not lost yet."""
        with self._lock:
            self._armed.clear()
            self._claimed.clear()

    def claim(self, kind: Hashable) -> LostReply | None:
        """A request of this kind is on its way: the one that its reply is to be lost for, if any."""
        with self._lock:
            for reply in self._armed:
                if reply.kind != kind:
                    continue
                if not reply.skip:
                    self._armed.remove(reply)
                    self._claimed.add(reply)
                    return reply
                reply.skip -= 1
        return None

    def strike(self, reply: LostReply) -> bool:
        """The server has replied: whether that is still to be lost."""
        with self._lock:
            if reply not in self._claimed:
                return False
            self._claimed.remove(reply)
        reply.struck.set()
        return True

    def give_back(self, reply: LostReply) -> None:
        """The connection has ended without a reply: the next request of the kind counts."""
        with self._lock:
            if reply in self._claimed:
                self._claimed.remove(reply)
                self._armed.insert(0, reply)
