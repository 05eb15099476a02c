"""One run of a user's job at a site of its own: undisturbed, for the answer, or with faults, for a history.

Events are sent in parts, one more after every fault, so that every fault finds the job at work. When every fault has
struck and all events are sent, the job ends. Then it runs once more until it has caught up: in both kinds of runs,
results that wait for event time become visible then.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.topics import make_topic
from lockgate.connectors.kafka.wire import Connection
from lockgate.dataflow.job import Job
from lockgate.dataflow.locations import topics_among
from lockgate.guarantees import Guarantee
from lockgate.lab.prove.places import find_readers
from lockgate.lab.prove.redirect import Redirected, Site, redirect
from lockgate.lab.prove.tabledata import fill_tables
from lockgate.lab.prove.workload import Workload
from lockgate.lab.rig.drivers import Driver, Drivers
from lockgate.lab.rig.faults import NETWORK, Kind, Strike
from lockgate.lab.rig.feed import Feed
from lockgate.lab.rig.history import Fault, History, Read, Reader, Sent
from lockgate.lab.rig.judge.promises import Row
from lockgate.lab.rig.trial import GoOn, Trial
from lockgate.lab.rig.troubles.order import troubles_of
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Trouble
from lockgate.lab.services.kafkaproxy import KafkaProxy
from lockgate.lab.services.postgresproxy import PostgresProxy
from lockgate.lab.services.smalldisk import small_disk
from lockgate.lab.services.spark import SparkCluster
from lockgate.lab.services.stack import Stack
from lockgate.private import make_private

_WHERE = "the proof's topics"
_OUT_PARTITIONS = 3
_IDLE_SECONDS = 2.0  # a point may need more epochs than a part of the events has
_LAST_SECONDS = 20.0
_QUIET_SECONDS = 15.0
_DROP_SECONDS = 0.2
_DISK_MIB = 256
_TIMEOUT_MS = 8_000
_KEPT_FOREVER = {"retention.ms": "-1"}

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """What all runs of a proof share."""

    job: Job
    source: Mapping[str, object]  # where a driver finds the user's job
    environ: Mapping[str, str]  # of drivers, for what no file may hold
    job_file: Path  # makes the job of a specification
    workload: Workload
    rows_per_epoch: int
    stack: Stack
    cluster: SparkCluster | None  # None: jobs run on this machine alone
    home: Path
    tell: Tell
    go_on: GoOn

    @property
    def is_forgetful(self) -> bool:
        """Does the job keep no checkpoint, and begin with what comes next when it is started again?"""
        return self.job.guarantee is Guarantee.AT_MOST_ONCE


@dataclass
class Run:
    """One run."""

    stage: Stage
    name: str
    strikes: Sequence[Strike] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        self._directory = self.stage.home / self.name

    def answer(self) -> dict[str, tuple[Row, ...]]:
        """The rows of the undisturbed job, by output; an output without rows is absent."""
        rows: dict[str, list[Row]] = {}
        for one in self.run().of(Read):
            if one.reader is Reader.AFTER:
                rows.setdefault(one.output, []).append(Row(one.key, one.value, one.trace))
        return {output: tuple(some) for output, some in rows.items()}

    def run(self) -> History:
        """From empty topics to what was observed."""
        stage = self.stage
        with ExitStack() as ends:
            if self._has(Kind.FILL_DISK):
                ends.enter_context(small_disk(self._directory / "site", size_mib=_DISK_MIB))
            status = stage.stack.status()
            plain, dsn = status.kafka.servers or "", status.postgres.dsn if status.postgres.running else None
            is_cut = self._has(*NETWORK)
            proxy = ends.enter_context(KafkaProxy(stage.stack.kafka)) if is_cut else None
            database = ends.enter_context(PostgresProxy(stage.stack.postgres)) if is_cut and dsn else None
            site = Site(
                self.name,
                plain if proxy is None else proxy.servers,
                self._directory / "site",
                dsn if database is None else database.dsn,
                transaction_timeout_ms=_TIMEOUT_MS if self._has(Kind.TIME_OUT) else None,
            )
            moved = redirect(stage.job, site)
            self._make_topics(plain, moved)
            fill_tables(moved.tables, stage.workload.tables)
            trial = ends.enter_context(self._trial(moved, plain, dsn))
            scene = Scene(
                name=self.name,
                drivers=trial.drivers,
                servers=plain,
                rng=random.Random(f"{self.seed} {self.name}"),
                sent=lambda: trial.feed.sent,
                topics=topics_of(moved),
                stack=stage.stack,
                postgres=stage.stack.postgres,
                kafka_proxy=proxy,
                postgres_proxy=database,
                cluster=stage.cluster,
            )
            parts = _Parts(stage, trial, len(self.strikes))
            trial.limit = parts.limit
            trial.disturb(self._troubles(scene, trial), is_in_vain=parts.is_in_vain)
            self._finish(trial, parts)
            self._note_sent(trial)
            return trial.history()

    def _has(self, *kinds: Kind) -> bool:
        return any(one.kind in kinds for one in self.strikes)

    def _troubles(self, scene: Scene, trial: Trial) -> Sequence[Trouble]:
        return troubles_of(self.strikes, scene, trial.note)

    def _trial(self, moved: Redirected, servers: str, dsn: str | None) -> Trial:
        stage = self.stage
        inputs = {one.place: one.label for one in moved.inputs if one.is_topic}
        drivers = Drivers(
            job_file=stage.job_file,
            parameters={"spec": str(self._write_spec(moved.site))},
            directory=self._directory,
            checkpoint=None if stage.is_forgetful else moved.site.checkpoint,
            labels=inputs,
            environ={**os.environ, **stage.environ},
            master=None if stage.cluster is None else stage.cluster.master,
            options=("--rows-per-epoch", str(stage.rows_per_epoch)),
            # The first start is no fault yet: events that are there before it count.
            first_options=("--from", "earliest") if stage.is_forgetful else (),
        )
        feed = Feed(
            servers,
            stage.workload.events,
            {label: topic for topic, label in inputs.items()},
            {one.label: Path(one.place) for one in moved.inputs if not one.is_topic},
            wave=stage.workload.wave,
        )
        return Trial(
            drivers,
            find_readers(moved, servers=servers, dsn=dsn),
            feed,
            limit=lambda driver: 0,
            go_on=stage.go_on,
            tell=lambda line: stage.tell(f"{self.name}: {line}"),
        )

    def _finish(self, trial: Trial, parts: _Parts) -> None:
        """Send the remaining events, let the job end, and run it once more until it has caught up."""
        drivers, total = trial.drivers, len(self.stage.workload.events)
        if self.stage.is_forgetful and drivers.all:
            # Started again, it would begin with what comes next, and how much it still takes is not known.
            trial.run(lambda: drivers.last is not None and drivers.last.is_up)
            parts.share = total
            trial.run(lambda: trial.feed.sent == total)
            trial.run(parts.is_quiet)
            drivers.stop()
            return
        trial.feed.send(total)
        drivers.stop()
        trial.catch_up()

    def _note_sent(self, trial: Trial) -> None:
        """Note the events with their offsets: one producer sent them, in order, into topics that were empty."""
        facts, began, sent_at = trial.drivers.facts, trial.drivers.began, trial.feed.sent_at
        offsets: Counter[tuple[str, int]] = Counter()
        for event, at in zip(self.stage.workload.events, sent_at, strict=True):
            place = event.topic, event.partition
            facts.append(Sent(event.topic, event.partition, offsets[place], event.key, event.value, at - began))
            offsets[place] += 1
        bad = random.Random(self.seed).sample(self.stage.workload.bad, k=len(self.stage.workload.bad))
        for one, index in zip((one for one in self.strikes if one.kind is Kind.POISON), bad, strict=False):
            facts.append(Fault(one.kind.value, one.point, f"event {index + 1}", sent_at[index] - began))

    def _make_topics(self, servers: str, moved: Redirected) -> None:
        connection = Connection(read_settings(servers, {}, where=_WHERE), where=_WHERE)
        try:
            for one in moved.inputs:
                if one.is_topic:
                    partitions = self.stage.workload.partitions[one.label]
                    make_topic(connection, one.place, partitions=partitions, configs=_KEPT_FOREVER, where=_WHERE)
                else:
                    Path(one.place).mkdir(parents=True, exist_ok=True)
            for topic in topics_of(moved):
                make_topic(connection, topic, partitions=_OUT_PARTITIONS, configs=_KEPT_FOREVER, where=_WHERE)
        finally:
            connection.close()

    def _write_spec(self, site: Site) -> Path:
        make_private(self._directory)
        spec = self._directory / "spec.json"
        spec.touch(mode=0o600)  # a parameter of the job may be a secret under a name that does not say so
        spec.write_text(json.dumps({"site": site.as_json(), **self.stage.source}))
        return spec


class _Parts:
    """How many events may be sent: one part more with every fault that has struck, and more if the job is idle.

    Events that come before a job without a checkpoint has begun to read are lost to it. So they only drip until it
    tells of an epoch, and the faults to come find something to strike at.
    """

    def __init__(self, stage: Stage, trial: Trial, strikes: int) -> None:
        self.share: int | None = None  # a fixed one, when no more fault is to come
        self._stage, self._trial, self._strikes = stage, trial, strikes
        self._total, self._extra = len(stage.workload.events), 0
        self._granted_at = self._drop_at = 0.0
        self._taken, self._taken_at = -1, 0.0

    def limit(self, driver: Driver) -> int:
        """For the trial: how many events may be sent by now."""
        drivers, sent, now = self._trial.drivers, self._trial.feed.sent, time.monotonic()
        if self._is_idle(driver, _IDLE_SECONDS) and sent < self._total:
            self._extra, self._granted_at = self._extra + self._stage.rows_per_epoch, now
        if self._stage.is_forgetful and not driver.is_running:
            return sent
        if self._stage.is_forgetful and driver.number > 0 and not drivers.has_read(driver):
            if not driver.is_up or now < self._drop_at:
                return sent
            self._drop_at = now + _DROP_SECONDS
            return min(self._total, sent + 1)
        part = self._total * (self._trial.struck + 1) // (self._strikes + 1)
        return min(self._total, part + self._extra if self.share is None else self.share)

    def is_in_vain(self) -> bool:
        """Is nothing left to strike at? The judge says then that a fault did not strike."""
        last = self._trial.drivers.last
        return self._trial.feed.sent == self._total and last is not None and self._is_idle(last, _LAST_SECONDS)

    def is_quiet(self) -> bool:
        """Has a job that tells nothing of its progress taken nothing for a while?"""
        taken, now = self._trial.drivers.consumed(), time.monotonic()
        if taken != self._taken:
            self._taken, self._taken_at = taken, now
        return now - self._taken_at > _QUIET_SECONDS

    def _is_idle(self, driver: Driver, seconds: float) -> bool:
        """Has the job waited for events for so long?"""
        drivers, since = self._trial.drivers, max(self._trial.still_since, self._granted_at)
        # A driver that is still starting does not wait for events.
        if time.monotonic() - since <= seconds or not driver.is_up:
            return False
        is_done = drivers.consumed() >= self._trial.feed.sent
        return is_done or (self._stage.is_forgetful and drivers.has_read(driver))


def topics_of(moved: Redirected) -> list[str]:
    """The topics of a job's outputs."""
    return [one.name for one in topics_among(result.sink for result in moved.results) if one.name is not None]
