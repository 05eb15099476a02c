"""Values with their types, to compare what was read with what was written."""

from datetime import datetime
from typing import Any


def exactly(value: Any) -> Any:
    """A value with the types of all its parts, so that two are equal only if nothing distinguishes them."""
    kind = type(value)
    if isinstance(value, list | tuple):
        return kind, [exactly(one) for one in value]
    if kind is dict:
        return kind, [(exactly(key), exactly(one)) for key, one in value.items()]
    if kind in (set, frozenset):
        return kind, sorted(repr(exactly(one)) for one in value)
    if kind is datetime:
        return kind, repr(value), value.fold
    return kind, repr(value)
