"""Find the examples of this package, with one line about each, without running them.

A checkout has them in `examples/` beside the package; an installed package contains them (setup.py).
"""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from pathlib import Path

from lockgate.errors import BadMachine, Refused

_PACKAGE = Path(__file__).parents[2]
_PLACES = (_PACKAGE / "examples", _PACKAGE.parent / "examples")


@dataclass(frozen=True)
class Example:
    """A file with a job, and with a `main` that makes its own data; one that needs more is `job.py` in a folder."""

    name: str
    path: Path
    line: str
    """The first line of its docstring."""

    @property
    def source(self) -> str:
        """The whole file."""
        return self.path.read_text(encoding="utf-8")


def find_examples(places: tuple[Path, ...] = _PLACES) -> list[Example]:
    """All examples, by name."""
    for place in places:
        paths = {path.stem: path for path in place.glob("[!_]*.py")}
        paths |= {path.parent.name: path for path in place.glob("*/job.py")}
        if paths:
            return [_read(name, path) for name, path in sorted(paths.items())]
    raise BadMachine(
        "The examples are not on this machine.",
        where=" or ".join(map(str, places)),
        fix="install the complete package, or work in a checkout of the repository",
    )


def find_example(name: str, places: tuple[Path, ...] = _PLACES) -> Example:
    """The example of a name; `requests-per-ip` and `requests_per_ip.py` work too."""
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


def _read(name: str, path: Path) -> Example:
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return Example(name=name, path=path, line=told.partition("\n")[0])
