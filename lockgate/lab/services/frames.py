"""Find the messages in a stream of bytes that arrives in pieces, without collecting them.

Each message begins with a head of fixed size, which gives its length. We need only the head and the first bytes after
it; the rest is skipped, however many pieces it has.
"""

from collections.abc import Callable, Iterator


class Frames:
    """The messages of one direction of one connection.

    Args:
        head_bytes: the size of the head.
        measure: from a head, how many bytes follow it in its message, and how many of these are wanted.
    """

    def __init__(self, head_bytes: int, measure: Callable[[bytes], tuple[int, int]]) -> None:
        self._head_bytes = head_bytes
        self._measure = measure
        self._kept = bytearray()
        self._wanted_bytes = head_bytes
        self._left_bytes = 0  # of the message, behind what is wanted
        self._skip_bytes = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The messages whose wanted bytes are complete with this piece, each with where it begins in the piece.

        One that began in an earlier piece begins at 0 here.
        """
        at = start = 0
        while at < len(data):
            if self._skip_bytes:
                step = min(self._skip_bytes, len(data) - at)
                self._skip_bytes -= step
                at += step
                continue
            if not self._kept:
                start = at
            piece = data[at : at + self._wanted_bytes - len(self._kept)]
            self._kept += piece
            at += len(piece)
            if len(self._kept) == self._head_bytes and self._wanted_bytes == self._head_bytes:
                rest_bytes, behind_bytes = self._measure(bytes(self._kept))
                self._wanted_bytes += behind_bytes
                self._left_bytes = rest_bytes - behind_bytes
            if len(self._kept) == self._wanted_bytes:
                message = bytes(self._kept)
                self._kept.clear()
                self._wanted_bytes, self._skip_bytes = self._head_bytes, self._left_bytes
                yield start, message
