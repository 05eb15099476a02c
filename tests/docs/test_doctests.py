"""The examples in docstrings run, and show what is printed there."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "lockgate").rglob("*.py")
    if ">>>" in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    told: list[str] = []
    runner = doctest.DocTestRunner()
    for found in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name):
        runner.run(found, out=told.append)
    assert runner.tries > 0, "there is a >>> that is no example"
    assert runner.failures == 0, "".join(told)


def test_there_are_examples_in_docstrings() -> None:
    assert len(MODULES) > 20
