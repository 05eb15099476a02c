"""An at-most-once run against a real broker: a failure costs what is in hand, the run goes on, nothing comes twice.

Each run has a driver process of its own, because such a driver must not try a task twice, as others here do.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

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
from lockgate.lab.services.spark import SparkCluster
from lockgate.planner.plan import plan
from lockgate.runtime.atmostonce import RESTARTS, AtMostOnceRestarts, as_forgotten, forget
from lockgate.runtime.epochs import EpochWriter
from lockgate.runtime.progress import Watcher
from lockgate.spark.session import is_local
from lockgate.spark.tagging import CompiledOutput
from support import process
from support.files import put
from support.process import Process, running
from support.records import count_ids, unique
from support.site import Site
from support.sockets import line_server

FORGOTTEN = "its events are not retried, the job continues with what comes next"

JOB = """
    import os
    import time
    from pathlib import Path

    from lockgate import FileSource, Guarantee, Job, KafkaSink, KafkaSource, SocketSource, stream

    POISON, SLEEPER = -1, -2

    def job(servers: str, name: str, place: Path, files: str = "", port: int = 0) -> Job:
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
            source = KafkaSource(topic=f"{name}-in", servers=servers, value="id INT")
        numbers = stream("numbers", source).map(work, "id INT")
        out = numbers.to("out", KafkaSink(topic=f"{name}-out", servers=servers))
        return Job(name, out, guarantee=Guarantee.AT_MOST_ONCE)
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
def test_a_run_continues_if_no_source_would_repeat_a_row(source: Source, can_go_on: bool) -> None:
    assert forget(planned(source), until_caught_up=False).can_go_on is can_go_on
    assert not forget(planned(source), until_caught_up=True).can_go_on


def test_failures_in_a_row_are_counted_from_the_last_event_on() -> None:
    at_most_once = AtMostOnceRestarts(can_go_on=True)
    assert all(at_most_once.count_failure(5) for _ in range(RESTARTS))
    assert not at_most_once.count_failure(5)
    assert at_most_once.count_failure(6)
    assert not AtMostOnceRestarts(can_go_on=True).count_failure(0), "nothing was processed yet"
    assert not AtMostOnceRestarts(can_go_on=False).count_failure(5)


def test_pauses_begin_with_none_and_grow_up_to_a_limit() -> None:
    at_most_once = AtMostOnceRestarts(can_go_on=True)
    pauses = []
    for _ in range(RESTARTS):
        at_most_once.count_failure(1)
        pauses.append(at_most_once.pause_seconds)
    assert pauses[0] == 0
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] == 8


def test_a_fresh_checkpoint_takes_the_place_of_the_one_before() -> None:
    at_most_once = AtMostOnceRestarts(can_go_on=True)
    first = at_most_once.begin()
    second = at_most_once.begin()
    assert first != second
    assert second.is_dir()
    assert not first.exists()
    at_most_once.close()
    assert not second.exists()


def test_an_error_promises_nothing_that_an_at_most_once_run_does_not_keep() -> None:
    lossless = FunctionFailed("A function failed", where="map 'work'", fix="it goes on from here, nothing is lost")
    told = as_forgotten(lossless, where="job 'numbers'", log_file=Path("numbers.log"))
    assert isinstance(told, FunctionFailed)
    assert (told.what, told.where) == (lossless.what, lossless.where)
    assert "its current events are not retried" in told.fix
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
        writer.reset()
    assert sink.numbers == [0, 1, 2, 3, 4, 5]


def test_reports_of_a_fresh_checkpoint_are_not_missed() -> None:
    def report(epoch: int, second: int) -> dict[str, Any]:
        sources = [{"description": "in", "numInputRows": 10}]
        return {"batchId": epoch, "timestamp": f"2026-01-01T00:00:{second:02}.000Z", "sources": sources}

    watcher = Watcher()
    for epoch in range(5):
        watcher.take(report(epoch, epoch))
    watcher.reset()
    assert watcher.has_missed(report(1, 7))
    assert [watcher.take(report(epoch, 6 + epoch)) for epoch in (0, 1)][-1]
    assert watcher.events_total == 70


