"""One job that is to run for long, under load, while parts of it are killed; and what is found afterwards.

The job has state and passes rows through, into two topics, in one transaction:

    totals    every event, with the count and the sum of its key up to it
    copies    every event, as it came

It runs as users run it: `lockgate run` with its supervisor, on a real Spark cluster. Nobody here ever starts its driver
again. Events are numbered. What has to come out is computed from the input topic alone, as it stands there in the end.
Hundreds of thousands of rows are judged, so a reader's findings are arrays, and not rows.
"""

import json
import random
import statistics
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from lockgate.connectors.kafka.topics import create_topics
from lockgate.lab.rig import feed as feeding
from lockgate.lab.rig.drivers import Driver, Drivers
from lockgate.lab.rig.faults import Kind
from lockgate.lab.rig.readers.topics import UNCOMMITTED, Along, read_records
from lockgate.lab.services.processes import children
from lockgate.lab.services.spark import SparkCluster
from lockgate.lab.services.stack import Stack

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


def make_records() -> Iterator[feeding.Event]:
    """All events, without end, as they are sent."""
    for number in count():
        event = make_event(number)
        value = json.dumps(event).encode()
        yield feeding.Event("in", partition_of(number), event["key"].encode(), value)


class Found:
    """What a reader found in one topic, by the number of the event."""

    def __init__(self) -> None:
        self.times = bytearray()  # how often; more than 200 times is 200 times
        self.facts = array("q")  # two numbers of each event
        self.rows = 0
        self.places = 0  # one number for all places with what stood there, in whatever order they were read
        self.strange: list[bytes] = []

    def add(self, place: tuple[int, int], value: bytes, *names: str) -> int:
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

    def add(self, record: Any) -> None:
        place = record.partition, record.offset
        if record.topic.endswith("-totals"):
            self.totals.add(place, record.value, "count", "total")
        else:
            self.copies.add(place, record.value, "amount", "amount")

    @property
    def rows(self) -> int:
        """How many there are in both."""
        return self.totals.rows + self.copies.rows

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
    for name, seen, found in (("totals", along.totals, after.totals), ("copies", along.copies, after.copies)):
        if (seen.rows, seen.places) != (found.rows, found.places):
            wrong.append(
                f"{name}: the reader that read along saw {seen.rows} rows, other ones than the {found.rows} there"
            )
    return wrong


# -- the job, with its sender and its reader ----------------------------------------------------------------------


class Sender:
    """Sends events all along, at a steady rate, in a thread of its own.

    The client has been seen to send a batch twice when a broker died with it on its way. So nothing of ours is on its
    way when a broker is killed: the outsider holds `settled`.
    """

    def __init__(self, servers: str, topic: str) -> None:
        self.settled = threading.Lock()
        self._feed = feeding.Feed(servers, make_records(), {"in": topic})
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sender")
        self._sending: Future[None] | None = None

    @property
    def sent(self) -> int:
        """How many events are in the topic."""
        return self._feed.sent

    def send(self, count: int) -> None:
        """Send the next events at once."""
        with self.settled:
            self._feed.send(self.sent + count)

    def start(self, rate: int) -> None:
        """Send so many events a second from now on."""
        self._feed.rate = rate
        self._sending = self._threads.submit(self._keep_sending)

    def stop(self) -> None:
        """Send no more; raises what sending has failed with."""
        self._is_over.set()
        if self._sending is not None:
            self._sending.result()

    def close(self) -> None:
        self._is_over.set()
        self._threads.shutdown(wait=True)
        self._feed.close()

    def _keep_sending(self) -> None:
        while not self._is_over.wait(0.1):
            with self.settled:
                self._feed.send(float("inf"))


