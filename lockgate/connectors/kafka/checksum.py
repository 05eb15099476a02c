"""CRC-32C, by which Kafka notices that the bytes of a record batch have changed in transit."""

from __future__ import annotations

from lockgate.errors import BadMachine


def checksum_of(*parts: bytes | memoryview) -> int:
    """CRC-32C of the parts, end to end."""
    try:
        import crc32c
    except ImportError:
        raise BadMachine(
            "the library crc32c is not installed", where="checksum of records", fix="pip install 'lockgate[kafka]'"
        ) from None
    checksum: int = 0
    for part in parts:
        checksum = crc32c.crc32c(part, checksum)
    return checksum
