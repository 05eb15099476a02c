"""How far a command is: bars on a terminal, elsewhere a line now and then, so that a log stays readable."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from lockgate.escaping import tell

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_EVERY_SECONDS = 2.0
REDRAW_SECONDS = 0.2


def bars(out: TextIO) -> Progress:
    """Bars that are drawn on request, each with what its field `told` says; no text of them is markup."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    texts = [TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[told]}")]
    return Progress(
        texts[0],
        BarColumn(),
        texts[1],
        # A variable like FORCE_COLOR must not bring colours and bars into a file.
        console=Console(file=out, force_terminal=out.isatty()),
        auto_refresh=False,  # a thread would draw, and commands fork
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """A function that shows how many of `total` are done; call it as often as you like."""
    drawn = bars(sys.stderr)
    drawn.disable = not drawn.console.is_interactive
    task = drawn.add_task(what, total=total, told="")
    began = shown = time.monotonic()

    def show(done: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < (LINE_EVERY_SECONDS if drawn.disable else REDRAW_SECONDS):
            return
        shown, rate = now, done / (now - began)
        told = f"{done:,} of {total:,} {what}, {rate:,.1f} a second, about {(total - done) / rate:,.0f} s to go"
        drawn.update(task, completed=done, told=told, refresh=True)
        if drawn.disable:
            tell(f"  {told}")

    with drawn:
        yield show
