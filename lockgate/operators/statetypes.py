"""The types of state: read from their text, checked when a value is set, compared when code changes.

State outlives the code that wrote it. So what is kept is plain data of a known type, and never the objects of the
user's function. A value that fits becomes plain data, as a copy if it has parts. A value that does not fit raises
`ValueError`. Nothing is rounded, cut or guessed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from reprlib import repr as short
from typing import Any

Convert = Callable[[Any], Any]

_TOKEN = re.compile(r"`(?:[^`]|``)+`|\w+|[^\s\w]")
_PLAIN = ("STRING", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN", "TIMESTAMP", "DATE", "BINARY")
_BOUNDS = {"INT": 1 << 31, "BIGINT": 1 << 63}
_EXACT: dict[str, type] = {"STRING": str, "FLOAT": float, "DOUBLE": float, "BOOLEAN": bool, "BINARY": bytes}
_DECIMAL_DIGITS = (10, 0)  # what Spark means by DECIMAL without digits


@dataclass(frozen=True)
class Type:
    """A type; `inner` holds the element of an array, the key and value of a map, the fields of a struct."""

    name: str
    inner: tuple[Type, ...] = ()
    fields: tuple[str, ...] = ()
    digits: tuple[int, int] = _DECIMAL_DIGITS

    @property
    def exact(self) -> type | None:
        """The class whose instances fit as they are, if there is one."""
        return _EXACT.get(self.name)

    @property
    def bound(self) -> int | None:
        """For a whole number: it is below this, and not below minus this."""
        return _BOUNDS.get(self.name)

    def __str__(self) -> str:
        if self.name == "DECIMAL":
            return f"DECIMAL({self.digits[0]}, {self.digits[1]})"
        if self.name == "STRUCT":
            fields = (f"{_quoted(field)}: {kind}" for field, kind in zip(self.fields, self.inner, strict=True))
            return f"STRUCT<{', '.join(fields)}>"
        return f"{self.name}<{', '.join(map(str, self.inner))}>" if self.inner else self.name


def read_type(text: str) -> Type:
    """The type of a text, as `parse_ddl` and `str` write it; ValueError if state has no such type.

    >>> read_type("STRUCT<at: TIMESTAMP, tags: ARRAY<STRING>>").fields
    ('at', 'tags')
    """
    tokens = _TOKEN.findall(text)[::-1]
    made = _read(tokens)
    if tokens:
        raise ValueError(f"{tokens[-1]!r} has no place in the type of a state")
    return made


def converter(kind: Type) -> Convert:
    """A function that turns a value, which is not None, into plain data of this type, or raises ValueError."""
    if kind.bound is not None:
        return _whole(kind, kind.bound)
    if kind.name == "DECIMAL":
        return _decimal(kind)
    if kind.name == "ARRAY":
        return _array(kind)
    if kind.name == "MAP":
        return _map(kind)
    if kind.name == "STRUCT":
        return _struct(kind)
    return {
        "STRING": _string,
        "FLOAT": _floating(kind),
        "DOUBLE": _floating(kind),
        "BOOLEAN": _boolean,
        "TIMESTAMP": _timestamp,
        "DATE": _date,
        "BINARY": _binary,
    }[kind.name]


# Reading


def _read(tokens: list[str]) -> Type:
    """Take a type from the end of the tokens, which are in reverse order."""
    name = _take(tokens).upper()
    if name in _PLAIN:
        return Type(name)
    if name == "DECIMAL":
        return Type(name, digits=_read_digits(tokens))
    if name == "ARRAY":
        _take(tokens, "<")
        made = Type(name, inner=(_read(tokens),))
    elif name == "MAP":
        _take(tokens, "<")
        key = _read(tokens)
        _take(tokens, ",")
        made = Type(name, inner=(key, _read(tokens)))
        if key.inner:
            raise ValueError(f"a map's key cannot be {key}")
    elif name == "STRUCT":
        _take(tokens, "<")
        fields: list[str] = []
        inner: list[Type] = []
        while not fields or tokens[-1:] == [","]:
            if fields:
                _take(tokens, ",")
            fields.append(_take(tokens).strip("`").replace("``", "`"))
            _take(tokens, ":")
            inner.append(_read(tokens))
        made = Type(name, inner=tuple(inner), fields=tuple(fields))
    else:
        raise ValueError(f"a state cannot hold {name}")
    _take(tokens, ">")
    return made


def _read_digits(tokens: list[str]) -> tuple[int, int]:
    if tokens[-1:] != ["("]:
        return _DECIMAL_DIGITS
    _take(tokens, "(")
    precision, scale = int(_take(tokens)), 0
    if tokens[-1:] == [","]:
        _take(tokens, ",")
        scale = int(_take(tokens))
    _take(tokens, ")")
    return precision, scale


def _take(tokens: list[str], expected: str | None = None) -> str:
    token = tokens.pop() if tokens else "its end"
    if expected is not None and token != expected:
        raise ValueError(f"{token!r} stands where the type of a state has {expected!r}")
    return token


def _quoted(field: str) -> str:
    return field if re.fullmatch(r"\w+", field) else "`" + field.replace("`", "``") + "`"


# Converting


def _unfit(value: Any, kind: object) -> ValueError:
    return ValueError(f"{short(value)} is not of type {kind}")


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _whole(kind: Type, bound: int) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is not int:
            # Numbers of numpy are accepted too. A bool is an int to Python, but not a number to users.
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise _unfit(value, kind)
            value = operator.index(value)
        if -bound <= value < bound:
            return int(value)
        raise _unfit(value, kind)

    return convert


def _decimal(kind: Type) -> Convert:
    exponent = Decimal(1).scaleb(-kind.digits[1])
    context = Context(prec=kind.digits[0], traps=[Inexact, InvalidOperation])

    def convert(value: Any) -> Decimal:
        if not isinstance(value, Decimal | int) or isinstance(value, bool):
            raise _unfit(value, kind)
        try:
            made = Decimal(value).quantize(exponent, context=context)
        except DecimalException:
            raise _unfit(value, kind) from None
        if not made.is_finite():
            raise _unfit(value, kind)
        return made

    return convert


def _string(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)  # of a subclass: the text itself, whatever its __str__ returns
    raise _unfit(value, "STRING")


def _floating(kind: Type) -> Convert:
    def convert(value: Any) -> float:
        if isinstance(value, float | int) and not isinstance(value, bool):
            return float(value)
        raise _unfit(value, kind)

    return convert


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _unfit(value, "BOOLEAN")


def _timestamp(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise _unfit(value, "TIMESTAMP")
    try:
        utc = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:  # in UTC it lies before the year 1, or behind 9999
        raise _unfit(value, "TIMESTAMP") from None
    return utc if type(utc) is datetime else datetime.combine(utc.date(), utc.timetz())


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise _unfit(value, "DATE")


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _unfit(value, "BINARY")


def _array(kind: Type) -> Convert:
    element = _nullable(converter(kind.inner[0]))

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _unfit(value, kind)
        return [element(one) for one in value]

    return convert


def _map(kind: Type) -> Convert:
    key, element = converter(kind.inner[0]), _nullable(converter(kind.inner[1]))

    def convert(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _unfit(value, kind)
        return {key(name): element(one) for name, one in value.items()}

    return convert


def _struct(kind: Type) -> Convert:
    fields = {field: _nullable(converter(inner)) for field, inner in zip(kind.fields, kind.inner, strict=True)}

    def convert(value: Any) -> dict[str, Any]:
        if hasattr(value, "asDict"):  # a Row
            value = value.asDict()
        if not isinstance(value, Mapping) or value.keys() != fields.keys():
            raise _unfit(value, kind)
        return {field: element(value[field]) for field, element in fields.items()}

    return convert
