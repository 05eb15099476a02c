"""How two checkpoints differ: a copy and what became of it, the same job in two places, before and after a change.

They have one lineage if they have the same query, and the same offsets in every epoch that both have. Their positions
are compared after the last committed epoch of each, because a planned epoch may be planned again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from lockgate.checkpoints.facts import CheckpointFacts, as_iso


class Lineage(Enum):
    """What two checkpoints have in common."""

    SAME = "one lineage: the epochs that both have read the same"
    FORKED = "forked: the same query, but some epochs read something else"
    APART = "the same query, with no epoch in common, so the lineage is unknown"
    OTHER = "two queries: neither continues from the other"


@dataclass(frozen=True)
class Side:
    """One of the two checkpoints."""

    root: str
    job: str | None
    query: str | None
    first: int | None  # epoch
    last: int | None
    committed: int | None
    watermark: datetime | None
    partitions: int | None
    state_bytes: int | None
    state_rows: int | None
    bytes: int


@dataclass(frozen=True)
class PlaceDifference:
    """The positions of both in one partition of a source; None if one of them does not have the partition."""

    source: str
    topic: str
    partition: int
    left: int | None
    right: int | None

    @property
    def records(self) -> int | None:
        """By how many records the second is ahead; negative if it is behind."""
        return None if self.left is None or self.right is None else self.right - self.left


@dataclass(frozen=True)
class Difference:
    """Two checkpoints side by side."""

    left: Side
    right: Side
    lineage: Lineage
    forked_at: int | None  # the first epoch in which the two read different events
    places: tuple[PlaceDifference, ...]
    conf: Mapping[str, tuple[str | None, str | None]]  # settings of the query that differ

    def as_facts(self) -> dict[str, Any]:
        """As plain data."""
        left, right = ({**asdict(side), "watermark": as_iso(side.watermark)} for side in (self.left, self.right))
        return {
            "left": left,
            "right": right,
            "lineage": self.lineage.name.lower(),
            "forked_at": self.forked_at,
            "offsets": [{**asdict(one), "records": one.records} for one in self.places],
            "conf": {name: list(values) for name, values in self.conf.items()},
        }


def compare(left: CheckpointFacts, right: CheckpointFacts) -> Difference:
    """The difference between two checkpoints."""
    forked_at, common = _fork(left, right)
    if left.query is None or left.query != right.query:
        lineage, forked_at = Lineage.OTHER, None
    elif forked_at is not None:
        lineage = Lineage.FORKED
    else:
        lineage = Lineage.SAME if common else Lineage.APART
    here, there = _places(left), _places(right)
    places = tuple(
        PlaceDifference(*place, left=here.get(place), right=there.get(place)) for place in sorted({*here, *there})
    )
    ours, theirs = _conf(left), _conf(right)
    conf = {
        name: (ours.get(name), theirs.get(name))
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    }
    return Difference(_side(left), _side(right), lineage, forked_at, places, conf)


def _fork(left: CheckpointFacts, right: CheckpointFacts) -> tuple[int | None, int]:
    """The first epoch that differs, and how many epochs both have."""
    here = {epoch.number: epoch.digest for epoch in left.epochs if epoch.digest is not None}
    there = {epoch.number: epoch.digest for epoch in right.epochs if epoch.digest is not None}
    common = sorted({*here} & {*there})
    return next((number for number in common if here[number] != there[number]), None), len(common)


def _places(facts: CheckpointFacts) -> dict[tuple[str, str, int], int]:
    epoch = facts.committed
    return {
        (offset.source, topic, partition): end
        for offset in (() if epoch is None or epoch.planned is None else epoch.planned.offsets)
        for (topic, partition), end in (offset.places or {}).items()
    }


def _conf(facts: CheckpointFacts) -> Mapping[str, str]:
    planned = next((epoch.planned for epoch in reversed(facts.epochs) if epoch.planned is not None), None)
    return {} if planned is None else planned.conf


def _side(facts: CheckpointFacts) -> Side:
    epoch = facts.committed
    state = None if epoch is None else facts.state_of(epoch.number)
    return Side(
        root=facts.root,
        job=None if facts.marker is None else facts.marker.job,
        query=facts.query,
        first=facts.epochs[0].number if facts.epochs else None,
        last=facts.epochs[-1].number if facts.epochs else None,
        committed=None if epoch is None else epoch.number,
        watermark=None if epoch is None else epoch.watermark,
        partitions=None if epoch is None or state is None else epoch.partitions,
        state_bytes=None if state is None else state.bytes,
        state_rows=None if state is None else state.rows,
        bytes=facts.bytes,
    )
