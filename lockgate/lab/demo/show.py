"""The show: real services, a million payments, two drivers on a real cluster, four kills, and readers that count.

    1. Kafka and a Spark cluster of two workers start; the payments are sent in the meantime
    2. both sides run at the same time, each with its executor on the cluster and its own reader
    3. the executor, later the driver, of each side is killed with -9 in mid-epoch, by the same rule for both
    4. when a side is done, its reader reads to the end of its topic, and reports its counts

You can repeat it: every show has its own topics, checkpoints and ledger, and deletes those of the show before. It stops
only services that it started. The cluster and the drivers end with the show, however it ends. If a show was killed, the
next one finds its processes by their mark and ends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.topics import create_topics, delete_ours
from lockgate.connectors.kafka.wire import Connection
from lockgate.errors import Failed, Refused
from lockgate.guarantees import Guarantee
from lockgate.lab.demo.broker import borrow_services
from lockgate.lab.demo.contender import Contender, Kill, Setting, plan_kills
from lockgate.lab.demo.payments import Payments
from lockgate.lab.demo.reader import Tally
from lockgate.lab.demo.report import Report, SideReport
from lockgate.lab.demo.sender import send
from lockgate.lab.rig.drivers import KILL_LIMIT, mark_of
from lockgate.lab.services.directorylock import locked_directory
from lockgate.lab.services.spark import SparkCluster
from lockgate.lab.services.stack import Stack
from lockgate.modulepath import module_path

EVENTS = 1_000_000
SEED = 1
PARTITIONS = 4
WORKERS = 2
EPOCHS = 7
"""The approximate number of epochs, so that there is something to watch."""

PREFIX = "lockgate-demo-"
"""Topics with this prefix, and the ledgers of jobs with it, are ours to delete."""

_LABELS = {Guarantee.AT_LEAST_ONCE: "Spark's own sink", Guarantee.END_TO_END_EXACTLY_ONCE: "Lockgate"}
_HOMES = {Guarantee.AT_LEAST_ONCE: "spark", Guarantee.END_TO_END_EXACTLY_ONCE: "lockgate"}
_WHERE = "the demo's topics"
_EXECUTOR_MIB = 1024
_LOOK_SECONDS = 0.05

GoOn = Callable[[], None]


class Audience(Protocol):
    """Receives what happens, to show it."""

    def tell(self, line: str) -> None:
        """Something happened."""

    def alarm(self, line: str) -> None:
        """Something was killed."""

    def follow(self, sides: Sequence[Standing]) -> None:
        """The progress of both sides, repeatedly."""


@dataclass(frozen=True)
class Standing:
    """The progress of a side."""

    label: str
    events: int
    events_total: int
    epoch: int
    state: str  # starting, running, counting, done


def show(
    stack: Stack,
    home: Path,
    *,
    events: int,
    seed: int,
    is_killed: bool,
    now: datetime,
    audience: Audience,
    go_on: GoOn = lambda: None,
) -> Report:
    """Start what is missing, send, run both sides, kill, count, and stop what it started.

    Args:
        home: the directory of the show's checkpoints, logs and cluster; those of an earlier show are replaced.
        is_killed: if false, both sides run without kills.
        now: names the topics.
        go_on: called between the steps; what it raises ends the show.
    """
    if events < 1:
        raise Refused(f"{events} events are too few", where="--events", fix="send at least one")
    with contextlib.ExitStack() as ends:
        # The next show deletes the remains of the last one.
        ends.enter_context(
            locked_directory(
                home, what="a demo is running here already", fix="wait for its end, or use another LOCKGATE_HOME"
            )
        )
        clock = _Clock()
        for part in _HOMES.values():
            mark_of(home / part).kill(KILL_LIMIT)
            shutil.rmtree(home / part, ignore_errors=True)
        # 1. The cluster starts in a thread of its own, because Kafka and the sending leave a core free.
        audience.tell(f"starting a Spark cluster: a master and {WORKERS} workers")
        cluster = SparkCluster(home / "cluster", workers=WORKERS, cores=2, memory_mib=2 * _EXECUTOR_MIB)
        ends.callback(cluster.down)
        starting = ends.enter_context(ThreadPoolExecutor(max_workers=1)).submit(cluster.up)
        is_left_running = ends.enter_context(borrow_services(stack, audience.tell))
        status = stack.status().kafka
        servers = status.servers or ""
        go_on()
        payments = Payments(count=events, seed=seed)
        settings = _settings(home, servers, payments, f"{PREFIX}{now:%Y%m%d-%H%M%S}", is_killed)
        delete_ours(servers, PREFIX, where=_WHERE)
        new = [settings[0].topic_in, *(setting.topic_out for setting in settings)]
        create_topics(servers, new, partitions=PARTITIONS, where=_WHERE)
        connection = Connection(read_settings(servers, {}, where=_WHERE), where=_WHERE)
        ends.callback(connection.close)
        clock.end("services")
        for count in send(connection, settings[0].topic_in, payments, partitions=PARTITIONS):
            audience.tell(f"sent {count:,} of {events:,} payments")
            go_on()
        clock.end("sending")
        starting.result()
        audience.tell(f"cluster at {cluster.master}")
        go_on()
        clock.end("cluster")
        # 2. to 4.
        sides = [Contender(setting, cluster) for setting in settings]
        readers = [_Reader(setting, payments) for setting in settings]
        for side, reader in zip(sides, readers, strict=True):
            ends.callback(side.stop)
            ends.callback(reader.stop)
        _run(sides, readers, payments, audience, go_on)
        clock.end("running, killing, counting")
        reports = [_report(side, reader) for side, reader in zip(sides, readers, strict=True)]
        audience.tell("stopping the cluster")
        ends.close()
        clock.end("stopping")
        return Report(
            kafka_servers=servers,
            kafka_log=status.brokers[0].log,
            are_services_left_running=is_left_running,
            spark_workers=WORKERS,
            topic_in=settings[0].topic_in,
            partitions=PARTITIONS,
            seed=seed,
            sent_count=events,
            phases=clock.phases,
            total_seconds=clock.total(),
            spark=reports[0],
            lockgate=reports[1],
        )


def _settings(home: Path, servers: str, payments: Payments, name: str, is_killed: bool) -> list[Setting]:
    """Both sides, equal in everything but the guarantee; their kills are planned equally, too."""
    rows_per_epoch = payments.count // EPOCHS + PARTITIONS
    kills = plan_kills(random.Random(payments.seed), epochs=EPOCHS, rows_per_epoch=rows_per_epoch // 2)
    return [
        Setting(
            label=label,
            name=f"{name}-{_HOMES[guarantee]}",
            guarantee=guarantee,
            servers=servers,
            topic_in=f"{name}-payments",
            topic_out=f"{name}-large-{_HOMES[guarantee]}",
            home=home / _HOMES[guarantee],
            rows_per_epoch=rows_per_epoch,
            kills=kills if is_killed else (),
        )
        for guarantee, label in _LABELS.items()
    ]


def _run(
    sides: Sequence[Contender], readers: Sequence[_Reader], payments: Payments, audience: Audience, go_on: GoOn
) -> None:
    """Run both sides to their ends, kill, and let each reader finish after its side."""
    for side, reader in zip(sides, readers, strict=True):
        side.start()
        reader.start()
        audience.tell(f"{side.setting.label}: driver {side.pid} started, declared {side.setting.guarantee.label}")
    while not all(reader.tally for reader in readers):
        go_on()
        for side, reader in zip(sides, readers, strict=True):
            starts, killed = len(side.drivers.all), side.look()
            if len(side.drivers.all) > starts:
                again = f"driver restarted as {side.pid}, continues at epoch {side.drivers.epochs()}"
                audience.tell(f"{side.setting.label}: {again}")
            if killed is not None:
                _alarm(side, killed, audience)
            if side.is_done and reader.is_reading_along:
                audience.tell(f"{side.setting.label}: done in {side.seconds:.1f} s; its reader counts the records")
                reader.finish()
            reader.look()
        audience.follow([_standing(side, reader, payments) for side, reader in zip(sides, readers, strict=True)])
        time.sleep(_LOOK_SECONDS)


def _alarm(side: Contender, killed: Kill, audience: Audience) -> None:
    moment = "just after" if killed.is_epoch_committed else "in"
    audience.alarm(
        f"{side.setting.label}: killed {killed.target} {killed.pid} (-9) {moment} epoch {killed.epoch}, "
        f"{killed.rows:,} rows of it were in the topic"
    )


def _standing(side: Contender, reader: _Reader, payments: Payments) -> Standing:
    events, epoch = min(side.drivers.consumed(), payments.count), side.drivers.epochs()
    state = "running" if events else "starting"
    if side.is_done:
        state = "done" if reader.tally else "counting"
    return Standing(label=side.setting.label, events=events, events_total=payments.count, epoch=epoch, state=state)


def _report(side: Contender, reader: _Reader) -> SideReport:
    assert reader.tally is not None
    return SideReport(
        label=side.setting.label,
        guarantee=side.setting.guarantee,
        topic_out=side.setting.topic_out,
        epoch_count=side.drivers.epochs(),
        driver_starts=len(side.drivers.all),
        kills=tuple(side.kills),
        run_seconds=round(side.seconds, 3),
        tally=reader.tally,
        log=_short(side.setting.log),
    )


class _Reader:
    """The process that reads a side's topic."""

    def __init__(self, setting: Setting, payments: Payments) -> None:
        self.setting, self.payments = setting, payments
        self.tally: Tally | None = None
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_reading_along(self) -> bool:
        return self._process is not None and self._process.stdin is not None

    def start(self) -> None:
        """Start to read."""
        command = [sys.executable, "-m", "lockgate.lab.demo.reader", self.setting.servers, self.setting.topic_out]
        command += [str(self.payments.count), str(self.payments.seed)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": module_path(), self.setting.mark.name: self.setting.mark.value},
            start_new_session=True,
        )

    def finish(self) -> None:
        """Tell it that no more records follow."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None  # already closed, for code that waits for the end of the process

    def look(self) -> None:
        """The tally, if it is finished."""
        process = self._process
        if process is None or self.tally is not None or process.poll() is None:
            return
        told, error = process.communicate()
        if process.returncode:
            raise Failed(
                f"The reader of topic {self.setting.topic_out!r} failed: {error.strip()[-1000:]}",
                where=f"Kafka at {self.setting.servers}",
                fix="see the broker's log (lockgate status names it), then run the demo again",
            )
        facts = json.loads(told)
        self.tally = Tally(**{**facts, "examples": tuple(facts["examples"])})

    def stop(self) -> None:
        """End it if it still reads."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class _Clock:
    """How long each phase took."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._began = self._last = time.monotonic()

    def end(self, phase: str) -> None:
        now = time.monotonic()
        self.phases[phase] = round(now - self._last, 3)
        self._last = now

    def total(self) -> float:
        return round(time.monotonic() - self._began, 3)


def _short(path: Path) -> str:
    """A path relative to the current directory."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
