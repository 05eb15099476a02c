"""One job that is killed at each of its steps in turn: receive, update state, emit.

The job counts the events of each key and sends every event on with its count. It has one task, so the step of the task
is that of all events in hand, and two outputs, so that it can die when a part is out and the rest is not.

    before     events that are done with
    in hand    events of one epoch: the task stands still at the step, then every process of the job is killed
    after      events that are sent when the job runs again; those of one failure are `before` for the next one

The outcome hangs on nothing but the step: the task is stopped first, and what it had done by then is looked at.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from uuid import uuid4

import psutil
from kill_cells import STEPS, Cell, Cohorts, Event, judge
from kill_harness import Driver, launch, scan

from kafka import KafkaProducer
from lockgate.faultpoints import Fault, as_environment
from lockgate.guarantees import Guarantee
from lockgate.kafka.topics import create_topics
from lockgate.services.processes import Mark

CALM, IN_HAND = 12, 8  # no sum of the one is a sum of the other: the state shows which events are in it

_PATIENCE_SECONDS = 300.0
_PASSINGS = 20  # far more than a process makes before it is to be stopped

_JOB = """\
import os

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, StatefulFunction, stream, value


class Count(StatefulFunction):
    schema = "id INT, name STRING, count BIGINT"
    seen = value("BIGINT")

    def __init__(self, processed):
        self.processed = processed

    def process(self, row, context):
        file = os.open(self.processed, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, b"%d\\n" % row.id)
        os.close(file)
        self.seen.set((self.seen.get() or 0) + 1)
        yield (row.id, row.name, self.seen.get())


def job(servers: str, name: str, read: str, write: str, processed: str, guarantee: str) -> Job:
    events = stream("events", KafkaSource(topic=read, servers=servers, value="id INT, name STRING"))
    counts = events.key_by("name").parallel(1).process(Count(processed), name="counts")
    parts = counts.split(even="id % 2 = 0", odd="id % 2 = 1")
    outputs = [
        part.to(which, KafkaSink(topic=f"{write}-{which}", servers=servers, key="name"))
        for which, part in parts.items()
    ]
    return Job(name, *outputs, guarantee=Guarantee[guarantee], epoch="100 milliseconds")
