"""The commands about the examples: list, show, run."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys

from lockgate.columns import columns
from lockgate.modulepath import module_path


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    examples = subparsers.add_parser(
        "examples",
        help="jobs to look at, to run and to start from",
        description="The examples that came with this package: small jobs that create their own data and print a "
        "result worth looking at.",
    )
    commands = examples.add_subparsers(title="commands", metavar="COMMAND", required=True)

    listed = commands.add_parser(
        "list", help="a line for each", description="List the examples, each with its name and its question."
    )
    listed.add_argument("--json", action="store_true", help="print the facts as JSON")
    listed.set_defaults(run=run_list)

    shown = commands.add_parser(
        "show", help="print the file of one", description="Print the file of an example; redirect it to start from it."
    )
    shown.add_argument("name", metavar="NAME", help="as `lockgate examples list` shows it")
    shown.set_defaults(run=run_show)

    started = commands.add_parser(
        "run",
        help="run one, with its own data",
        description="Run an example in a process of its own. One that needs Kafka uses the one that `lockgate up` has "
        "started; if none runs it starts one, says so, and stops it at the end. After NAME you may give DIRECTORY to "
        "one that reads files (events and results stay there), or HOST:PORT to one that needs Kafka (a Kafka of "
        "yours); fraud_detection takes neither.",
    )
    started.add_argument("name", metavar="NAME", help="as `lockgate examples list` shows it")
    started.add_argument(
        "rest",
        metavar="...",
        nargs=argparse.REMAINDER,
        help="for the example itself: DIRECTORY or HOST:PORT; see `lockgate examples run NAME --help`",
    )
    started.set_defaults(run=run_run)


def run_list(arguments: argparse.Namespace) -> int:
    """List the examples."""
    from lockgate.lab.demo.catalog import find_examples

    found = find_examples()
    if arguments.json:
        facts = [{"name": one.name, "line": one.line, "path": str(one.path)} for one in found]
        print(json.dumps({"examples": facts}, indent=2))
    else:
        print(*columns((one.name, one.line) for one in found), sep="\n")
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Print one example."""
    from lockgate.lab.demo.catalog import find_example

    print(find_example(arguments.name).source, end="")
    return 0


def run_run(arguments: argparse.Namespace) -> int:
    """Run one example; returns its exit status."""
    from lockgate.lab.demo.catalog import find_example

    path = find_example(arguments.name).path
    environ = {**os.environ, "PYTHONPATH": module_path()}
    process = subprocess.Popen([sys.executable, str(path), *arguments.rest], env=environ)
    # Ctrl-C reaches it too, and it stops what it has started; we wait for that. SIGTERM reaches only us.
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
