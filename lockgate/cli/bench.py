"""The command that measures: bench."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lockgate.errors import Refused
from lockgate.stopping import stoppable

if TYPE_CHECKING:
    from lockgate.bench.settings import Settings


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    bench = subparsers.add_parser(
        "bench",
        help="measure what exactly-once costs on this machine",
        description="Run one job over the same input under at-least-once (Spark's own Kafka writer) and end-to-end "
        "exactly-once in turn, and tell the quotient of their speeds; then the price of a transaction, and the memory "
        "of a task by the size of the epoch. Without --servers a Kafka of its own is started, and deleted afterwards. "
        "--part table does the same into a PostgreSQL of its own, against Spark's own JDBC append, whose driver it "
        "fetches once. --part lateness tells which share of events comes too late, against how long results wait. "
        "--part at-most-once runs the job that tracks nothing, and those that promise more, against the plain "
        "Structured Streaming pipeline by hand. "
        "--part acks runs a job at-least-once by acknowledgement against the same by checkpoint. "
        "--part backlog tells the memory of a job with state that is far behind, until it has caught up. "
        "--part windows and --part state measure steps with state against the same by hand, --part keys tells what a "
        "hundred times as many keys cost; all three without Kafka. "
        "Exit status 0 when both sides delivered what they had to, whichever was faster.",
    )
    bench.add_argument(
        "--events", type=int, metavar="N", help="how many events; default: 2,000,000, or 1,000,000 that wait"
    )
    bench.add_argument("--partitions", type=int, metavar="N", help="of the input and of the output; default: 4")
    bench.add_argument("--rows-per-epoch", type=int, metavar="N", help="the most rows of an epoch; default: 500,000")
    bench.add_argument("--codec", metavar="NAME", help="none (at first), gzip, snappy, lz4 or zstd; for both sides")
    bench.add_argument("--repeats", type=int, metavar="N", help="runs of each side after the warm-up; default: 3")
    bench.add_argument(
        "--job", choices=("parse", "pass"), help="parse JSON, filter, write JSON (at first); or bytes as they are"
    )
    keyed = bench.add_mutually_exclusive_group()
    keyed.add_argument(
        "--keyed", action="store_true", dest="is_keyed", default=None, help="write with a key (at first)"
    )
    keyed.add_argument("--no-key", action="store_false", dest="is_keyed", help="write without one")
    bench.add_argument(
        "--exchange", action="store_true", default=None, help="take the key from the value, so that rows are exchanged"
    )
    bench.add_argument("--seed", type=int, metavar="N", help="of the events; default: 7")
    bench.add_argument(
        "--part",
        metavar="NAME",
        help="only one: throughput, transactions, memory, table, lateness, windows, state, keys, at-most-once, acks "
        "or backlog",
    )
    bench.add_argument("--servers", metavar="HOST:PORT", help="a Kafka that runs; what is made there is deleted again")
    bench.add_argument("--json", action="store_true", help="print the facts as JSON")
    bench.set_defaults(run=run_bench)


def run_bench(arguments: argparse.Namespace) -> int:
    """Measure, and tell what was measured."""
    from lockgate.bench.measure import measure
    from lockgate.services.stack import default_root

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    settings = read_settings(arguments)
    with stoppable() as go_on:
        report = measure(
            settings,
            default_root().parent / "bench",
            servers=arguments.servers,
            now=datetime.now(UTC),
            tell=tell,
            go_on=go_on,
        )
    if arguments.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print("", *report.lines(), sep="\n")
    return 0 if report.holds else 1


def read_settings(arguments: argparse.Namespace) -> Settings:
    """What is to be measured: what was said, and the defaults for the rest."""
    from lockgate.bench.settings import BACKLOG_EVENTS, CODECS, PARTS, Settings

    _require(arguments.codec, CODECS, "--codec")
    _require(arguments.part, PARTS, "--part")
    said: dict[str, Any] = {
        "events": BACKLOG_EVENTS if arguments.events is None and arguments.part == "backlog" else arguments.events,
        "partitions": arguments.partitions,
        "rows_per_epoch": arguments.rows_per_epoch,
        "codec": arguments.codec,
        "repeats": arguments.repeats,
        "job": arguments.job,
        "is_keyed": arguments.is_keyed,
        "is_exchanged": arguments.exchange,
        "seed": arguments.seed,
        "parts": None if arguments.part is None else (arguments.part,),
    }
    return Settings(**{name: given for name, given in said.items() if given is not None})


def _require(given: str | None, known: tuple[str, ...], option: str) -> None:
    if given is not None and given not in known:
        raise Refused(f"{given!r} is not known", where=option, fix=f"use one of {', '.join(known)}")
