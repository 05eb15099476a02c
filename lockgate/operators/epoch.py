"""One epoch of an operator over the keys of one bucket: those with rows, and those that want to be woken."""

from __future__ import annotations

from lockgate.operators.contract import Clock, Operator
from lockgate.operators.page import Found, Groups
from lockgate.operators.pages import Pages


def run_epoch(operator: Operator, pages: Pages, groups: Groups, *, watermark: int, wall: int) -> Found:
    """Take the rows of an epoch and the time; what came out."""
    # A watermark never goes back: a bucket that has acted on one keeps to it.
    clock = Clock(before=pages.clock, now=max(watermark, pages.clock), wall=wall)
    found = pages.run(groups, operator.step, clock)
    pages.flush(clock.now)
    return found
