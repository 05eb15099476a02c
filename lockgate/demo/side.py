"""One side of the show: a driver that runs the job on the cluster, and somebody outside who kills it in mid-epoch.

Both sides are killed by the same rule, seen from outside, without any help of theirs: an epoch is in its midst when
rows have come into the output topic (committed or not) since the checkpoint's last commit. So when a process is killed
then, rows of an epoch that is not done are in the topic already, and the epoch, or a task of it, is run again.

    executor    the JVM with the tasks; the driver lives, is given another one and tries them again
    driver      Python and JVM; it is started again and goes on from the checkpoint
"""

from __future__ import annotations

import hashlib
import os
import random
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from lockgate.errors import Failed
from lockgate.guarantees import Guarantee
from lockgate.kafka.topics import asked
from lockgate.kafka.wire import Connection
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.services.ports import HOST
from lockgate.services.processes import Mark, children, kill
from lockgate.services.spark import SparkCluster

JOB_FILE = Path(__file__).with_name("job.py")

_MARK = "LOCKGATE_DEMO"
_DRIVER = "org.apache.spark.deploy.SparkSubmit"
# For both sides alike: a JVM that is killed after a minute would spend most of it on compiling for hours to come.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
KILL_LIMIT = timedelta(seconds=20)


def mark_of(home: Path) -> Mark:
    """The mark of a side: it hangs on the directory alone, so that a later show finds what an earlier one left."""
    return Mark(_MARK, hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16])


@dataclass(frozen=True)
class PlannedKill:
    """Who is killed, in which epoch at the earliest, and when so many of its rows are in the topic."""

    target: str  # executor, driver
    epoch: int
    rows: int


@dataclass(frozen=True)
class Kill:
    """A kill that happened."""

    target: str
    pid: int
    epoch: int
    rows: int  # of that epoch, in the topic when it happened
    is_epoch_committed: bool  # the commit came between the look and the kill


