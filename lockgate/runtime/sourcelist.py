"""Which sources the offsets in a checkpoint belong to, noted in it, so that none goes on with the offsets of another.

Spark knows the sources of a query by their numbers alone. Two that have changed places, or one that reads another
topic now, would go on from places that mean nothing there: events would be skipped or read twice, in silence. So a
job notes, before its first epoch, what its query reads, in the order in which Spark numbers it:

    no epoch is committed      note what this code reads
    else                       compare; refused, with both, where a source would go on with the offsets of another

The note is never changed afterwards. The name of a source, its schema and the addresses of its brokers may change. A
source that two outputs read in passes of their own is read twice, and has two numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockgate.dataflow.endpoints import Source
from lockgate.dataflow.steps import Read
from lockgate.errors import Refused
from lockgate.planner.passes import takes_from
from lockgate.planner.plan import Plan
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.runtime.lifecycle.tree import open_tree
from lockgate.untrusted import as_list, as_object, take

_FILE = "described/sources.json"


@dataclass(frozen=True)
class Listed:
    """A source, and what its offsets are places in."""

    source: str
    reads: str

    def __str__(self) -> str:
        return f"{self.source!r} ({self.reads})"


def _read_listed(noted: Any) -> list[Listed]:
    return [Listed(take(one, "source", str), take(one, "reads", str)) for one in map(as_object, as_list(noted))]


class SourceList:
    """Those of a run."""

    def __init__(self, checkpoint: Checkpoint, planned: Plan, parts: Sequence[Sequence[str]]) -> None:
        """Look at them.

        Args:
            parts: the steps of each part of the query, in the order in which Spark numbers them; the last one of each
                is what its rows end with.
        """
        self._checkpoint = checkpoint
        self._job = planned.job
        self._now = [Listed(name, source.offsets_of) for name, source in sources_in_order(planned, parts)]

    def check(self) -> None:
        """Refuse a job whose sources would go on with the offsets of others."""
        has_begun = bool(self._checkpoint.epochs("commits"))
        noted = self._checkpoint.read_note(_FILE, _read_listed) if has_begun else None
        before = self._now if noted is None else noted
        change = told_change(before, self._now)
        if change is not None:
            raise Refused(
                f"the offsets in the checkpoint are those of other sources: {change}",
                where=f"job {self._job.name!r}, declared at {self._job.origin}; checkpoint {self._checkpoint.root}",
                fix="bring the sources, and the outputs that read them, back to what they were, in their old order;"
                " what is new goes into a job of its own; or begin again with everything: lockgate run --new-life",
            )

    def keep(self) -> None:
        """Note what is read; before the first epoch."""
        checkpoint = self._checkpoint
        if checkpoint.epochs("commits"):
            return
        # Over what a run that committed nothing has left there.
        noted = json.dumps([asdict(one) for one in self._now], indent=1).encode()
        open_tree(checkpoint.root, checkpoint.spark).write(_FILE, noted)


def told_change(before: Sequence[Listed], now: Sequence[Listed]) -> str | None:
    """What is not as it was, in words; None where every source goes on with its own offsets."""
    was, reads = ([one.reads for one in listed] for listed in (before, now))
    if was == reads:
        return None
    if sorted(was) == sorted(reads):
        return f"they were read in the order {_told(before)}, and are in the order {_told(now)} now"
    if len(was) == len(reads):
        old, new = next((old, new) for old, new in zip(before, now, strict=True) if old.reads != new.reads)
        return f"where {new} is now, {old} was"
    return f"{_told(before)} were read, and {_told(now)} are now"


def _told(listed: Sequence[Listed]) -> str:
    return ", ".join(map(str, listed)) or "none"


def sources_in_order(planned: Plan, parts: Sequence[Sequence[str]]) -> list[tuple[str, Source]]:
    """The sources of a query by name, in the order in which Spark numbers them; one that is read twice comes twice."""
    return [one for part in parts for one in _leaves(part[-1], planned)]


def _leaves(name: str, planned: Plan) -> Iterator[tuple[str, Source]]:
    """The sources that a step's rows come from, from left to right, which is how Spark numbers them."""
    node = planned.logical.node(name)
    if isinstance(node.step, Read):
        yield node.name, node.step.source
        return
    for fed in takes_from(planned.logical, node):
        yield from _leaves(fed, planned)
