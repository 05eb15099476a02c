"""State as bytes: MessagePack, with an extension for each type that MessagePack lacks.

The law: a value is read with the type that it was written with, or it is refused when it is written. Bytes name no
function, and a class only by a name that the job's own code has declared. So bytes decide about values, and never about
the code that runs.

    as it is            None, bool, int of 64 bits, float, str, bytes, list, dict whose keys are of these (but no list)
    by an extension     tuple, set, frozenset, any other dict, any other int, Decimal, datetime, date, time, timedelta,
                        str that is no valid Unicode, a declared class (a named tuple)
    changed             a number of numpy becomes Python's; bytearray and memoryview become bytes
    refused             every other type, by its name

An extension costs a call in Python, everything else is written in C. So operators keep their own parts in lists.

Equal values have equal bytes, except that a dict keeps the order in which its keys came. A set is in the order of the
bytes of its elements.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import partial
from types import NoneType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import ormsgpack
from ormsgpack import Ext

from lockgate.errors import BadJob
from lockgate.untrusted import Unreadable

EXTENSIONS_DEEP = 8
"""So many extensions may be inside one another: each takes up to half a megabyte of stack when it is read."""

# Each of these types resembles another, which it would come back as.
_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_UUID
)

# A key of another type than str would become text, if it is no key that is known to be written as it is.
_OPTIONS_OF_PARTS = _OPTIONS | ormsgpack.OPT_NON_STR_KEYS
_PLAIN_KEYS = {NoneType, bool, int, float, bytes, str}
_MADE_OF_PARTS = {list, dict, str}

# In every checkpoint: these numbers stay.
_TUPLE, _DICT, _SET, _FROZENSET, _INT, _TEXT, _DECIMAL = range(1, 8)
_DATETIME_UTC, _DATETIME, _DATETIME_ZONED, _DATE, _TIME, _TIMEDELTA, _DECLARED = range(8, 15)

_END = "the end"
_END_BYTES = ormsgpack.packb(_END)
_INSTANT, _DAY, _SPAN = struct.Struct("<q"), struct.Struct("<i"), struct.Struct("<iii")
_BEGIN, _BEGIN_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")


class NotKept(TypeError):
    """A value has a type that state cannot hold; the message names the type."""


class Encoding:
    """Writes and reads state, which may hold values of these classes."""

    def __init__(self, classes: Sequence[Any] = ()) -> None:
        self.classes = tuple(classes)
        self._classes = {one.__qualname__: one for one in classes}
        if len(self._classes) < len({*classes}):
            names = ", ".join(sorted(one.__qualname__ for one in classes))
            raise BadJob(
                f"two classes that a state holds have one name: {names}", "the job's code", "rename one of the classes"
            )
        # By the number of extensions around a value.
        self._writers = [partial(self._write, depth) for depth in range(EXTENSIONS_DEEP + 1)]
        self._readers = [partial(self._read, depth) for depth in range(EXTENSIONS_DEEP + 1)]
        # Why the last value was refused, for MessagePack raises errors of its own.
        self._refused = NotKept()
        self._reason = ""

    def __reduce__(self) -> tuple[type[Encoding], tuple[Any, ...]]:
        return Encoding, (self.classes,)

    def encode(self, value: Any) -> bytes:
        """A value as bytes; NotKept if any part of it cannot be kept.

        >>> PLAIN.decode(PLAIN.encode(["total", (2**70,)]))
        ['total', (1180591620717411303424,)]
        """
        try:
            return ormsgpack.packb(value, self._writers[0], _OPTIONS)
        except TypeError:
            return self._pack_parts(0, value)

    def decode(self, content: bytes) -> Any:
        """The value that was written; Unreadable if these bytes hold none."""
        return self.decode_all((content,))[0]

    def decode_all(self, contents: Sequence[bytes]) -> list[Any]:
        """Many values together, which costs little more than one."""
        # One array, whose last element tells that no value took bytes of the next one.
        whole = b"".join((b"\xdd", (len(contents) + 1).to_bytes(4, "big"), *contents, _END_BYTES))
        values: list[Any] = self._unpack(0, whole)
        if values.pop() != _END:
            raise Unreadable("a value does not end where it should")
        return values

    def _pack_parts(self, depth: int, value: Any) -> bytes:
        """A value of which some part has another form, or none: only a look at every part shows which."""
        self._refused = NotKept("something that is nested too deep")
        try:
            return ormsgpack.packb(self._explicit(depth, value), self._writers[depth], _OPTIONS_OF_PARTS)
        except (TypeError, RecursionError):  # MessagePack raises an error of its own
            raise self._refused from None

    def _explicit(self, depth: int, value: Any) -> Any:
        """The value with an extension for every dict and text that needs one."""
        kind = type(value)
        if kind is list:
            return [self._explicit(depth, one) for one in value] if _MADE_OF_PARTS & {*map(type, value)} else value
        if kind is dict:
            if not _has_plain_keys(value):
                return Ext(_DICT, self._pack_inside(depth, [[*value], [*value.values()]]))
            if _MADE_OF_PARTS & {*map(type, value.values())}:
                return {key: self._explicit(depth, one) for key, one in value.items()}
            return value
        return self._write(depth, value) if kind is str and not _is_unicode(value) else value

    def _write(self, depth: int, value: Any) -> Any:
        """A value that needs an extension."""
        kind = type(value)
        if kind is tuple:
            return Ext(_TUPLE, self._pack_inside(depth, [*value]))
        if kind is datetime:
            return self._write_datetime(depth, value)
        if kind is Decimal:
            return Ext(_DECIMAL, str(value).encode())
        if kind is date:
            return Ext(_DATE, _DAY.pack(value.toordinal()))
        if kind is int:
            return Ext(_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
        if kind is str:
            return Ext(_TEXT, value.encode("utf-8", "surrogatepass"))
        if kind is timedelta:
            return Ext(_TIMEDELTA, _SPAN.pack(value.days, value.seconds, value.microseconds))
        if kind is time and value.tzinfo is None and not value.fold:
            return Ext(_TIME, value.isoformat().encode())
        if kind is set or kind is frozenset:
            parts = sorted(self._pack_inside(depth, one) for one in value)
            content = b"".join((b"\xdd", len(parts).to_bytes(4, "big"), *parts))
            return Ext(_SET if kind is set else _FROZENSET, content)
        if self._classes.get(kind.__qualname__) is kind:
            return Ext(_DECLARED, self._pack_inside(depth, [kind.__qualname__, [*kind._fields], [*value]]))
        if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
            return value.item()
        raise self._refusal(f"a value of type {kind.__module__}.{kind.__qualname__}")

    def _refusal(self, what: str) -> NotKept:
        self._refused = NotKept(what)
        return self._refused

    def _write_datetime(self, depth: int, value: datetime) -> Any:
        zone = value.tzinfo
        if zone is UTC and not value.fold:
            return Ext(_DATETIME_UTC, _INSTANT.pack((value - _BEGIN_UTC) // _MICROSECOND))
        wall = (value.replace(tzinfo=None, fold=0) - _BEGIN) // _MICROSECOND
        if zone is None and not value.fold:
            return Ext(_DATETIME, _INSTANT.pack(wall))
        return Ext(_DATETIME_ZONED, self._pack_inside(depth, [wall, value.fold, self._zone_facts(zone)]))

    def _zone_facts(self, zone: tzinfo | None) -> Any:
        if zone is None:
            return None
        if type(zone) is timezone:
            return [part if isinstance(part, str) else part // _MICROSECOND for part in zone.__getinitargs__()]  # type: ignore[attr-defined]
        if type(zone) is ZoneInfo and zone.key is not None:
            return zone.key
        raise self._refusal(f"a datetime with a zone of type {type(zone).__module__}.{type(zone).__qualname__}")

    def _pack_inside(self, depth: int, value: Any) -> bytes:
        if depth == EXTENSIONS_DEEP:
            raise self._refusal("something that is nested too deep")
        try:
            return ormsgpack.packb(value, self._writers[depth + 1], _OPTIONS)
        except TypeError:
            return self._pack_parts(depth + 1, value)

    def _unpack(self, depth: int, content: bytes) -> Any:
        self._reason = ""
        try:
            return ormsgpack.unpackb(content, ext_hook=self._readers[depth], option=ormsgpack.OPT_NON_STR_KEYS)
        except ValueError as error:
            raise Unreadable(self._reason or str(error)) from None

    def _read(self, depth: int, code: int, content: bytes) -> Any:
        """The value of an extension."""
        try:
            return self._read_extension(depth, code, content)
        except Exception as error:  # whatever these bytes make fail
            self._reason = self._reason or f"extension {code}: {type(error).__name__}: {error}"
            raise

    def _read_extension(self, depth: int, code: int, content: bytes) -> Any:
        if code == _TUPLE:
            return tuple(self._list_inside(depth, content))
        if code == _DATETIME_UTC:
            return _BEGIN_UTC + timedelta(microseconds=_INSTANT.unpack(content)[0])
        if code == _DATETIME:
            return _BEGIN + timedelta(microseconds=_INSTANT.unpack(content)[0])
        if code == _DECIMAL:
            return Decimal(content.decode())
        if code == _DATE:
            return date.fromordinal(_DAY.unpack(content)[0])
        if code == _DICT:
            keys, values = self._list_inside(depth, content)
            return dict(zip(keys, values, strict=True))
        if code == _INT:
            return int.from_bytes(content, "big", signed=True)
        if code == _TEXT:
            return content.decode("utf-8", "surrogatepass")
        if code == _TIMEDELTA:
            days, seconds, microseconds = _SPAN.unpack(content)
            return timedelta(days, seconds, microseconds)
        if code == _TIME:
            return time.fromisoformat(content.decode())
        if code == _SET:
            return set(self._list_inside(depth, content))
        if code == _FROZENSET:
            return frozenset(self._list_inside(depth, content))
        if code == _DATETIME_ZONED:
            wall, fold, facts = self._list_inside(depth, content)
            return (_BEGIN + timedelta(microseconds=wall)).replace(tzinfo=_zone_of(facts), fold=fold)
        if code == _DECLARED:
            return self._read_declared(*self._list_inside(depth, content))
        raise Unreadable(f"extension {code} is unknown to this version of Lockgate")

    def _read_declared(self, name: str, fields: list[str], values: list[Any]) -> Any:
        kind = self._classes.get(name)
        if kind is None:
            raise Unreadable(f"it holds a {name}, which the job's code does not declare")
        if fields != [*kind._fields]:
            raise Unreadable(f"it holds a {name} of {', '.join(fields)}; the job's has {', '.join(kind._fields)}")
        return kind(*values)

    def _list_inside(self, depth: int, content: bytes) -> list[Any]:
        if depth == EXTENSIONS_DEEP:
            raise Unreadable("it is nested too deep")
        values = self._unpack(depth + 1, content)
        if type(values) is not list:
            raise Unreadable("an extension holds no list")
        return values


PLAIN = Encoding()
"""For state that holds no declared classes."""


def _zone_of(facts: Any) -> tzinfo | None:
    if facts is None:
        return None
    if isinstance(facts, list):
        return timezone(timedelta(microseconds=facts[0]), *facts[1:])
    if not _ZONE.fullmatch(facts):
        raise Unreadable(f"there is no time zone {facts!r}")
    return ZoneInfo(facts)


def _has_plain_keys(value: dict[Any, Any]) -> bool:
    """Are all keys written as they are?"""
    kinds = {*map(type, value)}
    if kinds == {int}:
        return bool(_INT_MIN <= min(value) <= max(value) <= _INT_MAX)
    return kinds <= _PLAIN_KEYS and all(
        _INT_MIN <= key <= _INT_MAX if type(key) is int else type(key) is not str or _is_unicode(key) for key in value
    )


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