"""


def point_of(step: str, guarantee: Guarantee) -> str:
    """The fault point that is passed at a step."""
    is_exact = guarantee is Guarantee.END_TO_END_EXACTLY_ONCE
    return {"receive": "RECEIVE", "update state": "STATE_UPDATE", "emit": "EMIT" if is_exact else "SENT"}[step]


def make_events() -> Iterator[Event]:
    """Events of two keys, half of each key's for either output."""
    return ({"id": number, "name": "ab"[number // 2 % 2]} for number in count())


@dataclass
class Failures:
    """The job under one guarantee, and its failures."""

    servers: str
    guarantee: Guarantee
    directory: Path
    name: str = field(default_factory=lambda: f"failures-{uuid4().hex[:8]}")
    driver: Driver | None = None
    starts: int = 0

    def __post_init__(self) -> None:
        self._events = make_events()
        self._began = time.monotonic()
        self._mark = Mark("LOCKGATE_TEST_FAILURES", uuid4().hex)
        self._held = self.directory / "held"
        self._processed = self.directory / "processed"
        self._forgotten: set[Path] = set()  # the checkpoints of killed runs that nobody goes on from
        self._topics = [f"{self.name}-out-{part}" for part in ("even", "odd")]
        self.directory.mkdir(parents=True, exist_ok=True)

    def run(self, steps: Sequence[str] = STEPS) -> list[Cell]:
        """Fail at each of these steps; what became of the events that were in hand."""
        create_topics(self.servers, [f"{self.name}-in", *self._topics], partitions=1, where="test")
        (self.directory / "job.py").write_text(_JOB)
        cells = []
        try:
            self._start(steps[0])
            before = self._pass_calmly()
            for step, following in zip(steps, [*steps[1:], None], strict=True):
                in_hand = self._fail(step)
                self._start(following)
                after = self._pass_calmly()
                rows = self._rows("read_committed")
                cohorts = Cohorts(before, in_hand, after)
                cells.append(judge(self.guarantee, step, cohorts, rows=rows, processed=self._runs()))
                self._tell(str(cells[-1]))
                before = after
        finally:
            self._kill()
        return cells

    def _start(self, step: str | None) -> None:
        """Start the job and wait until it would take what is sent now; it will stand still at a step when told to."""
        self._held.touch()  # while this mark is there, faults that name it do not strike
        faults = [
            Fault(point=point_of(step, self.guarantee), action="stop", hit=hit, mark=str(self._held))
            for hit in range(1, _PASSINGS)
            if step is not None
        ]
        parameters = {
            "servers": self.servers,
            "name": self.name,
            "read": f"{self.name}-in",
            "write": f"{self.name}-out",
            "processed": str(self._processed),
            "guarantee": self.guarantee.name,
        }
        named = [part for item in parameters.items() for part in ("-p", "=".join(item))]
        environment = {self._mark.name: self._mark.value, **as_environment(faults)}
        command = [sys.executable, "-m", "lockgate.cli.main", "run", "--no-supervise", "job.py", "--json", *named]
        self.driver = launch(command, self.directory, f"driver-{self.starts}.log", environment)
        self.starts += 1
        # Spark writes down where it begins before it reads anything: at-most-once begins with what comes then.
        self._await("the job to begin", lambda: (self._checkpoint() / "sources" / "0" / "0").exists())

    def _pass_calmly(self) -> list[Event]:
        """Events that nothing happens to: each is processed, and its epoch is logged as done."""
        sent = self._send(CALM)
        wanted = {event["id"] for event in sent}
        self._await("events to be done with", lambda: wanted <= {*self._runs()} and self._is_settled())
        return sent

    def _fail(self, step: str) -> list[Event]:
        """Stop the job at a step of its next epoch, look at what it has done so far, kill all of it."""
        self._held.unlink()
        sent = self._send(IN_HAND)
        self._await(f"the job to stand still at {step}", self._is_standing)
        wanted = {event["id"] for event in sent}
        processed = len([number for number in self._runs() if number in wanted])
        written = len([row for row in self._rows("read_uncommitted") if row["id"] in wanted])
        self._tell(f"{step}: {processed} processed and {written} in the log when all is killed")
        assert processed == (0 if step == "receive" else IN_HAND), f"{processed} processed at {step}"
        assert (written > 0) == (step == "emit"), f"{written} rows in the log at {step}"
        if self.guarantee is Guarantee.AT_MOST_ONCE:
            self._forgotten.add(self._checkpoint())
        self._kill()
        return sent

    def _is_standing(self) -> bool:
        text = self._held.read_text().strip() if self._held.exists() else ""
        return bool(text) and psutil.Process(int(text)).status() == psutil.STATUS_STOPPED

    def _kill(self) -> None:
        """SIGKILL for every process of the job: driver, JVM, workers."""
        left = self._mark.kill(timedelta(seconds=60))
        assert not left, f"processes {left} do not die"
        if self.driver is not None:
            self.driver.process.wait(timeout=60)

    # -- what is sent and seen -------------------------------------------------------------------------------------

    def _send(self, number: int) -> list[Event]:
        """Send events as one batch of one partition, which a reader finds whole or not at all: in one epoch."""
        sent = [next(self._events) for _ in range(number)]
        producer = KafkaProducer(bootstrap_servers=self.servers, acks="all", linger_ms=60_000)
        try:
            waiting = [producer.send(f"{self.name}-in", value=json.dumps(event).encode()) for event in sent]
            producer.flush(timeout=120)
            for future in waiting:
                future.get(timeout=120)
        finally:
            producer.close(timeout=10)
        return sent

    def _rows(self, isolation: str) -> list[Event]:
        return [json.loads(row.value) for row in scan(self.servers, self._topics, isolation=isolation)]

    def _runs(self) -> list[int]:
        """The id of an event for each time that it was processed."""
        return [int(line) for line in self._processed.read_text().splitlines()] if self._processed.exists() else []

    def _checkpoint(self) -> Path:
        """Where Spark keeps the run's own files; at-most-once has a fresh place for each run."""
        if self.guarantee is not Guarantee.AT_MOST_ONCE:
            return self.directory / ".lockgate" / "checkpoints" / self.name
        found = {file.parents[2] for file in (self.directory / "tmp").glob("*/sources/0/0")} - self._forgotten
        return found.pop() if found else self.directory / "none yet"

    def _is_settled(self) -> bool:
        """Are all epochs logged as done?"""
        planned, done = (
            max((int(file.name) for file in (self._checkpoint() / log).glob("*") if file.name.isdigit()), default=-1)
            for log in ("offsets", "commits")
        )
        return planned == done

    def _await(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        assert self.driver is not None
        while not is_so():
            code = self.driver.process.poll()
            assert code is None, f"waiting for {what}, the job ended with {code}: {self.driver.tail(40)}"
            assert time.monotonic() < deadline, f"in vain waited for {what}: {self.driver.tail(40)}"
            time.sleep(0.1)

    def _tell(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {self.guarantee.label}: {text}", flush=True)
