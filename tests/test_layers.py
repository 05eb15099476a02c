"""One direction: a part of the package imports only what stands above it, also from inside a function."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lockgate"
ORDER = (
    "escaping",
    "errors",
    "secrets",
    "untrusted",
    "signing",
    "private",
    "surprises",
    "stopping",
    "failures",
    "guarantees",
    "faultpoints",
    "serving",
    "operators",
    "dataflow",
    "planner",
    "commit",
    "kafka",
    "postgres",
    "files",
    "sources",
    "sinks",
    "spark",
    "runtime",
    "presenter",
    "deploy",
    "services",
    "lab",
    "proof",
    "bench",
    "demo",
    "compare",
    "dashboard",
    "cli",
    "testing",
)

# Random jobs run on the harness of users' tests, which imports nothing of the lab.
EXCEPTIONS = {"lab/randomjobs/trial.py": "lab imports testing"}


def part_of(path: Path) -> str:
    """The folder or file directly under lockgate/ that a module belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(source: str) -> Iterator[tuple[int, str]]:
    """The line and part of every import of the package's own modules; 'lockgate' is the front door itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "a relative import"
            elif node.module == "lockgate":
                yield from ((node.lineno, name.name if name.name in ORDER else "lockgate") for name in node.names)
            elif node.module and node.module.startswith("lockgate."):
                yield node.lineno, node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "lockgate":
                    yield node.lineno, ([*name.name.split("."), "lockgate"])[1]


def offences(part: str, source: str) -> list[str]:
    """The imports of a module that look down, sideways past its own folder, or through the front door."""
    allowed = {*ORDER[: ORDER.index(part) + 1]}
    return [f"line {line}: {part} imports {other}" for line, other in imported_parts(source) if other not in allowed]


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def test_every_part_of_the_package_has_its_place_in_the_order() -> None:
    assert {part_of(path) for path in MODULES} == {*ORDER}


def test_imports_look_up_only() -> None:
    found = {str(path.relative_to(PACKAGE)): offences(part_of(path), path.read_text()) for path in MODULES}
    left = {path: [one for one in imports if EXCEPTIONS.get(path, "?") not in one] for path, imports in found.items()}
    assert {path: imports for path, imports in left.items() if imports} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from lockgate.runtime.epochs import Epoch",
        "import lockgate.cli.main",
        "def hidden():\n    from lockgate.spark import session",
        "from lockgate import runtime",
        "from lockgate import Job",
        "from . import job",
    ],
)
def test_an_import_that_looks_down_is_caught(source: str) -> None:
    assert offences("dataflow", source)


@pytest.mark.parametrize(
    "source", ["import json", "from lockgate.errors import BadJob", "from lockgate.dataflow.job import Job"]
)
def test_an_import_that_looks_up_or_stays_is_fine(source: str) -> None:
    assert offences("dataflow", source) == []
