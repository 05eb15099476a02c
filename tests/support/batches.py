"""Record batches that no producer of ours would send, with a checksum that fits."""

import gzip
import struct

import crc32c
import lz4.frame
import pyarrow as pa
import zstandard

from lockgate.connectors.kafka.codecs import Codec


def varint(number: int) -> bytes:
    """A number of a record: zigzag, seven bits in each byte."""
    rest = (number << 1) ^ (number >> 63)
    made = bytearray()
    while rest >= 0x80:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*made, rest])


def seal(
    records: bytes,
    *,
    codec: int = 0,
    at: int = 0,
    count: int = 1,
    last_delta: int = 0,
    magic: int = 2,
    control: bool = False,
    producer: int = -1,
    length: int | None = None,
    checksum: int | None = None,
) -> bytes:
    """A batch around the bytes of records, whatever it says of them."""
    attributes = codec | (0x30 if control else 0)
    rest = struct.pack(">hiqqqhii", attributes, last_delta, 0, 0, producer, -1, -1, count) + records
    told = len(rest) + 9 if length is None else length
    sealed = crc32c.crc32c(rest) if checksum is None else checksum
    return struct.pack(">qiibI", at, told, -1, magic, sealed) + rest


def pack_snappy_zeros(size: int) -> bytes:
    """Zeros in xerial's format, in blocks of a megabyte; snappy makes them twenty times smaller."""
    block = pa.Codec("snappy").compress(bytes(1 << 20), asbytes=True)
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * (size >> 20)


def bomb(codec: Codec, size: int) -> bytes:
    """Something small that unpacks to many zeros."""
    if codec is Codec.GZIP:
        return gzip.compress(bytes(1 << 20)) * (size >> 20)
    if codec is Codec.SNAPPY:
        return pack_snappy_zeros(size)
    if codec is Codec.LZ4:
        return lz4.frame.compress(bytes(size), block_linked=False)
    return zstandard.compress(bytes(1 << 20)) * (size >> 20)
