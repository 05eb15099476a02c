"""One job that is to run for long, under load, while parts of it are killed; and what is found afterwards.

The job has state and passes rows through, into two topics, in one transaction:

    totals    every event, with the count and the sum of its key up to it
    copies    every event, as it came

It runs as users run it: `lockgate run` with its supervisor, on a real Spark cluster. Nobody here ever starts its driver
again. Events are numbered. What has to come out is computed from the input topic alone, as it stands there in the end.
Hundreds of thousands of rows are judged, so a reader's findings are arrays, and not rows.
"""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from kafka.errors import KafkaError
from kill_harness import Driver, launch
from kill_reader import as_line, open_consumer

from kafka import KafkaProducer
from lockgate.kafka.topics import create_topics
from lockgate.services.processes import Mark, children
from lockgate.services.spark import SparkCluster
from lockgate.services.stack import Stack

PARTITIONS = 2
KEYS = 97
RESTART = "restart "
"""How the line begins in which the supervisor says that it starts the driver again."""

SPARK = "org.apache.spark.deploy.SparkSubmit"
"""What a driver's JVM runs."""

AWAY_SECONDS = (1.0, 4.0)
"""After so long an init system starts again what it keeps running."""

PATIENCE_SECONDS = 240.0
"""How long nothing may come out before what is missing is called lost; the machine may be busy."""

JOB = """\
from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream


def job(servers: str, name: str) -> Job:
    source = KafkaSource(topic=f"{name}-in", servers=servers, value="id BIGINT, key STRING, amount BIGINT")
    events = stream("events", source)
    totals = events.key_by("key").rolling(count="count(*)", total="sum(amount)", name="sums")
    return Job(
        name,
        totals.to("totals", KafkaSink(topic=f"{name}-totals", servers=servers, key="key")),
        events.to("copies", KafkaSink(topic=f"{name}-copies", servers=servers, key="key")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )
"""


# -- what is sent, and what was found -----------------------------------------------------------------------------


def make_event(number: int) -> dict[str, Any]:
    """The event of this number; its key says its partition."""
    return {"id": number, "key": f"key-{number % KEYS:03}", "amount": number * 7919 % 1000}


def partition_of(number: int) -> int:
    return number % KEYS % PARTITIONS


class Found:
    """What a reader found in one topic, by the number of the event."""

    def __init__(self) -> None:
        self.times = bytearray()  # how often; more than 200 times is 200 times
        self.facts = array("q")  # two numbers of each event
        self.rows = 0
        self.places = 0  # one number for all places with what stood there, in whatever order they were read
        self.strange: list[str] = []

    def add(self, place: tuple[int, int], value: str, *names: str) -> int:
        """Note a row, and these two of its columns; the number of its event."""
        told = json.loads(value)
        number = told["id"]
        if number >= len(self.times):
            more = max(1024, number + 1 - len(self.times))
            self.times += bytes(more)
            self.facts.extend([0] * 2 * more)
        self.times[number] = min(200, self.times[number] + 1)
        self.facts[2 * number : 2 * number + 2] = array("q", [told[name] for name in names])
        self.rows += 1
        self.places = (self.places + hash((place, value))) % 2**64
        if told["key"] != make_event(number)["key"] or told["amount"] != make_event(number)["amount"]:
            self.strange.append(value)
        return int(number)

    def delivered(self, sent: int) -> tuple[int, int, int]:
        """Of so many events: how many are there once, how many are there more often, how many are not there."""
        there = self.times[:sent]
        once = there.count(1)
        missing = there.count(0) + sent - len(there)
        return once, len(there) - there.count(0) - once + sum(map(bool, self.times[sent:])), missing


@dataclass(frozen=True)
class Findings:
    """What a reader found in both topics of the job."""

    totals: Found = field(default_factory=Found)
    copies: Found = field(default_factory=Found)

    def add(self, line: list[Any]) -> None:
        topic, partition, offset, _, value = line
        if topic.endswith("-totals"):
            self.totals.add((partition, offset), value, "count", "total")
        else:
            self.copies.add((partition, offset), value, "amount", "amount")

    def delivered(self, sent: int) -> tuple[int, int, int]:
        """Of so many events: once in both topics at the least, more often in one at the most, missing in one."""
        first, second = self.totals.delivered(sent), self.copies.delivered(sent)
        return min(first[0], second[0]), max(first[1], second[1]), max(first[2], second[2])