def run_that_failed(start: Callable[[], Any]) -> Run:
    """A run whose query has just failed, after a hundred events."""
    here = planned(KafkaSource(topic="in", servers="localhost:9092", value="id INT"))
    failed = SimpleNamespace(
        exception=lambda: RuntimeError("the first"),
        awaitTermination=lambda seconds: True,
        lastProgress=None,
        isActive=False,
        runId="1",
        _jsq=SimpleNamespace(exception=lambda: SimpleNamespace(isDefined=lambda: False)),
    )
    return Run(
        job=here.job,
        plan=here,
        checkpoint="somewhere",
        log_file=Path("spark.log"),
        _query=cast("Any", failed),
        _writer=EpochWriter(spark=cast("Any", NO_SPARK), outputs=()),
        _start=start,
        _at_most_once=AtMostOnceRestarts(can_go_on=True),
        _has_end=False,
        _ends_in_silence=False,
        _dropped=lambda: 0,
        _crashes=cast("Any", SimpleNamespace(summary=lambda: None, close=lambda: None)),
        _watcher=Watcher(events_total=100),
    )


def test_a_new_beginning_that_fails_is_one_more_failure_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtMostOnceRestarts, "pause_seconds", 0.0)
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
    run._at_most_once.close()  # type: ignore[union-attr]


def test_a_run_with_more_dead_letters_than_it_may_have_does_not_continue() -> None:
    run = run_that_failed(lambda: pytest.fail("it began anew"))
    run._writer.first_error = [TooManyLetters("101 events became dead letters", where="job 'job'", fix="mend them")]
    with pytest.raises(TooManyLetters, match="101 events"):
        run.wait(timeout=60)


def test_new_beginnings_that_all_fail_end_the_run_with_the_last_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtMostOnceRestarts, "pause_seconds", 0.0)
    tries: list[int] = []

    def start() -> Any:
        tries.append(1)
        raise OSError(f"no disk, {len(tries)}")

    run = run_that_failed(start)
    with pytest.raises(Failed, match=f"no disk, {RESTARTS}"):
        run.wait(timeout=60)
    assert len(tries) == RESTARTS
    assert run._at_most_once is not None
    assert run._at_most_once.place is not None
    assert not run._at_most_once.place.exists()


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", True), ("local[*,1]", True), ("local-cluster[2,1,1024]", False), ("spark://localhost:7077", False)],
)
def test_only_a_session_without_executors_is_local(master: str, expected: bool) -> None:
    assert is_local(cast("Any", SimpleNamespace(master=master))) is expected


# -- what really happens -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forgetful(Site):
    """A job that reads and writes topics of one partition, whose checkpoints are in a directory of its own."""

    def put_in(self, *ids: int) -> None:
        """Send events as one batch of records, so that one epoch has all of them."""
        self.send([{"id": number} for number in ids], as_one_batch=True)

    def ids(self) -> Counter[int]:
        return count_ids(self.servers, self.write, isolation="read_uncommitted")

    @property
    def environ(self) -> dict[str, str]:
        (self.place / "temporary").mkdir(exist_ok=True)
        return {"TMPDIR": str(self.place / "temporary")}

    def driver(self, *options: str) -> AbstractContextManager[Process]:
        return self.running(*options, environ=self.environ)

    def left(self) -> list[str]:
        """The checkpoints that are there."""
        return [path.name for path in (self.place / "temporary").glob("lockgate-at-most-once-*")]

    def feed_until_one_is_out(self, driver: Process, first: int) -> list[int]:
        """Send one event after the other until one comes out; all that were sent."""
        sent: list[int] = []

        def one_more() -> bool:
            sent.append(first + len(sent))
            self.put_in(sent[-1])
            return any(number in self.ids() for number in sent)

        driver.wait_for("an event that comes out", one_more)
        return sent


def warnings(driver: Process) -> list[str]:
    """What a driver says each time it goes on after a failure."""
    return [line for line in driver.text.splitlines() if FORGOTTEN in line]


def wait_for_failure(driver: Process) -> None:
    driver.wait_for("a failure", lambda: len(warnings(driver)) == 1)


@pytest.fixture
def site(kafka: str, tmp_path: Path) -> Forgetful:
    site = Forgetful(servers=kafka, place=tmp_path, name=unique("numbers"), given={"place": tmp_path})
    site.make(JOB, read_partitions=1, write_partitions=1)
    return site


