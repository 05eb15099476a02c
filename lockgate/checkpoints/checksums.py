"""The checksums that Hadoop's local file system keeps beside files, in `.NAME.crc`: does a file still have its bytes?

"crc\\0", the length of a block (4 bytes), then one CRC-32 (4 bytes) for each block of the file
"""

from __future__ import annotations

import struct
import zlib

_MAGIC = b"crc\0"


def checksum_of(name: str) -> str:
    """The file with the checksums of another file, which is beside it."""
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}.{file}.crc"


def is_checksum(name: str) -> bool:
    """Does a file hold the checksums of another one?"""
    file = name.rpartition("/")[2]
    return file.startswith(".") and file.endswith(".crc")


def is_whole(data: bytes, sums: bytes) -> bool:
    """Do the checksums fit these bytes? Checksums in an unknown format count as fitting."""
    if len(sums) < 8 or not sums.startswith(_MAGIC):
        return True
    (size,) = struct.unpack_from(">i", sums, len(_MAGIC))
    if size <= 0:
        return True
    if len(sums) - 8 != 4 * -(-len(data) // size):
        return False
    told = (sum for (sum,) in struct.iter_unpack(">I", sums[8:]))
    return all(zlib.crc32(data[at : at + size]) == sum for at, sum in zip(range(0, len(data), size), told, strict=True))
