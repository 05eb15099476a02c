"""How the records of a batch are compressed, as Kafka's own readers expect it.

A broker keeps a producer's batch as it came, and readers in every language unpack it later. So each codec writes what
the Java producer writes, at the Java producer's default level:

    none     0
    gzip     1   level 6
    snappy   2   a xerial stream: a magic header, then blocks of at most 32 KiB, each after its compressed length
    lz4      3   a frame whose blocks do not refer to each other, because Java's reader refuses linked ones
    zstd     4   level 3

Snappy comes with pyarrow. lz4 and zstandard come with the extra `kafka` and are imported where they are first used.
"""

from __future__ import annotations

import struct
import threading
import zlib
from enum import Enum

import pyarrow as pa

from lockgate.errors import BadJob, BadMachine

_GZIP_LEVEL = 6
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS  # 16 asks for gzip's own header and trailer
_ZSTD_LEVEL = 3
_SNAPPY_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)  # the version, and the oldest that can read it
_SNAPPY_BLOCK_BYTES = 32 * 1024

# A zstd compressor costs more to make than a small batch costs to compress, but two threads must not share one.
_of_this_thread = threading.local()


class Codec(Enum):
    """A compression; its value is the number that Kafka keeps in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, text: str, *, where: str) -> Codec:
        """The codec that Kafka's setting `compression.type` calls by this name."""
        for codec in cls:
            if text == codec.name.lower():
                return codec
        raise BadJob(
            f"compression {text!r} is not known",
            where=where,
            fix=f"use one of {', '.join(codec.name.lower() for codec in cls)}",
        )

    def compress(self, data: bytes | memoryview) -> bytes:
        """The compressed bytes; they may be more than the data."""
        if self is Codec.GZIP:
            return _gzip(data)
        if self is Codec.SNAPPY:
            return _snappy(data)
        if self is Codec.LZ4:
            return _lz4(data)
        if self is Codec.ZSTD:
            return _zstd(data)
        return bytes(data)


def _gzip(data: bytes | memoryview) -> bytes:
    stream = zlib.compressobj(level=_GZIP_LEVEL, wbits=_GZIP_WINDOW_BITS)
    return stream.compress(data) + stream.flush()


def _snappy(data: bytes | memoryview) -> bytes:
    codec = pa.Codec("snappy")
    parts = [_SNAPPY_HEADER]
    for start in range(0, len(data), _SNAPPY_BLOCK_BYTES):
        block = codec.compress(data[start : start + _SNAPPY_BLOCK_BYTES], asbytes=True)
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _lz4(data: bytes | memoryview) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise _missing("lz4") from None
    compressed: bytes = lz4.frame.compress(data, block_linked=False)
    return compressed


def _zstd(data: bytes | memoryview) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing("zstandard") from None
    compressor: zstandard.ZstdCompressor | None = getattr(_of_this_thread, "zstd", None)
    if compressor is None:
        compressor = _of_this_thread.zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    return compressor.compress(data)


def _missing(library: str) -> BadMachine:
    return BadMachine(
        f"the library {library} is not installed", where="compression of records", fix="pip install 'lockgate[kafka]'"
    )