@pytest.mark.system
def test_an_event_that_fails_costs_what_is_in_flight_and_the_run_continues_from_now(site: Forgetful) -> None:
    site.put_in(*range(50))
    with site.driver("--from", "earliest") as driver:
        driver.wait_for("rows", lambda: len(site.ids()) == 50)
        before = site.left()
        site.put_in(*range(50, 60), -1, *range(60, 70))
        wait_for_failure(driver)
        later = site.feed_until_one_is_out(driver, first=1000)
        assert driver.end(signal.SIGINT) == 0, driver.text
        assert len(warnings(driver)) == 1
    found = site.ids()
    assert set(found.values()) == {1}, "nothing comes twice, although the run began with the earliest event"
    assert set(range(50)) <= set(found) <= {*range(50), *later}, "what was in hand is lost"
    assert re.search(r"A function failed on the row from .*offset 60: ValueError", warnings(driver)[0]), driver.text
    assert len(before) == 1
    assert site.left() == []


@pytest.mark.prove
def test_a_python_worker_that_is_killed_costs_what_is_in_flight_and_the_run_continues(site: Forgetful) -> None:
    with site.driver() as driver:
        before = site.feed_until_one_is_out(driver, first=1)  # it begins with what comes next, whenever that is
        site.put_in(*range(500, 510), -2, *range(510, 520))
        note = site.place / "sleeper.pid"
        driver.wait_for("a function that sleeps", note.exists)
        os.kill(int(note.read_text()), signal.SIGKILL)
        wait_for_failure(driver)
        later = site.feed_until_one_is_out(driver, first=1000)
        assert driver.end(signal.SIGINT) == 0, driver.text
    found = site.ids()
    assert set(found.values()) == {1}
    assert set(found) <= {*before, *later}, "what was in hand is lost"
    assert "Python worker" in warnings(driver)[0]
    assert site.left() == []


@pytest.mark.prove
def test_an_executor_that_is_killed_costs_what_is_in_flight_and_the_run_continues(site: Forgetful) -> None:
    with (
        SparkCluster(site.place / "cluster", workers=1) as cluster,
        site.driver("--master", cluster.master) as driver,
    ):
        before = site.feed_until_one_is_out(driver, first=1)
        site.put_in(*range(500, 510), -2, *range(510, 520))
        driver.wait_for("a function that sleeps", (site.place / "sleeper.pid").exists)
        cluster.kill_executor()
        wait_for_failure(driver)
        later = site.feed_until_one_is_out(driver, first=1000)
        assert driver.end(signal.SIGINT) == 0, driver.text
    found = site.ids()
    assert set(found.values()) == {1}
    assert set(found) <= {*before, *later}, "what was in hand is lost, and no task was tried again"


