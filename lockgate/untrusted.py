"""Read JSON that another program or person may have written: ledgers, manifests, markers, savepoints, notes.

Whatever the content is, reading it ends in one of two ways: a value that is safe to use, or Unreadable.

    larger than `bytes_max`                       its size would fill the memory
    nested more than DEPTH_MAX deep               it would exhaust the stack, here or in the code that writes it again
    a number beyond 64 bits, or none (NaN, 1e999) no language that reads our files has such a number
    not UTF-8, or not JSON
    a field is missing, or has another type       `take` and `take_nullable` take a value of one type

Unreadable is a ValueError. The caller knows where the content came from, and turns it into a LockgateError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

DEPTH_MAX = 64
BYTES_MAX = 16 << 20
EXCERPT_BYTES = 200
"""An error quotes at most this much of unreadable content."""

_DIGITS_MAX = 20
_WHOLE_MAX = 1 << 64


class Unreadable(ValueError):
    """Content that is not what it should be."""


def read_json(content: bytes | str, *, bytes_max: int = BYTES_MAX) -> Any:
    """The value of a JSON text.

    >>> read_json(b'{"epoch": 7}')
    {'epoch': 7}
    >>> read_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    lockgate.untrusted.Unreadable: it is nested too deep
    """
    if len(content) > bytes_max:
        raise Unreadable(f"it has {len(content):,} bytes, more than {bytes_max:,}")
    try:
        text = content if isinstance(content, str) else content.decode()
        value = json.loads(text, parse_int=_whole, parse_float=_decimal, parse_constant=_no_number)
    except RecursionError:
        raise Unreadable("it is nested too deep") from None
    except Unreadable:
        raise
    except ValueError as error:  # of the JSON, or of the UTF-8
        raise Unreadable(f"it is not JSON: {error}") from None
    _check_depth(value)
    return value


def read_object(content: bytes | str, *, bytes_max: int = BYTES_MAX) -> dict[str, Any]:
    """The JSON object in a text."""
    return as_object(read_json(content, bytes_max=bytes_max))


def as_object(value: object) -> dict[str, Any]:
    """A value, if it is an object; else Unreadable."""
    if not isinstance(value, dict):
        raise Unreadable(f"{excerpt(value)} is not an object")
    return value


def as_list(value: object) -> list[Any]:
    """A value, if it is a list; else Unreadable."""
    if not isinstance(value, list):
        raise Unreadable(f"{excerpt(value)} is not a list")
    return value


def take(facts: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """The value of a field, which must exist and have this type; true and false are no numbers.

    >>> take({"epoch": True}, "epoch", int)
    Traceback (most recent call last):
    ...
    lockgate.untrusted.Unreadable: 'epoch' is True, and not an int
    """
    if name not in facts:
        raise Unreadable(f"{name!r} is missing")
    return as_type(facts[name], kind, name)


def take_nullable(facts: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """The value of a field, which must exist and have this type, or be null."""
    return None if name in facts and facts[name] is None else take(facts, name, kind)


def as_type(value: object, kind: type[T] | tuple[type[T], ...], name: str) -> T:
    """A value, if it has this type; else Unreadable."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Unreadable(f"{name!r} is {excerpt(value)}, and not {_NAMES.get(kind, 'a number')}")
    return value


def excerpt(value: object) -> str:
    """The beginning of a value, with its control characters escaped, for a message."""
    shown = repr(value[:EXCERPT_BYTES]) if isinstance(value, (str, bytes)) else repr(value)
    return shown if len(shown) <= 2 * EXCERPT_BYTES else f"{shown[: 2 * EXCERPT_BYTES]}..."


_NAMES: dict[object, str] = {int: "an int", str: "a text", dict: "an object", list: "a list", bool: "true or false"}


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS_MAX or abs(value := int(digits)) >= _WHOLE_MAX:
        raise Unreadable(f"a number has {len(digits)} digits")
    return value


def _decimal(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise Unreadable("a number is too large")
    return value


def _no_number(text: str) -> float:
    raise Unreadable(f"{text} is not a number")


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            child
            for one in level
            if isinstance(one, (dict, list))
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise Unreadable("it is nested too deep")
