"""One epoch of an operator over the keys of one bucket: those with rows, and those that want to be woken."""

from __future__ import annotations

from lockgate.operators.contract import Clock, Operator
from lockgate.operators.page import Found, Groups
from lockgate.operators.pages import Pages
from lockgate.operators.tolerance import PutAside, tolerant


def run_epoch(
    operator: Operator, pages: Pages, groups: Groups, *, watermark: int, wall: int, put_aside: PutAside | None = None
) -> Found:
    """Take the rows of an epoch and the time; what came out. Rows that it fails on are put aside, or stop it."""
    # A watermark never goes back: a bucket that has acted on one keeps to it.
    clock = Clock(before=pages.clock, now=max(watermark, pages.clock), wall=wall)
    step = operator.step if put_aside is None else tolerant(operator.step, put_aside)
    found = pages.run(groups, step, clock)
    pages.flush(clock.now)
    return found
