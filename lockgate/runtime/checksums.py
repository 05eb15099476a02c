"""The checksums that Hadoop's local file system keeps beside files, in `.NAME.crc`: is a file as it was written?

"crc\\0", bytes for each sum (4 bytes), then one CRC-32 (4 bytes) for every so many bytes of the file
"""

from __future__ import annotations

import struct
import zlib

_MAGIC = b"crc\0"


def checksum_of(name: str) -> str:
    """The file beside another one that has its checksums."""
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}.{file}.crc"


def is_checksum(name: str) -> bool:
    """Does a file have checksums of another one?"""
    file = name.rpartition("/")[2]
    return file.startswith(".") and file.endswith(".crc")


def is_whole(data: bytes, sums: bytes) -> bool:
    """Are these the bytes that the sums are of? Sums of a form that is not known say nothing against them."""
    if len(sums) < 8 or not sums.startswith(_MAGIC):
        return True
    (size,) = struct.unpack_from(">i", sums, len(_MAGIC))
    if size <= 0:
        return True
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return sums[8:] == b"".join(struct.pack(">I", zlib.crc32(piece)) for piece in pieces)
