"""What is written is read with the same value and type, or refused when it is written; no bytes do anything else."""

import pickle
import resource
import struct
import uuid
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from lockgate.errors import BadJob
from lockgate.operators.encoding import EXTENSIONS_DEEP, PLAIN, Encoding, NotKept
from lockgate.untrusted import Unreadable
from support.exactly import exactly


class Best(NamedTuple):
    name: str
    score: int


class Colour(Enum):
    RED = 1


class Level(IntEnum):
    HIGH = 1


class Text(str):
    pass


@dataclass
class Point:
    x: int


def depth_of(value: Any) -> int:
    """How many values are inside one another."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    is_made_of_parts = isinstance(value, list | tuple | dict | set | frozenset | datetime)
    inner = parts if isinstance(parts, list | tuple | set | frozenset) else ()
    return is_made_of_parts + max(map(depth_of, inner), default=0)


zones = st.none() | st.sampled_from(
    [UTC, ZoneInfo("Europe/Zurich"), timezone(timedelta(hours=2)), timezone(timedelta(minutes=-5), "odd")]
)
keys = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals().filter(lambda number: not number.is_snan())
    | st.datetimes(timezones=zones)
    | st.dates()
    | st.times().map(lambda one: one.replace(fold=0))
    | st.timedeltas()
    | st.characters(categories=["Cs"]),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    keys,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.sets(keys, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200)
@given(values)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    try:
        content = PLAIN.encode(value)
    except NotKept:
        assert depth_of(value) > EXTENSIONS_DEEP
        return
    assert exactly(PLAIN.decode(content)) == exactly(value)
    assert PLAIN.encode(PLAIN.decode(content)) == content


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        float("nan"),
        float("-inf"),
        2**63 - 1,
        2**63,
        2**64 - 1,
        2**64,
        -(2**63),
        -(2**63) - 1,
        10**4000,
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("-0E-7"),
        Decimal("1E+6144"),
        datetime.min,
        datetime.max.replace(tzinfo=UTC),
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Zurich")),
        datetime(2026, 1, 1, fold=1),
        date.min,
        timedelta.max,
        timedelta.min,
        time.max,
        "\ud800",
        {True: "a", "True": "b"},
        {datetime(2026, 1, 1, tzinfo=UTC): 1, "2026-01-01T00:00:00+00:00": 2},
        {date(2026, 1, 1): [(1, {2: {3}})]},
        {(): {}, frozenset(): []},
        [[[[[[]]]]]],
        "x" * 100_000,
        list(range(70_000)),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_so_do_the_values_at_the_borders(value: Any) -> None:
    assert exactly(PLAIN.decode(PLAIN.encode(value))) == exactly(value)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.int64(5), 5),
        (np.uint8(5), 5),
        (np.bool_(True), True),
        (np.float32(0.5), 0.5),
        ([np.float64("nan"), (np.int32(1),)], [float("nan"), (1,)]),
        (bytearray(b"x"), b"x"),
        ([memoryview(b"x")], [b"x"]),
    ],
)
def test_numbers_of_numpy_and_bytes_are_kept_as_those_of_python(value: Any, kept: Any) -> None:
    assert exactly(PLAIN.decode(PLAIN.encode(value))) == exactly(kept)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Fraction(1, 3), "fractions.Fraction"),
        (Point(1), "Point"),
        (Best("a", 1), "Best"),
        (namedtuple("Anonymous", "a")(1), "Anonymous"),
        (Row(a=1), "pyspark.sql.types.Row"),
        (Colour.RED, "Colour"),
        (Level.HIGH, "Level"),
        (Text("x"), "Text"),
        (uuid.UUID(int=1), "uuid.UUID"),
        (OrderedDict(a=1), "collections.OrderedDict"),
        (Counter("a"), "collections.Counter"),
        (1j, "builtins.complex"),
        (len, "builtins.builtin_function_or_method"),
        (np.datetime64("2026-01-01"), "numpy.datetime64"),
        (np.timedelta64(1, "s"), "numpy.timedelta64"),
        (np.longdouble(1), "numpy.longdouble"),
        (np.zeros(2), "numpy.ndarray"),
        (time(1, tzinfo=UTC), "datetime.time"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_every_other_type_is_refused_by_its_name_wherever_it_is(value: Any, named: str) -> None:
    places: Iterator[Any] = iter([value, [value], {"a": value}, (1, value), {1: [value]}, [2**70, value]])
    for place in places:
        with pytest.raises(NotKept, match=named):
            PLAIN.encode(place)
    if value.__hash__ is not None:
        with pytest.raises(NotKept, match=named):
            PLAIN.encode({value: 1})


def test_equal_sets_have_equal_bytes() -> None:
    forward, backward = set(map(str, range(1000))), set(map(str, reversed(range(1000))))
    assert PLAIN.encode(forward) == PLAIN.encode(backward)
    assert PLAIN.encode({1, 2**70, (3,), "a"}) == PLAIN.encode({"a", (3,), 2**70, 1})


def test_a_class_that_the_job_declares_comes_back_as_that_class() -> None:
    declared = Encoding([Best])
    content = declared.encode({"best": Best("a", 2**70), "all": [Best("b", 1)]})
    assert exactly(declared.decode(content)) == exactly({"best": Best("a", 2**70), "all": [Best("b", 1)]})
    with pytest.raises(Unreadable, match="it holds a Best, which the job's code does not declare"):
        PLAIN.decode(content)


def test_a_declared_class_with_other_fields_than_before_is_refused() -> None:
    other = namedtuple("Best", "name points")
    other.__qualname__ = "Best"
    with pytest.raises(Unreadable, match="a Best of name, score; the job's has name, points"):
        Encoding([other]).decode(Encoding([Best]).encode(Best("a", 1)))


def test_two_declared_classes_of_one_name_are_refused() -> None:
    other = namedtuple("Best", "name points")
    other.__qualname__ = "Best"
    with pytest.raises(BadJob, match="have one name: Best, Best"):
        Encoding([Best, other])
    assert Encoding([Best, Best]).encode(1) == PLAIN.encode(1)


def test_what_is_nested_too_deep_is_refused_when_it_is_written() -> None:
    for wrap in (lambda one: (one,), lambda one: {Decimal(1): one}, lambda one: frozenset([one])):
        value: Any = 1
        for _ in range(EXTENSIONS_DEEP):
            value = wrap(value)
        assert PLAIN.decode(PLAIN.encode(value)) == value
        with pytest.raises(NotKept, match="too deep"):
            PLAIN.encode(wrap(value))
    for wrap in (lambda one: [one], lambda one: {"a": one}, lambda one: {1: one}):
        value = 1
        for _ in range(100_000):
            value = wrap(value)
        with pytest.raises(NotKept, match="too deep"):
            PLAIN.encode(value)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotKept, match="too deep"):
        PLAIN.encode(endless)


def extension(code: int, content: bytes) -> bytes:
    return b"\xc9" + struct.pack(">Ib", len(content), code) + content


def nested(code: int, times: int, inner: bytes) -> bytes:
    for _ in range(times):
        inner = extension(code, b"\x91" * 1000 + inner)
    return inner


HOSTILE = {
    "nothing": b"",
    "a reserved byte": b"\xc1",
    "two values": b"\x01\x02",
    "a huge list": b"\xdd\xff\xff\xff\xff",
    "a huge dict": b"\xdf\xff\xff\xff\xff",
    "huge bytes": b"\xc6\xff\xff\xff\xff",
    "huge text": b"\xdb\xff\xff\xff\xff",
    "a huge extension": b"\xc9\xff\xff\xff\xff\x01",
    "deep lists": b"\x91" * 1_000_000,
    "deep dicts": b"\x81\xa1a" * 1_000_000,
    "deep extensions": nested(1, 500, b"\x90"),
    "no Unicode": b"\xa1\xff",
    "an unknown extension": extension(99, b""),
    "a tuple of nothing": extension(1, b""),
    "a tuple of a number": extension(1, b"\x01"),
    "a dict with more keys": extension(2, b"\x92\x92\x01\x02\x91\x01"),
    "a dict with a list as key": extension(2, b"\x92\x91\x90\x91\x01"),
    "a set of lists": extension(3, b"\x91\x90"),
    "no decimal": extension(7, b"os.system"),
    "a time beyond all years": extension(8, b"\xff" * 7 + b"\x7f"),
    "half a time": extension(8, b"\xff"),
    "a zone that leads out": extension(10, b"\x93\x00\x00" + b"\xaf../../etc/group"),
    "a zone that nobody knows": extension(10, b"\x93\x00\x00" + b"\xa4Moon"),
    "an offset beyond a day": extension(10, b"\x93\x00\x00\x91" + b"\xcf" + b"\x7f" * 8),
    "a day beyond all years": extension(11, b"\xff\xff\xff\x7f"),
    "no time of day": extension(12, b"25:00"),
    "a class": extension(14, b"\x93\xa9os.system\x90\x91\xa4true"),
    "a pickle": pickle.dumps(("key", 1), 5),
    "an old pickle": b"cos\nsystem\n(S'true'\ntR.",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_other_bytes_are_refused_and_take_no_memory(content: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Unreadable):
        PLAIN.decode(content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


@settings(deadline=None)
@given(values, st.integers(0, 10_000), st.binary(max_size=4))
def test_bytes_that_were_cut_or_changed_are_read_or_refused(value: Any, place: int, other: bytes) -> None:
    try:
        content = PLAIN.encode(value)
    except NotKept:
        return
    place %= len(content) + 1
    for changed in (content[:place], content[:place] + other + content[place + len(other) :]):
        try:
            PLAIN.encode(PLAIN.decode(changed))
        except (Unreadable, NotKept):
            continue
    if content[:place] != content:
        with pytest.raises(Unreadable):
            PLAIN.decode(content[:place])


def test_many_values_are_read_together() -> None:
    many = [1, "two", (3, [4]), {5: None}, b"", 2**80]
    contents = [PLAIN.encode(one) for one in many]
    assert exactly(PLAIN.decode_all(contents)) == exactly(many)
    assert PLAIN.decode_all([]) == []
    with pytest.raises(Unreadable):
        PLAIN.decode_all([contents[0], contents[2][:-1], contents[1]])
    with pytest.raises(Unreadable):
        PLAIN.decode_all([contents[0], b"", contents[1], b"\x01\x02"[:1], b""])
