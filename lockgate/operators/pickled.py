"""State of format 1, which earlier versions wrote with pickle, read without pickle.

A pickle is a program, and the module `pickle` does what it says: it imports modules and calls their functions. This
reader knows the instructions that plain data consists of and a table of what they may name. Nothing is imported and
nothing else is called, so the worst that bytes can do is to be refused:

    plain data          None, bool, int, float, str, bytes, bytearray, tuple, list, dict, set, frozenset
    by the table        Decimal, datetime, date, time, timedelta, timezone, ZoneInfo; numbers of numpy become Python's,
                        and a Row of Spark's becomes a dict
    declared classes    named tuples that the job's own code declares (`Encoding`)
    refused             everything else, by its name

A pickle may name one object many times. What is read is a tree, with a copy for each: so that a few bytes cannot
become gigabytes, the copies of one value are limited.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from lockgate.untrusted import Unreadable

FIRST_BYTE = b"\x80"
"""Pickles begin with it, and nothing of a later format does."""

_COPIED_PER_BYTE = 16
_COPIED_AT_LEAST = 10_000
_TEXT_PER_PART = 32  # so many bytes of a text count as a part
_MARK = object()
_ARGUMENTS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NUMBER = re.compile(r"[<>|][biuf][1248]")


def read_pickled(content: bytes, classes: Iterable[Any] = ()) -> Any:
    """The value that a pickle of plain data holds; Unreadable if it holds anything else.

    >>> import pickle
    >>> read_pickled(pickle.dumps((1, [None, "text"])))
    (1, [None, 'text'])
    >>> read_pickled(pickle.dumps(print))
    Traceback (most recent call last):
    ...
    lockgate.untrusted.Unreadable: it names builtins.print, which is no plain data
    """
    reader = _Reader(len(content), classes)
    try:
        for instruction, argument, _ in pickletools.genops(content):
            if instruction.name == "STOP":
                (value,) = reader.stack
                return value
            reader.take(instruction.name, argument)
    except Unreadable:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise Unreadable(f"it is no pickle of plain data: {type(error).__name__}: {error}") from None
    raise Unreadable("it is no pickle of plain data: it has no end")


@dataclass(frozen=True)
class _Maker:
    """What a pickle may call: it gives plain data, or another of these."""

    make: Callable[..., Any]


@dataclass
class _NumpyType:
    """The type of a number of numpy's; its order of bytes comes later."""

    code: str
    order: str = "|"


class _Reader:
    """The stack and the memory of a pickle."""

    def __init__(self, size: int, classes: Iterable[Any]) -> None:
        self.stack: list[Any] = []
        self._memory: list[Any] = []
        self._classes = {(one.__module__, one.__qualname__): _Maker(one) for one in classes}
        self._left = size * _COPIED_PER_BYTE + _COPIED_AT_LEAST

    def take(self, name: str, argument: Any) -> None:
        """Do what an instruction says."""
        stack = self.stack
        if name in _ARGUMENTS:
            stack.append(argument)
        elif name == "MEMOIZE":
            self._memory.append(stack[-1])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack.append(tuple(self._popped(count)))
        elif name == "BINGET" or name == "LONG_BINGET":
            stack.append(self._copy(self._memory[argument]))
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_SET":
            stack.append(set())
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name == "FROZENSET":
            stack.append(frozenset(self._since_mark()))
        elif name == "APPEND" or name == "APPENDS":
            values = self._popped(1) if name == "APPEND" else self._since_mark()
            list.extend(stack[-1], values)
        elif name == "SETITEM" or name == "SETITEMS":
            values = self._popped(2) if name == "SETITEM" else self._since_mark()
            dict.update(stack[-1], zip(values[::2], values[1::2], strict=True))
        elif name == "ADDITEMS":
            values = self._since_mark()
            set.update(stack[-1], values)
        elif name == "STACK_GLOBAL":
            stack.append(self._named(*self._popped(2)))
        elif name == "GLOBAL":
            stack.append(self._named(*argument.split(" ", 1)))
        elif name == "REDUCE" or name == "NEWOBJ":
            maker, arguments = self._popped(2)
            stack.append(maker.make(*arguments))
        elif name == "BUILD":
            made, told = self._popped(2)
            stack.append(_NumpyType(made.code, told[1]))
        elif name not in ("PROTO", "FRAME"):
            raise Unreadable(f"it has the instruction {name}, of which plain data has no need")

    def _popped(self, count: int) -> list[Any]:
        place = len(self.stack) - count
        if place < 0:
            raise Unreadable("it is no pickle of plain data: it takes more values than it gives")
        values = self.stack[place:]
        del self.stack[place:]
        return values

    def _since_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _named(self, module: str, name: str) -> _Maker:
        maker = _MAKERS.get((module, name)) or self._classes.get((module, name))
        if maker is None:
            raise Unreadable(f"it names {module}.{name}, which is no plain data")
        return maker

    def _copy(self, value: Any) -> Any:
        """What one object looks like in two places."""
        kind = type(value)
        self._left -= 1 + (len(value) // _TEXT_PER_PART if kind in (str, bytes, bytearray) else 0)
        if self._left < 0:
            raise Unreadable("it holds one value so many times that it would fill the memory")
        if kind in (list, tuple, set, frozenset):
            return kind([self._copy(one) for one in value])
        if kind is dict:
            return {self._copy(key): self._copy(one) for key, one in value.items()}
        return value


def _zone(key: str, is_cached: bool) -> ZoneInfo:
    return ZoneInfo(key)


def _attribute(owner: Any, name: str) -> _Maker:
    """ZoneInfo is restored by a method, which a pickle looks up."""
    if owner is not _MAKERS["zoneinfo", "ZoneInfo"] or name != "_unpickle":
        raise Unreadable(f"it looks up {name!r}, which is no plain data")
    return _Maker(_zone)


def _numpy_number(kind: _NumpyType, content: bytes) -> Any:
    text = kind.order + kind.code
    if not _NUMBER.fullmatch(text):
        raise Unreadable(f"it holds a value of numpy's type {text!r}")
    (number,) = np.frombuffer(content, text)
    return number.item()


def _row(fields: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(fields, values, strict=True))


_MAKERS: Mapping[tuple[str, str], _Maker] = {
    **{("datetime", one.__name__): _Maker(one) for one in (date, datetime, time, timedelta, timezone)},
    ("decimal", "Decimal"): _Maker(Decimal),
    ("zoneinfo", "ZoneInfo"): _Maker(ZoneInfo),
    ("builtins", "getattr"): _Maker(_attribute),
    ("numpy", "dtype"): _Maker(lambda code, *_: _NumpyType(code)),
    ("numpy.core.multiarray", "scalar"): _Maker(_numpy_number),
    ("numpy._core.multiarray", "scalar"): _Maker(_numpy_number),
    ("pyspark.sql.types", "_create_row"): _Maker(_row),
}
