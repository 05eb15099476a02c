"""A note in the checkpoint about the sources of its offsets, so that no source continues with the offsets of another.

Spark identifies the sources of a query only by number. If two sources changed places, or one reads another topic now,
they would continue from offsets that mean nothing there: events would be silently skipped or read twice. So a job
notes, before its first epoch, what its query reads, in the order of Spark's numbers:

    no epoch is committed      note what this code reads
    otherwise                  compare; refuse, and name both, if a source would continue with offsets of another one

The note never changes afterwards. The name of a source, its schema and the addresses of its brokers may change. If two
outputs read a source in separate passes, it is read twice and has two numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.tree import open_tree
from lockgate.dataflow.endpoints import Source
from lockgate.dataflow.steps import Read
from lockgate.errors import Refused
from lockgate.planner.passes import takes_from
from lockgate.planner.plan import Plan
from lockgate.untrusted import as_list, as_object, take

_FILE = "described/sources.json"


@dataclass(frozen=True)
class Listed:
    """A source, and what its offsets refer to."""

    source: str
    reads: str

    def __str__(self) -> str:
        return f"{self.source!r} ({self.reads})"


def _read_listed(noted: Any) -> list[Listed]:
    return [Listed(take(one, "source", str), take(one, "reads", str)) for one in map(as_object, as_list(noted))]


class SourceList:
    """The sources of a run."""

    def __init__(self, checkpoint: Checkpoint, planned: Plan, parts: Sequence[Sequence[str]]) -> None:
        """List the sources.

        Args:
            parts: the steps of each part of the query, in the order of Spark's numbers; the rows of a part leave its
                last step.
        """
        self._checkpoint = checkpoint
        self._job = planned.job
        self._now = [Listed(name, source.offsets_of) for name, source in sources_in_order(planned, parts)]

    def check(self) -> None:
        """Refuse a job if a source would continue with the offsets of another one."""
        has_begun = bool(self._checkpoint.epochs("commits"))
        noted = self._checkpoint.read_note(_FILE, _read_listed) if has_begun else None
        before = self._now if noted is None else noted
        change = describe_change(before, self._now)
        if change is not None:
            raise Refused(
                f"the offsets in the checkpoint belong to other sources: {change}",
                where=f"job {self._job.name!r}, declared at {self._job.origin}; checkpoint {self._checkpoint.root}",
                fix="restore the sources, and the outputs that read them, as they were, in their old order, and put new"
                " ones into another job; or start from the beginning: lockgate run --new-life",
            )

    def keep(self) -> None:
        """Note what the query reads, before the first epoch."""
        checkpoint = self._checkpoint
        if checkpoint.epochs("commits"):
            return
        # This overwrites the note of a run that committed nothing.
        noted = json.dumps([asdict(one) for one in self._now], indent=1).encode()
        open_tree(checkpoint.root, checkpoint.spark).write(_FILE, noted)


def describe_change(before: Sequence[Listed], now: Sequence[Listed]) -> str | None:
    """A description of the difference; None if every source continues with its own offsets."""
    was, reads = ([one.reads for one in listed] for listed in (before, now))
    if was == reads:
        return None
    if sorted(was) == sorted(reads):
        return f"they were read in the order {_sources_text(before)}, and now in the order {_sources_text(now)}"
    if len(was) == len(reads):
        old, new = next((old, new) for old, new in zip(before, now, strict=True) if old.reads != new.reads)
        return f"{new} is now in the place of {old}"
    return f"{_sources_text(before)} were read, and now {_sources_text(now)}"


def _sources_text(listed: Sequence[Listed]) -> str:
    return ", ".join(map(str, listed)) or "none"


def sources_in_order(planned: Plan, parts: Sequence[Sequence[str]]) -> list[tuple[str, Source]]:
    """The sources of a query by name, in the order of Spark's numbers; a source that is read twice comes twice."""
    return [one for part in parts for one in _leaves(part[-1], planned)]


def _leaves(name: str, planned: Plan) -> Iterator[tuple[str, Source]]:
    """The sources of a step's rows from left to right, the order of Spark's numbers."""
    node = planned.logical.node(name)
    if isinstance(node.step, Read):
        yield node.name, node.step.source
        return
    for fed in takes_from(planned.logical, node):
        yield from _leaves(fed, planned)
