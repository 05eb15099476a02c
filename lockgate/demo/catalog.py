"""The examples that came with this package: found, and told in a line each, without running them.

A checkout has them in `examples/` beside the package; an installed package has them inside of it (setup.py).
"""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from pathlib import Path

from lockgate.errors import BadMachine, Refused

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "examples", _PACKAGE.parent / "examples")


@dataclass(frozen=True)
class Example:
    """One file: a job, and a main that makes its own data."""

    name: str
    path: Path
    line: str
    """What it is about: the first line of its docstring."""

    @property
    def source(self) -> str:
        """The whole file."""
        return self.path.read_text(encoding="utf-8")


def find_examples(places: tuple[Path, ...] = _PLACES) -> list[Example]:
    """All examples, by name."""
    for place in places:
        found = [_read(path) for path in sorted(place.glob("*.py")) if not path.name.startswith("_")]
        if found:
            return found
    raise BadMachine(
        "The examples are not on this machine.",
        where=" or ".join(map(str, places)),
        fix="install the package whole, or work in a checkout of the repository",
    )


def find_example(name: str, places: tuple[Path, ...] = _PLACES) -> Example:
    """The example of a name; `requests-per-ip` and `requests_per_ip.py` are understood too."""
    known = {example.name: example for example in find_examples(places)}
    wanted = name.removesuffix(".py").replace("-", "_")
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
    raise Refused(
        f"there is no example {name!r}",
        where="command line",
        fix=f"did you mean {near[0]}?" if near else f"take one of {', '.join(known)}",
    )


def _read(path: Path) -> Example:
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return Example(name=path.stem, path=path, line=told.partition("\n")[0])
