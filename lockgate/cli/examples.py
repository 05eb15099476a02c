"""The commands about the examples: list, show, run."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    examples = subparsers.add_parser(
        "examples",
        help="jobs to look at, to run and to begin with",
        description="The examples that came with this package: small jobs that make their own data and print a result "
        "worth looking at.",
    )
    commands = examples.add_subparsers(title="commands", metavar="COMMAND", required=True)

    listed = commands.add_parser(
        "list", help="a line for each", description="Tell of each example in a line: what it is called, what it asks."
    )
    listed.add_argument("--json", action="store_true", help="print the facts as JSON")
    listed.set_defaults(run=run_list)

    shown = commands.add_parser(
        "show", help="print the file of one", description="Print the file of an example; redirect it to begin with it."
    )
    shown.add_argument("name", metavar="NAME", help="as `lockgate examples list` tells it")
    shown.set_defaults(run=run_show)

    started = commands.add_parser(
        "run",
        help="run one, with its own data",
        description="Run an example in a process of its own. One that needs Kafka uses the one that `lockgate up` has "
        "started; where none runs it starts one, says so, and stops it at the end. Behind NAME may stand DIRECTORY for "
        "one that reads files (where events and results stay), HOST:PORT for one that needs Kafka (a Kafka of yours); "
        "fraud_detection takes neither.",
    )
    started.add_argument("name", metavar="NAME", help="as `lockgate examples list` tells it")
    started.add_argument(
        "rest",
        metavar="...",
        nargs=argparse.REMAINDER,
        help="for the example itself: DIRECTORY or HOST:PORT; `lockgate examples run NAME --help` tells what it takes",
    )
    started.set_defaults(run=run_run)


def run_list(arguments: argparse.Namespace) -> int:
    """Tell of each example."""
    from lockgate.demo.catalog import find_examples

    found = find_examples()
    if arguments.json:
        facts = [{"name": one.name, "line": one.line, "path": str(one.path)} for one in found]
        print(json.dumps({"examples": facts}, indent=2))
    else:
        width = max(len(one.name) for one in found)
        for one in found:
            print(f"{one.name.ljust(width)}  {one.line}")
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Print one."""
    from lockgate.demo.catalog import find_example

    print(find_example(arguments.name).source, end="")
    return 0


def run_run(arguments: argparse.Namespace) -> int:
    """Run one; its exit status is ours."""
    from lockgate.demo.catalog import find_example

    path = find_example(arguments.name).path
    places = os.pathsep.join(str(Path(place).absolute()) for place in sys.path if place)
    process = subprocess.Popen([sys.executable, str(path), *arguments.rest], env={**os.environ, "PYTHONPATH": places})
    # Ctrl-C reaches it too, and it stops what it has started; we wait for that. SIGTERM reaches us alone.
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
