"""How long after a fault the next new row was seen, and whether one was seen at all."""

from __future__ import annotations

from collections.abc import Sequence

from lockgate.lab.rig.history import Fault, History, Read, Reader, Start
from lockgate.lab.rig.judge.findings import Finding, Tally
from lockgate.lab.rig.judge.promises import Keeping, Promises


def check_recovery(history: History, promises: Promises) -> Finding:
    """Did new rows come after every fault? Where all had come already, none is owed."""
    tally = Tally("recovery")
    tally.hold()
    seen = _seen(history)
    for fault, seconds in recoveries(history):
        before = [row for row in seen if row.at_seconds <= fault.at_seconds]
        if seconds is None and not _is_all(before, promises):
            tally.doubt(f"no new row was seen after {fault.kind} at {fault.point}, {fault.at_seconds:.1f} s")
    return tally.finding()


def _is_all(seen: Sequence[Read], promises: Promises) -> bool:
    """Had all rows come?"""
    if any(promise.rows is None for promise in promises.values()):
        return False
    # Where rows replace each other more are seen than stay: of those the ones that stay count.
    replaced = {output: promise for output, promise in promises.items() if promise.keeping is Keeping.REPLACED}
    for output, promise in replaced.items():
        contents = {row.content for row in seen if row.output == output}
        if any(row.content not in contents for row in promise.rows or ()):
            return False
    owed = sum(len(promise.rows or ()) for output, promise in promises.items() if output not in replaced)
    return sum(row.output not in replaced for row in seen) >= owed


def recoveries(history: History) -> tuple[tuple[Fault, float | None], ...]:
    """Every fault, and the seconds from it to the first new row that a reader of committed records saw.

    A row that was committed before the fault may reach the reader after it. It is not taken for a new one: where a
    driver was started because of the fault, new rows come after that; and an epoch before that of the fault is not new.
    """
    faults, seen = history.of(Fault), _seen(history)
    starts = [start.at_seconds for start in history.of(Start)]
    found = []
    for fault in faults:
        following = min((one.at_seconds for one in faults if one.at_seconds > fault.at_seconds), default=float("inf"))
        since = min((at for at in starts if fault.at_seconds <= at < following), default=fault.at_seconds)
        new = (
            row.at_seconds
            for row in seen
            if row.at_seconds > since and (row.epoch is None or fault.epoch is None or row.epoch >= fault.epoch)
        )
        first = min(new, default=None)
        found.append((fault, None if first is None else first - fault.at_seconds))
    return tuple(found)


def _seen(history: History) -> list[Read]:
    return [row for row in history.of(Read) if row.reader is Reader.ALONG]
