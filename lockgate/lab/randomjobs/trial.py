"""A trial: run a random job, let its driver die in the middle of epochs, and compare what is visible with the answer.

    plan        refused: nothing runs
    run         on the test harness, epoch by epoch, with the models of `world` in place of the sinks
    die         at a random point of a random epoch; the next driver starts from the checkpoint, and Spark replays
    judge       each output by what the planner says that it reaches, beside what the interpreter says that comes out

One Spark session runs all trials of a process. A trial that cannot be judged is unknown, and never holds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Write
from lockgate.errors import BadJob, LockgateError, OverClaim, Refused
from lockgate.guarantees import Guarantee, Mode
from lockgate.lab.randomjobs.build import build
from lockgate.lab.randomjobs.interpreter import Answer, Difference, compare, expected
from lockgate.lab.randomjobs.model import is_refused_at_start
from lockgate.lab.randomjobs.outcome import Outcome
from lockgate.lab.randomjobs.spec import START, Source, Spec, moment
from lockgate.lab.randomjobs.world import StandIn, World
from lockgate.planner.physical import is_exact
from lockgate.planner.plan import Plan, plan
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.testing.harness import Harness
from lockgate.testing.inlets import Fed

_LONG = timedelta(days=1)
_REFUSALS = (BadJob, OverClaim, Refused)


def run_trial(spec: Spec, seed: int) -> Outcome:
    """Run the job of a spec with failures drawn from the seed, and judge each of its outputs."""
    began = time.monotonic()
    try:
        job = build(spec)
        planned = plan(job)
        if (over_claim := planned.refusal()) is not None:
            raise over_claim
    except _REFUSALS as error:
        return Outcome("refused", (str(error),), time.monotonic() - began)
    answer = expected(spec)
    if all(one.flow is None for one in answer.outputs.values()):  # no run would show anything
        return Outcome("unknown", tuple(str(one.unknown) for one in answer.outputs.values()), time.monotonic() - began)
    world = World()
    try:
        notes = _live(job, spec, world, random.Random(f"{spec.name}/{seed}"))
    except _REFUSALS as error:  # what only Spark's analyser knows is refused when the job is compiled
        return Outcome("refused", (str(error),), time.monotonic() - began)
    except Exception as error:  # noqa: BLE001 - whatever it is, the trial says nothing about the guarantee
        return Outcome("unknown", (f"{type(error).__name__}: {error}",), time.monotonic() - began)
    found = judge(answer, planned, world)
    wrong = [str(one) for one in found if not one.is_unknown]
    if is_refused_at_start(spec):
        wrong.append("the job ran, although a transform is not deterministic and is declared to be")
    verdict = "violated" if wrong else "unknown" if found else "holds"
    return Outcome(verdict, (*(wrong or map(str, found)), *notes), time.monotonic() - began)


class Theatre(Harness):
    """The harness, with sinks that behave as they are declared, and under the guarantee that is declared."""

    def __init__(self, job: Job, world: World) -> None:
        super().__init__(job)
        self._world = world
        graph = plan(job).logical
        self._exact = {node.name for node in graph.of_kind("sink") if is_exact(graph, node)}

    @property
    def _guarantee(self) -> Guarantee:
        # An at-most-once run throws its checkpoint away, which the harness does by itself.
        return max(self._job.guarantee, Guarantee.AT_LEAST_ONCE)

    def _exchanged_write(self, output: str, write: Write) -> Write:
        stand_in = StandIn(write.sink, output, self._world, is_exact=output in self._exact)
        self._world.tables.setdefault(output, stand_in.new_table())
        lower = None if write.guarantee is None else max(write.guarantee, Guarantee.AT_LEAST_ONCE)
        return replace(write, sink=stand_in, guarantee=lower)

    def mix(self, rows: Mapping[str, Sequence[Fed]]) -> None:
        """Let the epoch that the next driver repeats hold other rows than before, as in real-time mode it may."""
        checkpoint = Checkpoint(root=str(self._checkpoint))
        done = max(checkpoint.epochs("commits"), default=-1)
        for epoch in checkpoint.epochs("offsets"):
            if epoch > done:
                for name in (str(epoch), f".{epoch}.crc"):
                    (self._checkpoint / "offsets" / name).unlink(missing_ok=True)
        for stream, fed in rows.items():
            self._inlets[stream].put(fed, self.now)


def _live(job: Job, spec: Spec, world: World, draw: random.Random) -> list[str]:
    """All epochs, and the deaths between them; what happened, in words."""
    notes: list[str] = []
    epochs = sorted({event.epoch for source in spec.sources for event in source.events})
    deaths = {draw.choice(epochs) for _ in range(draw.choice((1, 1, 2)))} if epochs else set()
    most = 1 + 3 * len(spec.outputs)
    with Theatre(job, world) as theatre:
        read = {node.name for node in plan(job).logical.of_kind("source")}
        sources = [source for source in spec.sources if source.name in read]
        rows = {
            epoch: {source.name: given for source in sources if (given := _rows(source, epoch))} for epoch in epochs
        }
        while rows:
            epoch = min(rows)
            fed = rows.pop(epoch)
            if not fed:
                continue
            if epoch in deaths:
                world.points_left, world.sleeps = draw.randrange(most), draw.random() < 0.5
            act: Callable[[], None] = partial(theatre.feed_all, fed)
            while True:
                try:
                    act()
                    break
                except LockgateError:
                    if world.died_at is None:
                        raise
                    notes.append(f"in epoch {epoch} the driver died: {world.died_at}")
                    world.revive()
                    if job.mode is Mode.REAL_TIME:
                        theatre.mix(rows.pop(min(rows)) if rows else {})
                    if draw.random() < 0.25:  # the next one may die too
                        world.points_left = draw.randrange(most)
                    act = theatre.restart
        world.points_left = None
        if epochs:
            theatre.advance_to(max(theatre.now, START) + _LONG)  # the end: every window and every pattern is over
        world.wake()
    return notes


def _rows(source: Source, epoch: int) -> list[dict[str, Any]]:
    """What a source gives in an epoch."""
    times = {column.name for column in source.columns if column.type == "TIMESTAMP"}
    names = [column.name for column in source.columns]
    rows: list[dict[str, Any]] = []
    for event in source.events:
        if event.epoch == epoch:
            values = zip(names, event.values, strict=True)
            row = {name: moment(one) if name in times and one is not None else one for name, one in values}
            rows.append({**row, "_partition": event.partition} if source.system == "kafka" else row)
    return rows


def reached(planned: Plan) -> dict[str, Guarantee]:
    """What the planner says of each output: the weakest of its paths."""
    found: dict[str, Guarantee] = {}
    for path in planned.paths:
        found[path.output] = min(path.reached, found.get(path.output, path.reached))
    return found


def judge(answer: Answer, planned: Plan, world: World) -> list[Difference]:
    """What is wrong with the outputs, or cannot be judged, beside what the planner says that each reaches."""
    return compare(answer, {name: table.rows for name, table in world.tables.items()}, reached(planned))
