"""The examples in docstrings run, and show what is printed there."""

import doctest
import importlib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lockgate
from lockgate import Guarantee, Job, MemorySink, Stream, plan

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "lockgate").rglob("*.py")
    if ">>>" in path.read_text()
)
# Their examples run jobs.
ON_SPARK = (
    "lockgate.connectors.files.reading",
    "lockgate.runtime.run",
    "lockgate.runtime.running",
    "lockgate.runtime.state",
)


def beginning() -> dict[str, Any]:
    """What the examples begin with, as the docstring of the package says it."""
    names: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples(lockgate.__doc__ or ""):
        exec(example.source, names)  # noqa: S102 - our own examples
    return names


BEGINNING = beginning()


def run_examples(name: str) -> list[dict[str, Any]]:
    """Run the examples of a module; the names that each docstring has in the end."""
    module = importlib.import_module(name)
    told: list[str] = []
    runner = doctest.DocTestRunner()
    names = []
    for found in doctest.DocTestFinder(exclude_empty=True).find(module, name, globs={**BEGINNING, **vars(module)}):
        runner.run(found, out=told.append, clear_globs=False)
        names.append(found.globs)
    assert runner.tries > 0, "there is a >>> that is no example"
    assert runner.failures == 0, "".join(told)
    return names


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ON_SPARK])
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    assert run_examples(name)


@pytest.mark.spark
@pytest.mark.parametrize("name", ON_SPARK)
def test_the_examples_that_run_jobs_are_true(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    assert spark.sparkContext.defaultParallelism  # their jobs run in the session of all tests
    monkeypatch.chdir(tmp_path)
    assert run_examples(name)


def test_every_stream_of_an_example_plans() -> None:
    count = 0
    for names in run_examples("lockgate.dataflow.stream"):
        streams = [one for name, one in names.items() if isinstance(one, Stream) and name not in BEGINNING]
        outputs = [one.to(f"out {number}", MemorySink()) for number, one in enumerate(streams)]
        if outputs:
            assert plan(Job("example", *outputs, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=MemorySink())).paths
        count += len(outputs)
    assert count > 20


def test_there_are_examples_in_docstrings() -> None:
    assert len(MODULES) > 20
