"""Connections that keep a server busy: they say nothing, or very little, and very slowly."""

import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def flooded(*ports: int, connections: int, drip: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections in all, opened at once, one port after the other; and kept as long as the server lets them.

    Args:
        drip: what each says, a byte every second; nothing where it is empty.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(before[1], connections + 1_000)), before[1]))
    strangers: list[socket.socket] = []
    is_over = threading.Event()

    def say() -> None:
        for byte in drip:
            for stranger in strangers:
                with suppress(OSError):  # dropped, or not connected yet
                    stranger.send(bytes([byte]))
            if is_over.wait(timeout=1.0):
                return

    dripping = threading.Thread(target=say, daemon=True)
    try:
        for number in range(connections):
            stranger = socket.socket()
            stranger.setblocking(False)
            stranger.connect_ex(("127.0.0.1", ports[number % len(ports)]))
            strangers.append(stranger)
        dripping.start()
        yield strangers
    finally:
        is_over.set()
        if dripping.ident is not None:
            dripping.join()
        for stranger in strangers:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


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
