"""Choose ports on the loopback interface, and refuse those that other programs hold.

Ports are chosen below the range for outgoing connections. A client that keeps calling a dead server on a port of that
range eventually gets this port for its own end. Then it talks to itself, and the server cannot return. Tests that kill
servers would see this often.
"""

import random
import socket
from collections.abc import Collection
from pathlib import Path

from lockgate.errors import BadMachine

HOST = "127.0.0.1"
_LOWEST = 10_000
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback interface now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections that are only fading out do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose(count: int, rng: random.Random, taken: Collection[int] = ()) -> list[int]:
    """Some free ports, at random so that two checkouts hardly ever want the same."""
    highest = _outgoing_begins() - 1
    if highest - _LOWEST < 1_000:  # the system uses nearly all ports for outgoing connections: no better place
        highest = 65_535
    chosen: list[int] = []
    for _ in range(1_000):
        if len(chosen) == count:
            return chosen
        port = rng.randint(_LOWEST, highest)
        if port not in chosen and port not in taken and is_free(port):
            chosen.append(port)
    raise BadMachine(
        f"No {count} free ports were found on {HOST}.",
        f"tried 1000 ports between {_LOWEST} and {highest}",
        "end programs that listen there, or choose ports: lockgate up --kafka-port N --postgres-port N",
    )


def require_free(port: int, service: str, option: str) -> None:
    """BadMachine where a stranger holds the port of a service."""
    if not 0 < port < 65_536:
        raise BadMachine(f"{port} is no port.", f"{option} {port}", "give a number from 1 to 65535")
    if not is_free(port):
        raise BadMachine(
            f"Port {port}, wanted by {service}, is taken by another program.",
            f"{HOST}:{port}",
            f"end that program, or choose another port: lockgate up {option} N (or start without the data: "
            "lockgate up --fresh)",
        )


def _outgoing_begins() -> int:
    try:
        return int(_OUTGOING.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
