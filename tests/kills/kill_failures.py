"""One job that is killed at each of its steps in turn: receive, update state, emit.

The job counts the events of each key and sends every event on with its count. It has one task, so the step of the task
is that of all events in hand, and two outputs, so that it can die when a part is out and the rest is not.

    before     events that are done with
    in hand    events of one epoch: the task stands still at the step, then every process of the job is killed
    after      events that are sent when the job runs again; those of one failure are `before` for the next one

The outcome depends on nothing but the step: the task is stopped first, and what it had done by then is looked at.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from uuid import uuid4

from kills.kill_cells import Cell, Cohorts, judge
from kills.kill_matrix import STEPS, fail
from kills.kill_workloads import Event
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.connectors.kafka.topics import create_topics
from lockgate.faultpoints import Fault, as_environment
from lockgate.guarantees import Guarantee
from lockgate.lab.rig import feed as feeding
from lockgate.lab.rig.drivers import Driver, Drivers
from lockgate.lab.rig.readers.topics import COMMITTED, UNCOMMITTED, read_records
from lockgate.lab.rig.troubles.processes import is_stopped

CALM, IN_HAND = 12, 8  # no sum of the one is a sum of the other: the state shows which events are in it

_PATIENCE_SECONDS = 300.0

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


def make_events() -> Iterator[Event]:
    """Events of two keys, half of each key's for either output."""
    return ({"id": number, "name": "ab"[number // 2 % 2]} for number in count())


class Failures:
    """The job under one guarantee, and its failures."""

    def __init__(self, servers: str, guarantee: Guarantee, directory: Path) -> None:
        name = f"failures-{uuid4().hex[:8]}"
        self._servers, self._guarantee, self._directory = servers, guarantee, directory
        self._in, self._out = f"{name}-in", [f"{name}-out-{part}" for part in ("even", "odd")]
        self._gate, self._processed = directory / "open", directory / "processed"
        self._forgotten: set[Path] = set()  # the checkpoints of killed runs from which no run goes on
        self._events = make_events()
        is_tracked = guarantee is not Guarantee.AT_MOST_ONCE
        self._drivers = Drivers(
            job_file=directory / "job.py",
            parameters={
                "servers": servers,
                "name": name,
                "read": self._in,
                "write": f"{name}-out",
                "processed": str(self._processed),
                "guarantee": guarantee.name,
            },
            directory=directory,
            checkpoint=directory / "checkpoint" if is_tracked else None,
            labels={self._in: "in"},
        )

    def run(self, steps: Sequence[str] = STEPS) -> list[Cell]:
        """Fail at each of these steps; what became of the events that were in hand."""
        create_topics(self._servers, [self._in, *self._out], partitions=1, where="test")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._drivers.job_file.write_text(_JOB)
        cells = []
        try:
            driver = self._start(steps[0])
            before = self._pass_calmly(driver)
            for step, following in zip(steps, [*steps[1:], None], strict=True):
                in_hand = self._fail(driver, step)
                driver = self._start(following)
                after = self._pass_calmly(driver)
                cohorts = Cohorts(before, in_hand, after)
                rows = self._rows(COMMITTED)
                cells.append(judge(self._guarantee, step, cohorts, rows=rows, processed=self._runs()))
                self._tell(str(cells[-1]))
                before = after
        finally:
            self._drivers.kill()
        return cells

    def _start(self, step: str | None) -> Driver:
        """Start the job and wait until it would take what is sent now; armed to stand still at a step."""
        point = "" if step is None else fail(step, self._guarantee).point
        self._mark = self._directory / f"{len(self._drivers.all)}-{point}"
        armed = [Fault(point=point, action="stop", mark=str(self._mark), gate=str(self._gate))] if point else []
        driver = self._drivers.start(as_environment(armed))
        # Spark writes down where it begins before it reads anything: at-most-once begins with what comes then.
        self._await(driver, "the job to begin", lambda: (self._checkpoint() / "sources" / "0" / "0").exists())
        return driver

    def _pass_calmly(self, driver: Driver) -> list[Event]:
        """Events that nothing happens to: each is processed, and its epoch is logged as done."""
        sent = self._send(CALM)
        wanted = {event["id"] for event in sent}
        self._await(driver, "events to be done with", lambda: wanted <= {*self._runs()} and self._is_settled())
        return sent

    def _fail(self, driver: Driver, step: str) -> list[Event]:
        """Stop the job at a step of its next epoch, look at what it has done so far, kill all of it."""
        self._gate.touch()
        sent = self._send(IN_HAND)
        self._await(driver, f"the job to stand still at {step}", self._is_standing)
        wanted = {event["id"] for event in sent}
        processed = len([number for number in self._runs() if number in wanted])
        written = len([row for row in self._rows(UNCOMMITTED) if row["id"] in wanted])
        self._tell(f"{step}: {processed} processed and {written} in the log when all is killed")
        assert processed == (0 if step == "receive" else IN_HAND), f"{processed} processed at {step}"
        assert (written > 0) == (step == "emit"), f"{written} rows in the log at {step}"
        if self._guarantee is Guarantee.AT_MOST_ONCE:
            self._forgotten.add(self._checkpoint())
        self._drivers.kill()
        self._gate.unlink()
        return sent

    def _is_standing(self) -> bool:
        text = self._mark.read_text().strip() if self._mark.exists() else ""
        return bool(text) and is_stopped(int(text))

    # -- what is sent and seen -------------------------------------------------------------------------------------

    def _send(self, number: int) -> list[Event]:
        """Send events as one batch of one partition, which a reader finds whole or not at all: in one epoch."""
        sent = [next(self._events) for _ in range(number)]
        records = [feeding.Event("in", 0, None, json.dumps(event).encode()) for event in sent]
        feeding.send_all(self._servers, records, {"in": self._in})
        return sent

    def _rows(self, isolation: str) -> list[Event]:
        return [json.loads(record.value) for record in read_records(self._servers, self._out, isolation=isolation)]

    def _runs(self) -> list[int]:
        """The id of an event for each time that it was processed."""
        return [int(line) for line in self._processed.read_text().splitlines()] if self._processed.exists() else []

    def _checkpoint(self) -> Path:
        """Where Spark keeps the run's own files; at-most-once has a fresh place for each run."""
        if self._drivers.checkpoint is not None:
            return self._drivers.checkpoint
        found = {file.parents[2] for file in (self._directory / "tmp").glob("*/sources/0/0")} - self._forgotten
        return found.pop() if found else self._directory / "none yet"

    def _is_settled(self) -> bool:
        """Are all epochs logged as done?"""
        checkpoint = Checkpoint(root=str(self._checkpoint()))
        return checkpoint.epochs("offsets")[-1:] == checkpoint.epochs("commits")[-1:]

    def _await(self, driver: Driver, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not is_so():
            assert driver.is_running, f"waiting for {what}, the job ended: {driver.tail(40)}"
            assert time.monotonic() < deadline, f"in vain waited for {what}: {driver.tail(40)}"
            time.sleep(0.1)

    def _tell(self, text: str) -> None:
        print(f"[{self._drivers.clock():6.1f} s] {self._guarantee.label}: {text}", flush=True)