def judge(sent: list[tuple[int, int]], along: Findings, after: Findings) -> list[str]:
    """What is wrong; nothing where every event is there once, with the count and the sum that a batch computes.

    Args:
        sent: what stands in the input topic, partition and number, in its order.
        along: what the reader found that read all the while; it has to have seen what is there, and nothing else.
    """
    wrong = []
    numbers = sorted(number for _, number in sent)
    if numbers != [*range(len(sent))]:
        return ["the sender has sent an event twice or not at all: nothing is said of the job"]
    for name, found in (("totals", after.totals), ("copies", after.copies)):
        once, twice, missing = found.delivered(len(sent))
        if (once, twice, missing) != (len(sent), 0, 0):
            wrong.append(f"{name}: of {len(sent)} events {missing} are lost and {twice} are there more than once")
        if found.strange:
            wrong.append(f"{name}: {len(found.strange)} rows are of no event, e.g. {found.strange[:3]}")
    if not wrong:
        facts = array("q", bytes(16 * len(sent)))
        counts: dict[str, int] = defaultdict(int)
        sums: dict[str, int] = defaultdict(int)
        for _, number in sent:
            event = make_event(number)
            counts[event["key"]] += 1
            sums[event["key"]] += event["amount"]
            facts[2 * number : 2 * number + 2] = array("q", [counts[event["key"]], sums[event["key"]]])
        others = [
            number
            for number in range(len(sent))
            if facts[2 * number : 2 * number + 2] != after.totals.facts[2 * number : 2 * number + 2]
        ]
        if others:
            wrong.append(f"totals: {len(others)} events have another count or sum than in a batch, e.g. {others[:3]}")
    for name, meanwhile, found in (("totals", along.totals, after.totals), ("copies", along.copies, after.copies)):
        if (meanwhile.rows, meanwhile.places) != (found.rows, found.places):
            wrong.append(
                f"{name}: who read meanwhile saw {meanwhile.rows} rows, other ones than the {found.rows} there"
            )
    return wrong


def read_all(servers: str, topics: list[str], isolation: str) -> Iterator[list[Any]]:
    """Every record of these topics, from the first to the end that is there now."""
    consumer, places = open_consumer(servers, topics, isolation="read_uncommitted")
    try:
        ends = consumer.end_offsets(places)
    finally:
        consumer.close()
    consumer, places = open_consumer(servers, topics, isolation=isolation)
    try:
        for place in places:
            consumer.seek(place, 0)
        moved_at = time.monotonic()
        # A transaction that is left open would hide what is behind it: then the end is never reached.
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() - moved_at < 120, f"a reader with {isolation} does not reach the end: {ends}"
            for records in consumer.poll(timeout_ms=200).values():
                moved_at = time.monotonic()
                yield from map(as_line, records)
    finally:
        consumer.close()


# -- the job, with its sender and its reader ----------------------------------------------------------------------


