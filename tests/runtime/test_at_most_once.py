"""An at-most-once run against a real broker: a failure costs what is in hand, the run goes on, nothing comes twice.

Each run has a driver process of its own, because such a driver must not try a task twice, as others here do.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from lockgate import (
    FileSource,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    MemorySource,
    Run,
    SensorSource,
    SocketSource,
    stream,
)
from lockgate.dataflow.endpoints import Sink, SinkAbility, Source
from lockgate.errors import Failed, FunctionFailed, Refused, TooManyLetters
from lockgate.guarantees import Delivery
from lockgate.kafka.topics import create_topics
from lockgate.planner.plan import plan
from lockgate.runtime.epochs import EpochWriter
from lockgate.runtime.forgetting import RESTARTS, Forgetting, as_forgotten, forget
from lockgate.runtime.progress import Watcher
from lockgate.services.spark import SparkCluster
from lockgate.spark.compile import CompiledOutput
from lockgate.spark.session import is_local
from support import records

FORGOTTEN = "the events in hand are forgotten, it goes on with what comes next"

JOB = """
    import os
    import time
    from pathlib import Path

    from lockgate import FileSource, Guarantee, Job, KafkaSink, KafkaSource, SocketSource, stream

    POISON, SLEEPER = -1, -2

    def job(servers: str, write: str, place: Path, read: str = "", files: str = "", port: int = 0) -> Job:
        def work(row):
            if row.id == POISON:
                raise ValueError("this one cannot be processed")
            if row.id == SLEEPER and not (place / "sleeper.pid").exists():
                (place / "sleeper.new").write_text(str(os.getpid()))
                (place / "sleeper.new").rename(place / "sleeper.pid")
                time.sleep(600)
            return {"id": row.id}

        if files:
            source = FileSource(path=files, value="id INT", format="json")
        elif port:
            source = SocketSource(host="127.0.0.1", port=port, value="id INT", format="json")
        else:
            source = KafkaSource(topic=read, servers=servers, value="id INT")
        numbers = stream("numbers", source).map(work, "id INT")
        return Job("numbers", numbers.to("out", KafkaSink(topic=write, servers=servers)),
                   guarantee=Guarantee.AT_MOST_ONCE)
