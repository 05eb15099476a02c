"""A network that fails on demand: a TCP proxy on the loopback interface, between clients and one server.

    cut             nothing flows, and no end is notified: connections hang, new ones too; bytes in flight arrive after
                    healing
    delay           every piece waits this long; the order is kept
    reset           both ends of every present connection get an RST
    lose replies    requests pass; the first bytes of the server's reply are dropped, then the connection is reset: the
                    request has taken effect, and the client never learns it
    refuse          the port does not listen; present connections continue

When a verb returns, its fault is in force: not one byte passes after `cut()` has returned. Bytes are never changed,
doubled or put into another order, and are lost only together with their connection, as TCP would have it.

One thread owns all sockets; other threads hand it an order and wait until it is done. The kernel accepts clients before
the proxy can decide. So a client of a server that is down is reset at once, and counted as refused. A client that
connects during a cut is accepted, and then receives nothing.
"""

import enum
import errno
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TypeVar

from lockgate.errors import BadMachine, ServiceFailed
from lockgate.lab.services.pipes import Connection, Direction, Inspector, Mark, NotUnderstood, Pipe, Ruling, State
from lockgate.lab.services.ports import HOST

PIECE_BYTES = 65_536
_BACKLOG = 512
_Answer = TypeVar("_Answer")
_Self = TypeVar("_Self", bound="Proxy")


class NetworkFault(enum.Enum):
    """What stays wrong until it is healed."""

    CUT = "cut"
    DELAY = "delay"
    LOST_REPLIES = "lost replies"
    REFUSAL = "refusal"


@dataclass(frozen=True)
class Faults:
    """What is wrong now."""

    cut: Direction = Direction.NEITHER
    delay_to_server: timedelta = timedelta(0)
    delay_to_client: timedelta = timedelta(0)
    are_replies_lost: bool = False
    is_refusing: bool = False

    def delay_seconds(self, direction: Direction) -> float:
        """How long a piece waits that goes this way."""
        delay = self.delay_to_server if direction is Direction.TO_SERVER else self.delay_to_client
        return delay.total_seconds()


@dataclass
class Counts:
    """What has passed so far, and what has not."""

    accepted_count: int = 0
    refused_count: int = 0  # the server was away
    reset_count: int = 0  # by us, or by one end and passed on to the other
    not_understood_count: int = 0  # of these, because an inspector could not read them
    open_count: int = 0
    to_server_bytes: int = 0
    to_client_bytes: int = 0
    swallowed_bytes: int = 0


