import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.lab.services.frames import Frames


def measure(head: bytes) -> tuple[int, int]:
    """Messages of a length and that many bytes, of which the first two are wanted, where there are two."""
    (length,) = struct.unpack(">H", head)
    return length, min(length, 2)


def message(body: bytes) -> bytes:
    return struct.pack(">H", len(body)) + body


@given(st.lists(st.binary(max_size=9), max_size=8), st.lists(st.integers(min_value=1, max_value=7), min_size=1))
def test_messages_are_found_however_the_stream_is_cut_into_pieces(bodies: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(map(message, bodies))
    frames = Frames(2, measure)
    found, at, turn = [], 0, 0
    while at < len(stream):
        piece = stream[at : at + sizes[turn % len(sizes)]]
        found += [(at + start, start, head) for start, head in frames.feed(piece)]
        at, turn = at + len(piece), turn + 1
    assert [head for _, _, head in found] == [message(body)[:4] for body in bodies]
    begins = [sum(len(message(body)) for body in bodies[:number]) for number in range(len(bodies))]
    for begin, (place, start, _) in zip(begins, found, strict=True):
        assert place == begin or (start == 0 and place > begin), "it begins in this piece, or began in an earlier one"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_is_not_wanted_of_a_message_is_stepped_over_and_not_kept(size: int) -> None:
    frames = Frames(2, measure)
    stream = message(b"ab" + bytes(60_000))
    for at in range(0, len(stream), size):
        list(frames.feed(stream[at : at + size]))
        assert len(frames._kept) <= 4
    assert list(frames.feed(message(b"cd"))) == [(0, message(b"cd"))]
