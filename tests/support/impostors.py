"""Who answers at PostgreSQL's address: a stranger that wants the password, and a real server behind TLS."""

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

CLEAR_TEXT = struct.pack(">i", 3)
MD5 = struct.pack(">i4s", 5, b"salt")
NO_PASSWORD = struct.pack(">i", 0)
_TLS = 80_877_103
_LIMIT_SECONDS = 2.0  # so long a client that trusts the stranger may wait for it


class Stranger:
    """Takes callers one after the other, asks each in its own way for the password, and keeps what it gets."""

    def __init__(self, door: socket.socket, question: bytes, context: ssl.SSLContext | None) -> None:
        self.port: int = door.getsockname()[1]
        self.met: list[bytes] = []  # who called: the first message of a session, with the user's name
        self.heard: list[bytes] = []
        self._door, self._question, self._context = door, question, context

    def answer(self) -> None:
        """Take callers until the socket is shut down."""
        while True:
            try:
                caller, _ = self._door.accept()
            except OSError:
                return
            with caller, suppress(OSError, EOFError):  # a caller who leaves does what it ought to do
                caller.settimeout(_LIMIT_SECONDS)
                self._greet(caller)

    def _greet(self, caller: socket.socket) -> None:
        length, code = struct.unpack(">ii", _receive(caller, 8))
        if code != _TLS:
            self._ask(caller, length)
        elif self._context is None:
            caller.sendall(b"N")
            self._ask(caller, *struct.unpack(">i4x", _receive(caller, 8)))
        else:
            caller.sendall(b"S")
            with self._context.wrap_socket(caller, server_side=True) as secured:
                self._ask(secured, *struct.unpack(">i4x", _receive(secured, 8)))

    def _ask(self, caller: socket.socket, length: int) -> None:
        self.met.append(_receive(caller, length - 8))
        caller.sendall(b"R" + struct.pack(">i", 4 + len(self._question)) + self._question)
        answer = caller.recv(1024)
        if answer:
            self.heard.append(answer)


def _receive(caller: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        part = caller.recv(length - len(received))
        if not part:
            raise EOFError
        received += part
    return received


@contextmanager
def stranger(question: bytes, context: ssl.SSLContext | None = None) -> Iterator[Stranger]:
    """Somebody who answers on the loopback interface, with TLS if there is a context."""
    with socket.create_server(("127.0.0.1", 0)) as door, _answering(Stranger(door, question, context), door) as someone:
        yield someone


S = TypeVar("S", bound=Stranger)


@contextmanager
def _answering(someone: S, door: socket.socket) -> Iterator[S]:
    thread = threading.Thread(target=someone.answer, daemon=True)
    thread.start()
    try:
        yield someone
    finally:
        door.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for callers
        thread.join()


class Listener(Stranger):
    """Says nothing, and keeps what a caller sends first: a login, in MQTT."""

    def __init__(self, door: socket.socket, context: ssl.SSLContext | None) -> None:
        super().__init__(door, b"", context)

    def _greet(self, caller: socket.socket) -> None:
        self.met.append(b"")
        if self._context is None:
            self.heard.append(caller.recv(1024))
            return
        with self._context.wrap_socket(caller, server_side=True) as secured:
            self.heard.append(secured.recv(1024))


@contextmanager
def listener(context: ssl.SSLContext | None = None) -> Iterator[Listener]:
    """Somebody who listens on the loopback interface, with TLS if there is a context."""
    with socket.create_server(("127.0.0.1", 0)) as door, _answering(Listener(door, context), door) as someone:
        yield someone


@contextmanager
def tls_in_front(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """TLS before a real server on this machine, whose own build has none; the port to connect to."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server: asyncio.StreamWriter | None = None
        try:
            await reader.readexactly(8)
            writer.write(b"S")
            await writer.start_tls(context)
            replies, server = await asyncio.open_connection("127.0.0.1", port)
            ways = [asyncio.create_task(pump(reader, server)), asyncio.create_task(pump(replies, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):  # a client that refuses our certificate leaves
            pass
        finally:
            for end in (writer, server):
                if end is not None:
                    end.close()

    started: Future[tuple[int, Callable[[], object]]] = Future()

    async def serve() -> None:
        loop, is_over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(meet, "127.0.0.1", 0)
        started.set_result((server.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(is_over.set)))
        await is_over.wait()
        server.close()  # connections that are left end with the loop

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ours, end = started.result()
    try:
        yield ours
    finally:
        end()
        thread.join()
