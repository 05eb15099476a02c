"""Every module that a string names exists: `-m` commands, entry points, package data, lazy imports, patched names.

An import that is wrong fails at once. A name in a string fails when a worker starts or a user calls a command, so a
module that moves would leave it behind.
"""

import ast
import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"(?<![\w./@-])lockgate(?:\.[A-Za-z_]\w*)+")
TEXTS = ("pyproject.toml", "setup.py", "Makefile", "*.md", "docs/**/*.md", "lockgate/**/*.txt")

NO_MODULES = {
    "lockgate.Aside": "a class in Java",
    "lockgate.LocalFiles": "a class in Java",
    "lockgate.References": "a class in Java",
    "lockgate.j": "a transactional id",
    "lockgate.payments": "a transactional id",
    "lockgate.payments.ledger": "a ledger topic",
    "lockgate.orders": "a transactional id",
    "lockgate.JOB": "a transactional id",
    "lockgate.JOB.ledger": "a ledger topic",
    "lockgate.json": "the file that marks a checkpoint",
    "lockgate.tried": "the name of a logger",
    "lockgate.run": "the name of a logger",
    "lockgate.examples": "a folder without modules in a checkout, and part of the package when it is installed",
    "lockgate.x": "the name of a logger",
    "lockgate.tables": "a property of Spark",
}


def all_names() -> dict[str, str]:
    """Every dotted name, with one place that holds it."""
    names: dict[str, str] = {}
    for folder in ("lockgate", "tests", "examples", "scripts"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file == Path(__file__):
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    place = f"{file.relative_to(ROOT)}:{node.lineno}"
                    names.update(dict.fromkeys(NAME.findall(node.value), place))
    for pattern in TEXTS:
        for file in ROOT.glob(pattern):
            names.update(dict.fromkeys(NAME.findall(file.read_text(encoding="utf-8")), str(file.relative_to(ROOT))))
    return names


def is_there(name: str) -> bool:
    """Is there a module of this name, or a module that has the rest of it as attributes?"""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            continue
        if found is not None:
            here: object = importlib.import_module(module) if length < len(parts) else None
            for attribute in parts[length:]:
                if not hasattr(here, attribute):
                    return False
                here = getattr(here, attribute)
            return True
    return False


def test_every_module_that_a_string_names_exists() -> None:
    wrong = {name: where for name, where in all_names().items() if name not in NO_MODULES and not is_there(name)}
    assert not wrong, f"no such module or attribute: {wrong}"


@pytest.mark.parametrize("name", ["lockgate.runtime.nowhere", "lockgate.errors.Nowhere", "lockgate.nowhere"])
def test_a_name_that_nothing_has_is_found(name: str) -> None:
    assert not is_there(name)


def test_entry_points_and_package_data_exist() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = [settings["project"]["scripts"], *settings["project"]["entry-points"].values()]
    points = [point for group in groups for point in group.values()]
    assert points
    for point in points:
        module, _, attribute = point.partition(":")
        assert not attribute or hasattr(importlib.import_module(module), attribute), point
    for package, patterns in settings["tool"]["setuptools"]["package-data"].items():
        for pattern in patterns:
            assert any((ROOT / package.replace(".", "/")).glob(pattern)), f"{package}: {pattern}"
