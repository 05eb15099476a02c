"""The command that begins a job: new."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from string import Template

from lockgate.errors import Refused

TEMPLATES = {"windows": "made-up sensors, minutes, a directory", "topics": "from a topic of Kafka into another"}
"""What a job can begin with; each is a job file and its test in templates/."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    told = "; ".join(f"{name}: {about}" for name, about in TEMPLATES.items())
    new = subparsers.add_parser(
        "new",
        help="write a job file and its test, to begin with",
        description="Write NAME.py, a job that plans and runs as it is, and test_NAME.py, a test of it that passes as "
        "it is and needs no broker. Nothing that is there is overwritten.",
    )
    new.add_argument("name", metavar="NAME", help="of the file, without .py: letters, digits and underscores")
    new.add_argument("--to", type=Path, default=Path(), metavar="DIR", help="where to; default: here")
    new.add_argument("--template", choices=TEMPLATES, default="windows", help=f"{told}; default: windows")
    new.set_defaults(run=run_new)


def run_new(arguments: argparse.Namespace) -> int:
    """Write both files, and say what to do next."""
    name, directory = arguments.name, arguments.to
    if not _can_be_imported(name):
        raise _refusal(name, f"{name!r} is no name for a job file: tests import it by that name")
    files = {f"{name}.py": f"{arguments.template}.py.txt", f"test_{name}.py": f"test_{arguments.template}.py.txt"}
    there = [directory / file for file in files if (directory / file).exists()]
    if there:
        raise Refused(
            f"{there[0]} is there already, and nothing is overwritten", where=str(there[0]), fix="choose another name"
        )
    if _is_taken(name, directory):
        raise _refusal(name, f"{name!r} is a module already: whoever imports one of the two would get the other")
    label = name.replace("_", "-").strip("-")
    templates = resources.files("lockgate.cli").joinpath("templates")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, template in files.items():
            text = Template(templates.joinpath(template).read_text(encoding="utf-8"))
            with (directory / file).open("x", encoding="utf-8") as out:
                out.write(text.substitute(name=name, label=label))
    except OSError as error:
        raise Refused(
            f"the files cannot be written: {error.strerror}", where=str(directory), fix="choose another --to DIR"
        ) from error
    print(*(f"wrote {directory / file}" for file in files), sep="\n")
    job, test = (directory / file for file in files)
    run = "-p events=2000 --until-caught-up" if arguments.template == "windows" else "-p servers=HOST:PORT"
    print(
        "next:",
        f"  lockgate plan {job}      the graphs and the guarantee",
        f"  pytest {test}      its test",
        f"  lockgate run {job} {run}",
        sep="\n",
    )
    return 0


def _can_be_imported(name: str) -> bool:
    """Is it a name of Python's that a job file and its test can have, and a job too?"""
    is_name = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    return is_name and not name.startswith("test_") and bool(name.strip("_"))


def _is_taken(name: str, directory: Path) -> bool:
    """Would the file stand before a module that is installed, or that pytest looks for?"""
    if name in sys.stdlib_module_names or name == "conftest":
        return True
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # what runs has no spec: __main__
        return True
    if spec is None:
        return False
    # A plain directory can be imported, too, and one that is here hinders nobody.
    here = {Path.cwd().resolve(), directory.resolve()}
    places = [Path(place).resolve() for place in spec.submodule_search_locations or ()]
    return spec.origin is not None or any(place.parent not in here for place in places)


def _refusal(name: str, what: str) -> Refused:
    mended = re.sub(r"\W+", "_", name.removesuffix(".py"), flags=re.ASCII).strip("_")
    mended = mended.removeprefix("test_").strip("_") or "my_job"
    if not _can_be_imported(mended) or _is_taken(mended, Path()):
        mended = f"job_{mended}"
    return Refused(what, where="command line", fix=f"lockgate new {mended}")
