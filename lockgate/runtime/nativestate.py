"""A note in the checkpoint about what Spark's own windows and joins keep, so that no state is misread.

Spark finds the state of its operators by their numbers, and compares only types. A window that became five times as
long, a sum over another column, two windows that changed places: all of these have the same types. So a job notes,
before its first epoch, the native steps of its query, in the order of Spark's numbers, and what each keeps:

    no epoch is committed      note what this code keeps
    otherwise                  compare; refuse if a step would continue with the state of another one

The note never changes afterwards, so that a start that Spark refuses leaves nothing. Anything on which state does not
depend may change: conditions, lateness, the sinks of results. A step may have a new name, too, and so may a source: it
is identified by what its offsets refer to (sourcelist.py). Notes of earlier versions identify sources by name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.tree import open_tree
from lockgate.dataflow.steps import Join, Read, WindowAggregate
from lockgate.errors import Refused
from lockgate.planner.forms import as_sql
from lockgate.planner.logical import LogicalGraph, Node, is_operator
from lockgate.planner.plan import Plan
from lockgate.untrusted import as_list, as_object, take

_FILE = "native/steps.json"


@dataclass(frozen=True)
class Kept:
    """A native step, and a description of its state."""

    step: str
    keeps: str


class NativeSteps:
    """The native steps of a run."""

    def __init__(self, checkpoint: Checkpoint, planned: Plan, parts: Sequence[Sequence[str]]) -> None:
        """Describe the steps.

        Args:
            parts: the steps of each part of the query, in the order of Spark's numbers.
        """
        graph = planned.logical
        self._checkpoint = checkpoint
        self._job = planned.job
        steps = [graph.node(name) for part in parts for name in part]
        told = _source_texts(graph)
        self._now = [kept for node in steps if (kept := _native(graph, node, told)) is not None]
        names = {name: name for name in told}
        self._by_names = [kept for node in steps if (kept := _native(graph, node, names)) is not None]

    def check(self) -> None:
        """Refuse a job if a native step would continue with the state of another one."""
        has_begun = bool(self._checkpoint.epochs("commits"))
        noted = self._checkpoint.read_note(_FILE, _read_kept) if has_begun else None
        before = self._now if noted is None else noted
        change = _change(before, self._now)
        if change is not None and _change(before, self._by_names) is not None:
            raise Refused(
                f"the state in the checkpoint belongs to other steps: {change}",
                where=f"job {self._job.name!r}, declared at {self._job.origin}; checkpoint {self._checkpoint.root}",
                fix="restore the windows and joins as they were, in their old order;"
                " or start from the beginning: lockgate run --new-life",
            )

    def keep(self) -> None:
        """Note what the steps keep, before the first epoch."""
        checkpoint = self._checkpoint
        if not self._now or checkpoint.epochs("commits"):
            return
        # This overwrites the note of a run that committed nothing.
        noted = json.dumps([asdict(one) for one in self._now], indent=1).encode()
        open_tree(checkpoint.root, checkpoint.spark).write(_FILE, noted)


def _read_kept(noted: Any) -> list[Kept]:
    return [Kept(take(one, "step", str), take(one, "keeps", str)) for one in map(as_object, as_list(noted))]


def _source_texts(graph: LogicalGraph) -> Mapping[str, str]:
    """A description of what each source reads, by its name; it includes the name if several read the same."""
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
    """A description of the first difference."""
    names_before, names_now = ([one.step for one in kept] for kept in (before, now))
    if len(before) != len(now):
        return f"it has {', '.join(names_before) or 'none'}, but the job has {', '.join(names_now) or 'none'}"
    for old, new in zip(before, now, strict=True):
        if old.keeps != new.keeps:
            return f"{old.step!r} was {old.keeps}, but {new.step!r} in its place is {new.keeps}"
        if old.step != new.step and (old.step in names_now or new.step in names_before):
            return f"{new.step!r} is in the place of {old.step!r}"
    return None
