"""Take connections at a socket so that strangers cannot use up the process.

A new connection has proven nothing yet: it is a stranger. The law: strangers hold a limited number of files and threads
for a limited time, and the next connection always finds room.

    asking    it has not yet sent its request, or the beginning of a handshake. It costs a file and no thread: one
              thread reads all of these. It has a deadline, however slowly it sends. When room is needed, the oldest is
              dropped
    served    it has sent its request, and a thread of its own serves it. It has a deadline too. The server limits the
              number of these, so that there is always an asking one to drop (http.py); or it lets them yield: when
              room is needed, those are ended that have had a second (rpc.py)
    known     it has proven that it knows the secret (rpc.py): it does not count, and has no deadline

A new connection is not dropped for a moment: enough for a client that sends at once. So a flood waits in the system's
queue, and does not displace connections that would have been served.

When the process has no file left, the next connection gets a file that is kept in reserve. After that the oldest asking
connection is dropped. If there is none, the thread pauses. It never spins, and it never ends because of that.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

BACKLOG = 1024
"""Connections that wait in the system's queue. A client that finds the queue full tries again only after a second."""

_MOMENT_SECONDS = 0.005
_PAUSE_SECONDS = 0.02
_YIELD_SECONDS = 1.0
_END_SECONDS = 1.0  # a visit that does not end by then ends by its own deadline
_LOOK_SECONDS = 1.0  # the precision of deadlines
_AT_ONCE = 32  # accept at most this many connections before serving the open ones again
_READ_BYTES = 16 * 1024
_FILES = threading.RLock()
"""Held while a server gives up one file for another: a second server of this process must not take it."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger(__name__)


def strangers_max() -> int:
    """How many strangers a server holds at once: an eighth of the files that the process may open, at most 256."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 256 if soft == resource.RLIM_INFINITY else max(16, min(256, soft // 8))


class Client:
    """A connection, from its acceptance to its end."""

    def __init__(self, acceptor: Acceptor, line: socket.socket) -> None:
        self.line = line
        self.said = b""  # all bytes so far
        self.since = self.deadline = 0.0
        self._acceptor = acceptor
        self._file = line.fileno()  # the server may detach it from the socket

    def limit(self, seconds: float | None) -> None:
        """End the visit if it is still open after this time; None: never."""
        self.since = time.monotonic()
        self.deadline = float("inf") if seconds is None else self.since + seconds

    def know(self) -> None:
        """It has proven that it knows the secret: it is no longer a stranger."""
        self.limit(None)
        self._acceptor.know(self)

    def leave(self) -> None:
        """Call this before the file is closed: its number may be another connection's after that."""
        self._acceptor.forget(self)

    def hang_up(self) -> None:
        """Let the thread that serves it find the end of the stream. Call it under the acceptor's lock."""
        line = socket.socket(fileno=self._file)
        try:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        finally:
            line.detach()


