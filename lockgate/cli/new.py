"""The command that starts a new job: new."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import keyword
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from string import Template

from lockgate.errors import Refused

TEMPLATES = {"windows": "made-up sensors, minutes, a directory", "topics": "from a topic of Kafka into another"}
"""The templates of a job; each is a job file and its test in templates/."""

_LOOKED_FOR = {"conftest", "setup", "sitecustomize", "usercustomize"}  # by pytest, by pip, and by Python at its start
_FIRST_RECORD = '{"id": 1, "account": "a-7", "cents": 1000, "currency": "EUR"}'
_SHORTENED = 100  # the length to which a name that was too long is cut


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    told = "; ".join(f"{name}: {about}" for name, about in TEMPLATES.items())
    new = subparsers.add_parser(
        "new",
        help="write a job file and its test, to start from",
        description="Write NAME.py, a job that can be planned at once, and test_NAME.py, a test of it that passes at "
        "once and needs no broker; then say how to run it. Existing files are never overwritten.",
    )
    new.add_argument("name", metavar="NAME", help="of the file, without .py: letters, digits and underscores")
    new.add_argument("--to", type=Path, default=Path(), metavar="DIR", help="the directory; default: this one")
    new.add_argument("--template", choices=TEMPLATES, default="windows", help=f"{told}; default: windows")
    new.set_defaults(run=run_new)


def run_new(arguments: argparse.Namespace) -> int:
    """Write both files, and say what to do next."""
    name, directory = arguments.name, arguments.to
    if not _can_name(name):
        what = "Python must be able to import it, pytest must not take it for a test, and it must be usable in a job"
        raise _refusal(arguments, f"{name!r} is no name for a job file: {what}")
    job, test = directory / f"{name}.py", directory / f"test_{name}.py"
    there = [file for file in (job, test) if os.path.lexists(file)]
    if there:
        raise Refused(
            f"{there[0]} exists already, and nothing is overwritten", where=str(there[0]), fix="choose another name"
        )
    if _is_taken(name, directory):
        raise _refusal(arguments, f"{name!r} is a module already: an import of one of the two would get the other")
    _write({job: f"{arguments.template}.py.txt", test: f"test_{arguments.template}.py.txt"}, name)
    print(f"wrote {job}", f"wrote {test}", "next:", *_next(arguments.template, job, test), sep="\n")
    return 0


def _write(files: Mapping[Path, str], name: str) -> None:
    """Write files from their templates: all, or none."""
    templates = resources.files("lockgate.cli").joinpath("templates")
    written: list[Path] = []
    try:
        for file, template in files.items():
            text = Template(templates.joinpath(template).read_text(encoding="utf-8"))
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as out:
                written.append(file)
                out.write(text.substitute(name=name, label=_label(name)))
    except OSError as error:
        for made in written:  # else these files would refuse the next try
            with contextlib.suppress(OSError):
                made.unlink()
        raise Refused(
            f"the files cannot be written: {error.strerror}",
            where=str(error.filename or file),
            fix="choose another --to DIR, or another name",
        ) from error


def _next(template: str, job: Path, test: Path) -> Iterator[str]:
    """What to do with the files, as commands that work in this directory."""
    lockgate, python = _lockgate(), _called(Path(sys.executable))
    pytest = _called(Path(sys.executable).with_name("pytest"))
    yield f"  {shlex.join([*lockgate, 'plan', str(job)])}      the graphs and the guarantee"
    tested = ["pytest"] if pytest == "pytest" else [python, "-m", "pytest"]
    yield f"  {shlex.join([*tested, str(test)])}      its test"
    if template == "windows":
        yield f"  {shlex.join([*lockgate, 'run', str(job), '-p', 'events=2000', '--until-caught-up'])}"
        return
    send = shlex.join([python, "-m", "kafka.producer", "-b", "HOST:PORT", "-t", "payments"])
    yield f"  {shlex.join([*lockgate, 'up'])}      a Kafka, if you have none; it prints its HOST:PORT"
    yield f"  echo '{_FIRST_RECORD}' | {send}      a first payment, which creates the topic"
    yield f"  {shlex.join([*lockgate, 'run', str(job), '-p', 'servers=HOST:PORT'])}"


def _lockgate() -> list[str]:
    """The command that runs this program from here: the installed command, or a module."""
    if Path(sys.argv[0]).name == "lockgate":
        return [_called(Path(sys.argv[0]))]
    return [_called(Path(sys.executable)), "-m", "lockgate.cli.main"]


def _called(program: Path) -> str:
    """The command for a program from here: its name if PATH finds it, else its path."""
    found, full = shutil.which(program.name), program.absolute()
    if found is not None and Path(found).absolute() == full:
        return program.name
    below = full.relative_to(Path.cwd()) if full.is_relative_to(Path.cwd()) else program
    return str(below if len(below.parts) > 1 else full)  # a bare name would be looked for on the PATH


def _can_name(name: str) -> bool:
    """Is it a Python name that a job file and its test can have, and a job too?"""
    from lockgate.dataflow.job import is_job_name

    is_name = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    is_special = name.startswith("__") and name.endswith("__")  # __init__ makes a package of its directory
    return is_name and not is_special and not name.startswith("test_") and is_job_name(_label(name))


def _label(name: str) -> str:
    """The name of the job in a file of this name."""
    return name.replace("_", "-").strip("-")


def _is_taken(name: str, directory: Path) -> bool:
    """Would the file hide an installed module, or be taken for one that tools look for?"""
    if name in sys.stdlib_module_names or name in _LOOKED_FOR:
        return True
    spec = importlib.util.find_spec(name)
    if spec is None:
        return False
    # A plain directory can be imported, too, and one in this place does no harm.
    here = {Path.cwd().resolve(), directory.resolve()}
    places = [Path(place).resolve() for place in spec.submodule_search_locations or ()]
    return spec.origin is not None or any(place.parent not in here for place in places)


def _refusal(arguments: argparse.Namespace, what: str) -> Refused:
    """The refusal of a name, with the same command for a valid one."""
    suggested = re.sub(r"\W+", "_", arguments.name.removesuffix(".py"), flags=re.ASCII).strip("_")
    suggested = suggested.removeprefix("test_")[:_SHORTENED].strip("_") or "my_job"
    if not _can_name(suggested) or _is_taken(suggested, arguments.to):
        suggested = f"job_{suggested}"
    words = [*_lockgate(), "new", suggested]
    words += ["--to", str(arguments.to)] if arguments.to != Path() else []
    words += ["--template", arguments.template] if arguments.template != "windows" else []
    return Refused(what, where="command line", fix=shlex.join(words))