@dataclass
class EnduranceRun:
    """The job under way: its supervisor, the sender, and the reader that reads all the while."""

    servers: str
    directory: Path
    cluster: SparkCluster
    checkpoint: str | None = None  # on a file system of Hadoop
    name: str = field(default_factory=lambda: f"endure-{uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.topics = [f"{self.name}-totals", f"{self.name}-copies"]
        self.found = Findings()
        self.along = Along(self.servers, self.topics, self.found.add)
        self.silence = 0.0  # the longest time in which no row came; the test resets it
        self._rows, self._came_at = 0, time.monotonic()
        self.drivers = Drivers(
            job_file=self.directory / "job.py",
            parameters={"servers": self.servers, "name": self.name},
            directory=self.directory,
            checkpoint=self.directory / "checkpoint" if self.checkpoint is None else None,
            labels={},
            master=self.cluster.master,
            options=() if self.checkpoint is None else ("--checkpoint", self.checkpoint),
            is_supervised=True,
        )

    @contextmanager
    def running(self) -> Iterator["EnduranceRun"]:
        """Everything is started, and nothing of it is left in the end."""
        self.directory.mkdir(parents=True, exist_ok=True)
        create_topics(self.servers, [f"{self.name}-in", *self.topics], partitions=PARTITIONS, where="test")
        self.drivers.job_file.write_text(JOB)
        self.sender = Sender(self.servers, f"{self.name}-in")
        try:
            self.along.start()
            self.drivers.start({})
            yield self
        finally:
            self.drivers.kill()
            self.sender.close()

    @property
    def run(self) -> Driver:
        """`lockgate run`: the supervisor's process."""
        return self.drivers.all[0]

    @property
    def driver(self) -> psutil.Process | None:
        """The driver that the supervisor has just now."""
        found = children(self.run.process.pid, "--no-supervise")
        return found[0] if found else None

    @property
    def restarts(self) -> list[str]:
        """What the supervisor has said whenever it started the driver again."""
        return [line for line in self.run.words.read_text(errors="replace").splitlines() if line.startswith(RESTART)]

    def look(self) -> Findings:
        """What the reader has found so far; the job and the reader have to be alive."""
        assert self.run.is_running, f"`lockgate run` has ended:\n{self.run.tail(40)}"
        assert not self.along.error, f"the reader died: {self.along.error}"
        rows, now = self.found.rows, time.monotonic()
        self.silence = max(self.silence, now - self._came_at)
        if rows != self._rows:
            self._rows, self._came_at = rows, now
        return self.found

    def await_rows(self, sent: int) -> None:
        """Wait until so many events have come out; if they do not, the verdict says so."""
        while (missing := self.look().delivered(sent)[2]) and time.monotonic() - self._came_at < PATIENCE_SECONDS:
            time.sleep(0.1)
        if missing:
            print(f"{missing} events have not come out:\n{self.run.tail(20)}", flush=True)

    def finish(self) -> list[str]:
        """Send no more, wait for the rest, stop the job as an operator would, and judge."""
        self.sender.stop()
        self._came_at = time.monotonic()
        self.await_rows(self.sender.sent)
        self.drivers.stop()
        wrong = [str(one) for one in self.drivers.gave_up]
        wrong += [f"the reader died: {error}"] if (error := self.along.finish()) else []
        after = Findings()
        for record in read_records(self.servers, self.topics):
            after.add(record)
        inputs = read_records(self.servers, [f"{self.name}-in"], isolation=UNCOMMITTED)
        sent = [(record.partition, json.loads(record.value)["id"]) for record in inputs]
        if len(sent) != self.sender.sent:
            wrong.append(f"{self.sender.sent} events were sent, and {len(sent)} are in the topic")
        return [*wrong, *judge(sent, self.found, after)]


# -- the outsider, and what is measured ---------------------------------------------------------------------------


class Outsider:
    """Kills a driver, a Worker or the broker; starts Worker and broker again, as an init system does, and nothing else.

    Of a driver it is the Python process that dies, or its JVM, or both at once, in turn. Workers die in turn too, each
    with all that it started.
    """

    def __init__(self, site: EnduranceRun, stack: Stack, seed: int) -> None:
        self.kills = dict.fromkeys((Kind.KILL_DRIVER, Kind.KILL_MACHINE, Kind.KILL_BROKER), 0)
        self._site, self._stack = site, stack
        self._rng = random.Random(seed)
        self._init = ThreadPoolExecutor(max_workers=2, thread_name_prefix="init")
        self._starting: dict[Kind, Future[None]] = {}

    def close(self) -> None:
        self._init.shutdown(wait=True)

    def strike(self, target: Kind) -> bool:
        """Kill it; False where it does not run just now."""
        started = self._starting.get(target)
        if started is not None:
            if not started.done():
                return False
            started.result()  # an init system that fails is no failure of the job
        deeds = dict(zip(self.kills, (self._kill_driver, self._kill_worker, self._kill_broker), strict=True))
        is_struck = deeds[target]()
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
        for process in (both[:1], both[1:], both)[self.kills[Kind.KILL_DRIVER] % 3]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return True

    def _kill_worker(self) -> bool:
        index = self.kills[Kind.KILL_MACHINE] % self._site.cluster.workers
        self._site.cluster.kill_worker(index)
        self._start_later(Kind.KILL_MACHINE, lambda: self._site.cluster.start_worker(index))
        return True

    def _kill_broker(self) -> bool:
        with self._site.sender.settled:
            self._stack.kill_broker(1)
        self._start_later(Kind.KILL_BROKER, lambda: self._stack.up(postgres=False))
        return True

    def _start_later(self, target: Kind, start: Callable[[], object]) -> None:
        seconds = self._rng.uniform(*AWAY_SECONDS)

        def wait_and_start() -> None:
            time.sleep(seconds)
            start()

        self._starting[target] = self._init.submit(wait_and_start)


def measure(site: EnduranceRun, stack: Stack) -> dict[str, float]:
    """How much memory each part has, in MiB, and the checkpoint on its disk; what does not run is left out."""
    driver = site.driver
    broker = stack.kafka.daemon(stack.kafka.nodes[0]).pid
    mib = {
        "supervisor": _resident([site.run.process.pid], is_deep=False),
        "driver": 0.0 if driver is None or not children(driver.pid, SPARK) else _resident([driver.pid]),
        "executors": _resident(site.cluster.executors()),
        "broker": 0.0 if broker is None else _resident([broker]),
        "checkpoint": sum(_sizes(site.directory / "checkpoint")) / 2**20,
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
        with suppress(OSError):  # Spark deletes its oldest files at the same time
            yield path.stat().st_size if path.is_file() else 0


def thirds(samples: list[float]) -> tuple[float, float]:
    """The medians of the first third and of the last one."""
    size = max(1, len(samples) // 3)
    return statistics.median(samples[:size]), statistics.median(samples[-size:])
