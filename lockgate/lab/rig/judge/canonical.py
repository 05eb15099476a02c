"""One form for rows that mean the same, for comparing what two writers of JSON have written.

    objects    by the names of their fields, without those that are null
    numbers    as they count: 1, 1.0 and 1E0 are one number; the texts of a double differ between writers in the last of
               its 16 or 17 digits, so a fraction of so many digits is the double that is nearest to it
    times      in UTC, to the microsecond; one without a zone stays without

Records of topics have the types of JSON. Readers of tables and files tell fractions as text (see readers/rows.py), and
some of these have no type for what is true or nested, and no zone: there, what only looks like a number or an object is
one, and a time without a zone is in UTC. Anything else stays as it is.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

from lockgate.lab.rig.history import Content

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_EXACT_DIGITS = 15  # a double has these for sure
_DOUBLE_DIGITS = 17  # and never more


class Form(Enum):
    """How the values of a row can be compared."""

    TYPED = "the types of JSON"
    TOLD = "text as well"


def canonical(content: Content, form: Form = Form.TYPED) -> Content:
    """A row in the one form that all rows have which mean the same."""
    key, value = content
    return _read(key, form), _read(value, form)


def write(value: Any, form: Form = Form.TYPED) -> bytes:
    """Plain Python values as JSON in the one form; TypeError for a value that JSON has nothing for."""
    return _canonical_text(value, form).encode()


def _read(raw: bytes | None, form: Form) -> bytes | None:
    if raw is None or raw[:1] not in (b"{", b"["):
        return raw
    try:
        return write(_loads(raw), form)
    except (ValueError, ArithmeticError):
        return raw


def _loads(raw: bytes | str) -> Any:
    return json.loads(raw, parse_float=Decimal, parse_int=Decimal, parse_constant=str)


def _canonical_text(value: Any, form: Form) -> str:
    if isinstance(value, Mapping):
        fields = {_name(name): one for name, one in value.items() if one is not None}
        return (
            "{" + ",".join(f"{json.dumps(name)}:{_canonical_text(fields[name], form)}" for name in sorted(fields)) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ",".join(_canonical_text(one, form) for one in value) + "]"
    if value is None or (isinstance(value, bool) and form is Form.TYPED):
        return json.dumps(value)
    if isinstance(value, int | float | Decimal):
        return _number(value)
    if isinstance(value, bytes | bytearray):
        return json.dumps(base64.b64encode(value).decode()) if form is Form.TYPED else _text(value.hex(), form)
    if isinstance(value, date):
        return json.dumps(_time(value, form) if isinstance(value, datetime) else value.isoformat())
    if isinstance(value, str):
        return _text(value, form)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name {name!r} of a column is no text")
    return name


def _number(number: int | float | Decimal) -> str:
    if isinstance(number, float):
        if not math.isfinite(number):  # JSON has no numbers for them, and Spark writes words
            return json.dumps("NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity")
        number = Decimal(repr(number))
    exact = Decimal(number)
    _, digits, exponent = exact.as_tuple()
    if not isinstance(exponent, int):
        raise TypeError(f"{number} is no number")
    is_fraction = exponent < 0 and any(digits[exponent:])
    if _EXACT_DIGITS < len(digits) <= _DOUBLE_DIGITS and (is_fraction or exponent > 0):
        exact = Decimal(repr(float(exact)))
    if exact == 0:
        return "0"
    text = f"{exact:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _text(text: str, form: Form) -> str:
    if form is Form.TOLD:
        text = text.removeprefix("\\x")  # how PostgreSQL begins bytes
        if _NUMBER.fullmatch(text) is not None:
            return _number(Decimal(text))
        if text[:1] in ("{", "["):
            try:
                return _canonical_text(_loads(text), form)
            except ValueError:
                return json.dumps(text)
    if _TIME.fullmatch(text) is None:
        return json.dumps(text)
    zoned = text.replace("Z", "+00:00").replace(" ", "T")
    try:
        return json.dumps(_time(datetime.fromisoformat(_filled(zoned)), form))
    except ValueError:
        return json.dumps(text)


def _filled(text: str) -> str:
    """With all digits of its fraction and a colon in its zone, as older Pythons want to have them."""
    whole = re.sub(r"\.(\d+)", lambda told: f".{told[1]:0<6}", text)
    return re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", whole)


def _time(at: datetime, form: Form) -> str:
    if at.tzinfo is None and form is Form.TOLD:
        at = at.replace(tzinfo=UTC)
    if at.tzinfo is None:
        return at.isoformat(timespec="microseconds")
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