class Proxy:
    """A proxy in front of one server, working from here on until it is closed; safe to use from any thread.

    Args:
        upstream: the port of the server, on the loopback interface.
        port: where to listen, for clients that know the port; 0 is any free port.
        inspect: makes the inspector of a new connection.
    """

    def __init__(self, upstream: int, *, port: int = 0, inspect: Callable[[], Inspector] | None = None) -> None:
        self.upstream = upstream
        self._inspect = inspect
        self._faults = Faults()
        self._counts = Counts()
        self._connections: set[Connection] = set()
        self._held: set[Pipe] = set()  # their first piece is not due yet
        self._listener = _bind(port)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._ear, self._bell = socket.socketpair()
        self._orders: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()  # of the next two, and of the bell
        self._is_closed = False
        self._failure: Exception | None = None
        self._is_ending = False
        self._selector.register(self._ear, selectors.EVENT_READ, self._obey)
        self._listen_again()
        self._thread = threading.Thread(target=self._work, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def faults(self) -> Faults:
        """What is wrong now."""
        return self._faults

    @property
    def counts(self) -> Counts:
        """What has passed so far; also to be had after the end."""
        return replace(self._counts, open_count=len(self._connections))

    def cut(self, direction: Direction = Direction.BOTH) -> None:
        """Let nothing through in this direction, also no new connection."""
        self._order(lambda: self._suffer(replace(self._faults, cut=self._faults.cut | direction)))

    def delay(self, by: timedelta, direction: Direction = Direction.BOTH) -> None:
        """Hold up every piece that goes this way; what waits already is held up as long, counted from its coming."""
        if by < timedelta(0):
            raise ValueError(f"a delay of {by} would be in the past")

        def slow_down() -> None:
            slow = self._faults
            if direction & Direction.TO_SERVER:
                slow = replace(slow, delay_to_server=by)
            if direction & Direction.TO_CLIENT:
                slow = replace(slow, delay_to_client=by)
            self._suffer(slow)

        self._order(slow_down)

    def lose_replies(self) -> None:
        """Swallow what the server says from now on, and reset each connection on which it has said something."""
        self._order(lambda: self._suffer(replace(self._faults, are_replies_lost=True)))

    def refuse(self) -> None:
        """Let no new connection in; the port stays ours."""
        self._order(lambda: self._suffer(replace(self._faults, is_refusing=True)))

    def reset(self) -> int:
        """Reset every present connection, at both ends; how many there were."""

        def reset_all() -> int:
            present = [*self._connections]
            for connection in present:
                self._reset(connection)
            return len(present)

        return self._order(reset_all)

    def heal(self, *faults: NetworkFault) -> None:
        """Take these faults away, or all of them: whatever hung or waited goes on, in its order."""

        def repair() -> None:
            healed, well = self._faults, Faults()
            for fault in faults or NetworkFault:
                healed = replace(healed, **{name: getattr(well, name) for name in _MADE_OF[fault]})
            self._suffer(healed)

        self._order(repair)

    def close(self) -> None:
        """Reset what is connected, stop listening, end the thread; ServiceFailed where it had failed before."""
        with self._lock:
            if not self._is_closed:
                self._orders.append(self._end)
                self._bell.send(b"!")
        self._thread.join()
        if self._failure is not None:
            raise self._broken() from self._failure

    # -- orders, from other threads -------------------------------------------------------------------------------

    def _order(self, do: Callable[[], _Answer]) -> _Answer:
        """Have the thread of the sockets do something; what it answers."""
        answer: Future[_Answer] = Future()

        def obey() -> None:
            if self._is_ending:
                answer.set_exception(self._broken())
                return
            try:
                answer.set_result(do())
            except Exception as error:  # noqa: BLE001 - the thread that gave the order gets it
                answer.set_exception(error)

        with self._lock:
            if self._is_closed:
                raise self._broken() from self._failure
            self._orders.append(obey)
            self._bell.send(b"!")
        return answer.result()

    def _obey(self, events: int) -> None:
        self._ear.recv(PIECE_BYTES)
        while self._orders:
            self._orders.popleft()()

    def _end(self) -> None:
        self._is_ending = True

    def _broken(self) -> ServiceFailed:
        how = "is closed" if self._failure is None else f"has failed: {type(self._failure).__name__}: {self._failure}"
        return ServiceFailed(
            f"The proxy in front of port {self.upstream} {how}.", f"{HOST}:{self.port}", "open another one"
        )

    # -- the thread of the sockets --------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._is_ending:
                for key, events in self._selector.select(self._pause_seconds()):
                    key.data(events)
                for pipe in [*self._held]:
                    self._pass_on(pipe)
                    self._watch(pipe.connection)
        except Exception as error:  # noqa: BLE001 - the next order raises it
            self._failure = error
        finally:
            for connection in [*self._connections]:
                self._reset(connection)
            self._listener.close()
            self._selector.close()
            with self._lock:
                self._is_closed = self._is_ending = True
                self._ear.close()
                self._bell.close()
            while self._orders:
                self._orders.popleft()()

    def _pause_seconds(self) -> float | None:
        """How long nothing is due; None: forever."""
        if not self._held:
            return None
        due = min(pipe.pieces[0][0] + self._faults.delay_seconds(pipe.direction) for pipe in self._held)
        return max(0.0, due - time.monotonic())

    def _suffer(self, faults: Faults) -> None:
        """Put faults into force, and with them whatever they no longer hold back."""
        before, self._faults = self._faults, faults
        if faults.is_refusing and not before.is_refusing:
            self._stop_listening()
        elif before.is_refusing and not faults.is_refusing:
            self._listen_again()
        for connection in [*self._connections]:
            self._connect(connection)
            for pipe in connection.pipes:
                self._pass_on(pipe)
            self._watch(connection)

    def _listen_again(self) -> None:
        self._listener.listen(_BACKLOG)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _stop_listening(self) -> None:
        self._selector.unregister(self._listener)
        self._listener.close()
        # Bound and not listening: clients are refused, and no other program gets the port.
        self._listener = _bind(self.port)

    def _accept(self, events: int) -> None:
        if self._faults.is_refusing:  # since this very round
            return
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it has gone again
            return
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(client, server, self._inspect() if self._inspect is not None else None)
        self._connections.add(connection)
        self._counts.accepted_count += 1
        self._connect(connection)
        self._watch(connection)

    def _connect(self, connection: Connection) -> None:
        """Call the server for a new client; not during a cut, for the first packet would not have arrived either."""
        if connection.state is State.WAITING and not self._faults.cut:
            connection.state = State.CALLING
            if connection.server.connect_ex((HOST, self.upstream)) not in (0, errno.EINPROGRESS):
                self._turn_away(connection)

    def _on_client(self, connection: Connection, events: int) -> None:
        if events & selectors.EVENT_READ:
            self._read(connection.requests)
        if events & selectors.EVENT_WRITE:
            self._pass_on(connection.replies)
        self._watch(connection)

    def _on_server(self, connection: Connection, events: int) -> None:
        if connection.state is State.CALLING:
            if connection.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._turn_away(connection)
                return
            connection.state = State.OPEN
        if events & selectors.EVENT_READ:
            self._read(connection.replies)
        if events & selectors.EVENT_WRITE:
            self._pass_on(connection.requests)
        self._watch(connection)

    def _read(self, pipe: Pipe) -> None:
        """Take in what is there, and pass it on where nothing stands against it."""
        connection = pipe.connection
        # One event may have ended the connection, or another fault of this round the reading.
        if connection.state is not State.OPEN or pipe.is_ended or pipe.direction in self._faults.cut:
            return
        try:
            data = pipe.source.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._reset(connection)
            return
        if not data:
            pipe.end(Mark.END)
        elif pipe.direction is Direction.TO_SERVER:
            self._read_request(pipe, data)
        else:
            self._read_reply(pipe, data)
        self._pass_on(pipe)

    def _read_request(self, pipe: Pipe, data: bytes) -> None:
        inspector = pipe.connection.inspector
        if inspector is not None:
            try:
                inspector.request(data)
            except NotUnderstood:
                self._counts.not_understood_count += 1
                pipe.end(Mark.RESET)
                return
        pipe.put(data)

    def _read_reply(self, pipe: Pipe, data: bytes) -> None:
        inspector = pipe.connection.inspector
        ruling = Ruling(passing_bytes=len(data))
        if self._faults.are_replies_lost:
            ruling = Ruling(passing_bytes=0, is_reset=True)
        elif inspector is not None:
            try:
                ruling = inspector.reply(data)
            except NotUnderstood:
                self._counts.not_understood_count += 1
                ruling = Ruling(passing_bytes=0, is_reset=True)
        if ruling.passing_bytes:
            pipe.put(data[: ruling.passing_bytes])  # the same bytes object, where all of it passes
        self._counts.swallowed_bytes += len(data) - ruling.passing_bytes
        if ruling.is_reset:
            pipe.end(Mark.RESET)

    def _pass_on(self, pipe: Pipe) -> None:
        """Write what is due, as far as the other end takes it."""
        self._held.discard(pipe)
        pipe.is_blocked = False
        if pipe.connection.state is not State.OPEN or pipe.direction in self._faults.cut:
            return
        due_before = time.monotonic() - self._faults.delay_seconds(pipe.direction)
        while pipe.pieces:
            came, piece = pipe.pieces[0]
            if came > due_before:
                self._held.add(pipe)
                return
            try:
                if piece is Mark.RESET:
                    self._reset(pipe.connection)
                    return
                if piece is Mark.END:
                    pipe.sink.shutdown(socket.SHUT_WR)
                    pipe.is_over = True
                    if all(each.is_over for each in pipe.connection.pipes):
                        self._drop(pipe.connection, is_reset=False)
                    return
                sent = pipe.sink.send(piece)
            except BlockingIOError:
                pipe.is_blocked = True
                return
            except OSError:
                self._reset(pipe.connection)
                return
            pipe.take(sent)
            if pipe.direction is Direction.TO_SERVER:
                self._counts.to_server_bytes += sent
            else:
                self._counts.to_client_bytes += sent

    def _watch(self, connection: Connection) -> None:
        """Wake up only for what can continue: a hung end with an error would wake us forever."""
        for end, incoming, outgoing, react in (
            (connection.client, connection.requests, connection.replies, self._on_client),
            (connection.server, connection.replies, connection.requests, self._on_server),
        ):
            wanted = 0
            if connection.state is State.CALLING and end is connection.server:
                wanted = selectors.EVENT_WRITE
            elif connection.state is State.OPEN:
                if not (incoming.is_ended or incoming.is_full or incoming.direction in self._faults.cut):
                    wanted |= selectors.EVENT_READ
                if outgoing.is_blocked and outgoing.direction not in self._faults.cut:
                    wanted |= selectors.EVENT_WRITE
            if wanted == incoming.source_events:
                continue
            if not wanted:
                self._selector.unregister(end)
            elif not incoming.source_events:
                self._selector.register(end, wanted, partial(react, connection))
            else:
                self._selector.modify(end, wanted, partial(react, connection))
            incoming.source_events = wanted

    def _reset(self, connection: Connection) -> None:
        if connection.state is not State.OVER:
            self._counts.reset_count += 1
            self._drop(connection, is_reset=True)

    def _turn_away(self, connection: Connection) -> None:
        self._counts.refused_count += 1
        self._drop(connection, is_reset=True)

    def _drop(self, connection: Connection, *, is_reset: bool) -> None:
        connection.state = State.OVER
        self._connections.discard(connection)
        self._held.difference_update(connection.pipes)
        self._watch(connection)
        for end in (connection.client, connection.server):
            if is_reset:
                # Lingering for no time at all is how an RST is asked for.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
        if connection.inspector is not None:
            connection.inspector.close()


_MADE_OF = {
    NetworkFault.CUT: ("cut",),
    NetworkFault.DELAY: ("delay_to_server", "delay_to_client"),
    NetworkFault.LOST_REPLIES: ("are_replies_lost",),
    NetworkFault.REFUSAL: ("is_refusing",),
}
"""The fields of Faults in which a fault is."""


def _bind(port: int) -> socket.socket:
    """A socket that holds the port and does not listen yet."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        # Connections of before, that are present or fading out, are no strangers.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise BadMachine(
            f"Port {port}, wanted by a proxy, cannot be had: {error.strerror}.",
            f"{HOST}:{port}",
            "end the program that listens there, or choose another port",
        ) from error
    return listener
