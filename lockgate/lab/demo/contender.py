"""One side of the show: a driver that runs the job on the cluster and is killed in mid-epoch.

Both sides are killed by the same rule (lab/rig/troubles/midepoch.py).

    executor    the JVM with the tasks; the driver survives, gets another executor and retries the tasks
    driver      Python and JVM; it restarts from the checkpoint
"""

from __future__ import annotations

import os
import random
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lockgate.guarantees import Guarantee
from lockgate.lab.rig.drivers import CAUGHT_UP, Drivers, mark_of
from lockgate.lab.rig.faults import Kind
from lockgate.lab.rig.feed import Feed
from lockgate.lab.rig.readers.group import Readers
from lockgate.lab.rig.trial import Trial
from lockgate.lab.rig.troubles.midepoch import Cut, MidEpoch
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.services.processes import Mark
from lockgate.lab.services.spark import SparkCluster

JOB_FILE = Path(__file__).with_name("job.py")

# For both sides: a JVM that is killed after a minute would spend most of it on compiling for later.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_KINDS = {"executor": Kind.KILL_EXECUTOR, "driver": Kind.KILL_JOB}


@dataclass(frozen=True)
class PlannedKill:
    """Which process to kill, in which epoch at the earliest, after how many of its rows are in the topic."""

    target: str  # executor, driver
    epoch: int
    rows: int


@dataclass(frozen=True)
class Kill:
    """A kill that happened."""

    target: str
    pid: int
    epoch: int
    rows: int  # rows of that epoch in the topic at the kill
    is_epoch_committed: bool  # the commit happened between the check and the kill


def plan_kills(rng: random.Random, *, epochs: int, rows_per_epoch: int) -> tuple[PlannedKill, ...]:
    """The executor early and the driver later, each in the middle of an epoch; the last epochs have no kills."""
    return tuple(
        PlannedKill(target=target, epoch=epoch, rows=_part(rng, rows_per_epoch))
        for target, epoch in (("executor", epochs // 6), ("driver", epochs // 2))
    )


def _part(rng: random.Random, rows: int) -> int:
    return max(1, int(rows * rng.uniform(0.2, 0.5)))


@dataclass(frozen=True)
class Setting:
    """The settings of a side, decided before it starts."""

    label: str
    name: str  # of the job
    guarantee: Guarantee
    servers: str
    topic_in: str
    topic_out: str
    home: Path
    rows_per_epoch: int
    kills: tuple[PlannedKill, ...]

    @property
    def mark(self) -> Mark:
        """The mark in the environment of this side's processes."""
        return mark_of(self.home)

    @property
    def log(self) -> Path:
        """Where Spark writes its log."""
        return self.home / ".lockgate" / "logs" / f"{self.name}.spark.log"

    def drivers(self, cluster: SparkCluster) -> Drivers:
        """The drivers of this side, with one executor of a Worker's size."""
        settings = {
            "spark.cores.max": str(cluster.cores),
            "spark.executor.cores": str(cluster.cores),
            "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
        }
        submit = [word for name, text in settings.items() for word in ("--conf", f"{name}={text}")]
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        return Drivers(
            job_file=JOB_FILE,
            parameters={
                "name": self.name,
                "servers": self.servers,
                "payments": self.topic_in,
                "large": self.topic_out,
                "guarantee": self.guarantee.name,
            },
            directory=self.home,
            checkpoint=self.home / "checkpoint",
            labels={self.topic_in: "payments"},
            master=cluster.master,
            options=(CAUGHT_UP, "--rows-per-epoch", str(self.rows_per_epoch)),
            environ={**kept, "PYSPARK_SUBMIT_ARGS": shlex.join([*submit, "pyspark-shell"])},
            java_options=_JAVA_OPTIONS,
            give_ups_max=0,
        )


class Contender:
    """A side while it runs: call `look` until it is done."""

    def __init__(self, setting: Setting, cluster: SparkCluster) -> None:
        self.setting = setting
        self.kills: list[Kill] = []
        self.seconds = 0.0
        self.drivers = drivers = setting.drivers(cluster)
        topics = [setting.topic_out]
        scene = Scene(setting.name, drivers, setting.servers, random.Random(), lambda: 0, topics, cluster=cluster)
        cuts = [Cut(_KINDS[one.target], one.rows, partial(self._has_come_to, one.epoch)) for one in setting.kills]
        self._trial = Trial(drivers, Readers(()), Feed("", (), {}), limit=lambda driver: 0)
        self._trial.trouble = self._trouble = MidEpoch(cuts, scene, self._trial.note)
        self._looks = self._trial.looks(lambda: self.is_done)

    def start(self) -> None:
        """Start the driver for the first time."""
        self._trouble.begin()
        self.drivers.start({})

    @property
    def pid(self) -> int:
        """The process id of the driver."""
        return 0 if self.drivers.last is None else self.drivers.last.process.pid

    @property
    def is_done(self) -> bool:
        """Has the driver caught up and ended?"""
        return self.drivers.last is not None and self.drivers.last.has_caught_up

    def look(self) -> Kill | None:
        """Check its progress, restart a killed driver, and kill if a kill is due; returns the kill."""
        next(self._looks, None)
        if self.is_done and not self.seconds:
            self.seconds = self.drivers.clock()
        if len(self._trouble.hits) == len(self.kills):
            return None
        hit, planned = self._trouble.hits[-1], self.setting.kills[len(self.kills)]
        self.kills.append(Kill(planned.target, hit.pid, hit.epoch, hit.rows, is_epoch_committed=hit.is_epoch_done))
        return self.kills[-1]

    def stop(self) -> None:
        """End all processes of this side."""
        self._trouble.end()
        self.drivers.kill()

    def _has_come_to(self, epoch: int) -> bool:
        return self.drivers.epochs() >= epoch
