"""Rows of Spark's state as bytes, as far as our buckets have them.

Spark keeps keys and values as rows in its own format: eight bytes that say which fields are null, eight for every
field, then what does not fit into eight, each piece padded to a multiple of eight. A field that does not fit has the
start and the length of its bytes instead. Every checkpoint has this format, so it stays.

    a state of a bucket    (bucket)
    a cell of a bucket     ((bucket), (name))
    a timer of a bucket    ((bucket), time) or (time, (bucket)): in both the bucket is in the same place
"""

from __future__ import annotations

import struct

from lockgate.errors import InvariantBroken

_TIMER_BYTES = 40
_TIMER_BUCKET = 32  # the place of the bucket in a timer


def bucket_key(bucket: int) -> bytes:
    """The key of a state that a bucket has once."""
    return struct.pack("<qii", 0, bucket, 0)


def cell_key(bucket: int, name: str) -> bytes:
    """The key of a cell."""
    inner = binary_row(name.encode())
    return struct.pack("<qIIII", 0, 16, 24, len(inner), 40) + bucket_key(bucket) + inner


def cell_of(key: bytes) -> str:
    """The name of a cell, by its key."""
    length, start = struct.unpack_from("<II", key, 16)
    return read_binary(key[start : start + length]).decode()


def binary_row(content: bytes) -> bytes:
    """A row of one field, which is bytes or text."""
    return struct.pack("<qII", 0, len(content), 16) + content + bytes(-len(content) % 8)


def read_binary(row: bytes) -> bytes:
    """The field of such a row."""
    length, start = struct.unpack_from("<II", row, 8)
    return row[start : start + length]


def timer_of(key: bytes, bucket: int) -> bytes:
    """The key of a timer, changed to that of another bucket."""
    if len(key) != _TIMER_BYTES:
        raise InvariantBroken(
            f"the key of a timer has {len(key)} bytes", where="the checkpoint's state", fix="report this"
        )
    return key[:_TIMER_BUCKET] + struct.pack("<ii", bucket, 0)
