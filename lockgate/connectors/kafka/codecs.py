"""How the records of a batch are compressed, as Kafka's own readers expect it.

A broker keeps a producer's batch unchanged, and readers in every language unpack it later. So each codec writes what
the Java producer writes, at the Java producer's default level:

    none     0
    gzip     1   level 6
    snappy   2   a xerial stream: a magic header, then blocks of at most 32 KiB, each after its compressed length
    lz4      3   a frame whose blocks do not refer to each other, because Java's reader refuses linked ones
    zstd     4   level 3

Unpacking stops at a limit, because a few kilobytes can unpack to gigabytes. Bytes that do not unpack are Unreadable. As
in the Java consumer, gzip and zstd may be several streams in a row, and snappy may be one block without xerial's
header.

Snappy comes with pyarrow. lz4 and zstandard come with the extra `kafka` and are imported at their first use.
"""

from __future__ import annotations

import gzip
import struct
import threading
import zlib
from enum import Enum
from io import BytesIO
from typing import Protocol

import pyarrow as pa

from lockgate.errors import BadJob, BadMachine
from lockgate.untrusted import Unreadable

_GZIP_LEVEL = 6
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS  # 16 asks for gzip's own header and trailer
_ZSTD_LEVEL = 3
_SNAPPY_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)  # the version, and the oldest that can read it
_SNAPPY_BLOCK_BYTES = 32 * 1024
_SNAPPY_MAGIC_BYTES = 8  # the versions after the magic may be anything: some producers write their bytes in reverse
_SNAPPY_LENGTH_BYTES_MAX = 5
_PIECE_BYTES = 256 * 1024

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

    def decompress(self, data: bytes | memoryview, *, bytes_max: int) -> bytes:
        """The unpacked bytes; Unreadable if there are more than `bytes_max`, or if it is another compression."""
        try:
            if self is Codec.GZIP:
                return _drain(gzip.GzipFile(fileobj=BytesIO(data)), bytes_max)
            if self is Codec.SNAPPY:
                return _unpack_snappy(memoryview(data), bytes_max)
            if self is Codec.LZ4:
                return _unpack_lz4(data, bytes_max)
            if self is Codec.ZSTD:
                return _unpack_zstd(data, bytes_max)
        except (BadMachine, Unreadable):
            raise
        except Exception as error:  # noqa: BLE001 - each library has errors of its own, and some are RuntimeErrors
            raise Unreadable(f"it is not {self.name.lower()} ({type(error).__name__}: {error})") from None
        if len(data) > bytes_max:
            raise _too_much(bytes_max)
        return bytes(data)


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _drain(stream: _Stream, bytes_max: int) -> bytes:
    """Everything that a stream unpacks to, piece by piece, so that it stops soon after the limit."""
    unpacked = bytearray()
    while piece := stream.read(_PIECE_BYTES):
        unpacked += piece
        if len(unpacked) > bytes_max:
            raise _too_much(bytes_max)
    return bytes(unpacked)


def _too_much(bytes_max: int) -> Unreadable:
    return Unreadable(f"it unpacks to more than {bytes_max:,} bytes")


def _unpack_snappy(data: memoryview, bytes_max: int) -> bytes:
    if data[:_SNAPPY_MAGIC_BYTES] != _SNAPPY_HEADER[:_SNAPPY_MAGIC_BYTES]:
        return _unpack_snappy_block(data, _snappy_length(data, bytes_max))
    if len(data) < len(_SNAPPY_HEADER):
        raise Unreadable("its header is cut off")
    unpacked = bytearray()
    at = len(_SNAPPY_HEADER)
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        if not 0 <= length <= len(data) - at:
            raise Unreadable(f"the length of a snappy block is {length}")
        block = data[at : at + length]
        claimed = _snappy_length(block, bytes_max)
        if len(unpacked) + claimed > bytes_max:
            raise _too_much(bytes_max)
        unpacked += _unpack_snappy_block(block, claimed)
        at += length
    return bytes(unpacked)


def _snappy_length(block: memoryview, bytes_max: int) -> int:
    """The unpacked size of a block, from its first bytes; refused above the limit."""
    length = 0
    for index, byte in enumerate(block[:_SNAPPY_LENGTH_BYTES_MAX]):
        length |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if length > bytes_max:
                raise _too_much(bytes_max)
            return length
    raise Unreadable("a snappy block has no length")


def _unpack_snappy_block(block: memoryview, length: int) -> bytes:
    unpacked: bytes = pa.Codec("snappy").decompress(block, decompressed_size=length, asbytes=True)
    return unpacked


def _unpack_lz4(data: bytes | memoryview, bytes_max: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise _missing("lz4") from None
    return _drain(lz4.frame.LZ4FrameFile(BytesIO(data)), bytes_max)


def _unpack_zstd(data: bytes | memoryview, bytes_max: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing("zstandard") from None
    # A frame that is cut off looks like its end here. The reader of the records notices what is missing.
    return _drain(zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True), bytes_max)


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
