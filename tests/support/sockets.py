"""A server for a job that reads a socket: it keeps its callers, and says lines to them."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class LineServer:
    """Says its first lines to each caller, and others when the test wants."""

    def __init__(self, server: socket.socket, lines: Sequence[str]) -> None:
        self.port: int = server.getsockname()[1]
        self.callers: list[socket.socket] = []
        self._server, self._lines = server, lines

    def say(self, *lines: str) -> None:
        """Say lines to the last caller."""
        self._say(self.callers[-1], lines)

    def answer(self) -> None:
        """Take callers until the socket is shut down."""
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return
            self.callers.append(caller)
            self._say(caller, self._lines)

    def _say(self, caller: socket.socket, lines: Sequence[str]) -> None:
        caller.sendall("".join(f"{line}\n" for line in lines).encode())


@contextmanager
def line_server(*lines: str) -> Iterator[LineServer]:
    """A server that says these lines to each caller and stays on the line."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        server = LineServer(door, lines)
        thread = threading.Thread(target=server.answer, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            door.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for callers
            thread.join()
            for caller in server.callers:
                caller.close()
