"""Connections that keep a server busy: they say nothing, or very little, and very slowly."""

import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_AT_ONCE = 50  # a server with a short queue takes them all, so that they do reach it
_CONNECT_SECONDS = 2.0


@contextmanager
def flooded(
    *ports: int, connections: int, drip: bytes = b"", queue_seconds: float = _CONNECT_SECONDS
) -> Iterator[list[socket.socket]]:
    """So many connections in all, one port after the other; they are kept as long as the server lets them.

    Args:
        drip: what each says, a byte every second; nothing where it is empty.
        queue_seconds: how long a few of them may wait together at a server whose queue is full.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(before[1], connections + 1_000)), before[1]))
    strangers: list[socket.socket] = []
    is_over = threading.Event()

    def say() -> None:
        for byte in drip:
            for stranger in [*strangers]:
                with suppress(OSError):  # dropped, or not connected yet
                    stranger.send(bytes([byte]))
            if is_over.wait(timeout=1.0):
                return

    dripping = threading.Thread(target=say, daemon=True)
    try:
        dripping.start()
        for first in range(0, connections, _AT_ONCE):
            batch = []
            for number in range(first, min(connections, first + _AT_ONCE)):
                stranger = socket.socket()
                stranger.setblocking(False)
                stranger.connect_ex(("127.0.0.1", ports[number % len(ports)]))
                batch.append(stranger)
            strangers += batch
            _await_lines(batch, queue_seconds)
        yield strangers
    finally:
        is_over.set()
        if dripping.ident is not None:
            dripping.join()
        for stranger in strangers:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _await_lines(strangers: list[socket.socket], seconds: float) -> None:
    """Until each is connected, or refused; one whose server has a full queue tries again after a second, or three."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for stranger in strangers:
            selector.register(stranger, selectors.EVENT_WRITE)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)


def count_open(strangers: list[socket.socket], seconds: float) -> int:
    """How many of them the server has not dropped after so long, or as soon as it has dropped all."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for stranger in strangers:
            selector.register(stranger, selectors.EVENT_READ)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                assert isinstance(key.fileobj, socket.socket)
                try:
                    is_dropped = key.fileobj.recv(4096) == b""
                except BlockingIOError:
                    continue
                except OSError:
                    is_dropped = True
                if is_dropped:
                    selector.unregister(key.fileobj)
        return len(selector.get_map())
