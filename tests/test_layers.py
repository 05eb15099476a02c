"""One direction: a part of the package imports only what stands above it, also from inside a function."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lockgate"
ORDER = (
    "modulepath",
    "escaping",
    "columns",
    "errors",
    "hooks",
    "secrets",
    "tls",
    "untrusted",
    "signing",
    "private",
    "unexpectederrors",
    "stopping",
    "throwables",
    "failures",
    "guarantees",
    "faultpoints",
    "serving",
    "operators",
    "dataflow",
    "planner",
    "commit",
    "provision",
    "connectors",
    "spark",
    "checkpoints",
    "runtime",
    "presenter",
    "deploy",
    "lab.templates",
    "lab.services",
    "lab.rig",
    "lab.randomjobs",
    "lab.prove",
    "lab.bench",
    "lab.demo",
    "lab.compare",
    "dashboard",
    "cli",
    "testing",
)

# Random jobs run on the harness of users' tests, which imports only the bytes of made keys from the lab.
EXCEPTIONS = {"lab/randomjobs/trial.py": "lab.randomjobs imports testing"}


def part_of(path: Path) -> str:
    """The folder or file directly under lockgate/ that a module belongs to; in the lab, the folder below that."""
    return part_named(list(path.relative_to(PACKAGE).with_suffix("").parts))


def part_named(names: list[str]) -> str:
    return ".".join(names[: 2 if names[0] == "lab" else 1])


def imported_parts(source: str) -> Iterator[tuple[int, str]]:
    """The line and part of every import of the package's own modules; 'lockgate' is the front door itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "a relative import"
            elif node.module == "lockgate":
                yield from ((node.lineno, name.name if name.name in ORDER else "lockgate") for name in node.names)
            elif node.module == "lockgate.lab":
                yield from ((node.lineno, f"lab.{name.name}") for name in node.names)
            elif node.module and node.module.startswith("lockgate."):
                yield node.lineno, part_named(node.module.split(".")[1:])
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "lockgate":
                    yield node.lineno, part_named(name.name.split(".")[1:] or ["lockgate"])


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


RUNS_WHAT_IT_READS = {"pickle", "_pickle", "marshal", "shelve", "dill", "joblib"}


def modules_named(source: str) -> set[str]:
    """The modules that a source imports, and those that it takes out of another, by the first part of their names."""
    named = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named |= {node.module.split(".")[0], *(name.name for name in node.names)}
    return named


def test_no_module_imports_what_runs_the_bytes_that_it_reads() -> None:
    """Spark alone pickles: functions, from the driver to its own workers."""
    found = {str(path.relative_to(PACKAGE)): modules_named(path.read_text()) & RUNS_WHAT_IT_READS for path in MODULES}
    assert {path: names for path, names in found.items() if names} == {}
    assert modules_named("import os, pickle\nfrom multiprocessing import shelve") >= {"pickle", "shelve"}


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