"""


# -- what is decided ---------------------------------------------------------------------------------------------------


NO_SPARK = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda name, text: None))
"""What takes the words for tasks that there are none of here."""


def planned(source: Source) -> Any:
    sink = KafkaSink(topic="out", servers="localhost:9092")
    return plan(Job("job", stream("in", source).to("out", sink), guarantee=Guarantee.AT_MOST_ONCE))


@pytest.mark.parametrize(
    ("source", "can_go_on"),
    [
        (KafkaSource(topic="in", servers="localhost:9092", value="id INT"), True),
        (SocketSource(host="localhost", port=9999), True),
        (FileSource(path="somewhere", value="id INT"), False),
        (SensorSource(sensors=1), False),
        (MemorySource(rows=[(1,)], value="id INT"), False),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_run_goes_on_where_no_source_would_repeat_a_row(source: Source, can_go_on: bool) -> None:
    assert forget(planned(source), until_caught_up=False).can_go_on is can_go_on
    assert not forget(planned(source), until_caught_up=True).can_go_on


def test_failures_in_a_row_are_counted_from_the_last_event_on() -> None:
    forgetting = Forgetting(can_go_on=True)
    assert all(forgetting.goes_on(5) for _ in range(RESTARTS))
    assert not forgetting.goes_on(5)
    assert forgetting.goes_on(6)
    assert not Forgetting(can_go_on=True).goes_on(0), "nothing was processed yet"
    assert not Forgetting(can_go_on=False).goes_on(5)


def test_pauses_begin_with_none_and_grow_up_to_a_limit() -> None:
    forgetting = Forgetting(can_go_on=True)
    pauses = []
    for _ in range(RESTARTS):
        forgetting.goes_on(1)
        pauses.append(forgetting.pause_seconds)
    assert pauses[0] == 0
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] == 8


def test_a_fresh_checkpoint_takes_the_place_of_the_one_before() -> None:
    forgetting = Forgetting(can_go_on=True)
    first = forgetting.begin()
    second = forgetting.begin()
    assert first != second
    assert second.is_dir()
    assert not first.exists()
    forgetting.close()
    assert not second.exists()


def test_an_error_promises_nothing_that_an_at_most_once_run_does_not_keep() -> None:
    lossless = FunctionFailed("A function failed", where="map 'work'", fix="it goes on from here, nothing is lost")
    told = as_forgotten(lossless, where="job 'numbers'", log_file=Path("numbers.log"))
    assert isinstance(told, FunctionFailed)
    assert (told.what, told.where) == (lossless.what, lossless.where)
    assert "what was in hand is forgotten" in told.fix
    assert "numbers.log" in told.fix
    refused = Refused("no", where="there", fix="so")
    assert as_forgotten(refused, where="job", log_file=Path("log")) is refused


@dataclass(frozen=True)
class EpochsSeen(Sink):
    numbers: list[int] = field(default_factory=list)

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(delivery=Delivery.PLAIN, reason="a test", cure="none")

    def columns_needed(self) -> Sequence[str]:
        return ()

    def write(self, rows: Any, epoch: int) -> None:
        self.numbers.append(epoch)


def test_a_sink_never_meets_the_number_of_an_epoch_again() -> None:
    sink = EpochsSeen()
    output = CompiledOutput(name="out", where="here", sink=sink, tag=None, is_exact=False)
    writer = EpochWriter(spark=cast("Any", NO_SPARK), outputs=(output,))
    for epochs in ((0, 1, 2), (0,), (), (0, 1)):
        for epoch in epochs:
            writer.write(cast("Any", None), epoch)
        writer.begin_anew()
    assert sink.numbers == [0, 1, 2, 3, 4, 5]


def test_reports_of_a_fresh_checkpoint_are_not_missed() -> None:
    def report(epoch: int, second: int) -> dict[str, Any]:
        sources = [{"description": "in", "numInputRows": 10}]
        return {"batchId": epoch, "timestamp": f"2026-01-01T00:00:{second:02}.000Z", "sources": sources}

    watcher = Watcher()
    for epoch in range(5):
        watcher.take(report(epoch, epoch))
    watcher.begin_anew()
    assert watcher.has_missed(report(1, 7))
    assert [watcher.take(report(epoch, 6 + epoch)) for epoch in (0, 1)][-1]
    assert watcher.events_total == 70


def run_that_failed(start: Callable[[], Any]) -> Run:
    """A run whose query has just failed, after a hundred events."""
    here = planned(KafkaSource(topic="in", servers="localhost:9092", value="id INT"))
    failed = SimpleNamespace(exception=lambda: RuntimeError("the first"), lastProgress=None, isActive=False, runId="1")
    return Run(
        job=here.job,
        plan=here,
        checkpoint="somewhere",
        log_file=Path("spark.log"),
        _query=cast("Any", failed),
        _writer=EpochWriter(spark=cast("Any", NO_SPARK), outputs=()),
        _start=start,
        _forgetting=Forgetting(can_go_on=True),
        _has_end=False,
        _ends_in_silence=False,
        _dropped=lambda: 0,
        _crashes=cast("Any", SimpleNamespace(told=lambda: None, close=lambda: None)),
        _watcher=Watcher(events_total=100),
    )


def test_a_new_beginning_that_fails_is_one_more_failure_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forgetting, "pause_seconds", 0.0)
    begun = SimpleNamespace(exception=lambda: None, lastProgress=None, isActive=True, runId="2")
    answers = iter([OSError("no disk"), OSError("no disk"), begun])

    def start() -> Any:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    run = run_that_failed(start)
    assert not run.wait(timeout=0.1)
    assert run.is_running
    assert run.query_run == "2"
    assert next(answers, None) is None
    run._forgetting.close()  # type: ignore[union-attr]


def test_a_run_with_more_letters_than_it_may_have_does_not_go_on() -> None:
    run = run_that_failed(lambda: pytest.fail("it began anew"))
    run._writer.first_error = [TooManyLetters("101 events became dead letters", where="job 'job'", fix="mend them")]
    with pytest.raises(TooManyLetters, match="101 events"):
        run.wait(timeout=60)


def test_new_beginnings_that_all_fail_end_the_run_with_the_last_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forgetting, "pause_seconds", 0.0)
    tries: list[int] = []

    def start() -> Any:
        tries.append(1)
        raise OSError(f"no disk, {len(tries)}")

    run = run_that_failed(start)
    with pytest.raises(Failed, match=f"no disk, {RESTARTS}"):
        run.wait(timeout=60)
    assert len(tries) == RESTARTS
    assert run._forgetting is not None
    assert run._forgetting.place is not None
    assert not run._forgetting.place.exists()


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", True), ("local[*,1]", True), ("local-cluster[2,1,1024]", False), ("spark://localhost:7077", False)],
)
def test_only_a_session_without_executors_is_local(master: str, expected: bool) -> None:
    assert is_local(cast("Any", SimpleNamespace(master=master))) is expected


# -- what really happens -----------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """Topics of one test's own, with one partition each, and a directory that its driver runs in."""

    servers: str
    place: Path
    name: str

    @property
    def read(self) -> str:
        return f"{self.name}-in"

    @property
    def write(self) -> str:
        return f"{self.name}-out"

    def send(self, ids: Sequence[int]) -> None:
        """As one batch of records, so that one epoch has all of them."""
        records.send(self.servers, self.read, [{"id": number} for number in ids], as_one_batch=True)

    def ids(self) -> Counter[int]:
        return records.count_ids(self.servers, self.write, isolation="read_uncommitted")

    @contextmanager
    def running(self, *arguments: str, **parameters: Any) -> Iterator[Driver]:
        (self.place / "temporary").mkdir(exist_ok=True)
        given = {"servers": self.servers, "read": self.read, "write": self.write, "place": self.place, **parameters}
        command = [sys.executable, "-m", "lockgate.cli.main", "run", "--no-supervise", "forgetful.py", *arguments]
        driver = Driver([*command, *(word for name, one in given.items() for word in ("-p", f"{name}={one}"))], self)
        try:
            yield driver
        finally:
            driver.close()

    def left(self) -> list[str]:
        """The checkpoints that are there."""
        return [path.name for path in (self.place / "temporary").glob("lockgate-at-most-once-*")]

    def feed_until(self, driver: Driver, first: int) -> list[int]:
        """Send one event after the other until one comes out; all that were sent."""
        sent: list[int] = []
        deadline = time.monotonic() + 180
        while not any(number in self.ids() for number in sent):
            assert driver.process.poll() is None, driver.text
            assert time.monotonic() < deadline, driver.text
            sent.append(first + len(sent))
            self.send(sent[-1:])
            time.sleep(0.2)
        return sent


