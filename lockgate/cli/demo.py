"""The command that shows everything at once: demo."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from datetime import datetime, timezone
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockgate.runtime.run import Run


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    demo = subparsers.add_parser(
        "demo",
        help="a job on real local services, verified",
        description="Start a local Kafka where none runs, send a million payments, run a job from topic to topic, read "
        "its output back and compare it with what must have come out. Exit status 0 when nothing is lost. It can be "
        "run again and again; what it has started, it stops.",
    )
    demo.add_argument("--events", type=int, metavar="N", help="how many payments to send; default: 1,000,000")
    demo.add_argument("--json", action="store_true", help="print the facts as JSON")
    demo.set_defaults(run=run_demo)


def run_demo(arguments: argparse.Namespace) -> int:
    """Show, and tell what was shown."""
    from lockgate import demo
    from lockgate.cli.job import LiveLine
    from lockgate.services.stack import Stack, default_root

    is_stopping = threading.Event()
    runs: list[Run] = []

    def tell(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    def watch(started: Run) -> None:
        runs.append(started)
        if arguments.json:
            started.wait(on_progress=lambda progress: tell(progress.line()))
            return
        live = LiveLine(as_json=False)
        started.wait(on_progress=live.show)
        if not is_stopping.is_set():
            live.finish()

    def stop(number: int, frame: FrameType | None) -> None:
        print("\nstopping", file=sys.stderr, flush=True)
        is_stopping.set()
        for started in runs:
            started.ask_to_stop()
        signal.signal(number, signal.default_int_handler)  # the second time it ends at once

    def go_on() -> None:
        if is_stopping.is_set():
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        report = demo.show(
            Stack(default_root()),
            default_root().parent / "demo",
            events=demo.EVENTS if arguments.events is None else arguments.events,
            now=datetime.now(timezone.utc),
            tell=tell,
            watch=watch,
            go_on=go_on,
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arguments.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print("", *report.lines(), sep="\n")
    return 0 if report.tally.holds else 1
