"""One epoch of an operator over the keys of one bucket: keys with rows, and keys that asked to be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockgate.operators.contract import Clock, Key, Operator, Outcome, Values, Watch
from lockgate.operators.page import Found, Groups, Step
from lockgate.operators.pagestore import PageStore
from lockgate.operators.tolerance import PutAside, tolerant


def run_epoch(
    operator: Operator,
    pages: PageStore,
    groups: Groups,
    *,
    watermark: int,
    wall: int,
    put_aside: PutAside | None = None,
    watch: Watch | None = None,
) -> Found:
    """Take the rows of an epoch and the time; return what the operator emits.

    Rows on which it fails are put aside, or stop it. `watch` sees what the user's code gets, before the code gets it.
    """
    # A watermark never goes back: a bucket that has acted on one keeps it.
    clock = Clock(before=pages.clock, now=max(watermark, pages.clock), wall=wall)
    operator.watch_rows(watch)
    step = operator.step if watch is None else _watched(operator.step, watch)
    step = step if put_aside is None else tolerant(step, put_aside, pages.encoding)
    found = pages.run(groups, step, clock)
    pages.flush(clock.now)
    return found


def _watched(step: Step, watch: Watch) -> Step:
    def take(key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        watch(key, None)
        return step(key, state, rows, clock)

    return take
