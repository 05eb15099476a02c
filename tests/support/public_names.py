"""The names that users write, with their signatures: what a release promises to keep.

PYTHONPATH=tests .venv/bin/python -m support.public_names     write tests/public_names.txt again
"""

import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import lockgate
import lockgate.errors
import lockgate.testing
from lockgate.dataflow.endpoints import Sink, Source
from lockgate.dataflow.table import TableRows

STORED = Path(__file__).parents[1] / "public_names.txt"
COMMAND = "PYTHONPATH=tests .venv/bin/python -m support.public_names"

MADE_BY_LOCKGATE = {"KeyedStream", "Output", "Pattern", "Plan", "Run", "Stream", "Table", "WindowedStream"}
"""Users get these from calls, so their constructors and most of their fields promise nothing."""

READ_BY_USERS = {
    "MemorySink": {"rows", "epochs"},
    "MonitorSink": {"address"},
    "Plan": {"job", "declared", "reached", "reasons", "paths"},
    "Run": {"job", "plan", "checkpoint", "log_file"},
}
"""Fields of those, and methods of sources, sinks and tables: Lockgate calls all their other methods."""


class PublicName(NamedTuple):
    """A name, what it stands for, and its parameters if users call it."""

    name: str
    value: Any
    signature: inspect.Signature | None

    def __str__(self) -> str:
        if isinstance(self.value, Enum):
            return f"{self.name} = {self.value.value!r}"
        return self.name if self.signature is None else f"{self.name}{_text(self.signature)}"


def public_names(package: ModuleType = lockgate) -> Iterator[PublicName]:
    """Every name of a package's `__all__`, of the modules among them, and the public parts of classes."""
    for name in sorted(package.__all__):
        value = getattr(package, name)
        if inspect.ismodule(value):
            for inner in sorted(value.__all__):
                yield from _names_of(f"{package.__name__}.{name}.{inner}", getattr(value, inner))
        else:
            yield from _names_of(f"{package.__name__}.{name}", value)


def _names_of(name: str, value: Any) -> Iterator[PublicName]:
    if not inspect.isclass(value):
        yield PublicName(name, value, inspect.signature(value) if inspect.isfunction(value) else None)
        return
    short = name.rpartition(".")[2]
    is_constructed = (
        short not in MADE_BY_LOCKGATE
        and inspect.isfunction(value.__init__)
        and not issubclass(value, Enum)
        and not inspect.isabstract(value)
    )
    yield PublicName(name, value, inspect.signature(value) if is_constructed else None)
    if issubclass(value, Enum):
        yield from (PublicName(f"{name}.{member.name}", member, None) for member in value)
    is_endpoint = issubclass(value, Source | Sink | TableRows) and not inspect.isabstract(value)
    read = READ_BY_USERS.get(short, set())
    if is_dataclass(value):
        yield from (PublicName(f"{name}.{one.name}", None, None) for one in fields(value) if one.name in read)
    for inner, part in sorted(vars(value).items()):
        if inner.startswith(("_", "test_")) or (is_endpoint and inner not in read):
            continue
        if isinstance(part, property | cached_property):
            yield PublicName(f"{name}.{inner}", part, None)
        elif inspect.isfunction(part):
            yield PublicName(f"{name}.{inner}", part, _without_self(inspect.signature(part)))


def _without_self(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=[*signature.parameters.values()][1:])


def _text(signature: inspect.Signature) -> str:
    """The signature, with annotations as they are written in either kind of module."""

    def written(annotation: Any) -> str:
        return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    parts = []
    for one in signature.parameters.values():
        plain = str(one.replace(annotation=one.empty, default=one.empty))
        if one.kind is one.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        typed = "" if one.annotation is one.empty else f": {written(one.annotation)}"
        parts.append(f"{plain}{typed}" + ("" if one.default is one.empty else f" = {one.default!r}"))
    result = signature.return_annotation
    returned = "" if result in (signature.empty, None, "None") else f" -> {written(result)}"
    return f"({', '.join(parts)}){returned}"


def text() -> str:
    """The stored file as it has to be now."""
    names = [one for package in (lockgate, lockgate.errors, lockgate.testing) for one in public_names(package)]
    return "".join(f"{one}\n" for one in names)


if __name__ == "__main__":
    STORED.write_text(text())
