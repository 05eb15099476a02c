"""The comparison: every guarantee that the job reaches, one after another, over the same events with the same faults.

    1. plan the job as each contender; report the planner's reason for those that it refuses
    2. one undisturbed run of the strongest contender gives the answer
    3. run each contender undisturbed, over all events, and then with faults, while events arrive

Every run has its own topics, name and checkpoint on the local Kafka. The user's Kafka is used only to copy records, if
events are copied. In the answer and in the undisturbed runs, epochs end at different places. If their rows differ, too,
rows cannot be compared under faults, and only their number is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.topics import delete_ours, make_topic
from lockgate.connectors.kafka.wire import Connection
from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Timed
from lockgate.errors import Refused
from lockgate.guarantees import Guarantee
from lockgate.lab.compare.contenders import Contender, find_contenders, find_declared
from lockgate.lab.compare.counting import Row, count_rows
from lockgate.lab.compare.events import Events
from lockgate.lab.compare.renamed import Disguise, Endpoints, disguise
from lockgate.lab.compare.report import Refusal, Report, Result
from lockgate.lab.compare.trial import OUT_PARTITIONS, Faults, Peace, Runner
from lockgate.lab.demo.broker import borrow_services
from lockgate.lab.rig.drivers import KILL_LIMIT, Drivers, mark_of
from lockgate.lab.rig.feed import send_all
from lockgate.lab.rig.trial import GoOn
from lockgate.lab.services.directorylock import locked_directory
from lockgate.lab.services.stack import Stack
from lockgate.planner.plan import Plan, plan
from lockgate.private import make_private

EVENTS = 20_000
SEED = 1
KILLS = 2
SECONDS = 40.0
PREFIX = "lockgate-compare-"
"""Topics with this prefix, and the ledgers of jobs with it, are ours to delete."""

_WHERE = "the comparison's topics"
_PEACE_EPOCHS, _ANSWER_EPOCHS = 5, 3
_KEPT_FOREVER = {"retention.ms": "-1"}  # the times of copied or made events may be long ago

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """What to compare, and how."""

    job: Job
    endpoints: Endpoints
    job_file: Path  # a job file that makes the job of a specification: job(spec)
    source: Mapping[str, object]  # where this job file finds the user's job
    environ: Mapping[str, str]  # of drivers, for what no file may hold
    events: Events
    guarantees: Sequence[Guarantee]
    kills: int
    seconds: float  # over which the events are sent, under faults


def compare(stack: Stack, home: Path, setting: Setting, *, now: datetime, tell: Tell, go_on: GoOn) -> Report:
    """Run the comparison, then stop and delete all that it started and created.

    Args:
        home: the directory of checkpoints and logs; it replaces those of an earlier comparison.
        now: names the topics.
        go_on: called often; what it raises ends the comparison.
    """
    plans, refusals = _plan(setting.job, find_contenders(setting.job, setting.guarantees))
    if not plans:
        raise Refused(
            f"job {setting.job.name!r} reaches none of the guarantees",
            where=f"declared at {setting.job.origin}",
            fix=f"compare others; the first is refused because: {refusals[0].reason}",
        )
    with contextlib.ExitStack() as ends:
        ends.enter_context(locked_directory(home, what="a comparison of this job runs already", fix="wait for its end"))
        for old in home.glob("run-*"):
            mark_of(old).kill(KILL_LIMIT)
            shutil.rmtree(old)
        ends.enter_context(borrow_services(stack, tell))
        servers = stack.status().kafka.servers or ""
        connection = Connection(read_settings(servers, {}, where=_WHERE), where=_WHERE)
        ends.callback(connection.close)
        delete = partial(delete_ours, servers, PREFIX, where=_WHERE)
        delete()  # the topics of a comparison that was killed
        ends.callback(delete)
        runs = _Runs(setting, servers, connection, home, f"{PREFIX}{now:%Y%m%d-%H%M%S}", tell, go_on)
        shared = runs.make_inputs("peace")
        send_all(servers, setting.events.all, shared)
        total = len(setting.events.all)
        strongest = [*plans][-1]
        tell(f"the answer: {strongest.label}, undisturbed")
        answer = runs.in_peace("answer", strongest, shared, total // _ANSWER_EPOCHS + 1).rows
        peace: dict[Contender, Peace] = {}
        faults: dict[Contender, Faults] = {}
        for contender, planned in plans.items():
            tell(f"{contender.label}: undisturbed")
            peace[contender] = runs.in_peace("peace", contender, shared, total // _PEACE_EPOCHS + 1)
            tell(f"{contender.label}: under faults")
            # Results may wait for event time, and events for a retry.
            has_rest = any(isinstance(node.step, Timed) for node in planned.logical.nodes)
            faults[contender] = runs.under_faults(contender, has_rest or planned.job.tracking is not None)
    by_number = any(Counter(one.rows) != Counter(answer) for one in peace.values())
    return Report(
        job=setting.job.name,
        declared=find_declared(setting.job),
        event_count=total,
        events_origin=setting.events.origin,
        row_count=len(answer),
        kills=setting.kills,
        seconds=setting.seconds,
        rows_per_epoch=total // _PEACE_EPOCHS + 1,
        is_by_number=by_number,
        results=tuple(_result(each, answer, peace[each], faults[each], by_number) for each in plans),
        refusals=refusals,
    )


def _plan(job: Job, contenders: Sequence[Contender]) -> tuple[dict[Contender, Plan], tuple[Refusal, ...]]:
    """The plans of the accepted contenders in their order, and why the others are refused."""
    plans: dict[Contender, Plan] = {}
    refusals: list[Refusal] = []
    here = _Here()
    for contender in contenders:
        try:
            planned = plan(disguise(job, Disguise(job.name, contender, "localhost:9092", here)))
            refusal: Refused | None = planned.refusal()
        except Refused as error:
            refusal = error
        else:
            plans[contender] = planned
        if refusal is not None:
            plans.pop(contender, None)
            refusals.append(Refusal(contender, reason=refusal.what, fix=refusal.fix))
    return plans, tuple(refusals)


class _Here(dict[str, str]):
    """Every topic with its own name."""

    def __missing__(self, topic: str) -> str:
        return topic


@dataclass(frozen=True)
class _Runs:
    """Creates what a run needs, runs it, and leaves no process running."""

    setting: Setting
    servers: str
    connection: Connection
    home: Path
    prefix: str
    tell: Tell
    go_on: GoOn

    def make_inputs(self, label: str) -> dict[str, str]:
        """Create new topics for the events."""
        partitions = self.setting.events.partitions
        return {
            theirs: self._topic(f"{label}-in-{index}", partitions[theirs]) for index, theirs in enumerate(partitions)
        }

    def in_peace(self, label: str, contender: Contender, inputs: Mapping[str, str], rows_per_epoch: int) -> Peace:
        """A run over existing events."""
        return self._runner(label, contender, inputs).in_peace(rows_per_epoch=rows_per_epoch)

    def under_faults(self, contender: Contender, has_rest: bool) -> Faults:
        """A run while the events arrive."""
        events, kills = self.setting.events.all, self.setting.kills
        inputs = self.make_inputs(f"faults-{contender.slug}")
        runner = self._runner("faults", contender, inputs)
        return runner.under_faults(
            events, inputs, rate=len(events) / self.setting.seconds, kills=kills, has_rest=has_rest
        )

    def _runner(self, label: str, contender: Contender, inputs: Mapping[str, str]) -> Runner:
        label = f"{label}-{contender.slug}"
        outputs = {
            theirs: self._topic(f"{label}-out-{index}", OUT_PARTITIONS)
            for index, theirs in enumerate(self.setting.endpoints.outputs)
        }
        home = self.home / f"run-{label}"
        make_private(home)
        spec = home / "spec.json"
        name = f"{self.prefix}-{label}"
        facts = {
            "name": name,
            "contender": contender.as_json(),
            "servers": self.servers,
            "topics": {**inputs, **outputs},
        }
        spec.touch(mode=0o600)  # a parameter of the job may be a secret under a name that does not say so
        spec.write_text(json.dumps({**facts, **self.setting.source}))
        is_tracked = contender.guarantee is not Guarantee.AT_MOST_ONCE
        drivers = Drivers(
            job_file=self.setting.job_file,
            parameters={"spec": str(spec)},
            directory=home,
            checkpoint=home / "checkpoint" if is_tracked else None,
            labels={ours: theirs for theirs, ours in inputs.items()},
            environ={**os.environ, **self.setting.environ},
            # At-most-once begins with what comes next by default, but the first start is not a fault.
            first_options=() if is_tracked else ("--from", "earliest"),
            working_directory=Path.cwd(),
            java_options="",  # measure what users get
            give_ups_max=0,
        )
        names = {name: self.setting.job.name, **{ours: theirs for theirs, ours in {**inputs, **outputs}.items()}}
        letters = self.setting.endpoints.letters
        return Runner(name, contender, drivers, self.servers, outputs, letters, names, self.tell, self.go_on)

    def _topic(self, label: str, partitions: int) -> str:
        name = f"{self.prefix}-{label}"
        make_topic(self.connection, name, partitions=partitions, configs=_KEPT_FOREVER, where=_WHERE)
        return name


def _result(contender: Contender, answer: Sequence[Row], peace: Peace, faults: Faults, by_number: bool) -> Result:
    restarts, latencies, epochs = faults.restarts_seconds, sorted(faults.latencies_ms), sorted(faults.epochs_ms)
    return Result(
        contender=contender,
        tally=count_rows(answer, faults.rows, by_number=by_number),
        latency_ms_p50=percentile(latencies, 50),
        latency_ms_p99=percentile(latencies, 99),
        epoch_ms_p50=percentile(epochs, 50),
        epoch_ms_p99=percentile(epochs, 99),
        events_per_second=round(peace.events_per_second, 1),
        restart_seconds=round(statistics.median(restarts), 1) if restarts else None,
        restarts_seconds=tuple(round(one, 1) for one in restarts),
        sent_at_kills=faults.sent_at_kills,
    )


def percentile(ordered: Sequence[int], percent: int) -> int | None:
    """The smallest value that this percentage does not exceed; None without values."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else None