class Driver:
    """A driver process, and what it has printed."""

    def __init__(self, command: list[str], bench: Bench) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command,
            cwd=bench.place,
            env={**os.environ, "TMPDIR": str(bench.place / "temporary"), "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self.process.stdout)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def warning(self) -> str:
        """What it said about its first failure."""
        return next((line for line in self.lines if FORGOTTEN in line), "")

    @property
    def failures(self) -> int:
        """How often it has gone on after a failure."""
        return self.text.count(FORGOTTEN)

    def wait_for(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 180
        while not holds():
            assert self.process.poll() is None, f"ended early with {self.process.returncode}:\n{self.text}"
            assert time.monotonic() < deadline, f"waited too long:\n{self.text}"
            time.sleep(0.1)

    def end(self, ask: bool = False) -> int:
        if ask:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=300)
        self._reader.join(timeout=30)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def bench(kafka: str, tmp_path: Path) -> Bench:
    bench = Bench(servers=kafka, place=tmp_path, name=f"numbers-{uuid4().hex[:8]}")
    create_topics(kafka, [bench.read, bench.write], partitions=1, where="test")
    (tmp_path / "forgetful.py").write_text(textwrap.dedent(JOB))
    return bench


@pytest.mark.system
def test_an_event_that_fails_costs_what_is_in_hand_and_the_run_goes_on_from_now(bench: Bench) -> None:
    bench.send(range(50))
    with bench.running("--from", "earliest") as driver:
        driver.wait_for(lambda: len(bench.ids()) == 50)
        before = bench.left()
        bench.send([*range(50, 60), -1, *range(60, 70)])
        driver.wait_for(lambda: driver.failures == 1)
        later = bench.feed_until(driver, first=1000)
        assert driver.end(ask=True) == 0, driver.text
        assert driver.failures == 1
    found = bench.ids()
    assert set(found.values()) == {1}, "nothing comes twice, although the run began with the earliest event"
    assert set(range(50)) <= set(found) <= {*range(50), *later}, "what was in hand is lost"
    assert re.search(r"A function failed on the row from .*offset 60: ValueError", driver.warning), driver.warning
    assert len(before) == 1
    assert bench.left() == []


@pytest.mark.prove
def test_a_python_worker_that_is_killed_costs_what_is_in_hand_and_the_run_goes_on(bench: Bench) -> None:
    with bench.running() as driver:
        before = bench.feed_until(driver, first=1)  # it begins with what comes next, whenever that is
        bench.send([*range(500, 510), -2, *range(510, 520)])
        note = bench.place / "sleeper.pid"
        driver.wait_for(note.exists)
        os.kill(int(note.read_text()), signal.SIGKILL)
        driver.wait_for(lambda: driver.failures == 1)
        later = bench.feed_until(driver, first=1000)
        assert driver.end(ask=True) == 0, driver.text
    found = bench.ids()
    assert set(found.values()) == {1}
    assert set(found) <= {*before, *later}, "what was in hand is lost"
    assert "Python worker" in driver.warning
    assert bench.left() == []


@pytest.mark.prove
def test_an_executor_that_is_killed_costs_what_is_in_hand_and_the_run_goes_on(bench: Bench) -> None:
    with (
        SparkCluster(bench.place / "cluster", workers=1) as cluster,
        bench.running("--master", cluster.master) as driver,
    ):
        before = bench.feed_until(driver, first=1)
        bench.send([*range(500, 510), -2, *range(510, 520)])
        driver.wait_for((bench.place / "sleeper.pid").exists)
        cluster.kill_executor()
        driver.wait_for(lambda: driver.failures == 1)
        later = bench.feed_until(driver, first=1000)
        assert driver.end(ask=True) == 0, driver.text
    found = bench.ids()
    assert set(found.values()) == {1}
    assert set(found) <= {*before, *later}, "what was in hand is lost, and no task was tried again"


TAKEN_AWAY = """
    import sys
    import threading
    import time
    from pathlib import Path

    from forgetful import job
    from lockgate import run

    master, servers, read, write = sys.argv[1:]
    place = Path.cwd()
    started = run(job(servers, write, place, read=read), master=master, log_file=place / "spark.log", wait=False)

    def take_away():
        from pyspark import SparkContext

        while not (place / "sleeper.pid").exists():
            time.sleep(0.1)
        context = SparkContext._active_spark_context._jsc.sc()
        for number in range(8):  # whichever there is
            context.killExecutor(str(number))
            context.requestExecutors(1)

    threading.Thread(target=take_away, daemon=True).start()
    while not started.wait(timeout=1):
        if (place / "stop").exists():
            started.ask_to_stop()
"""


@pytest.mark.prove
def test_a_task_whose_executor_is_taken_away_is_not_tried_again(bench: Bench) -> None:
    (bench.place / "taken_away.py").write_text(textwrap.dedent(TAKEN_AWAY))
    (bench.place / "temporary").mkdir()
    with SparkCluster(bench.place / "cluster", workers=1) as cluster:
        command = [sys.executable, "taken_away.py", cluster.master, bench.servers, bench.read, bench.write]
        driver = Driver(command, bench)
        try:
            before = bench.feed_until(driver, first=1)
            bench.send([*range(500, 510), -2, *range(510, 520)])
            driver.wait_for(lambda: driver.failures == 1)
            assert "a task of an at-most-once job is tried again" in driver.warning
            later = bench.feed_until(driver, first=1000)
            (bench.place / "stop").touch()
            assert driver.end() == 0, driver.text
        finally:
            driver.close()
    found = bench.ids()
    assert set(found.values()) == {1}
    assert set(found) <= {*before, *later}, "what was in hand is lost, although Spark does not count such a failure"


@pytest.mark.prove
def test_a_run_whose_every_event_fails_ends_with_the_cause(bench: Bench) -> None:
    bench.send([1, 2])
    with bench.running("--from", "earliest") as driver:
        driver.wait_for(lambda: len(bench.ids()) == 2)
        deadline = time.monotonic() + 300
        while driver.process.poll() is None:
            assert time.monotonic() < deadline, driver.text
            bench.send([-1])
            time.sleep(0.2)
        assert driver.end() == 1
    assert driver.failures == RESTARTS
    assert "A function failed on the row from" in driver.lines[-3]
    assert "what was in hand is forgotten" in driver.lines[-1]
    assert bench.ids() == Counter([1, 2])
    assert bench.left() == []


@pytest.mark.prove
def test_a_run_whose_first_event_fails_ends_at_once(bench: Bench) -> None:
    bench.send([-1])
    with bench.running("--from", "earliest") as driver:
        assert driver.end() == 1
    assert driver.failures == 0
    assert "this one cannot be processed" in driver.text
    assert bench.left() == []


@pytest.mark.prove
def test_files_would_be_read_from_the_beginning_again_so_the_run_ends(bench: Bench) -> None:
    files = bench.place / "files"
    files.mkdir()
    put(files / "1.json", [1, 2, 3])
    with bench.running(files=files) as driver:
        driver.wait_for(lambda: len(bench.ids()) == 3)
        put(files / "2.json", [4, -1])
        assert driver.end() == 1
    assert driver.failures == 0
    assert "A function failed on the row from" in driver.text
    assert set(bench.ids().values()) == {1}
    assert bench.left() == []


def put(file: Path, ids: Sequence[int]) -> None:
    aside = file.with_name(f".{file.name}")
    aside.write_text("".join(json.dumps({"id": number}) + "\n" for number in ids))
    aside.rename(file)


@pytest.mark.prove
def test_a_socket_is_called_again_and_goes_on_with_what_it_sends_then(bench: Bench) -> None:
    callers: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                callers.append(server.accept()[0])
            except OSError:
                return

    def say(number: int) -> None:
        callers[-1].sendall(json.dumps({"id": number}).encode() + b"\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with bench.running(port=server.getsockname()[1]) as driver:
            driver.wait_for(lambda: len(callers) == 2)  # the first one only looks whether somebody listens
            say(1)
            driver.wait_for(lambda: bench.ids() == Counter([1]))
            say(-1)
            driver.wait_for(lambda: len(callers) == 3)
            say(2)
            driver.wait_for(lambda: bench.ids() == Counter([1, 2]))
            assert driver.end(ask=True) == 0, driver.text
            assert driver.failures == 1
        server.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for callers
        thread.join(timeout=10)
    for caller in callers:
        caller.close()


# -- nothing is tried twice --------------------------------------------------------------------------------------------


SETTINGS = """
    import json
    import sys
    from pathlib import Path

    from lockgate import Guarantee, Job, KafkaSink, KafkaSource, run, stream
    from lockgate.spark.jars import connector_jars
    from lockgate.spark.session import SessionPlan, open_session

    servers, read, write = sys.argv[1:]
    log = Path("spark.log").resolve()
    wanted = SessionPlan(app="test", master=None, jars=connector_jars(), log_file=log, are_tasks_retried=False)
    context = open_session(wanted).sparkContext
    context.setLogLevel("INFO")  # Kafka's clients tell their settings
    sink = KafkaSink(topic=write, servers=servers, client={"retries": "7", "linger.ms": "3"})
    numbers = stream("numbers", KafkaSource(topic=read, servers=servers, value="id INT"))
    job = Job("numbers", numbers.to("out", sink), guarantee=Guarantee.AT_MOST_ONCE)
    run(job, start="earliest", until_caught_up=True, log_file=log)
    print(json.dumps({"master": context.master, **dict(context.getConf().getAll())}))
"""


@pytest.mark.system
def test_no_task_no_stage_and_no_producer_tries_again(bench: Bench) -> None:
    bench.send(range(10))
    (bench.place / "look.py").write_text(textwrap.dedent(SETTINGS))
    done = subprocess.run(
        [sys.executable, "look.py", bench.servers, bench.read, bench.write],
        cwd=bench.place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spark = json.loads(done.stdout.splitlines()[-1])
    assert spark["master"] == "local[*,1]"
    assert spark["spark.task.maxFailures"] == spark["spark.stage.maxConsecutiveAttempts"] == "1"
    assert spark["spark.stage.ignoreDecommissionFetchFailure"] == spark["spark.speculation"] == "false"
    told = (bench.place / "spark.log").read_text().split("ProducerConfig values:")[1:]
    assert told, "Kafka's producer tells its settings"
    for one in told:
        producer = dict(re.findall(r"^\s*([a-z.]+) = (.*)$", one.split("(org.apache")[0][:10_000], re.MULTILINE))
        wanted = {"acks": "1", "retries": "0", "enable.idempotence": "false", "linger.ms": "3"}
        assert {name: producer[name] for name in wanted} == wanted
    assert bench.ids() == Counter(range(10))
