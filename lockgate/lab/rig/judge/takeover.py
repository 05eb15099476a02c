"""Did every driver stop that another one took over from?

The ledger of a job is signed by the run that claims it or commits an epoch. Runs follow each other: once another one
has signed, an older one never signs again, or two drivers were at work at a time and neither knew of the other.
"""

from __future__ import annotations

from lockgate.guarantees import Guarantee
from lockgate.lab.rig.history import History, Ledger
from lockgate.lab.rig.judge.findings import Finding, Tally
from lockgate.lab.rig.judge.promises import Promises


def check_takeover(history: History, promises: Promises) -> Finding:
    """Does no run sign the ledger after another one did? If the ledger was not read, nothing is said of it."""
    tally = Tally("taken over")
    if not any(promise.guarantee is Guarantee.END_TO_END_EXACTLY_ONCE for promise in promises.values()):
        return tally.finding()
    for ledger in history.of(Ledger):
        if ledger.doubt:
            tally.doubt(f"the ledger was not read: {ledger.doubt}")
            continue
        tally.hold()
        last, older = "", set[str]()
        for run, epoch in ledger.entries:
            if run in older:
                tally.break_(f"run {run} signed the ledger for epoch {epoch} after run {last} took over", subject=None)
            elif run != last:
                older.add(last)
                last = run
    return tally.finding()