TAKEN_AWAY = """
    import sys
    import threading
    import time
    from pathlib import Path

    from job import job
    from lockgate import run

    master, servers, name = sys.argv[1:]
    place = Path.cwd()
    started = run(job(servers, name, place), master=master, log_file=place / "spark.log", wait=False)

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
def test_a_task_whose_executor_is_taken_away_is_not_tried_again(site: Forgetful) -> None:
    (site.place / "taken_away.py").write_text(textwrap.dedent(TAKEN_AWAY))
    with SparkCluster(site.place / "cluster", workers=1) as cluster:
        command = [sys.executable, "taken_away.py", cluster.master, site.servers, site.name]
        with running(*command, cwd=site.place, environ=site.environ) as driver:
            before = site.feed_until_one_is_out(driver, first=1)
            site.put_in(*range(500, 510), -2, *range(510, 520))
            wait_for_failure(driver)
            assert "a task of an at-most-once job is retried" in warnings(driver)[0]
            later = site.feed_until_one_is_out(driver, first=1000)
            (site.place / "stop").touch()
            assert driver.end() == 0, driver.text
    found = site.ids()
    assert set(found.values()) == {1}
    assert set(found) <= {*before, *later}, "what was in hand is lost, although Spark does not count such a failure"


@pytest.mark.prove
def test_a_run_whose_every_event_fails_ends_with_the_cause(site: Forgetful) -> None:
    site.put_in(1, 2)
    with site.driver("--from", "earliest") as driver:
        driver.wait_for("rows", lambda: len(site.ids()) == 2)

        def has_ended() -> bool:
            site.put_in(-1)
            return driver.child.poll() is not None

        driver.wait_for("the end", has_ended)
        assert driver.end() == 1
    assert len(warnings(driver)) == RESTARTS
    assert "A function failed on the row from" in driver.said.splitlines()[-3]
    assert "its current events are not retried" in driver.said.splitlines()[-1]
    assert site.ids() == Counter([1, 2])
    assert site.left() == []


@pytest.mark.prove
def test_a_run_whose_first_event_fails_ends_at_once(site: Forgetful) -> None:
    site.put_in(-1)
    with site.driver("--from", "earliest") as driver:
        assert driver.end() == 1
    assert len(warnings(driver)) == 0
    assert "this one cannot be processed" in driver.text
    assert site.left() == []


@pytest.mark.prove
def test_files_would_be_read_from_the_beginning_again_so_the_run_ends(site: Forgetful) -> None:
    files = site.place / "files"
    files.mkdir()
    put(files, *({"id": number} for number in (1, 2, 3)))
    with replace(site, given={**site.given, "files": files}).driver() as driver:
        driver.wait_for("rows", lambda: len(site.ids()) == 3)
        put(files, {"id": 4}, {"id": -1})
        assert driver.end() == 1
    assert len(warnings(driver)) == 0
    assert "A function failed on the row from" in driver.text
    assert set(site.ids().values()) == {1}
    assert site.left() == []


@pytest.mark.prove
def test_a_socket_is_called_again_and_continues_with_what_it_sends_then(site: Forgetful) -> None:
    with line_server() as server, replace(site, given={**site.given, "port": server.port}).driver() as driver:
        # The first caller only checks that the port is open.
        driver.wait_for("a caller", lambda: len(server.callers) == 2)
        server.say('{"id": 1}')
        driver.wait_for("rows", lambda: site.ids() == Counter([1]))
        server.say('{"id": -1}')
        driver.wait_for("a caller", lambda: len(server.callers) == 3)
        server.say('{"id": 2}')
        driver.wait_for("rows", lambda: site.ids() == Counter([1, 2]))
        assert driver.end(signal.SIGINT) == 0, driver.text
        assert len(warnings(driver)) == 1


# -- nothing is tried twice --------------------------------------------------------------------------------------------


SETTINGS = """
    import json
    import sys
    from pathlib import Path

    from lockgate import Guarantee, Job, KafkaSink, KafkaSource, run, stream
    from lockgate.provision.kafkajars import kafka_jars
    from lockgate.spark.session import SessionPlan, open_session

    servers, read, write = sys.argv[1:]
    log = Path("spark.log").resolve()
    wanted = SessionPlan(app="test", master=None, jars=kafka_jars(), log_file=log, are_tasks_retried=False)
    context = open_session(wanted).sparkContext
    context.setLogLevel("INFO")  # Kafka's clients tell their settings
    sink = KafkaSink(topic=write, servers=servers, client={"retries": "7", "linger.ms": "3"})
    numbers = stream("numbers", KafkaSource(topic=read, servers=servers, value="id INT"))
    job = Job("numbers", numbers.to("out", sink), guarantee=Guarantee.AT_MOST_ONCE)
    run(job, start="earliest", until_caught_up=True, log_file=log)
    print(json.dumps({"master": context.master, **dict(context.getConf().getAll())}))
"""


@pytest.mark.system
def test_no_task_no_stage_and_no_producer_tries_again(site: Forgetful) -> None:
    site.put_in(*range(10))
    (site.place / "look.py").write_text(textwrap.dedent(SETTINGS))
    done = process.run(sys.executable, "look.py", site.servers, site.read, site.write, cwd=site.place)
    assert done.returncode == 0, done.stderr
    spark = json.loads(done.stdout.splitlines()[-1])
    assert spark["master"] == "local[*,1]"
    assert spark["spark.task.maxFailures"] == spark["spark.stage.maxConsecutiveAttempts"] == "1"
    assert spark["spark.stage.ignoreDecommissionFetchFailure"] == spark["spark.speculation"] == "false"
    log = (site.place / "spark.log").read_text().replace("\\n", "\n").replace("\\t", "\t")  # as in JSON
    told = log.split("ProducerConfig values:")[1:]
    assert told, "Kafka's producer tells its settings"
    for one in told:
        producer = dict(re.findall(r"^\s*([a-z.]+) = (.*)$", one.split("(org.apache")[0][:10_000], re.MULTILINE))
        wanted = {"acks": "1", "retries": "0", "enable.idempotence": "false", "linger.ms": "3"}
        assert {name: producer[name] for name in wanted} == wanted
    assert site.ids() == Counter(range(10))
