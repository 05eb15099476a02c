"""The command `bench`, which measures."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lockgate.errors import Refused
from lockgate.escaping import tell
from lockgate.stopping import stoppable

if TYPE_CHECKING:
    from lockgate.lab.bench.settings import Settings


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    bench = subparsers.add_parser(
        "bench",
        help="measure what exactly-once costs on this machine",
        description="Run one job over the same input under at-least-once (Spark's own Kafka writer) and end-to-end "
        "exactly-once in turn, and report the quotient of their speeds; then the cost of a transaction, and the memory "
        "of a task by the size of the epoch. Without --servers it starts a Kafka of its own, and deletes it "
        "afterwards. "
        "--part table does the same into a PostgreSQL of its own, against Spark's own JDBC append, whose driver it "
        "fetches once. --part lateness reports the share of events that are too late, by how long results wait. "
        "--part at-most-once compares the job that tracks nothing, and those that promise more, with a hand-written "
        "pipeline of plain Structured Streaming. "
        "--part acks compares at-least-once by acknowledgement with at-least-once by checkpoint. "
        "--part backlog reports the memory of a job with state that is far behind, until it has caught up. "
        "--part windows and --part state compare steps with state with hand-written ones, --part keys reports the "
        "cost of a hundred times as many keys; all three without Kafka. "
        "Exit status 0 if both sides delivered all that they had to, no matter which was faster.",
    )
    bench.add_argument(
        "--events", type=int, metavar="N", help="number of events; default: 2,000,000, or 1,000,000 for a backlog"
    )
    bench.add_argument("--partitions", type=int, metavar="N", help="of the input and of the output; default: 4")
    bench.add_argument("--rows-per-epoch", type=int, metavar="N", help="the most rows of an epoch; default: 500,000")
    bench.add_argument("--codec", metavar="NAME", help="none (default), gzip, snappy, lz4 or zstd; for both sides")
    bench.add_argument("--repeats", type=int, metavar="N", help="runs of each side after the warm-up; default: 3")
    bench.add_argument(
        "--job", choices=("parse", "pass"), help="parse JSON, filter, write JSON (default); or pass bytes unchanged"
    )
    keyed = bench.add_mutually_exclusive_group()
    keyed.add_argument("--keyed", action="store_true", dest="is_keyed", default=None, help="write with a key (default)")
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
    bench.add_argument("--servers", metavar="HOST:PORT", help="a running Kafka; bench deletes again what it creates")
    bench.add_argument("--json", action="store_true", help="print the facts as JSON")
    bench.set_defaults(run=run_bench)


def run_bench(arguments: argparse.Namespace) -> int:
    """Measure, and print the report."""
    from lockgate.lab.bench.measure import measure
    from lockgate.lab.services.stack import default_root

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
    """The settings of the measurement: the given options, and defaults for the rest."""
    from lockgate.lab.bench.settings import BACKLOG_EVENTS, CODECS, PARTS, Settings

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