class Sender:
    """Sends events all along, at a steady rate, in a thread of its own.

    The client has been seen to send a batch twice when a broker died with it on its way. So nothing of ours is on its
    way when a broker is killed: who kills one holds `settled`.
    """

    def __init__(self, servers: str, topic: str) -> None:
        self.sent = 0
        self.settled = threading.Lock()
        self._topic = topic
        self._producer = KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True, linger_ms=5)
        self._is_over = threading.Event()
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def send(self, count: int) -> None:
        """Send the next events; each is in the topic when this returns."""
        with self.settled:
            futures = []
            for number in range(self.sent, self.sent + count):
                event = make_event(number)
                futures.append(
                    self._producer.send(
                        self._topic,
                        key=event["key"].encode(),
                        value=json.dumps(event).encode(),
                        partition=partition_of(number),
                    )
                )
            for future in futures:
                future.get(timeout=PATIENCE_SECONDS)
            self.sent += count

    def start(self, rate: int) -> None:
        """Send so many events a second from now on."""
        self._thread = threading.Thread(target=self._keep_sending, args=(rate,), name="sender", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send no more; raises what sending has failed with."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        with suppress(KafkaError, TimeoutError):
            self.stop()
        self._producer.close(timeout=10)

    def _keep_sending(self, rate: int) -> None:
        try:
            last = time.monotonic()
            while not self._is_over.wait(0.1):
                now = time.monotonic()
                # What could not be sent while the broker was away does not come in a rush afterwards.
                count = int(rate * min(1.0, now - last))
                last = now
                self.send(count)
        except (KafkaError, TimeoutError) as error:
            self._error = error


@dataclass
class Site:
    """The job on its way: its supervisor, the sender, and the reader that reads all the while."""

    servers: str
    directory: Path
    cluster: SparkCluster
    checkpoint: str | None = None
    name: str = field(default_factory=lambda: f"endure-{uuid4().hex[:8]}")
    along: Findings = field(default_factory=Findings)

    def __post_init__(self) -> None:
        self.topics = [f"{self.name}-totals", f"{self.name}-copies"]
        self._mark = Mark("LOCKGATE_TEST_TRIAL", uuid4().hex)
        self._read_to = 0
        self._came_at = time.monotonic()
        self.silence = 0.0  # the longest time in which no row came, since somebody set this to nothing
        self._run: Driver | None = None
        self._reader: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator["Site"]:
        """Everything is started, and nothing of it is left in the end."""
        self.directory.mkdir(parents=True, exist_ok=True)
        create_topics(self.servers, [f"{self.name}-in", *self.topics], partitions=PARTITIONS, where="test")
        (self.directory / "job.py").write_text(JOB)
        self.sender = Sender(self.servers, f"{self.name}-in")
        try:
            self._start_reader()
            command = [sys.executable, "-m", "lockgate.cli.main", "run", "job.py", "--master", self.cluster.master]
            command += ["-p", f"servers={self.servers}", "-p", f"name={self.name}"]
            command += [] if self.checkpoint is None else ["--checkpoint", self.checkpoint]
            self._run = launch(command, self.directory, "run.log", {self._mark.name: self._mark.value})
            yield self
        finally:
            left = self._mark.kill(timedelta(seconds=30))
            for process in (self._reader, self._run and self._run.process):
                if process is not None:
                    process.wait(timeout=30)
            self.sender.close()
            assert not left, f"processes {left} do not die"

    def _start_reader(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("kill_reader.py")), self.servers, "read_committed"]
        with (self.directory / "reader.log").open("wb") as log:
            self._reader = subprocess.Popen(
                [*command, str(self.directory / "seen"), *self.topics],
                stdout=log,
                stderr=log,
                env={**os.environ, self._mark.name: self._mark.value},
            )

    @property
    def run(self) -> Driver:
        """`lockgate run`: the supervisor's process."""
        assert self._run is not None
        return self._run

    @property
    def driver(self) -> psutil.Process | None:
        """The driver that the supervisor has just now."""
        found = children(self.run.process.pid, "--no-supervise")
        return found[0] if found else None

    @property
    def restarts(self) -> list[str]:
        """What the supervisor has said whenever it started the driver again."""
        return [line for line in self.run.output.read_text(errors="replace").splitlines() if line.startswith(RESTART)]

    def look(self) -> Findings:
        """What the reader has found so far; the job and the reader have to be alive."""
        assert self.run.process.poll() is None, f"`lockgate run` has ended:\n{self.run.tail(40)}"
        assert self._reader is not None
        assert self._reader.poll() is None, f"the reader died: {(self.directory / 'reader.log').read_text()[-2000:]}"
        return self._read_on()

    def _read_on(self) -> Findings:
        file = self.directory / "seen"
        if file.exists():
            with file.open("rb") as lines:
                lines.seek(self._read_to)
                text = lines.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read_to += len(whole)
            for line in whole.splitlines():
                self.along.add(json.loads(line))
            now = time.monotonic()
            self.silence = max(self.silence, now - self._came_at)
            self._came_at = now if whole else self._came_at
        return self.along

    def await_rows(self, sent: int) -> None:
        """Wait until so many events have come out; an end of this waiting is left to the verdict."""
        before, moved_at = -1, time.monotonic()
        while (missing := self.look().delivered(sent)[2]) and time.monotonic() - moved_at < PATIENCE_SECONDS:
            rows = self.along.totals.rows + self.along.copies.rows
            if rows != before:
                before, moved_at = rows, time.monotonic()
            time.sleep(0.1)
        if missing:
            print(f"{missing} events have not come out:\n{self.run.tail(20)}", flush=True)

    def finish(self) -> list[str]:
        """Send no more, wait for the rest, stop the job as an operator would, and judge."""
        self.sender.stop()
        self.await_rows(self.sender.sent)
        self.run.process.send_signal(signal.SIGTERM)
        code = self.run.process.wait(timeout=PATIENCE_SECONDS)
        wrong = [] if code == 0 else [f"a stop ended with {code}: {self.run.tail()}"]
        after = Findings()
        for line in read_all(self.servers, self.topics, "read_committed"):
            after.add(line)
        inputs = read_all(self.servers, [f"{self.name}-in"], "read_uncommitted")
        sent = [(line[1], json.loads(line[4])["id"]) for line in inputs]
        if len(sent) != self.sender.sent:
            wrong.append(f"{self.sender.sent} events were sent, and {len(sent)} are in the topic")
        deadline = time.monotonic() + 30
        while self._read_on().totals.rows < after.totals.rows or self.along.copies.rows < after.copies.rows:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return [*wrong, *judge(sent, self.along, after)]


