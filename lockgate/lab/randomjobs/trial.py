"""A trial: run a random job, let its driver die in the middle of epochs, and compare what is visible with the answer.

    run         on the test harness, epoch by epoch, with the models of `world` in place of the sinks
    die         at a random point of a random epoch; the next driver starts from the checkpoint, and Spark replays
    judge       each output by the guarantee that the planner derives, compared with the rows of the interpreter

One Spark session runs all trials of a process. A trial that cannot be judged is unknown, and never holds. One that does
not reach its end has failed: a job that is accepted and stops after a crash delivers nothing any more.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Read, Write
from lockgate.errors import (
    BadMachine,
    FunctionFailed,
    LockgateError,
    Refused,
    SourceChanged,
    TopicGone,
    UnparsableValue,
    Unreachable,
    UnusableTime,
)
from lockgate.guarantees import Guarantee, Mode
from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.build import build
from lockgate.lab.randomjobs.columns import calls_of
from lockgate.lab.randomjobs.interpreter import Answer, Difference, compare, expected
from lockgate.lab.randomjobs.model import is_refused_at_start
from lockgate.lab.randomjobs.outcome import Outcome
from lockgate.lab.randomjobs.spec import START, Source, Spec, TableJoin, changes, moment, read, used
from lockgate.lab.randomjobs.world import GAUGE_REFUSES, StandIn, World
from lockgate.planner.physical import is_exact
from lockgate.planner.plan import Plan, plan
from lockgate.runtime.sourcelist import sources_in_order
from lockgate.runtime.topicids import TopicIds, used_topics
from lockgate.spark.compile import Compiled
from lockgate.testing.fitting import Row
from lockgate.testing.harness import Harness
from lockgate.testing.inlets import Fed

_LONG = timedelta(days=1)
_STOPS = (UnparsableValue, UnusableTime, FunctionFailed, SourceChanged, TopicGone)
_OTHER_TOPIC = ("was deleted and created again", "is in another Kafka cluster")


def run_trial(spec: Spec, seed: int) -> Outcome:
    """Run a job that the plan accepts, with failures drawn from the seed, and judge each of its outputs.

    Raises BadMachine or Unreachable if this machine cannot run jobs: that says nothing about the job.
    """
    began = time.monotonic()
    job = build(spec)
    planned = plan(job)
    answer = expected(spec)
    world = World()
    notes: list[str] = []
    try:
        _live(job, spec, world, random.Random(f"{spec.name}/{seed}"), notes)
    except (BadMachine, Unreachable):
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, a job that was accepted does not reach its end
        seconds = time.monotonic() - began
        if answer.stops is not None and _is_stop(error):
            return Outcome("holds", (str(error), *notes), seconds, ("it stopped, as it has to",))
        if answer.may_stop and _is_stop(error):
            return Outcome("unknown", ("nothing says whether the job has to stop", *notes), seconds)
        if isinstance(error, Refused) and may_refuse(spec, str(error)):
            return Outcome("refused", (str(error), *notes), seconds)
        return Outcome("failed", (f"{type(error).__name__}: {error}", *notes), seconds)
    found = judge(answer, planned, world)
    wrong = [str(one) for one in found if not one.is_unknown]
    if answer.stops is not None:
        wrong.append(f"the job went on, although it has to stop: {answer.stops}")
    if is_refused_at_start(spec):
        wrong.append("the job ran, although a transform is not deterministic and is declared to be")
    verdict = "violated" if wrong else "unknown" if found else "holds"
    what = (*(wrong or map(str, found)), *notes)
    return Outcome(verdict, what, time.monotonic() - began, _apart(spec, has_died=bool(notes)))


def _is_stop(error: Exception) -> bool:
    """Does a job stop so at an event, a file, a topic or a row that it cannot use?"""
    is_refused_so = isinstance(error, Refused) and isinstance(error.__context__, _STOPS)  # by a start that finds it
    is_other_topic = isinstance(error, Refused) and any(one in error.what for one in _OTHER_TOPIC)
    return is_refused_so or is_other_topic or isinstance(error, _STOPS) or GAUGE_REFUSES in str(error)


def may_refuse(spec: Spec, refusal: str) -> bool:
    """May the start refuse a job that the plan accepts? Only for what no plan can know."""
    if "monotonically_increasing_id() is not supported with streaming" in refusal:
        return any(call.entry == "row_number" for step in used(spec) for call in calls_of(step))
    if "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION" in refusal:  # Spark's rule, which only Spark knows
        calls = [call for step in used(spec) for call in calls_of(step)]
        return any(call.entry == "sum_of_noise" for call in calls)
    return is_refused_at_start(spec) and "transform '" in refusal and "is not deterministic" in refusal


def _apart(spec: Spec, *, has_died: bool) -> tuple[str, ...]:
    """What a run did not exercise, although the job would."""
    said = {
        "no driver died": not has_died,
        "declared at most once: the harness threw its checkpoint away": spec.guarantee == "AT_MOST_ONCE",
        "in real time: it ran in micro-batches": spec.mode == "REAL_TIME",
    }
    return tuple(what for what, is_so in said.items() if is_so)


class Theatre(Harness):
    """The harness, with sinks that behave as they are declared, and under the guarantee that is declared."""

    def __init__(self, job: Job, world: World, tables: Mapping[str, Sequence[Row]]) -> None:
        super().__init__(job, tables=tables, now=START)
        self._world = world
        graph = plan(job).logical
        self._read = {node.name: node.step.source for node in graph.nodes if isinstance(node.step, Read)}
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

    def _make_topic_ids(self, checkpoint: Checkpoint, planned: Plan, compiled: Compiled) -> TopicIds:
        # Files stand in the place of topics. The comparison is the product's, with the topics that the job declares.
        read = [self._read[name] for name, _ in sources_in_order(planned, compiled.parts)]
        brokers = self._world.brokers
        return TopicIds(
            checkpoint,
            used_topics(read),
            where=self._where,
            accept="lockgate run --accept-outputs",
            connect=lambda settings, *, where: brokers,
        )

    def change(self, stream: str, how: str) -> None:
        """Change what a stream has read: its first file, or its topic."""
        if how == "recreate":
            self._world.brokers.recreate(stream)
            return
        if how == "move":
            self._world.brokers.move()
            self.restart()  # with the other servers
            return
        file = min(self._inlets[stream].directory.glob("*.txt"))
        first, *_ = content = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join([*content, first] if how == "append" else content[::-1]))

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


def _live(job: Job, spec: Spec, world: World, draw: random.Random, notes: list[str]) -> None:
    """All epochs, and the deaths between them; `notes` says of each death where it was."""
    sources = read(spec)
    epochs = sorted({event.epoch for source in sources for event in source.events})
    deaths = {draw.choice(epochs) for _ in range(draw.choice((1, 1, 2)))} if epochs else set()
    most = 1 + 3 * len(spec.outputs)
    # An old row over a newer one shows in a table with a key, if the newer one was written while the driver slept.
    sleepiness = 0.9 if any(output.sink.key or output.sink.latest for output in spec.outputs) else 0.5
    tables = {
        step.name: [{"k": key, step.column: title} for key, title in catalogue.TABLE]
        for step in used(spec)
        if isinstance(step, TableJoin)
    }
    with Theatre(job, world, tables) as theatre:
        rows = {
            epoch: {source.name: given for source in sources if (given := _rows(source, epoch))} for epoch in epochs
        }
        waiting = changes(spec)
        while rows:
            epoch = min(rows)
            fed = rows.pop(epoch)
            for stream in [name for name, change in waiting.items() if change.epoch <= epoch]:
                theatre.change(stream, waiting.pop(stream).how)
            if draw.random() < 0.3:
                world.wake()
            if epoch in deaths:
                world.points_left, world.sleeps = draw.randrange(most), draw.random() < sleepiness
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
        for stream, change in waiting.items():
            theatre.change(stream, change.how)
        theatre.advance_to(START + _LONG)  # the end: every window and every pattern is over
        if changes(spec):
            theatre.restart()  # a start looks at all files and topics that were read
        world.wake()


def _rows(source: Source, epoch: int) -> list[Fed]:
    """What a source gives in an epoch."""
    times = {column.name for column in source.columns if column.type == "TIMESTAMP"}
    names = [column.name for column in source.columns]
    rows: list[Fed] = []
    for event in source.events:
        if event.epoch == epoch and event.text is not None:
            rows.append(event.text)
        elif event.epoch == epoch:
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
