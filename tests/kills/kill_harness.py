"""One job on real services, its processes killed while it runs, and a verdict from what readers saw.

A trial is one job under one trouble: fresh topics, a driver in a process of its own that is started again whenever it
has died, events that keep coming until the trouble is over, and an independent reader that reads all the while.

    Marked     faults at the protocol's own points, each of which strikes once
    Zombies    a process is stopped at such a point, another driver takes over, then the first one wakes up
    Random     any moment: driver, Python worker, executor, broker or PostgreSQL, by a seed
    Crashes    PostgreSQL is killed while the job stands still at such a point, and comes back

What is consumed is read from Spark's own files, what came out from Kafka: the job is asked nothing.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import psutil
from kill_checker import Content, Row, Verdict, judge
from kill_reader import as_line, open_consumer
from kill_workloads import PARTITIONS, Event, Workload, canonical

from kafka import KafkaProducer
from lockgate.faultpoints import Fault, as_environment
from lockgate.kafka.topics import create_topics
from lockgate.lab.rig.troubles.processes import _workers_of, send
from lockgate.services.postgres import Postgres
from lockgate.services.processes import Mark
from lockgate.services.spark import SparkCluster
from lockgate.services.stack import Stack

ROWS_PER_EPOCH = 40
BACKLOG = 120
GIVE_UPS_MAX = 8
_PATIENCE_SECONDS = 420.0
"""How long nothing may move before a trial is given up; the machine may be busy with other things."""


WAITS = "waiting for PostgreSQL since"

_QUIET_SECONDS = 120.0
"""How long no row may come before those that are missing are called lost."""


def stopped_of(pid: int) -> set[int]:
    """Those of a process and its descendants that are stopped."""
    found = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if one.status() == psutil.STATUS_STOPPED:
                    found.add(one.pid)
    return found


class Trouble(Protocol):
    """What befalls a job."""

    name: str

    def environment(self) -> dict[str, str]:
        """What arms the driver that is about to be started."""

    def step(self, trial: "Trial") -> None:
        """Do what is due now; called many times a second."""

    @property
    def is_over(self) -> bool:
        """Has all happened that was to happen?"""

    def kills(self) -> Counter[str]:
        """How often what was hit."""

    def stops(self) -> int:
        """How many of these were stopped only, and woke up again."""


@dataclass
class Driver:
    """`lockgate run` in a process of its own."""

    process: "subprocess.Popen[bytes]"
    output: Path
    is_zombie: bool = False  # another one took over; it is awaited at the end

    def tail(self, lines: int = 12) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])


def launch(command: list[str], directory: Path, log_name: str, environment: dict[str, str]) -> Driver:
    """Start a driver in a directory, where all stays that it leaves behind."""
    temporary = directory / "tmp"  # of a killed JVM, too
    temporary.mkdir(exist_ok=True)
    java = f'{os.environ.get("JDK_JAVA_OPTIONS", "")} "-Djava.io.tmpdir={temporary}"'.strip()
    output = directory / log_name
    with output.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={
                **os.environ,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_LOCAL_DIRS": str(temporary),
                "TMPDIR": str(temporary),
                "JDK_JAVA_OPTIONS": java,
                **environment,
            },
        )
    return Driver(process, output)


@dataclass
class Result:
    """What came of a trial."""

    workload: str
    place: str  # local, cluster
    trouble: str
    seed: int
    kills: dict[str, int]
    stops: int  # of these
    starts: int
    gave_up: list[str]
    epochs: int
    seconds: float
    verdict: Verdict

    @property
    def kills_total(self) -> int:
        """How many processes were killed."""
        return sum(self.kills.values()) - self.stops

    def as_facts(self) -> dict[str, Any]:
        """The result as plain data."""
        verdict = self.verdict
        return {
            "workload": self.workload,
            "place": self.place,
            "trouble": self.trouble,
            "seed": self.seed,
            "kills": self.kills,
            "kills_total": self.kills_total,
            "stops": self.stops,
            "starts": self.starts,
            "gave_up": self.gave_up,
            "epochs": self.epochs,
            "seconds": round(self.seconds, 1),
            "rows": verdict.rows,
            "lost": len(verdict.lost),
            "duplicated": len(verdict.duplicated),
            "disordered": len(verdict.disordered),
            "aborted_in_log": verdict.aborted_in_log,
            "aborted_seen": len(verdict.aborted),
            "unknown": list(verdict.unknown),
            "holds": verdict.holds,
        }


@dataclass
class Trial:
    """A job under a trouble."""

    servers: str
    workload: Workload
    trouble: Trouble
    directory: Path
    seed: int
    cluster: SparkCluster | None = None
    stack: Stack | None = None  # for troubles that kill brokers
    server: Postgres | None = None  # for troubles that kill PostgreSQL
    planted: str = ""  # lines for the end of the job file that break the protocol on purpose
    isolation: str = "read_committed"  # of the reader that reads meanwhile
    say: Callable[[str], None] = print
    name: str = field(default_factory=lambda: f"kills-{uuid4().hex[:8]}")
    drivers: list[Driver] = field(default_factory=list)
    gave_up: list[str] = field(default_factory=list)
    sent: list[Event] = field(default_factory=list)
    last_driver: Driver | None = None

    def __post_init__(self) -> None:
        self.began = self._moved_at = time.monotonic()
        self._moved_to = -1
        self._events = self.workload.make_events(random.Random(self.seed))
        self._in_topic: list[list[Event]] = [[] for _ in range(PARTITIONS)]
        self._taken: list[list[int]] = []  # the ends of each epoch that is done, by partition
        self._mark = Mark("LOCKGATE_TEST_TRIAL", uuid4().hex)
        self._rows: list[Row] = []
        self._read_to = 0
        self.read, self.write = f"{self.name}-in", f"{self.name}-out"
        self.directory.mkdir(parents=True, exist_ok=True)

    # -- the whole ------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """From empty topics to a verdict."""
        topics = self.workload.topics(self.write)
        create_topics(self.servers, [self.read, *topics], partitions=PARTITIONS, where="test")
        (self.directory / "job.py").write_text(self.workload.source() + self.planted)
        try:
            with self._feeding() as producer, self._reading(topics) as reader:
                self.feed(producer, 2 * ROWS_PER_EPOCH)
                while not self.trouble.is_over:
                    self._tend(reader)
                    self.trouble.step(self)
                    if len(self.sent) - self.consumed() < BACKLOG:
                        self.feed(producer, ROWS_PER_EPOCH)
                    time.sleep(0.05)
                self._end(producer, reader)
                verdict = self._judge(topics, reader)
        finally:
            left = self._mark.kill(timedelta(seconds=30))
            assert not left, f"processes {left} do not die"
            for driver in self.drivers:
                driver.process.wait(timeout=30)
        return Result(
            workload=self.workload.name,
            place="local" if self.cluster is None else "cluster",
            trouble=self.trouble.name,
            seed=self.seed,
            kills=dict(self.trouble.kills()),
            stops=self.trouble.stops(),
            starts=len(self.drivers),
            gave_up=self.gave_up,
            epochs=self.epochs(),
            seconds=time.monotonic() - self.began,
            verdict=verdict,
        )

    def _end(self, producer: Any, reader: "subprocess.Popen[bytes]") -> None:
        """The trouble is over: let the job finish its work, then stop it."""
        total = len(self.sent)
        self.tell(f"trouble over, {total} events sent, {self.consumed()} consumed")
        while self.consumed() < total:
            self._tend(reader)
            time.sleep(0.05)
        last = self.workload.finale()
        if last is not None:
            self._send(producer, last)
        quiet_at = time.monotonic()
        while self._missing() and time.monotonic() - quiet_at < _QUIET_SECONDS:
            before = len(self.seen())
            self._tend(reader)
            time.sleep(0.1)
            if len(self.seen()) > before or self.last_driver is None:
                quiet_at = time.monotonic()
        self._await_zombies()
        time.sleep(1)  # for a row too many
        driver = self.driver(reader)
        driver.process.send_signal(signal.SIGTERM)
        code = driver.process.wait(timeout=_PATIENCE_SECONDS)
        if code != 0:
            self.gave_up.append(f"a stop ended with {code}: {driver.tail()}")

    def _missing(self) -> Counter[Content]:
        """What has to come out, and is not; a row that came twice is none of the others."""
        return Counter(self.expected()) - Counter(row.content for row in self.seen())

    def _judge(self, topics: list[str], reader: "subprocess.Popen[bytes]") -> Verdict:
        scanned = scan(self.servers, topics, isolation="read_committed")
        deadline = time.monotonic() + 30
        while len(self.seen()) < len(scanned) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert reader.poll() is None, "the reader died"
        return judge(
            self.expected(),
            seen=self.seen(),
            scanned=scanned,
            in_log=scan(self.servers, topics, isolation="read_uncommitted"),
            position=self.workload.position(),
        )

    # -- the job --------------------------------------------------------------------------------------------------

    def command(self, *words: str) -> list[str]:
        """`lockgate` with these words, and with the parameters of the job's file."""
        parameters = {"servers": self.servers, "name": self.name, "read": self.read, "write": self.write}
        parameters |= self.places()
        named = [part for item in parameters.items() for part in ("-p", "=".join(item))]
        return [sys.executable, "-m", "lockgate.cli.main", *words, *named]

    def start_driver(self) -> Driver:
        """Start `lockgate run`, armed."""
        command = self.command("run", "--no-supervise", "job.py", "--json", "--rows-per-epoch", str(ROWS_PER_EPOCH))
        command += [] if self.cluster is None else ["--master", self.cluster.master]
        environment = {self._mark.name: self._mark.value, **self.trouble.environment()}
        self.last_driver = launch(command, self.directory, f"driver-{len(self.drivers)}.log", environment)
        self.drivers.append(self.last_driver)
        self.moved()
        return self.last_driver

    def driver(self, reader: "subprocess.Popen[bytes] | None" = None) -> Driver:
        """The driver that runs now, started where the last one has died."""
        driver = self.last_driver
        if driver is not None and driver.process.poll() is not None:
            code = driver.process.returncode
            if code != -signal.SIGKILL:
                self.tell(f"driver {len(self.drivers) - 1} gave up ({code}): {driver.tail(6)}")
                self.gave_up.append(f"{code}: {driver.tail()}")
                assert len(self.gave_up) <= GIVE_UPS_MAX, f"the job gives up again and again:\n{driver.tail(40)}"
            driver = None
        return driver or self.start_driver()

    def _tend(self, reader: "subprocess.Popen[bytes]") -> None:
        assert reader.poll() is None, f"the reader died: {(self.directory / 'reader.log').read_text()[-2000:]}"
        driver = self.driver()
        now = self.epochs()
        self._note_epochs(now)
        if now != self._moved_to:
            self._moved_to = now
            self.moved()
        if time.monotonic() - self._moved_at > _PATIENCE_SECONDS:
            raise AssertionError(
                f"nothing moves for {_PATIENCE_SECONDS:.0f} s at epoch {now}, {self.consumed()} of {len(self.sent)}"
                f" events consumed, {self.trouble.kills()}:\n{driver.tail(40)}\nlook into {self.directory}"
            )

    def moved(self) -> None:
        """Something happened that explains why the job has not gone on."""
        self._moved_at = time.monotonic()

    def _await_zombies(self) -> None:
        """Drivers that were stopped and woken up find out that another one took over, and end by themselves."""
        for driver in self.drivers:
            if driver.is_zombie:
                code = driver.process.wait(timeout=_PATIENCE_SECONDS)
                assert code == 1, f"a zombie ended with {code}: {driver.tail()}"
                self.tell(f"a zombie ended: {driver.tail(3)}")

    # -- what is consumed, from Spark's files ---------------------------------------------------------------------

    def epochs(self) -> int:
        """How many epochs Spark has logged as done."""
        folder = self.directory / ".lockgate" / "checkpoints" / self.name / "commits"
        names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
        return max((int(name) + 1 for name in names if name.isdigit()), default=0)

    def consumed(self) -> int:
        """How many events are in those epochs."""
        done = self.epochs()
        return sum(self._ends_of(done - 1)) if done else 0

    def _ends_of(self, epoch: int) -> list[int]:
        file = self.directory / ".lockgate" / "checkpoints" / self.name / "offsets" / str(epoch)
        ends = json.loads(file.read_text().splitlines()[2])[self.read]
        return [ends.get(str(partition), 0) for partition in range(PARTITIONS)]

    def _note_epochs(self, done: int) -> None:
        """Remember what the epochs took, before Spark throws its oldest files away."""
        if self.workload.has_late:
            self._taken += [self._ends_of(epoch) for epoch in range(len(self._taken), done)]

    def taken(self) -> list[list[Event]]:
        """The events of every epoch; those that no epoch has taken yet are one more."""
        self._note_epochs(self.epochs())
        before, found = [0] * PARTITIONS, []
        for ends in [*self._taken, [len(events) for events in self._in_topic]]:
            parts = zip(self._in_topic, before, ends, strict=True)
            found.append([event for events, first, last in parts for event in events[first:last]])
            before = ends
        return found

    def expected(self) -> list[Content]:
        """What has to come out of all that was sent."""
        given = self.taken() if self.workload.has_late else self.sent
        return self.workload.expected(given, self.write)

    # -- events and readers ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _feeding(self) -> Iterator[Any]:
        producer = KafkaProducer(bootstrap_servers=self.servers, acks="all", enable_idempotence=True, linger_ms=5)
        try:
            yield producer
        finally:
            producer.close(timeout=10)

    def feed(self, producer: Any, count: int) -> None:
        """Send the next events; each is in the topic when this returns."""
        waiting = []
        for _ in range(count):
            event = next(self._events)
            waiting.append(self._send(producer, event))
            self.sent.append(event)
        for future in waiting:
            future.get(timeout=120)

    def _send(self, producer: Any, event: Event) -> Any:
        key, value = self.workload.record(event)
        partition = self.workload.partition(event)
        self._in_topic[partition].append(event)  # one producer, in order: its place here is its offset
        return producer.send(self.read, key=key, value=value, partition=partition)

    @contextlib.contextmanager
    def _reading(self, topics: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
        reader = Path(__file__).with_name("kill_reader.py")
        with (self.directory / "reader.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(reader), self.servers, self.isolation, str(self.directory / "seen"), *topics],
                stdout=log,
                stderr=log,
                env={**os.environ, self._mark.name: self._mark.value},
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def seen(self) -> list[Row]:
        """What the reader has seen so far."""
        file = self.directory / "seen"
        if file.exists():
            with file.open("rb") as lines:
                lines.seek(self._read_to)
                text = lines.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read_to += len(whole)
            self._rows += [_row(json.loads(line)) for line in whole.splitlines()]
        return self._rows

    def places(self) -> dict[str, str]:
        """Where else the job writes to, as parameters of its file."""
        return {}

    def tell(self, text: str) -> None:
        """Show the progress."""
        place = "local" if self.cluster is None else "cluster"
        self.say(f"[{time.monotonic() - self.began:6.1f} s] {self.workload.name}, {place}, {self.trouble.name}: {text}")


def _row(line: list[Any]) -> Row:
    topic, partition, offset, key, value = line
    return Row(topic, partition, offset, key, canonical(json.loads(value)))


def scan(servers: str, topics: list[str], *, isolation: str) -> list[Row]:
    """Every record of these topics, from the first to the end that is there now."""
    consumer, places = open_consumer(servers, topics, isolation="read_uncommitted")
    deadline = time.monotonic() + 120
    try:
        whole = consumer.end_offsets(places)
    finally:
        consumer.close()
    consumer, places = open_consumer(servers, topics, isolation=isolation)
    found: list[Row] = []
    try:
        for place in places:
            consumer.seek(place, 0)
        # A transaction that is left open would hide what is behind it: then the end is never reached.
        while any(consumer.position(place) < whole[place] for place in places):
            assert time.monotonic() < deadline, f"a scan with {isolation} does not reach the end: {whole}"
            for records in consumer.poll(timeout_ms=200).values():
                found += [_row(as_line(record)) for record in records]
    finally:
        consumer.close()
    return found


# -- troubles -----------------------------------------------------------------------------------------------------


class Marked:
    """Faults at the protocol's own points, each of which strikes once."""

    def __init__(self, name: str, faults: list[tuple[str, str, int]], directory: Path) -> None:
        self.name = name
        directory.mkdir(parents=True, exist_ok=True)
        self._faults = [
            Fault(point=point, action=action, hit=hit, mark=str(directory / f"{number}-{point}-{action}"))
            for number, (point, action, hit) in enumerate(faults)
        ]
        self._told = 0

    def environment(self) -> dict[str, str]:
        return as_environment(self._faults)

    def step(self, trial: Trial) -> None:
        struck = sum(self.kills().values())
        if struck != self._told:
            self._told = struck
            trial.moved()
            trial.tell(f"{struck} of {len(self._faults)} at epoch {trial.epochs()}")

    @property
    def is_over(self) -> bool:
        return all(Path(str(fault.mark)).exists() for fault in self._faults)

    def kills(self) -> Counter[str]:
        struck = [fault for fault in self._faults if Path(str(fault.mark)).exists()]
        return Counter(fault.point + (", executor" if fault.action == "kill-jvm" else "") for fault in struck)

    def stops(self) -> int:
        return 0


class Zombies:
    """A process is stopped at a point, another driver takes over and goes on, then the first one wakes up."""

    def __init__(self, name: str, points: list[str], directory: Path, *, hit: int = 2, epochs: int = 3) -> None:
        self.name = name
        directory.mkdir(parents=True, exist_ok=True)
        self._faults = [
            Fault(point=point, action="stop", hit=hit, mark=str(directory / f"{number}-{point}"))
            for number, point in enumerate(points)
        ]
        self._epochs = epochs
        self._asleep: tuple[Driver, set[int], int] | None = None  # the stopped processes; the epoch to wake them at
        self._woken = 0

    def environment(self) -> dict[str, str]:
        # One at a time: the driver that takes over must not fall asleep itself.
        return as_environment(self._faults[self._woken : self._woken + 1] if self._asleep is None else [])

    def step(self, trial: Trial) -> None:
        if self._asleep is None and self._woken < len(self._faults):
            fault = self._faults[self._woken]
            if Path(str(fault.mark)).exists():
                driver = trial.driver()
                stopped = stopped_of(driver.process.pid)
                if stopped:
                    driver.is_zombie = True
                    self._asleep = (driver, stopped, trial.epochs() + self._epochs)
                    trial.tell(f"{fault.point}: {stopped} stopped at epoch {trial.epochs()}; another driver starts")
                    trial.start_driver()
        elif self._asleep is not None and trial.epochs() >= self._asleep[2]:
            driver, stopped, _ = self._asleep
            _wake(stopped)
            self._asleep = None
            self._woken += 1
            code = driver.process.wait(timeout=_PATIENCE_SECONDS)
            trial.tell(f"woken at epoch {trial.epochs()}; it ended with {code}: {driver.tail(3)}")
            if self._woken < len(self._faults):  # the next one is armed for the driver that comes next
                here = trial.driver()
                here.process.kill()
                here.process.wait()

    @property
    def is_over(self) -> bool:
        return self._woken == len(self._faults)

    def kills(self) -> Counter[str]:
        return Counter(f"{fault.point}, stopped" for fault in self._faults[: self._woken])

    def stops(self) -> int:
        return self._woken


class Random:
    """Kills at any moment, by a seed: driver, worker, executor, broker, server (PostgreSQL).

    A "job" is the driver with its JVM and its workers, all of them at once.
    """

    def __init__(self, name: str, targets: dict[str, int], seed: int, *, pause: tuple[float, float]) -> None:
        self.name = name
        self._rng = random.Random(seed)
        self._targets = [target for target, count in targets.items() for _ in range(count)]
        self._rng.shuffle(self._targets)
        self._pause = pause
        self._due: tuple[float, int] | None = None  # after so many seconds in which an epoch has been done
        self._struck: Counter[str] = Counter()

    def environment(self) -> dict[str, str]:
        return {}

    def step(self, trial: Trial) -> None:
        now = time.monotonic()
        if self._due is None:
            self._due = (now + self._rng.uniform(*self._pause), trial.epochs() + self._rng.randrange(1, 4))
        if now < self._due[0] or trial.epochs() < self._due[1] or not self._targets:
            return
        target = self._targets[-1]
        time.sleep(self._rng.uniform(0, 0.5))  # anywhere in an epoch, not right behind one
        if self._strike(target, trial):
            self._targets.pop()
            self._struck[f"any moment, {target}"] += 1
            trial.moved()
            trial.tell(f"killed a {target} at epoch {trial.epochs()}, {len(self._targets)} to go")
            self._due = None

    def _strike(self, target: str, trial: Trial) -> bool:
        driver = trial.driver()
        if target == "driver":
            driver.process.kill()
            driver.process.wait()
            return True
        if target == "job":
            below = psutil.Process(driver.process.pid).children(recursive=True)
            for one in (driver.process, *below):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            driver.process.wait()
            return True
        if target == "worker":
            workers = _workers_of(driver.process.pid)
            return bool(workers) and send(self._rng.choice(workers), signal.SIGKILL)
        if target == "executor":
            assert trial.cluster is not None
            executors = trial.cluster.executors()
            if executors:
                trial.cluster.kill_executor(index=self._rng.randrange(len(executors)))
            return bool(executors)
        if target == "server":
            assert trial.server is not None
            trial.server.kill()
            time.sleep(self._rng.uniform(0, 4))
            trial.server.start()
            trial.server.wait()
            return True
        assert target == "broker"
        assert trial.stack is not None
        trial.stack.kill_broker(1)
        time.sleep(self._rng.uniform(0, 4))
        trial.stack.up(postgres=False)
        return True

    @property
    def is_over(self) -> bool:
        return not self._targets

    def kills(self) -> Counter[str]:
        return Counter(self._struck)

    def stops(self) -> int:
        return 0


class PausedMachine:
    """A machine of the cluster stands still at a point, is given up, and wakes up when its epoch is long out."""

    name = "paused machine"

    def __init__(self, point: str, mark: Path, *, epochs: int = 3) -> None:
        self._fault = Fault(point=point, action="stop", hit=2, mark=str(mark))
        self._epochs = epochs
        self._paused: list[psutil.Process] = []
        self._until = 0
        self._is_awake = self._is_over = False

    def environment(self) -> dict[str, str]:
        return as_environment([self._fault])

    def step(self, trial: Trial) -> None:
        mark = Path(str(self._fault.mark))
        if not self._paused and mark.exists() and mark.read_text().strip():
            worker = psutil.Process(int(mark.read_text()))
            machine = Mark("LOCKGATE_SPARK_MACHINE", worker.environ()["LOCKGATE_SPARK_MACHINE"])
            self._paused = machine.carriers()
            for process in self._paused:
                process.suspend()
            self._until = trial.epochs() + self._epochs
            trial.moved()
            trial.tell(f"{len(self._paused)} processes of a machine stand still at epoch {trial.epochs()}")
        elif self._paused and not self._is_awake and trial.epochs() >= self._until:
            for process in reversed(self._paused):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()
            self._is_awake = True
            self._until = trial.epochs() + self._epochs
            trial.tell(f"awake at epoch {trial.epochs()}")
        elif self._is_awake and trial.epochs() >= self._until:
            worker = int(mark.read_text())
            # The stopped task has written what it had to write when its process has ended: a refused one ends.
            self._is_over = not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE

    @property
    def is_over(self) -> bool:
        return self._is_over

    def kills(self) -> Counter[str]:
        return Counter({f"{self._fault.point}, machine paused": self.stops()})

    def stops(self) -> int:
        return int(self._is_awake)


class Crashes:
    """PostgreSQL is killed, with all its processes, while one of the job's stands still at a point.

    Where it `stays_away` it comes back when the driver has said that it waits; else before the stopped process goes on.
    """

    def __init__(
        self, name: str, points: list[tuple[str, int]], directory: Path, *, stays_away: frozenset[str] = frozenset()
    ) -> None:
        self.name = name
        directory.mkdir(parents=True, exist_ok=True)
        self._faults = [
            Fault(point=point, action="stop", hit=hit, mark=str(directory / f"{number}-{point}"))
            for number, (point, hit) in enumerate(points)
        ]
        self._stays_away = stays_away
        self._struck: list[Fault] = []

    def environment(self) -> dict[str, str]:
        return as_environment(self._faults)

    def step(self, trial: Trial) -> None:
        assert trial.server is not None
        driver = trial.driver()
        for fault in self._faults:
            mark = Path(str(fault.mark))
            if fault in self._struck or not mark.exists() or not mark.read_text().strip():
                continue
            pid = int(mark.read_text())
            while pid not in stopped_of(driver.process.pid) and psutil.pid_exists(pid):
                time.sleep(0.01)  # the mark is written just before
            trial.server.kill()
            self._struck.append(fault)
            trial.tell(f"{fault.point}: the server is killed at epoch {trial.epochs()}")
            if fault.point in self._stays_away:
                self._await_word(driver, pid)
            trial.server.start()
            trial.server.wait()
            if fault.point not in self._stays_away:
                _wake({pid})
            trial.moved()

    def _await_word(self, driver: Driver, pid: int) -> None:
        told = driver.output.read_text().count(WAITS)
        _wake({pid})
        deadline = time.monotonic() + 60
        # Another fault may have stopped it at its next point, before it has noticed anything.
        while driver.output.read_text().count(WAITS) == told and not stopped_of(driver.process.pid):
            assert driver.process.poll() is None, f"the driver gave up: {driver.tail()}"
            assert time.monotonic() < deadline, f"the driver does not say that it waits: {driver.tail()}"
            time.sleep(0.05)

    @property
    def is_over(self) -> bool:
        return len(self._struck) == len(self._faults)

    def kills(self) -> Counter[str]:
        return Counter(f"{fault.point}, server" for fault in self._struck)

    def stops(self) -> int:
        return 0


def _wake(stopped: set[int]) -> None:
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def require(result: Result, kills: int) -> None:
    """It holds, the job never gave up by itself, and so many processes were hit."""
    assert result.verdict.holds, f"{result.verdict}; seed {result.seed}"
    assert not result.gave_up, result.gave_up
    assert result.kills_total == kills
