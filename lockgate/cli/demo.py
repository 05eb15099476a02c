"""The command that shows everything at once: demo."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from lockgate.stopping import stoppable

if TYPE_CHECKING:
    from lockgate.demo.show import Standing

_LINE_EVERY_SECONDS = 5.0
_REDRAW_SECONDS = 0.2
_WIDTH = 100  # where it is not a terminal
_RED, _PLAIN = "\x1b[1;31m", "\x1b[0m"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    demo = subparsers.add_parser(
        "demo",
        help="Spark's own sink and ours, side by side, killed while they run",
        description="Start a local Kafka where none runs and a Spark cluster of two workers, send a million payments, "
        "and run the same job over them twice at the same time: through Spark's own Kafka sink, and exactly-once. The "
        "executor and the driver of each are killed with -9 in mid-epoch. An independent reader counts what was "
        "lost and what was duplicated. Exit status 0 when the exactly-once side has lost and duplicated nothing. It "
        "can be run again and again; what it has started, it stops.",
    )
    demo.add_argument("--events", type=int, metavar="N", help="how many payments to send; default: 1,000,000")
    demo.add_argument("--seed", type=int, metavar="N", help="of the payments and of the moments of the kills")
    demo.add_argument("--no-kills", action="store_true", help="let both sides run in peace")
    demo.add_argument("--json", action="store_true", help="print the facts as JSON")
    demo.set_defaults(run=run_demo)


def run_demo(arguments: argparse.Namespace) -> int:
    """Show, and tell what was shown."""
    from lockgate.demo import show
    from lockgate.services.stack import Stack, default_root

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
    """Lines as they come, and below them, on a terminal, how far both sides are; elsewhere a line every few seconds."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float]) -> None:
        self._out, self._clock = out, clock
        self._is_terminal = out.isatty()
        self._is_coloured = self._is_terminal and "NO_COLOR" not in os.environ
        self._began = self._told = clock()
        self._drawn: list[str] = []
        self._last = ""

    @property
    def width(self) -> int:
        """How many characters a line has."""
        return shutil.get_terminal_size().columns if self._is_terminal else _WIDTH

    def tell(self, line: str) -> None:
        """A line that stays."""
        self._say(f"{self._clock() - self._began:5.1f} s  {line}" if self._is_terminal else line)

    def alarm(self, line: str) -> None:
        """A line that stays and is seen."""
        self.tell(f"{_RED}{line}{_PLAIN}" if self._is_coloured else line)

    def follow(self, sides: Sequence[Standing]) -> None:
        """How far the sides are."""
        if self._clock() - self._told < (_REDRAW_SECONDS if self._is_terminal else _LINE_EVERY_SECONDS):
            return
        self._told = self._clock()
        if not self._is_terminal:
            line = "; ".join(_standing(side) for side in sides)
            if line != self._last:
                self._say(line)
            self._last = line
            return
        self.clear()
        self._drawn = [_bar(side, self.width - 1) for side in sides]
        print(*self._drawn, sep="\n", file=self._out, flush=True)

    def clear(self) -> None:
        """Take away what does not stay."""
        if self._drawn:
            print(f"\x1b[{len(self._drawn)}A\x1b[J", end="", file=self._out, flush=True)
        self._drawn = []

    def _say(self, line: str) -> None:
        drawn = self._drawn
        self.clear()
        print(line, *drawn, sep="\n", file=self._out, flush=True)
        self._drawn = drawn


def _standing(side: Standing) -> str:
    return f"{side.label}: {side.events:,} of {side.events_total:,} events, epoch {side.epoch}, {side.state}"


def _bar(side: Standing, width: int) -> str:
    """How far a side is, in one line of at most this width."""
    label, told = f"{side.label:<16} ", f" {side.events:>9,} events  epoch {side.epoch}  {side.state}"
    room = min(40, width - len(label) - len(told))
    if room < 5:
        return _standing(side)[:width]
    full = side.events * room // side.events_total
    return f"{label}{'█' * full}{'░' * (room - full)}{told}"
