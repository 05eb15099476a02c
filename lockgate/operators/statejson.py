"""State as JSON: what is shown outside, and what a step can start with.

JSON has fewer types than state, so the others are written as text: a time as ISO-8601 in UTC, a decimal as its digits,
bytes as Base64, a key of a map as its text. Reading needs the type, which the declaration of a state has. The tests
check these rules on every type:

    reading what was written gives the same data again
    a number may be written as a number or as text; nothing is rounded or guessed: what does not fit is refused
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from lockgate.operators.keyedstate import MapState, State
from lockgate.operators.statetypes import Type, converter

_DIGITS_MAX = 400  # of a decimal that is written without an exponent; a double has at most 309 before the point


def as_json(data: Any) -> Any:
    """Plain data as JSON has it; TypeError if it is no plain data."""
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if hasattr(data, "asDict"):  # a Row
        return as_json(data.asDict())
    if isinstance(data, Mapping):
        return {as_text(key): as_json(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [as_json(one) for one in data]
    return as_text(data)


def as_text(value: Any) -> str:
    """A single value as text: for a key, and for types that JSON does not have."""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        utc = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return utc.replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        # 1e999999999 is a decimal of one digit, and a billion digits without its exponent.
        return format(value, "f") if abs(value.adjusted()) <= _DIGITS_MAX else str(value)
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    raise TypeError(f"{type(value).__name__} is no plain data: {value!r}")


def key_texts(key: Sequence[Any]) -> list[str | None]:
    """The columns of a key as text."""
    return [None if part is None else as_text(part) for part in key]


def read_state(text: str, states: Mapping[str, State]) -> dict[str, Any]:
    """The data with which a function with these states starts, from the JSON text {"state": {...}}.

    ValueError if it is no such text.

    Data under another name belongs to the user, for an `init_state` of theirs, and stays as JSON has it.
    """
    # Digits are kept until it is known whether they are a decimal.
    try:
        told = json.loads(text, parse_float=Decimal)["state"]
    except (RecursionError, KeyError, TypeError) as error:
        raise ValueError(f"it is no state: {type(error).__name__}") from None
    if not isinstance(told, dict):
        raise ValueError(f"a state is a JSON object, not {told!r}")
    return {name: _read(states[name], value) if name in states else _plain(value) for name, value in told.items()}


def _read(state: State, value: Any) -> Any:
    try:
        if state.kind == "value":
            return from_json(state.type, value)
        if state.kind == "list" and isinstance(value, list):
            return [from_json(state.type, one) for one in value]
        if isinstance(state, MapState) and isinstance(value, dict):
            return {from_json(state.key_type, key): from_json(state.type, one) for key, one in value.items()}
    except ValueError:
        pass
    # A user's get_state may show something else under this name. Then only their init_state can convert it.
    return _plain(value)


def from_json(kind: Type, value: Any) -> Any:
    """Data of this type; ValueError if it has another."""
    return None if value is None else converter(kind)(_widened(kind, value))


def _widened(kind: Type, value: Any) -> Any:
    """The value as Python has it, for types that JSON does not have."""
    if kind.name in ("ARRAY", "MAP", "STRUCT"):
        return _widened_parts(kind, value)
    if kind.name in ("FLOAT", "DOUBLE") and isinstance(value, Decimal | str):
        return float(value)
    if not isinstance(value, str):
        return value
    try:
        if kind.bound is not None:
            return int(value)
        if kind.name == "DECIMAL":
            return Decimal(value)
        if kind.name == "BOOLEAN":
            return {"true": True, "false": False}[value]
        if kind.name == "TIMESTAMP":
            return datetime.fromisoformat(value)
        if kind.name == "DATE":
            return date.fromisoformat(value)
        if kind.name == "BINARY":
            return base64.b64decode(value, validate=True)
    except (KeyError, InvalidOperation, binascii.Error) as error:
        raise ValueError(f"{value!r} is no {kind}") from error
    return value


def _widened_parts(kind: Type, value: Any) -> Any:
    if kind.name == "ARRAY" and isinstance(value, list):
        return [from_json(kind.inner[0], one) for one in value]
    if kind.name == "MAP" and isinstance(value, dict):
        return {from_json(kind.inner[0], key): from_json(kind.inner[1], one) for key, one in value.items()}
    if kind.name == "STRUCT" and isinstance(value, dict):
        # Spark writes no field that is null. A field that is not declared is refused later.
        types = dict(zip(kind.fields, kind.inner, strict=True))
        return {**value, **{field: from_json(inner, value.get(field)) for field, inner in types.items()}}
    raise ValueError(f"{value!r} is no {kind}")


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value
