"""Symbols: values that a job does not determine, as a random number, and what is computed from them.

    Atom    one value that was drawn once, for one row, by one step; `samples` stand for all that it can be
    Term    what a function makes of atoms and plain values

A step is evaluated once, so all branches behind it see the same atoms. A run in which two branches saw other values of
one atom is wrong, and that shows as soon as two rows, or the presence of a row and of another, do not fit one value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Atom:
    """A value that may be any; for a condition on it, it behaves as one of `samples`."""

    name: str
    samples: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Term:
    """A value that follows from atoms."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


Bindings = Mapping[Atom, Any]
"""What atoms were, as far as it is known."""


def applied(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The value of a function; a term if an argument is a symbol."""
    return Term(function, arguments) if any(map(is_symbolic, arguments)) else function(*arguments)


def is_symbolic(value: Any) -> bool:
    """Does the value depend on an atom?"""
    return bool(atoms_of(value))


def atoms_of(value: Any) -> frozenset[Atom]:
    """The atoms in a value."""
    if isinstance(value, Atom):
        return frozenset([value])
    inner: Any = ()
    if isinstance(value, Term):
        inner = value.arguments
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    return frozenset().union(*map(atoms_of, inner)) if inner else frozenset()


def value_of(value: Any, bindings: Bindings) -> Any:
    """The plain value of a symbol; KeyError if an atom is not known."""
    if isinstance(value, Atom):
        return bindings[value]
    if isinstance(value, Term):
        return value.function(*(value_of(one, bindings) for one in value.arguments))
    return value
