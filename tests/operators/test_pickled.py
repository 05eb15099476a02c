"""Pickles of plain data are read as pickle reads them; every other pickle is refused, and nothing of it runs."""

import os
import pickle
import resource
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from lockgate.operators.pickled import FIRST_BYTE, read_pickled
from lockgate.untrusted import Unreadable
from support.exactly import exactly

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.just(ZoneInfo("Europe/Zurich")))
    | st.dates()
    | st.times()
    | st.timedeltas()
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(leaves, inner, max_size=4)
        | st.sets(leaves, max_size=4)
        | st.frozensets(leaves, max_size=4)
        | inner.map(lambda one: [one, one, (one, one)])
    ),
    max_leaves=10,
)


class Best(NamedTuple):
    name: str
    score: int


@dataclass
class Point:
    x: int


@settings(deadline=None, max_examples=150)
@given(values)
def test_plain_data_is_read_as_pickle_reads_it(value: Any) -> None:
    content = pickle.dumps(value, 5)
    assert content[:1] == FIRST_BYTE
    assert exactly(read_pickled(content)) == exactly(pickle.loads(content))


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (2**100, 2**100),
        (-(10**4000), -(10**4000)),
        (["x" * 300, "x" * 70_000], ["x" * 300, "x" * 70_000]),
        (b"x" * 70_000, b"x" * 70_000),
        (bytearray(b"x"), bytearray(b"x")),
        ("\ud800", "\ud800"),
        (timezone(timedelta(hours=1), "own"), timezone(timedelta(hours=1), "own")),
        (time(1, 2, tzinfo=UTC), time(1, 2, tzinfo=UTC)),
        ([np.int64(-5), np.float32(0.5), np.bool_(True), np.uint8(7)], [-5, 0.5, True, 7]),
        (Row(a=1, b=[Row(c="x")]), {"a": 1, "b": [{"c": "x"}]}),
        (list(range(3000)), list(range(3000))),
        ({number: str(number) for number in range(3000)}, {number: str(number) for number in range(3000)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_so_is_what_is_rare(value: Any, read: Any) -> None:
    assert read_pickled(pickle.dumps(value, 5)) == read


def test_a_value_that_is_there_often_is_read_as_often() -> None:
    shared = {"name": "a name", "tags": ("x", "y"), "at": datetime(2026, 1, 1, tzinfo=UTC)}
    many = [shared] * 5_000
    made = read_pickled(pickle.dumps(many, 5))
    assert made == many
    made[0]["name"] = "another"
    assert made[1]["name"] == "a name"


def test_a_class_is_read_only_if_the_job_declares_it() -> None:
    content = pickle.dumps([Best("a", 1)], 5)
    (best,) = read_pickled(content, [Best])
    assert type(best) is Best
    assert best == Best("a", 1)
    with pytest.raises(Unreadable, match=r"it names .*Best, which is no plain data"):
        read_pickled(content)


class Runs:
    """Runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.system, (self.command,)


class Evaluates(Runs):
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return eval, (f"__import__('os').system({self.command!r})",)


class Makes(Runs):
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (self.command.removeprefix("touch "),)


class Looks(Runs):
    """Looks a function up as an attribute, as ZoneInfo's own is looked up."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (ZoneInfo, "from_file")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", [Runs, Evaluates, Makes, Looks])
def test_code_in_a_pickle_does_not_run(kind: Any, protocol: int, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for value in (kind(f"touch {ran}"), ("key", kind(f"touch {ran}")), {"a": [kind(f"touch {ran}")]}):
        with pytest.raises(Unreadable):
            read_pickled(pickle.dumps(value, protocol))
    assert not ran.exists()
    if kind is not Looks:
        pickle.loads(pickle.dumps(kind(f"touch {ran}"), protocol))
        assert ran.exists(), "this pickle would have run its code"


@pytest.mark.parametrize(
    "value",
    [
        print,
        os.system,
        Point(1),
        Point,
        Fraction(1, 2),
        OrderedDict(a=1),
        Counter("a"),
        defaultdict(list),
        1j,
        range(3),
        np.zeros(3),
        np.datetime64("2026-01-01"),
        Path("x"),
        slice(1),
    ],
    ids=repr,
)
def test_what_is_no_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(Unreadable, match=r"which is no plain data|a value of numpy's type"):
        read_pickled(pickle.dumps(value, 5))


def laughing(times: int, one: bytes = b"\x8c\x03lol\x94") -> bytes:
    """A list of ten lists of ten lists, and so on, of which each is written once."""
    content = b"\x80\x05(" + one
    for number in range(times):
        content += b"]\x94(" + (b"h" + bytes([number])) * 10 + b"e"
    return content + b"t."


HOSTILE = {
    "nothing": b"",
    "no end": b"\x80\x05",
    "an empty stack": b"\x80\x05.",
    "two values": b"\x80\x05NN.",
    "more taken than given": b"\x80\x05\x87.",
    "no mark": b"\x80\x05Nt.",
    "a memory that is not there": b"\x80\x05h\x05.",
    "a huge place in the memory": b"\x80\x05Nr\xff\xff\xff\xff.",
    "huge bytes": b"\x80\x05\x8e" + struct.pack("<Q", 1 << 62) + b".",
    "a huge bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "huge text": b"\x80\x05X\xff\xff\xff\x7f.",
    "a huge number": b"\x80\x05\x8b\xff\xff\xff\x7f.",
    "copies of something deep": b"\x80\x05" + b"]" * 50_000 + b"a" * 49_999 + b"\x94h\x00a.",
    "a set of lists": b"\x80\x05\x8f(]\x90.",
    "another file": b"\x80\x05P0\n.",
    "an extension": b"\x80\x05\x82\x01.",
    "a call of no function": b"\x80\x05N)R.",
    "a state for a number": b"\x80\x05K\x01NbN.",
    "a stranger instruction": b"\x80\x05\xff.",
    "half a pickle": pickle.dumps({"a": [1, "text"]}, 5)[:-4],
    "no pickle": b"lockgate",
    "copies of copies": laughing(9),
    "copies of a text": b"\x80\x05X"
    + struct.pack("<I", 10_000)
    + b"x" * 10_000
    + b"\x94("
    + b"h\x00" * 100_000
    + b"t.",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_other_bytes_are_refused_and_take_no_memory(content: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Unreadable):
        read_pickled(content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_a_list_in_itself_is_read_as_a_tree() -> None:
    content = b"\x80\x05]\x94h\x00a."
    endless = pickle.loads(content)
    assert endless[0] is endless
    assert read_pickled(content) == [[]]


def test_what_is_copied_a_few_times_is_read() -> None:
    assert read_pickled(laughing(3)) == pickle.loads(laughing(3))
    assert len(laughing(9)) < 500


@settings(deadline=None)
@given(values, st.integers(0, 10_000), st.binary(max_size=3))
def test_bytes_that_were_cut_or_changed_are_read_or_refused(value: Any, place: int, other: bytes) -> None:
    content = pickle.dumps(value, 5)
    place %= len(content)
    with pytest.raises(Unreadable):
        read_pickled(content[:place])
    changed = content[:place] + other + content[place + len(other) :]
    with suppress(Unreadable):
        read_pickled(changed)
