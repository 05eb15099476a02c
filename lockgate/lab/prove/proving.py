"""A proof: trials of one job under faults, each judged against the job undisturbed, added up by seed.

1. move the job to a site of its own, or refuse it: nothing of the user is read, written or killed
2. an undisturbed run gives the answer; if the job has none, comparing rows proves nothing
3. every trial has its own topics, checkpoint and name, and the same events
4. judge and keep what was seen: a proof can be interrupted and resumed

A starting driver uses one core and no more, so trials run in independent lanes in parallel: each has its own brokers
and directory.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Lock

from lockgate.connectors.kafka.topics import delete_ours
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.locations import Topic
from lockgate.dataflow.steps import Join, Keyed, Merge, Write
from lockgate.errors import Failed, LockgateError
from lockgate.guarantees import Guarantee
from lockgate.lab.prove.determinism import Reason
from lockgate.lab.prove.places import place_of
from lockgate.lab.prove.redirect import Redirected
from lockgate.lab.prove.results import Results
from lockgate.lab.prove.settings import Settings
from lockgate.lab.prove.strikes import deal
from lockgate.lab.prove.trial import Run, Stage
from lockgate.lab.prove.verdict import Trial, Verdict, judge, unknown
from lockgate.lab.rig.faults import Strike
from lockgate.lab.rig.judge.findings import Outcome
from lockgate.lab.rig.judge.promises import Promise, Row
from lockgate.lab.services.smalldisk import remove_left_disks
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.plan import Plan

PREFIX = "lockgate-proof-"
"""Topics with this prefix, and the ledgers of jobs with it, are ours to delete."""

_WHERE = "the proof's topics"


@dataclass(frozen=True)
class Proof:
    """What is proven."""

    stages: Sequence[Stage]  # lanes that run trials side by side; each has services of its own
    planned: Plan
    moved: Redirected  # to any site: what its outputs are called there
    settings: Settings
    strikes: Sequence[Strike]  # all that fit the job
    batches: Mapping[str, tuple[Row, ...]]  # by output: its rows by the user's answer(), if there is one
    reasons: Sequence[Reason]  # why its answer cannot be computed, if it cannot
    seed: int
    strikes_per_trial: int

    def prove(self, results: Results, numbers: Sequence[int]) -> Verdict:
        """Run the trials that are outstanding; all of them added up."""
        wanted = results.outstanding([(self.seed, number) for number in numbers])
        if len(wanted) < len(numbers):
            self._tell(f"{len(numbers) - len(wanted)} of {len(numbers)} trials were run before: {results.file}")
        if wanted:
            with ExitStack() as ends:
                for stage in self.stages:
                    ends.enter_context(_clean(stage))
                self._run([number for _, number in wanted], results)
        return results.verdict()

    def _tell(self, line: str) -> None:
        self.stages[0].tell(line)

    def _run(self, numbers: Sequence[int], results: Results) -> None:
        """Let every lane take one trial after the other; the first one finds the answer before."""
        waiting, done = deque(numbers), Lock()
        promises: Future[dict[str, Promise]] = Future()
        is_over = Event()

        def go_on() -> None:
            self.stages[0].go_on()
            if is_over.is_set():
                raise _OtherLaneFailed

        def work(stage: Stage) -> None:
            try:
                if stage.home == self.stages[0].home:
                    promises.set_result(self._promises(stage))
                while waiting:
                    with suppress(IndexError):  # another lane may have taken the last one
                        trial = self._try(stage, waiting.popleft(), promises)
                        with done:
                            results.add(trial)
                            self._tell(_line(trial, len(numbers)))
            except BaseException as error:
                is_over.set()
                if not promises.done():
                    promises.set_exception(error)
                raise

        with ThreadPoolExecutor(len(self.stages), thread_name_prefix="lockgate-proof") as lanes:
            futures = [lanes.submit(work, replace(stage, go_on=go_on)) for stage in self.stages]
        errors = [error for future in futures if (error := future.exception()) is not None]
        first = next((error for error in errors if not isinstance(error, _OtherLaneFailed)), None)
        if first is not None:
            raise first

    def _promises(self, stage: Stage) -> dict[str, Promise]:
        graph = self.planned.logical
        # An output without a row in the answer has none to give; without an answer this is unknown.
        places = {one.name: place_of(one, self.moved.site) for one in self.moved.results}
        labels = [place.label for place in places.values() if place is not None]
        rows: dict[str, tuple[Row, ...] | None] = dict.fromkeys(labels, None if self.reasons else ())
        if not self.reasons:
            stage.tell("the answer: the job undisturbed")
            rows = {**rows, **Run(stage, f"{PREFIX}answer").answer()}
        found = {}
        for one in self.moved.results:
            place = places[one.name]
            if place is not None:
                node = next(node for node in graph.nodes if node.name == one.name)
                found[place.label] = Promise(
                    guarantee=_declared(self.planned, node),
                    rows=rows[place.label],
                    batch=None if self.reasons else self.batches.get(place.label),
                    is_ordered=not one.is_letters and _is_ordered(graph, node),
                    is_placed_by_key=_is_placed_by_key(one.sink),
                    keeping=place.keeping,
                    has_transactions=place.has_transactions,
                )
        return found

    def _try(self, stage: Stage, number: int, promises: Future[dict[str, Promise]]) -> Trial:
        strikes = deal(self.strikes, seed=self.seed, number=number, count=self.strikes_per_trial)
        due = [one.named for one in strikes]
        began = time.monotonic()
        run = Run(stage, f"{PREFIX}{self.seed}-{number}", strikes, self.seed)
        try:
            history = run.run()
        except LockgateError as error:
            seconds = time.monotonic() - began
            return unknown(seed=self.seed, number=number, due=due, reason=error.what, seconds=seconds)
        seconds = time.monotonic() - began
        trial = judge(
            history,
            promises.result(),
            self.settings,
            seed=self.seed,
            number=number,
            due=due,
            seconds=seconds,
        )
        if trial.outcome is Outcome.HOLDS:
            shutil.rmtree(stage.home / run.name, ignore_errors=True)
        else:
            with (stage.home / run.name / "history.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in history.lines())
        return trial


class _OtherLaneFailed(Exception):
    """Another lane has failed, so this one stops."""


@contextmanager
def _clean(stage: Stage) -> Iterator[None]:
    """Topics and files of an earlier proof are removed, and those of this one when it is over."""
    servers = stage.stack.status().kafka.servers or ""
    remove_left_disks(stage.home)
    for old in stage.home.glob(f"{PREFIX}*"):
        shutil.rmtree(old)
    delete_ours(servers, PREFIX, where=_WHERE)
    try:
        yield
    finally:
        with suppress(Failed):
            delete_ours(servers, PREFIX, where=_WHERE)


def _declared(planned: Plan, node: Node) -> Guarantee:
    assert isinstance(node.step, Write)
    return node.step.guarantee or planned.job.guarantee


def _is_placed_by_key(sink: Sink) -> bool:
    return isinstance(sink.location, Topic) and sink.location.partition is None


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


def _line(trial: Trial, count: int) -> str:
    told = f"trial {trial.number} ({count} in this run): {trial.outcome.value}, {len(trial.struck)} faults"
    told += f", {trial.event_count:,} events, {trial.seconds:.0f} s"
    return told + (f": {trial.reason}" if trial.outcome is not Outcome.HOLDS else "")


def trial_numbers(kills: int, strikes_per_trial: int) -> range:
    """The trials that have so many faults together."""
    return range(-(-kills // strikes_per_trial))


def default_home(root: Path, job: str) -> Path:
    """Where the proofs of a job lie."""
    return root.parent / "prove" / job
