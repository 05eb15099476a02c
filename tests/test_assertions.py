"""Every test can fail: it asserts something itself, or calls a helper whose name says that it asserts.

A helper asserts if its name begins with `require`, `assert` or `check`, and a function of that name among the tests, or
in `lockgate.testing`, has an assertion itself or calls such a helper.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTING = HERE.parent / "lockgate" / "testing"
ASSERTING = ("require", "assert", "check")
RAISING = {"raises", "warns", "fail"}


@dataclass(frozen=True)
class Function:
    """What one function of a file says about assertions."""

    name: str
    has_assertion: bool
    calls: frozenset[str]  # the last part of each dotted name

    def asserts(self, helpers: frozenset[str]) -> bool:
        """Does it assert something, or call a helper that does?"""
        return self.has_assertion or not self.calls.isdisjoint(helpers)


def functions_of(source: str) -> list[Function]:
    """Every function of a file, also those of classes and those inside of others."""
    found: list[Function] = []
    _look(ast.parse(source), found)
    return found


def _look(node: ast.AST, found: list[Function]) -> tuple[bool, set[str]]:
    """Add the functions at and below a node; whether there is an assertion at or below it, and what is called."""
    has_assertion, calls = isinstance(node, ast.Assert), set[str]()
    if isinstance(node, ast.Call):
        calls.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        has_assertion = not calls.isdisjoint(RAISING)
    for child in ast.iter_child_nodes(node):
        is_below, called = _look(child, found)
        has_assertion |= is_below
        calls |= called
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        found.append(Function(node.name, has_assertion, frozenset(calls)))
    return has_assertion, calls


def find_helpers(functions: Iterable[Function]) -> frozenset[str]:
    """The names of the helpers that assert something, also by way of another helper."""
    named = [one for one in functions if one.name.startswith(ASSERTING)]
    found: frozenset[str] = frozenset()
    while len(more := frozenset(one.name for one in named if one.asserts(found))) > len(found):
        found = more
    return found


def without_assertion(functions: Iterable[Function], helpers: frozenset[str]) -> list[str]:
    """The tests of a file that cannot fail by an assertion."""
    return [one.name for one in functions if one.name.startswith("test_") and not one.asserts(helpers)]


def test_every_test_asserts_something() -> None:
    files = {path: functions_of(path.read_text()) for folder in (HERE, TESTING) for path in folder.rglob("*.py")}
    helpers = find_helpers(one for functions in files.values() for one in functions)
    found = {
        str(path.relative_to(HERE.parent)): without_assertion(functions, helpers)
        for path, functions in files.items()
        if path.name.startswith("test_" if HERE in path.parents else "contract")
    }
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
    helpers = "def require_whole(rows):\n    check_rows(rows)\ndef check_rows(rows):\n    assert rows"
    known = find_helpers(functions_of(helpers))
    assert bool(without_assertion(functions_of(source), known)) == is_caught
