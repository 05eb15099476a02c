"""One run of a job at a site of its own: undisturbed, for the answer, or with faults, for a history.

Events come in parts, one more with every fault that has struck, so that every fault finds the job at work. When all
faults have struck and all events are in, the job ends by itself and is run once more until it has caught up: results
that wait for event time come out then, in both kinds of runs.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from lockgate.dataflow.job import Job
from lockgate.errors import Failed
from lockgate.guarantees import Guarantee
from lockgate.kafka.ledgertopic import ledger_topic
from lockgate.kafka.settings import read_settings
from lockgate.kafka.topics import make_topic
from lockgate.kafka.wire import Connection
from lockgate.lab.rig.drivers import Driver, Drivers
from lockgate.lab.rig.faults import NETWORK, Kind, Strike
from lockgate.lab.rig.feed import Feed
from lockgate.lab.rig.history import Fact, Fault, History, Read, Reader, Sent
from lockgate.lab.rig.judge.promises import Row
from lockgate.lab.rig.readers.topics import signed
from lockgate.lab.rig.troubles.armed import Armed
from lockgate.lab.rig.troubles.asleep import Asleep
from lockgate.lab.rig.troubles.outside import Outside
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Trouble
from lockgate.proof.places import find_readers
from lockgate.proof.redirect import Redirected, Site, redirect
from lockgate.proof.tables import fill_tables
from lockgate.proof.workload import Workload
from lockgate.services.kafkaproxy import KafkaProxy
from lockgate.services.postgresproxy import PostgresProxy
from lockgate.services.processes import Mark
from lockgate.services.smalldisk import small_disk
from lockgate.services.spark import SparkCluster
from lockgate.services.stack import Stack
from lockgate.sinks.kafka import KafkaSink

_WHERE = "the proof's topics"
_OUT_PARTITIONS = 3
_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 300.0
_IDLE_SECONDS = 2.0  # a point may need more epochs than a part of the events has
_LAST_SECONDS = 20.0
_QUIET_SECONDS = 15.0
_DROP_SECONDS = 0.2
_DISK_MIB = 256
_TIMEOUT_MS = 8_000
_KEPT_FOREVER = {"retention.ms": "-1"}

GoOn = Callable[[], None]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """What all runs of a proof share."""

    job: Job
    source: Mapping[str, object]  # where a driver finds the author's job
    job_file: Path  # one that makes the job of a specification
    workload: Workload
    rows_per_epoch: int
    stack: Stack
    cluster: SparkCluster | None  # None: jobs run on this machine alone
    home: Path
    tell: Tell
    go_on: GoOn

    @property
    def is_forgetful(self) -> bool:
        """Does the job keep no checkpoint, and go on from now when it is started again?"""
        return self.job.guarantee is Guarantee.AT_MOST_ONCE


@dataclass
class Run:
    """One run."""

    stage: Stage
    name: str
    strikes: Sequence[Strike] = ()
    seed: int = 0
    facts: list[Fact] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = self._drop_at = time.monotonic()
        self._directory = self.stage.home / self.name

    def clock(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def answer(self) -> dict[str, tuple[Row, ...]]:
        """The rows of the job undisturbed, by output; one without rows is not there."""
        history = self.run()
        rows: dict[str, list[Row]] = {}
        for one in history.of(Read):
            if one.reader is Reader.AFTER:
                rows.setdefault(one.output, []).append(Row(one.key, one.value, one.trace))
        return {output: tuple(some) for output, some in rows.items()}

    def run(self) -> History:
        """From empty topics to what was seen."""
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
            spec = self._write_spec(site)
            inputs = {one.place: one.label for one in moved.inputs if one.is_topic}
            readers = find_readers(moved, servers=plain, dsn=dsn)
            readers.clear()
            ends.callback(readers.clear)
            drivers = Drivers(
                job_file=stage.job_file,
                spec=spec,
                directory=self._directory,
                checkpoint=None if stage.is_forgetful else site.checkpoint,
                rows_per_epoch=stage.rows_per_epoch,
                master=None if stage.cluster is None else stage.cluster.master,
                labels=inputs,
                mark=Mark("LOCKGATE_PROOF", uuid4().hex),
                clock=self.clock,
                # What is there when a job starts for the first time is no fault yet.
                first_options=("--from", "earliest") if stage.is_forgetful else (),
                facts=self.facts,
            )
            ends.callback(drivers.kill)
            feed = Feed(
                plain,
                stage.workload.events,
                {label: topic for topic, label in inputs.items()},
                {one.label: Path(one.place) for one in moved.inputs if not one.is_topic},
                rate=float("inf"),
                wave=stage.workload.wave,
            )
            ends.callback(feed.close)
            scene = Scene(
                name=self.name,
                drivers=drivers,
                stack=stage.stack,
                rng=random.Random(f"{self.seed} {self.name}"),
                marks=self._directory / "marks",
                sent=lambda: feed.sent,
                topics=topics_of(moved),
                checkpoint=drivers.checkpoint,
                kafka_proxy=proxy,
                postgres_proxy=database,
                cluster=stage.cluster,
            )
            readers.start_along(self.clock)
            for trouble in self._troubles(scene):
                trouble.begin()
                self._disturb(trouble, drivers, feed)
                trouble.end()
            self._finish(drivers, feed)
            self._note_sent(feed)
            self.facts += drivers.committed()
            self.facts += readers.finish_along(self.clock)
            self.facts += readers.after(self.clock)
            self.facts += readers.log(self.clock)
            self.facts += readers.standing(self.clock)
            if any(isinstance(one.sink, KafkaSink) and one.is_exact for one in moved.results):
                self.facts.append(signed(plain, ledger_topic(self.name), self.clock))
        return History(tuple(self.facts))

    # Its parts

    def _has(self, *kinds: Kind) -> bool:
        return any(one.kind in kinds for one in self.strikes)

    def _troubles(self, scene: Scene) -> Sequence[Trouble]:
        """The faults of this run: those at points together, then processes that sleep, then those from outside."""
        armed = [one for one in self.strikes if one.is_armed]
        asleep = [one for one in self.strikes if one.is_asleep]
        outside = [
            one for one in self.strikes if one.kind is not Kind.POISON and one not in armed and one not in asleep
        ]
        troubles: list[Trouble] = [Armed(armed, scene, self._note_fault)] if armed else []
        troubles += [Asleep(asleep, scene, self._note_fault)] if asleep else []
        troubles += [Outside(outside, scene, self._note_fault)] if outside else []
        for one in troubles:
            one.of_all = [fault for other in troubles for fault in other.faults]
        return troubles

    def _note_fault(self, fault: Fault) -> None:
        self.facts.append(fault)
        self.stage.tell(f"{self.name}: {fault.kind} at {fault.point}, epoch {fault.epoch}, {fault.process}")

    @property
    def _struck(self) -> int:
        """How many faults have struck so far."""
        return sum(isinstance(fact, Fault) for fact in self.facts)

    def _disturb(self, trouble: Trouble, drivers: Drivers, feed: Feed) -> None:
        """Let the job run until all of these faults have struck, or nothing is left to strike at."""
        total = len(self.stage.workload.events)
        before = self._struck
        moved, standing_at, extra = time.monotonic(), (-1, -1, -1, False), 0
        last = drivers.last
        if last is not None and last.process.poll() is None and last.environment != trouble.environment():
            last.process.kill()  # a driver is armed when it starts
            last.process.wait()
        while trouble.struck < trouble.count:
            self.stage.go_on()
            driver = drivers.tend(trouble.environment())
            feed.settle()
            trouble.step()
            struck = self._struck
            share = total * (struck + 1) // (len(self.strikes) + 1)
            self._send(feed, driver, min(total, share + extra))
            now = time.monotonic()
            here = struck, drivers.epochs(), len(drivers.all), driver.is_up
            # Who is still starting does not wait for events.
            is_idle = driver.is_up and (
                drivers.consumed() >= feed.sent or (self.stage.is_forgetful and driver.has_read)
            )
            if here != standing_at:
                moved, standing_at = now, here
            elif now - moved > _IDLE_SECONDS and is_idle and feed.sent < total:
                extra, moved = extra + self.stage.rows_per_epoch, now
            elif now - moved > _LAST_SECONDS and is_idle:
                return  # nothing is left to strike at; who judges says that it did not strike
            elif now - moved > _PATIENCE_SECONDS:
                raise Failed(
                    f"nothing has moved for {_PATIENCE_SECONDS:.0f} s,"
                    f" {struck} of {before + trouble.count} faults have struck",
                    where=str(self._directory),
                    fix="see what the driver says there",
                )
            time.sleep(_LOOK_SECONDS)

    def _send(self, feed: Feed, driver: Driver | None, limit: int) -> None:
        """Send events, up to so many in all.

        What comes before a job that forgets has begun to read is lost to it: so they only drip until it tells of an
        epoch, and the faults to come have something to strike at.
        """
        if self.stage.is_forgetful and driver is not None and driver.process.poll() is not None:
            return
        if self.stage.is_forgetful and driver is not None and driver.number > 0 and not driver.has_read:
            now = time.monotonic()
            if not driver.is_up or now < self._drop_at:
                return
            self._drop_at = now + _DROP_SECONDS
            limit = min(len(self.stage.workload.events), feed.sent + 1)
        feed.send(limit)

    def _finish(self, drivers: Drivers, feed: Feed) -> None:
        """Send what is left, let the job end, and run it once more until it has caught up."""
        if self.stage.is_forgetful and drivers.all:
            self._wait_until_up(drivers)
        total = len(self.stage.workload.events)
        while feed.sent < total:
            self.stage.go_on()
            self._send(feed, drivers.tend({}) if self.stage.is_forgetful and drivers.all else None, total)
            time.sleep(_LOOK_SECONDS)
        if self.stage.is_forgetful and drivers.all:
            self._wait_until_quiet(drivers)
            drivers.stop()
            return  # started again, it would begin with what comes next
        drivers.stop()
        driver = drivers.start({}, "--until-caught-up")
        while driver.process.poll() is None:
            self.stage.go_on()
            driver.look()
            time.sleep(_LOOK_SECONDS)
        if driver.process.returncode != 0:
            raise Failed(
                f"the job ended with {driver.process.returncode} when nothing disturbed it:\n{driver.tail(20)}",
                where=str(driver.words),
                fix="see that `lockgate run --until-caught-up` runs it",
            )

    def _wait_until_up(self, drivers: Drivers) -> None:
        while not drivers.tend({}).is_up:
            self.stage.go_on()
            time.sleep(_LOOK_SECONDS)

    def _wait_until_quiet(self, drivers: Drivers) -> None:
        """Nobody knows how much of it a job that forgets will still take: so wait until it takes no more."""
        taken, since = -1, time.monotonic()
        while time.monotonic() - since < _QUIET_SECONDS:
            self.stage.go_on()
            drivers.tend({})
            if drivers.consumed() != taken:
                taken, since = drivers.consumed(), time.monotonic()
            time.sleep(_LOOK_SECONDS)

    def _note_sent(self, feed: Feed) -> None:
        """The events with their offsets: one producer sent them, in order, into topics that were empty."""
        offsets: Counter[tuple[str, int]] = Counter()
        for event, at in zip(self.stage.workload.events, feed.sent_at, strict=True):
            place = event.topic, event.partition
            sent = Sent(event.topic, event.partition, offsets[place], event.key, event.value, at - self._began)
            self.facts.append(sent)
            offsets[place] += 1
        bad = random.Random(self.seed).sample(self.stage.workload.bad, k=len(self.stage.workload.bad))
        for one, index in zip((one for one in self.strikes if one.kind is Kind.POISON), bad, strict=False):
            at = feed.sent_at[index] - self._began
            self.facts.append(Fault(one.kind.value, one.point, f"event {index + 1}", at))

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
        self._directory.mkdir(parents=True, exist_ok=True)
        spec = self._directory / "spec.json"
        spec.write_text(json.dumps({"site": site.as_json(), **self.stage.source}))
        return spec


def topics_of(moved: Redirected) -> list[str]:
    """The topics of a job's outputs."""
    return [one.sink.topic for one in moved.results if isinstance(one.sink, KafkaSink) and one.sink.topic]
