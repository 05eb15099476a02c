"""The command that shows everything at once: demo."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from lockgate.cli.progress import REDRAW_SECONDS, bars
from lockgate.escaping import escape
from lockgate.stopping import stoppable

if TYPE_CHECKING:
    from rich.progress import TaskID

    from lockgate.lab.demo.show import Standing

_LINE_EVERY_SECONDS = 5.0
_WIDTH = 100  # if the output is no terminal


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    demo = subparsers.add_parser(
        "demo",
        help="Spark's own sink and ours, side by side, killed while they run",
        description="Start a local Kafka if none runs and a Spark cluster of two workers, send a million payments, "
        "and run the same job over them twice at the same time: through Spark's own Kafka sink, and exactly-once. The "
        "executor and the driver of each are killed with -9 in mid-epoch. An independent reader counts what was "
        "lost and what was duplicated. Exit status 0 if the exactly-once side has lost and duplicated nothing. You "
        "can repeat it; it stops what it has started.",
    )
    demo.add_argument("--events", type=int, metavar="N", help="how many payments to send; default: 1,000,000")
    demo.add_argument("--seed", type=int, metavar="N", help="of the payments and of the moments of the kills")
    demo.add_argument("--no-kills", action="store_true", help="run both sides without faults")
    demo.add_argument("--json", action="store_true", help="print the facts as JSON")
    demo.set_defaults(run=run_demo, draws=True)


def run_demo(arguments: argparse.Namespace) -> int:
    """Run the demo, and report its result."""
    from lockgate.lab.demo import show
    from lockgate.lab.services.stack import Stack, default_root

    screen = Screen(sys.stderr if arguments.json else sys.stdout, clock=time.monotonic)

    with stoppable() as go_on:
        try:
            report = show.show(
                Stack(default_root()),
                default_root().parent / "demo",
                events=show.EVENTS if arguments.events is None else arguments.events,
                seed=show.SEED if arguments.seed is None else arguments.seed,
                is_killed=not arguments.no_kills,
                now=datetime.now(UTC),
                audience=screen,
                go_on=go_on,
            )
        finally:
            screen.clear()
    if arguments.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print("", *report.lines(screen.width), sep="\n")
    return 0 if report.holds else 1


class Screen:
    """Prints lines, and below them, on a terminal, the progress of both sides; elsewhere a line every few seconds."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float]) -> None:
        self._bars = bars(out)
        self._console = self._bars.console
        self._tasks: dict[str, TaskID] = {}
        self._clock = clock
        self._began = self._told = clock()
        self._last = ""

    @property
    def width(self) -> int:
        """The number of characters in a line."""
        return self._console.width if self._console.is_terminal else _WIDTH

    def tell(self, line: str) -> None:
        """Print a line that stays."""
        self._say(line)

    def alarm(self, line: str) -> None:
        """Print a highlighted line that stays."""
        self._say(line, style="bold red")

    def follow(self, sides: Sequence[Standing]) -> None:
        """Show the progress of both sides."""
        is_drawn = self._console.is_interactive
        if self._clock() - self._told < (REDRAW_SECONDS if is_drawn else _LINE_EVERY_SECONDS):
            return
        self._told = self._clock()
        if not is_drawn:
            line = "; ".join(_standing(side) for side in sides)
            if line != self._last:
                self._say(line)
            self._last = line
            return
        for side in sides:
            if side.label not in self._tasks:
                self._tasks[side.label] = self._bars.add_task(side.label, total=side.events_total, told="")
            told = f"{side.events:,} events  epoch {side.epoch}  {side.state}"
            self._bars.update(self._tasks[side.label], completed=side.events, told=told)
        self._bars.start()
        self._bars.refresh()

    def clear(self) -> None:
        """Remove the lines that do not stay."""
        if self._bars.live.is_started:
            self._bars.stop()

    def _say(self, line: str, style: str = "") -> None:
        from rich.text import Text

        since = f"{self._clock() - self._began:5.1f} s  " if self._console.is_terminal else ""
        self._console.print(Text.assemble(since, (escape(line), style)), soft_wrap=True)


def _standing(side: Standing) -> str:
    return f"{side.label}: {side.events:,} of {side.events_total:,} events, epoch {side.epoch}, {side.state}"