class Acceptor:
    """Takes the connections of a socket, and serves those that have sent a complete request.

    Args:
        is_whole: are these bytes a complete request? Must also be true for bytes that are too many.
        serve: serves a connection, in a thread of its own. True if it may send more, after `client.said`.
        seconds: how long a connection may take to send its request.
        yields: may a connection in service be ended when room is needed? Only as long as it is a stranger.
    """

    def __init__(
        self,
        listening: socket.socket,
        *,
        is_whole: Callable[[bytes], bool],
        serve: Callable[[Client], bool],
        name: str,
        seconds: float,
        yields: bool = False,
    ) -> None:
        # Another process may share the socket, and accept a connection that both have seen.
        listening.setblocking(False)
        self._listening, self._name, self._seconds = listening, name, seconds
        self._is_whole, self._serve, self._yields = is_whole, serve, yields
        self._most = strangers_max()
        self._asking: dict[int, Client] = {}  # by file, the oldest first; only the thread that accepts touches it
        self._poll = select.poll()  # handles any file number, and needs no file itself
        self._lock = threading.Condition()
        self._strangers: set[Client] = set()  # in service
        self._known: set[Client] = set()
        self._returning: list[Client] = []  # served, and continue
        self._is_stopping = self._is_closing = self._is_over = False
        self._has_stopped = threading.Event()
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """The connections that are open."""
        with self._lock:
            return len(self._asking) + len(self._strangers) + len(self._known) + len(self._returning)

    def stop(self) -> None:
        """Take no more connections. The open ones continue to their own end, and the socket stays open."""
        self._is_stopping = True
        self._call()
        self._has_stopped.wait()

    def close(self, *, patience_seconds: float = 0.0) -> None:
        """Take no more connections, and end the open ones; those in service may take `patience_seconds`."""
        self._is_closing = True
        self.stop()
        with self._lock:
            self._lock.wait_for(lambda: not self._strangers | self._known, timeout=patience_seconds)
            for client in self._strangers | self._known:
                client.hang_up()
        self._thread.join(_END_SECONDS)

    def know(self, client: Client) -> None:
        """A connection in service has proven that it knows the secret."""
        with self._lock:
            self._strangers.discard(client)
            self._known.add(client)

    def forget(self, client: Client) -> None:
        """The thread that serves the connection is about to close it."""
        with self._lock:
            self._strangers.discard(client)
            self._known.discard(client)

    def _call(self) -> None:
        """Wake the thread that accepts."""
        with suppress(OSError):  # it is already woken, or has ended
            self._wake.send(b"x")

    # -- the thread that accepts, and reads from strangers -------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._receive()
        finally:
            self._has_stopped.set()
            self._wake.close()
            self._woken.close()
            with _FILES:
                self._is_over = True
                if self._spare is not None:
                    os.close(self._spare)

    def _receive(self) -> None:
        listener, woken = self._listening.fileno(), self._woken.fileno()
        self._poll.register(woken, select.POLLIN)
        self._poll.register(listener, select.POLLIN)
        is_listening = True
        while True:
            if is_listening and self._is_stopping:
                self._poll.unregister(listener)
                is_listening = False
                self._has_stopped.set()
                continue
            self._look_around()
            if not (is_listening or self.count):
                return  # the last one was dropped: nothing would wake this thread any more
            found = [file for file, _ in self._poll.poll(_LOOK_SECONDS * 1000 if self.count else None)]
            for file in found:
                if file == woken:
                    self._woken.recv(4096)
                elif file in self._asking:
                    self._listen_to(self._asking[file])
            if listener in found and not self._is_stopping:
                for _ in range(_AT_ONCE):
                    if not self._take():
                        break

    def _look_around(self) -> None:
        """Take back those that continue, and end those whose time is over."""
        with self._lock:
            returning, self._returning = self._returning, []
        for client in returning:
            self._welcome(client)
        now = time.monotonic()
        for client in [*self._asking.values()]:
            if self._is_closing or client.deadline < now:
                self._drop(client)
        with self._lock:
            for client in self._strangers:
                if client.deadline < now:
                    client.hang_up()

    def _take(self) -> bool:
        """Take a connection; False if there is none, or no room."""
        if len(self._asking) + len(self._strangers) >= self._most and not self._drop_oldest():
            return False
        with _FILES:
            try:
                try:
                    line, _ = self._listening.accept()
                except OSError as error:
                    if error.errno not in _NO_ROOM:
                        raise
                    self._make_room()
                    line, _ = self._listening.accept()
            except OSError:  # its client is gone, another process has taken it, or there is still no room
                return False
        line.setblocking(False)
        self._welcome(Client(self, line))
        return True

    def _make_room(self) -> None:
        """Give up a file for the next connection, or pause."""
        if self._spare is None:
            self._drop_oldest()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _drop_oldest(self) -> bool:
        """Make room; False, after a pause, if there is none to drop."""
        for client in [*self._asking.values()]:
            time.sleep(max(0.0, client.since + _MOMENT_SECONDS - time.monotonic()))
            self._listen_to(client)
            if client.line.fileno() in self._asking:
                self._drop(client)
                return True
        if self._yields:
            self._end_before(time.monotonic() - _YIELD_SECONDS)
        time.sleep(_PAUSE_SECONDS)
        return False

    def _end_before(self, moment: float) -> None:
        """End the strangers that have been in service since before this moment; their threads make room."""
        with self._lock:
            for client in self._strangers:
                if client.since < moment:
                    client.hang_up()

    def _welcome(self, client: Client) -> None:
        client.limit(self._seconds)
        self._asking[client.line.fileno()] = client
        self._poll.register(client.line, select.POLLIN)
        if self._is_whole(client.said):
            self._begin(client)
        else:
            self._listen_to(client)

    def _listen_to(self, client: Client) -> None:
        """Read what has arrived."""
        try:
            heard = client.line.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        client.said += heard
        if not heard:
            self._drop(client)
        elif self._is_whole(client.said):
            self._begin(client)

    def _drop(self, client: Client) -> None:
        self._let_go(client)
        self._close(client)

    def _close(self, client: Client) -> None:
        with _FILES:
            client.line.close()
            if self._spare is None and not self._is_over:
                with suppress(OSError):
                    self._spare = os.open(os.devnull, os.O_RDONLY)

    def _let_go(self, client: Client) -> None:
        self._poll.unregister(client.line)
        del self._asking[client.line.fileno()]

    def _begin(self, client: Client) -> None:
        """Start to serve it."""
        self._let_go(client)
        client.limit(self._seconds)
        with self._lock:
            self._strangers.add(client)
        try:
            threading.Thread(target=self._host, args=(client,), name=f"{self._name}-visit", daemon=True).start()
        except RuntimeError:  # no more threads
            self._end(client)

    # -- the thread of a connection ------------------------------------------------------------------------------------

    def _host(self, client: Client) -> None:
        try:
            client.line.setblocking(True)
            goes_on = self._serve(client)
            if goes_on:
                client.line.setblocking(False)
        except (OSError, EOFError):  # gone, or dropped
            goes_on = False
        except Exception:
            log.exception("%s: a connection could not be served", self._name)
            goes_on = False
        if not goes_on:
            self._end(client)
            return
        with self._lock:
            self._strangers.discard(client)
            self._returning.append(client)
        self._call()

    def _end(self, client: Client) -> None:
        self.forget(client)
        with suppress(OSError):
            client.line.shutdown(socket.SHUT_WR)  # written bytes still arrive
        self._close(client)
        with self._lock:
            self._lock.notify_all()
        self._call()
