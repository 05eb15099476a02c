"""A row of a table or a file as a fact holds it: JSON, always written the same way.

Keys are sorted. Only whole numbers stay numbers: a decimal, a fraction and a time become text, so that nothing is
rounded on the way. Bytes are hexadecimal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def canonical(value: object) -> bytes:
    """A row, or its key."""
    told = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return told.encode("utf-8", "surrogatepass")


def key_of(row: Mapping[str, Any], names: Iterable[str]) -> bytes | None:
    """The columns of a key, whatever case they are written in; None where there is no key."""
    wanted = {name.lower() for name in names}
    return canonical({name: value for name, value in row.items() if name.lower() in wanted}) if wanted else None


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
