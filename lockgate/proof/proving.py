"""A proof: trials of one job under faults, each judged against the job undisturbed, added up by seed.

1. the job is put at a site of its own, or refused: nothing of the author's is read, written or killed
2. an undisturbed run gives the answer; where the job has none, nothing can be proven by comparing rows
3. every trial has topics, a checkpoint and a name of its own, and the same events
4. what was seen is judged, and kept: a proof can be broken off and gone on with
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockgate.dataflow.steps import Join, Keyed, Merge, Write
from lockgate.errors import Failed, LockgateError, Refused
from lockgate.guarantees import Guarantee
from lockgate.kafka.topics import delete_ours
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.plan import Plan
from lockgate.proof.determinism import Reason
from lockgate.proof.faults import Strike, deal
from lockgate.proof.findings import Outcome
from lockgate.proof.outputs.readers import place_of
from lockgate.proof.promises import Promise, Row
from lockgate.proof.redirect import Redirected
from lockgate.proof.results import Results
from lockgate.proof.settings import Settings
from lockgate.proof.trial import Run, Stage
from lockgate.proof.verdict import Trial, Verdict, judge, unknown
from lockgate.sinks.kafka import KafkaSink

PREFIX = "lockgate-proof-"
"""Topics with this prefix, and the ledgers of jobs with it, are ours to delete."""

_WHERE = "the proof's topics"


@dataclass(frozen=True)
class Proof:
    """What is proven."""

    stage: Stage
    planned: Plan
    moved: Redirected  # to any site: what its outputs are called there
    settings: Settings
    strikes: Sequence[Strike]  # all that fit the job
    reasons: Sequence[Reason]  # why its answer cannot be computed, if it cannot
    seed: int
    strikes_per_trial: int

    def trial_numbers(self, kills: int) -> range:
        """The trials that have so many faults together."""
        return range(-(-kills // self.strikes_per_trial))

    def prove(self, results: Results, numbers: Sequence[int]) -> Verdict:
        """Run the trials that are outstanding; all of them added up."""
        wanted = results.outstanding([(self.seed, number) for number in numbers])
        if len(wanted) < len(numbers):
            self.stage.tell(f"{len(numbers) - len(wanted)} of {len(numbers)} trials were run before: {results.file}")
        if wanted:
            with self._clean():
                promises = self._promises()
                for place, (_, number) in enumerate(wanted, start=1):
                    trial = self._try(number, promises)
                    results.add(trial)
                    self.stage.tell(_line(trial, place, len(wanted)))
        return results.verdict()

    def _promises(self) -> dict[str, Promise]:
        graph = self.planned.logical
        # An output without a row in the answer has none to give; without an answer nobody knows.
        places = {one.name: place_of(one, self.moved.site) for one in self.moved.results}
        labels = [place.label for place in places.values() if place is not None]
        rows: dict[str, tuple[Row, ...] | None] = dict.fromkeys(labels, None if self.reasons else ())
        if not self.reasons:
            self.stage.tell("the answer: the job undisturbed")
            rows = {**rows, **Run(self.stage, f"{PREFIX}answer").answer()}
        found = {}
        for one in self.moved.results:
            place = places[one.name]
            if place is not None:
                node = next(node for node in graph.nodes if node.name == one.name)
                found[place.label] = Promise(
                    guarantee=_declared(self.planned, node),
                    rows=rows[place.label],
                    is_ordered=not one.is_letters and _is_ordered(graph, node),
                    is_placed_by_key=isinstance(one.sink, KafkaSink) and one.sink.partition is None,
                    keeping=place.keeping,
                    has_transactions=place.has_transactions,
                )
        return found

    def _try(self, number: int, promises: Mapping[str, Promise]) -> Trial:
        strikes = deal(self.strikes, seed=self.seed, number=number, count=self.strikes_per_trial)
        due = [one.named for one in strikes]
        began = time.monotonic()
        run = Run(self.stage, f"{PREFIX}{self.seed}-{number}", strikes, self.seed)
        try:
            history = run.run()
        except LockgateError as error:
            if isinstance(error, Refused):
                raise
            seconds = time.monotonic() - began
            return unknown(seed=self.seed, number=number, due=due, reason=error.what, seconds=seconds)
        place = self.stage.home / run.name / "history.jsonl"
        place.write_text("".join(f"{line}\n" for line in history.lines()))
        trial = judge(
            history,
            promises,
            self.settings,
            seed=self.seed,
            number=number,
            due=due,
            seconds=time.monotonic() - began,
        )
        if trial.outcome is Outcome.HOLDS:
            shutil.rmtree(self.stage.home / run.name, ignore_errors=True)
        return trial

    @contextlib.contextmanager
    def _clean(self) -> Iterator[None]:
        """Topics and files of an earlier proof are removed, and those of this one when it is over."""
        servers = self.stage.stack.status().kafka.servers or ""
        for old in self.stage.home.glob(f"{PREFIX}*"):
            shutil.rmtree(old)
        delete_ours(servers, PREFIX, where=_WHERE)
        try:
            yield
        finally:
            with contextlib.suppress(Failed):
                delete_ours(servers, PREFIX, where=_WHERE)


def _declared(planned: Plan, node: Node) -> Guarantee:
    assert isinstance(node.step, Write)
    return node.step.guarantee or planned.job.guarantee


def _is_ordered(graph: LogicalGraph, node: Node) -> bool:
    """Does a row leave in the order of its event, because nothing on its way gathers events or lets them wait?"""
    waiting, seen = list(node.inputs), set[str]()
    while waiting:
        one = graph.node(waiting.pop())
        if one.name in seen:
            continue
        seen.add(one.name)
        if isinstance(one.step, Keyed | Join) or (isinstance(one.step, Merge) and len(one.inputs) > 1):
            return False
        waiting += one.inputs
    return graph.job.tracking is None


def _line(trial: Trial, place: int, count: int) -> str:
    told = f"trial {place} of {count}: {trial.outcome.value}, {len(trial.struck)} faults, {trial.event_count:,} events"
    return f"{told}, {trial.seconds:.0f} s" + (f": {trial.reason}" if trial.outcome is not Outcome.HOLDS else "")


def default_home(root: Path, job: str) -> Path:
    """Where the proofs of a job lie."""
    return root.parent / "prove" / job
