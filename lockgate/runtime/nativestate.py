"""What Spark's own windows and joins keep, noted in the checkpoint, so that state is never read as what it is not.

Spark finds the state of its operators by their numbers, and compares the types of what it finds. A window that has
become five times as long, a sum over another column, two windows that have changed places: all of these have the same
types. So a job notes, before its first epoch, which native steps its query runs, in the order in which Spark numbers
them, and what each keeps:

    no epoch is committed      note what this code keeps
    else                       compare; refused where a step would go on with what another one kept

The note is never changed afterwards, so that a start that Spark refuses leaves nothing behind. What state does not hang
on may change: conditions, lateness, which sinks results go to. A step may have a new name, too, and so may a source: it
is told by what its offsets are places in, as sourcelist.py has it. Notes of earlier versions tell sources by name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockgate.dataflow.steps import Join, Read, WindowAggregate
from lockgate.errors import Refused
from lockgate.planner.forms import as_sql
from lockgate.planner.logical import LogicalGraph, Node, is_operator
from lockgate.planner.plan import Plan
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.runtime.lifecycle.tree import open_tree
from lockgate.untrusted import as_list, as_object, take

_FILE = "native/steps.json"


@dataclass(frozen=True)
class Kept:
    """A native step, and what its state is made of, in words."""

    step: str
    keeps: str


class NativeSteps:
    """Those of a run."""

    def __init__(self, checkpoint: Checkpoint, planned: Plan, parts: Sequence[Sequence[str]]) -> None:
        """Look at them.

        Args:
            parts: the steps of each part of the query, in the order in which Spark numbers them.
        """
        graph = planned.logical
        self._checkpoint = checkpoint
        self._job = planned.job
        steps = [graph.node(name) for part in parts for name in part]
        told = _told_sources(graph)
        self._now = [kept for node in steps if (kept := _native(graph, node, told)) is not None]
        names = {name: name for name in told}
        self._by_names = [kept for node in steps if (kept := _native(graph, node, names)) is not None]

    def check(self) -> None:
        """Refuse a job whose native steps would go on with the state of others."""
        has_begun = bool(self._checkpoint.epochs("commits"))
        noted = self._checkpoint.read_note(_FILE, _read_kept) if has_begun else None
        before = self._now if noted is None else noted
        change = _change(before, self._now)
        if change is not None and _change(before, self._by_names) is not None:
            raise Refused(
                f"the state in the checkpoint is that of other steps: {change}",
                where=f"job {self._job.name!r}, declared at {self._job.origin}; checkpoint {self._checkpoint.root}",
                fix="bring the windows and joins back to what they were, in their old order;"
                " or begin again with everything: lockgate run --new-life",
            )

    def keep(self) -> None:
        """Note what they keep; before the first epoch."""
        checkpoint = self._checkpoint
        if not self._now or checkpoint.epochs("commits"):
            return
        # Over what a run that committed nothing has left there.
        noted = json.dumps([asdict(one) for one in self._now], indent=1).encode()
        open_tree(checkpoint.root, checkpoint.spark).write(_FILE, noted)


def _read_kept(noted: Any) -> list[Kept]:
    return [Kept(take(one, "step", str), take(one, "keeps", str)) for one in map(as_object, as_list(noted))]


def _told_sources(graph: LogicalGraph) -> Mapping[str, str]:
    """What each source reads, in words, by its name; with the name, where several read the same."""
    reads = {node.name: node.step.source.offsets_of for node in graph.nodes if isinstance(node.step, Read)}
    times = Counter(reads.values())
    return {name: read if times[read] == 1 else f"{read} as {name}" for name, read in reads.items()}


def _native(graph: LogicalGraph, node: Node, told: Mapping[str, str]) -> Kept | None:
    step = node.step
    over = f"over {', '.join(sorted({told[name] for name in _sources(graph, node)}))}"
    if isinstance(step, Join):
        return Kept(node.name, f"{step.how} join on {', '.join(step.on)} within {step.within} {over}")
    if isinstance(step, WindowAggregate) and not is_operator(graph, node):
        sums = [f"{name}={' '.join(as_sql(one).split())}" for name, one in step.aggregates.items()]
        keys = f"by {', '.join(step.keys)}" if step.keys else "one for all"
        return Kept(node.name, f"{step.window}, {keys}: {', '.join(sums)} {over}")
    return None


def _sources(graph: LogicalGraph, node: Node) -> Iterator[str]:
    if isinstance(node.step, Read):
        yield node.name
    for name in node.inputs:
        yield from _sources(graph, graph.node(name))


def _change(before: list[Kept], now: list[Kept]) -> str | None:
    """What is not as it was, in words."""
    names_before, names_now = ([one.step for one in kept] for kept in (before, now))
    if len(before) != len(now):
        return f"it has {', '.join(names_before) or 'none'}, and the job has {', '.join(names_now) or 'none'}"
    for old, new in zip(before, now, strict=True):
        if old.keeps != new.keeps:
            return f"{old.step!r} was {old.keeps}, and {new.step!r} in its place is {new.keeps}"
        if old.step != new.step and (old.step in names_now or new.step in names_before):
            return f"{new.step!r} is where {old.step!r} was"
    return None