# -- the outsider, and what is measured ---------------------------------------------------------------------------


class Outsider:
    """Kills a driver, a Worker or the broker; starts Worker and broker again, as an init system does, and nothing else.

    Of a driver it is the Python process that dies, or its JVM, or both at once, in turn. Workers die in turn too, each
    with all that it started.
    """

    def __init__(self, site: Site, stack: Stack, seed: int) -> None:
        self.kills: dict[str, int] = {"driver": 0, "worker": 0, "broker": 0}
        self._site, self._stack = site, stack
        self._rng = random.Random(seed)
        self._init = ThreadPoolExecutor(max_workers=2, thread_name_prefix="init")
        self._starting: dict[str, Future[None]] = {}

    def close(self) -> None:
        self._init.shutdown(wait=True)

    def strike(self, target: str) -> bool:
        """Kill it; False where it does not run just now."""
        started = self._starting.get(target)
        if started is not None:
            if not started.done():
                return False
            started.result()  # an init system that fails is no failure of the job
        is_struck = {"driver": self._kill_driver, "worker": self._kill_worker, "broker": self._kill_broker}[target]()
        self.kills[target] += is_struck
        return is_struck

    def await_starts(self) -> None:
        for started in self._starting.values():
            started.result()

    def _kill_driver(self) -> bool:
        driver = self._site.driver
        java = [] if driver is None else children(driver.pid, SPARK)
        if driver is None or not java:
            return False
        both = [driver, java[0]]
        for process in (both[:1], both[1:], both)[self.kills["driver"] % 3]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return True

    def _kill_worker(self) -> bool:
        index = self.kills["worker"] % self._site.cluster.workers
        self._site.cluster.kill_worker(index)
        self._start_later("worker", lambda: self._site.cluster.start_worker(index))
        return True

    def _kill_broker(self) -> bool:
        with self._site.sender.settled:
            self._stack.kill_broker(1)
        self._start_later("broker", lambda: self._stack.up(postgres=False))
        return True

    def _start_later(self, target: str, start: Callable[[], object]) -> None:
        seconds = self._rng.uniform(*AWAY_SECONDS)

        def wait_and_start() -> None:
            time.sleep(seconds)
            start()

        self._starting[target] = self._init.submit(wait_and_start)


def measure(site: Site, stack: Stack) -> dict[str, float]:
    """How much memory each part has, in MiB, and the checkpoint on its disk; what does not run is left out."""
    driver = site.driver
    broker = stack.kafka.daemon(stack.kafka.nodes[0]).pid
    mib = {
        "supervisor": _resident([site.run.process.pid], is_deep=False),
        "driver": 0.0 if driver is None or not children(driver.pid, SPARK) else _resident([driver.pid]),
        "executors": _resident(site.cluster.executors()),
        "broker": 0.0 if broker is None else _resident([broker]),
        "checkpoint": sum(_sizes(site.directory / ".lockgate" / "checkpoints" / site.name)) / 2**20,
    }
    return {name: found for name, found in mib.items() if found}


def _resident(pids: Iterable[int], *, is_deep: bool = True) -> float:
    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *(process.children(recursive=True) if is_deep else ())):
                with suppress(psutil.Error):
                    total += one.memory_info().rss
    return total / 2**20


def _sizes(directory: Path) -> Iterator[int]:
    for path in directory.rglob("*"):
        with suppress(OSError):  # Spark throws its oldest files away meanwhile
            yield path.stat().st_size if path.is_file() else 0


def thirds(samples: list[float]) -> tuple[float, float]:
    """The medians of the first third and of the last one."""
    size = max(1, len(samples) // 3)
    return statistics.median(samples[:size]), statistics.median(samples[-size:])
