"""Outside lockgate/connectors no code asks for the class of a connector: what it needs is in the endpoint contract."""

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockgate.connectors
from lockgate.dataflow.endpoints import Sink, Source

PACKAGE = Path(__file__).parents[1] / "lockgate"

EXCEPTIONS = {
    "__init__.py": "exports the names that users write",
    "runtime/writestream.py": "write_stream takes a KafkaSink, and nothing else, by its signature",
    "testing/inlets.py": "feeds a test from files, as a FileSource",
    "lab/bench/": "measures jobs that it writes, as a user does",
    "lab/demo/": "shows a job that it writes, as a user does",
}


def connectors() -> set[str]:
    """The names of all classes of sources and sinks."""
    for module in pkgutil.walk_packages(lockgate.connectors.__path__, "lockgate.connectors."):
        importlib.import_module(module.name)
    found, waiting = set(), [Source, Sink]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("lockgate.connectors.") and not inspect.isabstract(kind):
            found.add(kind.__name__)
    return found


def named(source: str, names: set[str]) -> Iterator[str]:
    """The connectors that a source imports, or whose names it compares with that of a class."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield from (f"line {node.lineno} imports {one.name}" for one in node.names if one.name in names)
        elif isinstance(node, ast.Attribute) and node.attr in names:
            yield f"line {node.lineno} uses {node.attr}"
        elif isinstance(node, ast.Compare) and "__name__" in ast.unparse(node):
            texts = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
            yield from (f"line {node.lineno} compares with {one}" for one in sorted(names & texts))


def asking(names: set[str]) -> dict[str, list[str]]:
    files = (path for path in PACKAGE.rglob("*.py") if PACKAGE / "connectors" not in path.parents)
    found = {path.relative_to(PACKAGE).as_posix(): [*named(path.read_text(), names)] for path in files}
    return {path: lines for path, lines in found.items() if lines}


def test_no_code_outside_connectors_names_the_class_of_a_connector() -> None:
    names = connectors()
    assert {"KafkaSink", "FileSource", "MonitorSink", "SensorSource"} <= names
    found = asking(names)
    assert {path: lines for path, lines in found.items() if not path.startswith(tuple(EXCEPTIONS))} == {}


def test_every_exception_is_still_needed() -> None:
    found = asking(connectors())
    assert [one for one in EXCEPTIONS if not any(path.startswith(one) for path in found)] == []


@pytest.mark.parametrize(
    "source",
    [
        "from lockgate.connectors.kafka.sink import KafkaSink",
        "def hidden():\n    from lockgate import KafkaSink",
        "import lockgate\nisinstance(x, lockgate.KafkaSink)",
        "type(x).__name__ == 'KafkaSink'",
        "type(x).__name__ in ('KafkaSink', 'Other')",
    ],
)
def test_code_that_asks_for_a_class_is_caught(source: str) -> None:
    assert [*named(source, {"KafkaSink"})]


def test_code_that_shows_a_class_is_fine() -> None:
    assert [*named("raise Refused(f'a {type(x).__name__} is no KafkaSink')", {"KafkaSink"})] == []
