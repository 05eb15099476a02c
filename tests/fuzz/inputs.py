"""What the fuzzers feed: seeds with changes, JSON with hostile values in it, any bytes, and what once did harm."""

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from fuzz.targets import Target

HOSTILE_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 31,
    1 << 63,
    (1 << 64) - 1,
    1.5,
    1e308,
    "",
    "x",
    "\0",
    "\ud800",
    "9" * 5_000,
    "²",
    "../../x",
    "/etc/passwd",
    "2026-01-01",
    "9999-12-31T23:59:59+23:59",
    "0001-01-01T00:00:00+23:59",
    "{",
    [],
    [[]],
    {},
    {"a": []},
    [1, 2, 3],
)
HOSTILE = (
    b"",
    b"\0",
    b"\xff\xfe\x00",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"NaN",
    b"1e999999999",
    b'{"id": 1e999999999}',
    b"9" * 5_000,
    b"[" * 100_000,
    b"[" * 100_000 + b"\n",
    b"9" * 5_000 + b" seconds",
    b'{"a":' * 100_000,
    b"v1\n",
    b"v1\n\n\n",
    b"v1\n{}\n-",
    b"v1\n" + b"9" * 5_000,
    b"v" + b"9" * 5_000 + b"\n{}",
    '{"a": 1}'.encode("utf-16"),
    "²".encode(),
    b"\x1b[2J\r\n",
)
BIG = (
    b"[" + b"[]," * 2_000_000 + b"[]]",
    b'{"state": {"own": 1e999999999}, "key": [1e999999999, 1e999999999, 1e999999999, 1e999999999]}',
    b'"' + b"x" * (15 << 20) + b'"',
    b"\n" * (2 << 20),
)
"""These cost memory; `test_memory.py` feeds them under a limit."""


def changed_json(seed: bytes) -> Iterator[bytes]:
    """A seed of JSON with each of its values replaced, removed, or another one beside it."""
    told = json.loads(seed)
    for path in _paths(told):
        for wrong in HOSTILE_VALUES:
            yield json.dumps(_with(told, path, wrong)).encode()
        if path:
            yield json.dumps(_with(told, path, _GONE)).encode()


_GONE = object()


def _paths(told: Any) -> Iterator[tuple[Any, ...]]:
    yield ()
    if isinstance(told, dict | list):
        for name, inner in list(told.items() if isinstance(told, dict) else enumerate(told)):
            yield from ((name, *rest) for rest in _paths(inner))


def _with(told: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    if not path:
        return wrong
    made = told.copy()
    if len(path) == 1 and wrong is _GONE:
        del made[path[0]]
    else:
        made[path[0]] = _with(told[path[0]], path[1:], wrong)
    return made


_edits = st.tuples(st.integers(0, 1 << 12), st.integers(0, 8), st.binary(max_size=8))
_values = st.recursive(
    st.sampled_from(HOSTILE_VALUES) | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=10,
)


@st.composite
def _changed(draw: st.DrawFn, seed: bytes) -> bytes:
    content = bytearray(seed)
    for at, count, put in draw(st.lists(_edits, min_size=1, max_size=4)):
        place = at % (len(content) + 1)
        content[place : place + count] = put
    return bytes(content)


@st.composite
def _replaced(draw: st.DrawFn, seed: bytes) -> bytes:
    told = json.loads(seed)
    path = draw(st.sampled_from([*_paths(told)]))
    return json.dumps(_with(told, path, draw(_values))).encode()


def inputs_of(target: Target) -> st.SearchStrategy[bytes]:
    """What a target is fed by Hypothesis."""
    known = [*target.seeds, *target.crashes]
    kinds = [st.sampled_from(known).flatmap(_changed), st.binary(max_size=200)]
    if target.is_json:
        kinds += [st.sampled_from([one for one in target.seeds if _is_json(one)]).flatmap(_replaced)]
    return st.one_of(kinds)


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def fixed_inputs(target: Target) -> Iterator[bytes]:
    """What a target is fed always."""
    yield from target.seeds
    yield from target.crashes
    yield from HOSTILE
    for seed in target.seeds:
        for cut in range(0, len(seed), max(1, len(seed) // 16)):
            yield seed[:cut]
        if target.is_json:
            yield from changed_json(seed)