def plan_kills(rng: random.Random, *, epochs: int, rows_per_epoch: int) -> tuple[PlannedKill, ...]:
    """The executor early and the driver later, each when a part of an epoch is written; the last epochs are spare."""
    return tuple(
        PlannedKill(target=target, epoch=epoch, rows=_part(rng, rows_per_epoch))
        for target, epoch in (("executor", epochs // 6), ("driver", epochs // 2))
    )


def _part(rng: random.Random, rows: int) -> int:
    return max(1, int(rows * rng.uniform(0.2, 0.5)))


@dataclass(frozen=True)
class Setting:
    """What a side is, decided before it starts."""

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
        """What the processes of this side carry."""
        return mark_of(self.home)

    @property
    def checkpoint(self) -> Checkpoint:
        """Where the job keeps how far it is."""
        return Checkpoint(root=str(self.home / "checkpoint"))

    @property
    def output(self) -> Path:
        """Where the driver's own words go."""
        return self.home / "driver.out"

    @property
    def log(self) -> Path:
        """Where Spark's words go."""
        return self.home / ".lockgate" / "logs" / f"{self.name}.spark.log"

    def command(self, master: str) -> list[str]:
        """The driver."""
        parameters = {
            "name": self.name,
            "servers": self.servers,
            "payments": self.topic_in,
            "large": self.topic_out,
            "guarantee": self.guarantee.name,
        }
        command = [sys.executable, "-m", "lockgate.cli.main", "run", "--no-supervise", str(JOB_FILE)]
        command += ["--until-caught-up", "--json", "--master", master, "--checkpoint", str(self.home / "checkpoint")]
        command += ["--rows-per-epoch", str(self.rows_per_epoch)]
        return command + [word for name, text in parameters.items() for word in ("-p", f"{name}={text}")]

    def environ(self, cores: int) -> dict[str, str]:
        """The driver's environment: one executor of so many cores, which carries the mark too."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        settings = {
            "spark.cores.max": str(cores),
            "spark.executor.cores": str(cores),
            f"spark.executorEnv.{self.mark.name}": self.mark.value,
            "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
        }
        submit = [word for name, text in settings.items() for word in ("--conf", f"{name}={text}")]
        return {
            **kept,
            self.mark.name: self.mark.value,
            "SPARK_LOCAL_IP": HOST,
            "JDK_JAVA_OPTIONS": f"{kept.get('JDK_JAVA_OPTIONS', '')} {_JAVA_OPTIONS}".strip(),
            "PYSPARK_SUBMIT_ARGS": shlex.join([*submit, "pyspark-shell"]),
            "PYTHONPATH": os.pathsep.join(str(Path(place).absolute()) for place in sys.path if place),
        }


@dataclass
class Side:
    """A side while it runs: ask it to `look` again and again until it is done."""

    setting: Setting
    cluster: SparkCluster
    connection: Connection
    kills: list[Kill] = field(default_factory=list)
    starts: int = 0
    seconds: float = 0.0
    _began: float = 0.0
    _driver: subprocess.Popen[bytes] | None = None
    _committed: int = -1
    _before: int = 0  # the end of the output topic when the last epoch was committed

    def start(self) -> None:
        """Start the driver, for the first time or again."""
        setting = self.setting
        setting.home.mkdir(parents=True, exist_ok=True)
        self._began = self._began or time.monotonic()
        with setting.output.open("ab") as output:
            self._driver = subprocess.Popen(
                setting.command(self.cluster.master),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=setting.home,
                env=setting.environ(self.cluster.cores),
                start_new_session=True,  # Ctrl-C is for whoever shows
            )
        self.starts += 1

    @property
    def pid(self) -> int:
        """The process id of the driver."""
        return 0 if self._driver is None else self._driver.pid

    @property
    def is_done(self) -> bool:
        """Has the driver caught up and ended?"""
        return self._driver is not None and self._driver.returncode == 0

    @property
    def epoch(self) -> int:
        """The epoch in hand."""
        return self._committed + 1

    @property
    def events(self) -> int:
        """How many events are in committed epochs."""
        offsets = self.setting.checkpoint.kafka_offsets(self._committed) if self._committed >= 0 else {}
        return sum(offsets.values())

    def look(self) -> Kill | None:
        """See how far it is, and kill where it is time; what was killed. A killed driver is started again."""
        driver = self._driver
        if driver is None or self.is_done:
            return None
        code = driver.poll()
        self._note_commits()
        if code is not None:
            self.seconds = time.monotonic() - self._began
            self._refuse_failure(code)
            return None
        planned = self.setting.kills[len(self.kills) :]
        if not planned or self.epoch < planned[0].epoch:
            return None
        rows = self._end() - self._before
        if rows < planned[0].rows:
            return None
        pid = self._kill_driver(driver) if planned[0].target == "driver" else self._kill_executor()
        if pid is None:
            return None
        done = Kill(
            target=planned[0].target,
            pid=pid,
            epoch=self.epoch,
            rows=rows,
            is_epoch_committed=self.epoch in self.setting.checkpoint.epochs("commits"),
        )
        self.kills.append(done)
        if done.target == "driver":
            self.start()
        return done

    def stop(self) -> None:
        """End whatever is left of this side."""
        self.setting.mark.kill(KILL_LIMIT)
        if self._driver is not None:
            self._driver.wait()

    def _note_commits(self) -> None:
        committed = max(self.setting.checkpoint.epochs("commits"), default=-1)
        if committed != self._committed:
            self._committed, self._before = committed, self._end()

    def _end(self) -> int:
        """How many records are in the output topic, committed or not."""
        topic = self.setting.topic_out
        where = f"the demo's topic {topic!r}"
        shape = asked(lambda: self.connection.shapes([topic]), where)[topic]

        def ends() -> list[int]:
            places = enumerate(shape.leaders)
            return [self.connection.end_offset((topic, number), leader=leader)[1] for number, leader in places]

        return sum(asked(ends, where))

    def _kill_executor(self) -> int | None:
        """Kill the first executor of this side; None where it has none at this moment."""
        import psutil

        for pid in self.cluster.executors():
            try:
                process = psutil.Process(pid)
                is_ours = process.environ().get(self.setting.mark.name) == self.setting.mark.value
            except psutil.Error:
                continue
            if is_ours and kill(process, KILL_LIMIT):
                return pid
        return None

    def _kill_driver(self, driver: subprocess.Popen[bytes]) -> int:
        """Kill Python and the JVM below it at once: either alone would give the other time to say goodbye."""
        below = children(driver.pid, _DRIVER)
        driver.kill()
        for process in below:
            kill(process, KILL_LIMIT)
        driver.wait()
        return driver.pid

    def _refuse_failure(self, code: int) -> None:
        if code == 0:
            return
        words = self.setting.output.read_text(errors="replace").splitlines()[-15:]
        raise Failed(
            "\n".join([f"The job of {self.setting.label} ended with {code}. Its last words:", *words]),
            where=str(self.setting.output),
            fix=f"see {self.setting.log}, then run the demo again",
        )
