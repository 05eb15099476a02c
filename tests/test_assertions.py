"""Every test can fail: it asserts something itself, or calls a helper whose name says that it asserts.

A helper asserts if its name begins with `require`, `assert` or `check`, and a function of that name among the tests, or
in `lockgate.testing`, has an assertion itself or calls such a helper.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTING = HERE.parent / "lockgate" / "testing"
ASSERTING = ("require", "assert", "check")
RAISING = ("raises", "warns", "fail")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(source: str) -> Iterator[Function]:
    """Every function of a file, also those of classes and those inside of others."""
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, Function))


def name_of(call: ast.Call) -> str:
    """What is called: the last part of a dotted name."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def asserts(function: Function, helpers: frozenset[str]) -> bool:
    """Does a function assert something, or does it call a helper that does?"""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call) and (name_of(node) in RAISING or name_of(node) in helpers):
            return True
    return False


def find_helpers(sources: list[str]) -> frozenset[str]:
    """The names of the helpers that assert something, also by way of another helper."""
    named = [one for source in sources for one in functions_of(source) if one.name.startswith(ASSERTING)]
    found: frozenset[str] = frozenset()
    while len(more := frozenset(one.name for one in named if asserts(one, found))) > len(found):
        found = more
    return found


@cache
def helpers() -> frozenset[str]:
    return find_helpers([path.read_text() for folder in (HERE, TESTING) for path in folder.rglob("*.py")])


def without_assertion(source: str, helpers: frozenset[str]) -> list[str]:
    """The tests of a file that cannot fail by an assertion."""
    tests = [one for one in functions_of(source) if one.name.startswith("test_")]
    return [one.name for one in tests if not asserts(one, helpers)]


def test_every_test_asserts_something() -> None:
    files = [*HERE.rglob("test_*.py"), *TESTING.rglob("contract*.py")]
    found = {str(path.name): without_assertion(path.read_text(), helpers()) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "is_caught"),
    [
        ("def test_a():\n    assert 1 == 1", False),
        ("def test_a():\n    with pytest.raises(ValueError):\n        int('x')", False),
        ("def test_a():\n    require_whole([1])", False),
        ("def test_a():\n    bench.run()", True),
        ("def test_a():\n    check_nothing()", True),
        ("class TestAll:\n    def test_a(self):\n        print(1)", True),
    ],
)
def test_a_test_without_an_assertion_is_caught(source: str, is_caught: bool) -> None:
    known = find_helpers(["def require_whole(rows):\n    check_rows(rows)\ndef check_rows(rows):\n    assert rows"])
    assert bool(without_assertion(source, known)) == is_caught
