"""Read the command line, run the command, turn its end into an exit status.

    0    done, holds, clean stop
    1    failed, broken, unknown
    2    refused: bad input, or a machine that lacks something; nothing ran
    130  Ctrl-C

People get one clear paragraph, never a traceback: the traceback of an unexpected error goes to a file whose path is
printed (--debug shows it). Groups import what they need inside their commands, so that --help does not wait for Spark.
"""

import argparse
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from lockgate.cli import (
    bench,
    checkpoints,
    compare,
    deadletters,
    demo,
    examples,
    files,
    job,
    ledger,
    new,
    package,
    present,
    prove,
    services,
    simulate,
    state,
    transactions,
)
from lockgate.cli.logs import log_error, write_plain
from lockgate.cli.passwords import WORDS, take
from lockgate.cli.safeoutput import plain_output
from lockgate.errors import LockgateError, Refused
from lockgate.unexpectederrors import report_unexpected

GROUPS = (
    new,
    job,
    state,
    ledger,
    transactions,
    checkpoints,
    deadletters,
    files,
    present,
    package,
    services,
    demo,
    examples,
    compare,
    prove,
    bench,
    simulate,
)
"""Each has `register(subparsers)`, which adds its commands; each command sets `run`, a function of the arguments."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the console script `lockgate`."""
    words = take(sys.argv[1:], WORDS) if argv is None else [*argv]
    arguments = make_parser().parse_args(words)
    write_plain()
    arguments.words = words
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        with nullcontext() if getattr(arguments, "draws", False) else plain_output():
            return run(arguments)
    except LockgateError as error:
        if _says_json(arguments):
            log_error(error)
        else:
            print(error, file=sys.stderr)
        return 2 if isinstance(error, Refused) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `lockgate ... | head`: the reader has seen enough
        sys.stderr.close()
        return 1
    except Exception as surprise:  # noqa: BLE001 - the last door: nothing leaves as a raw traceback
        if _says_json(arguments):
            log_error(surprise)
            return 1
        fix = "report it with that file; lockgate --debug ... shows the same at once"
        report_unexpected(surprise, fix=fix, show=arguments.debug)
        return 1


def _says_json(arguments: argparse.Namespace) -> bool:
    return getattr(arguments, "log", None) == "json"


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="lockgate",
        description="Stream processing on Apache Spark whose delivery guarantee is declared, derived, kept and proven.",
        epilog="Exit status: 0 done, 1 failed, 2 refused (bad input, or the machine lacks something).",
    )
    parser.add_argument("--version", action="version", version=f"lockgate {importlib.metadata.version('lockgate')}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an unexpected error")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for group in GROUPS:
        group.register(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
