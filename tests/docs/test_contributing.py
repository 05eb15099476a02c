"""The page for contributors lists slow tests, and the internals of Spark with the tests that notice a change."""

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
    listed = dict(re.findall(r"^- `(\S+\.py)`\n((?:  - .*\n)+)", PAGE.read_text(), re.MULTILINE))
    assert {file: re.findall(r"`(\w+)`", names) for file, names in listed.items()} == slow_tests()


INTERNALS = re.compile(r"\._(?:jvm|jsc|jdf|jsq|jsparkSession|jc|jwrite|gateway)\b|java_gateway")


def test_every_module_that_reaches_into_spark_is_listed_with_tests_that_exist() -> None:
    package = TESTS.parent / "lockgate"
    reaching = {
        file.relative_to(package).as_posix() for file in package.rglob("*.py") if INTERNALS.search(file.read_text())
    }
    section = PAGE.read_text().partition("### Upgrade Spark")[2].partition("\n1. ")[0]
    parts = [part.partition("Tests:") for part in section.split("\n- ")[1:]]
    listed = {name for modules, _, _ in parts for name in re.findall(r"`(\S+\.py)`", modules)}
    assert listed == reaching
    tests = {name for _, _, names in parts for name in re.findall(r"`(\S+\.py)`", names)}
    assert [name for name in sorted(tests) if not (TESTS / name).is_file()] == []
