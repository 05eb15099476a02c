"""Sizes as people write them: `128 MB`, `1 GB`, or a number of bytes. A KB is 1024 bytes, as Spark and Hadoop count."""

from __future__ import annotations

import re

from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob

Size = str | int

_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


def as_bytes(value: object, *, of: str) -> int:
    """The number of bytes that a user wrote; `of` names the argument in the error.

    >>> as_bytes("128 MB", of="roll")
    134217728
    """
    size = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str) and (found := re.fullmatch(r"\s*([0-9]+)\s*([a-z]*)\s*", value.lower())):
        unit = _UNITS.get(found[2])
        size = None if unit is None else int(found[1]) * unit
    if size is None or size < 1:
        raise BadJob(
            f"{of} is not a size: {value!r}",
            where=f"declared at {caller()}",
            fix='write a text such as "128 MB" (B, KB, MB, GB, TB), or a number of bytes, at least one',
        )
    return size


def as_size(count: int) -> str:
    """A number of bytes for people.

    >>> as_size(900), as_size(1536), as_size(5 << 29)
    ('900 B', '1.5 KB', '2.5 GB')
    """
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1 << 10:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1 << 10
    return f"{size:.1f} TB"
