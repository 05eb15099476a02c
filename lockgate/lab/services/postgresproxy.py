"""A proxy in front of PostgreSQL that can also lose the reply to one kind of command.

The proxy recognizes commands by the tag with which the server reports their end: "COMMIT" comes only for a committed
transaction, whether the command was sent as text, prepared, or one of several in a message; a COMMIT that failed is
reported as an error or as "ROLLBACK" and passes. What follows the tag is swallowed too, up to the server's word that it
is ready again: then a statement that commits by itself has taken effect as well, and the connection is reset.

If a client asks for encryption and the server grants it, the connection cannot be read, and is reset.
"""

import struct
from dataclasses import replace

from lockgate.lab.services.frames import Frames
from lockgate.lab.services.lostreplies import LostReplies, LostReply
from lockgate.lab.services.pipes import NotUnderstood, Ruling
from lockgate.lab.services.postgres import Postgres
from lockgate.lab.services.proxy import NetworkFault, Proxy

# The codes of a client's first messages, in place of a version: it may ask for encryption, or cancel and be gone.
_CANCEL, _TLS, _GSSAPI = 80_877_102, 80_877_103, 80_877_104
_MESSAGE_BYTES_MAX = 2**30
_DONE, _READY = b"C", b"Z"


class PostgresProxy(Proxy):
    """A proxy in front of a server of ours; the reader beside it goes on using the server's own address."""

    def __init__(self, server: Postgres, *, port: int = 0) -> None:
        self._lost = LostReplies()
        super().__init__(server.port, port=port, inspect=lambda: _Inspector(self._lost))
        self.dsn = replace(server, port=self.port).dsn
        """The address to give to clients whose network is to fail."""

    def lose_reply(self, tag: str = "COMMIT", *, skip: int = 0) -> LostReply:
        """Lose the reply to the next command that is reported by this tag (without its numbers), on any connection."""
        return self._lost.arm(tag.upper(), skip=skip)

    def heal(self, *faults: NetworkFault) -> None:
        """Take these faults away, or all of them, and with all the replies that are still to be lost."""
        if not faults:
            self._lost.disarm()
        super().heal(*faults)


class _Inspector:
    """Reads one connection along: the client only until it has introduced itself, the server all the time."""

    def __init__(self, lost: LostReplies) -> None:
        self._lost = lost
        self._is_introduced = False
        self._questions = 0  # about encryption, which are answered by one byte each
        self._greetings = Frames(4, _measure_greeting)
        self._replies = Frames(5, _measure_reply)
        self._is_swallowing = False

    def request(self, data: bytes) -> None:
        """Count the questions about encryption."""
        if self._is_introduced:
            return
        for _, greeting in self._greetings.feed(data):
            (code,) = struct.unpack_from(">i", greeting, 4)
            if code in (_TLS, _GSSAPI):
                self._questions += 1
            elif code == _CANCEL or code >> 16 == 3:
                self._is_introduced = True
                return
            else:
                raise NotUnderstood

    def reply(self, data: bytes) -> Ruling:
        """Look for the tags of commands that are done."""
        at = 0
        while self._questions and at < len(data):
            if data[at : at + 1] != b"N":
                raise NotUnderstood
            self._questions -= 1
            at += 1
        passing_bytes = 0 if self._is_swallowing else len(data)
        for start, message in self._replies.feed(data[at:]):
            if message[:1] == _READY and self._is_swallowing:
                return Ruling(passing_bytes, is_reset=True)
            if message[:1] == _DONE and not self._is_swallowing:
                lost = self._lost.claim(_command(message))
                if lost is not None and self._lost.strike(lost):
                    self._is_swallowing = True
                    passing_bytes = at + start
        return Ruling(passing_bytes)

    def close(self) -> None:
        """Nothing is left behind: what was claimed was struck at once."""


def _command(message: bytes) -> str:
    """The tag of a report without its numbers: INSERT of `INSERT 0 1`."""
    return message[5:].rstrip(b"\0").decode(errors="replace").rstrip(" 0123456789")


def _measure_greeting(head: bytes) -> tuple[int, int]:
    (length,) = struct.unpack(">i", head)
    if not 8 <= length <= 10_000:  # as the server has it
        raise NotUnderstood
    return length - 4, 4


def _measure_reply(head: bytes) -> tuple[int, int]:
    (length,) = struct.unpack_from(">i", head, 1)
    if not 4 <= length <= _MESSAGE_BYTES_MAX:
        raise NotUnderstood
    return length - 4, length - 4 if head[:1] == _DONE else 0
