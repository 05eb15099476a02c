"""The names by which a client may call our servers: the defence against DNS rebinding.

A page in a browser may read the answers of its own host name. The owner of the name can point it to 127.0.0.1, or to a
machine of a private network, and so read what is served there. The browser still sends the page's name in `Host`. The
law: a request with a name that is not the server's own gets no answer.

    bound to loopback    localhost, 127.0.0.1, [::1] and the address that is bound, with exactly this port
    bound elsewhere      the name that was given to bind to, the name of the machine, localhost, and every numeric
                         address, because an address cannot be made to point elsewhere. With any port: it may be mapped
    both                 the names in LOCKGATE_HTTP_NAMES, separated by blanks or commas; with any port

An HTTP/1.0 request may have no host; no browser sends such a request.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from dataclasses import dataclass

NAMES = "LOCKGATE_HTTP_NAMES"
"""The variable with more names: of a Service in Kubernetes, or of a proxy."""

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True)
class Hosts:
    """The names that `Host` may have."""

    port: int
    own: frozenset[str]  # for loopback with this port only, otherwise with any
    listed: frozenset[str] = frozenset()
    is_loopback: bool = True

    @classmethod
    def of(cls, listening: socket.socket, called: str = "") -> Hosts:
        """The names of a server at this socket; `called` is the name that it was bound to."""
        address, port = listening.getsockname()[:2]
        is_loopback = _is_loopback(str(address))
        own = {"localhost", "127.0.0.1", "::1", str(address), *({called} if called else ())}
        if not is_loopback:
            own.add(socket.gethostname())
        listed = re.split(r"[\s,]+", os.environ.get(NAMES, ""))
        return cls(int(port), frozenset(map(_plain, own)), frozenset(map(_plain, filter(None, listed))), is_loopback)

    def admits(self, host: str) -> bool:
        """Is this one of its names?"""
        parts = _HOST.fullmatch(host.strip())
        if parts is None:
            return False
        name, port = _plain(parts["name"]), int(parts["port"] or 80)
        if name in self.listed:
            return True
        if self.is_loopback:
            return name in self.own and port == self.port
        return name in self.own or _is_address(name)

    def refusal(self, host: str) -> str:
        """The answer to a request with another name."""
        return (
            f"this server is not called {host[:100]!r}\n"
            f"  where: the Host of the request\n"
            f"  fix:   call it by one of {', '.join(sorted(self.own | self.listed))} (port {self.port});"
            f" or start it with the name in {NAMES}\n"
        )


def _plain(name: str) -> str:
    return name.removeprefix("[").removesuffix("]").rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
