"""The page for contributors lists the tests that `make test` leaves out for their time."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "CONTRIBUTING.md"


def is_slow(test: ast.FunctionDef) -> bool:
    return any("pytest.mark.slow" in ast.unparse(decorator) for decorator in test.decorator_list)


def slow_tests() -> dict[str, list[str]]:
    found = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        body = ast.parse(file.read_text()).body
        nodes = [one for node in body for one in (node.body if isinstance(node, ast.ClassDef) else [node])]
        names = [node.name for node in nodes if isinstance(node, ast.FunctionDef) and is_slow(node)]
        if names:
            found[file.relative_to(TESTS).as_posix()] = names
    return found


def test_every_slow_test_is_listed() -> None:
    listed = dict(re.findall(r"^- `(\S+\.py)`: (.*)$", PAGE.read_text(), re.MULTILINE))
    assert {file: re.findall(r"`(\w+)`", names) for file, names in listed.items()} == slow_tests()
