"""`lockgate run` as a user meets it: a process of its own, real Kafka, real signals."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer

from lockgate.kafka.topics import create_topics

pytestmark = pytest.mark.system

JOB = """
    from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream

    def job(servers: str, read: str, write: str) -> Job:
        payments = stream("payments", KafkaSource(topic=read, servers=servers, value="id INT, amount INT"))
        large = payments.where("amount >= 0")
        return Job("large-payments", large.to("large", KafkaSink(topic=write, servers=servers, key="id")),
                   guarantee=Guarantee.AT_LEAST_ONCE)
"""


class Process:
    """A `lockgate` command under way, with what it has printed so far."""

    def __init__(self, arguments: list[str], directory: Path) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "lockgate.cli.main", *arguments],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, holds: Callable[[], bool], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert self.child.poll() is None, f"ended early with {self.child.returncode}:\n{self.text}"
            assert time.monotonic() < deadline, f"waited too long:\n{self.text}"
            time.sleep(0.1)

    def end(self, seconds: float = 120) -> int:
        code = self.child.wait(timeout=seconds)
        self.reader.join(timeout=10)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return code


@contextmanager
def lockgate(directory: Path, *arguments: str) -> Iterator[Process]:
    process = Process(list(arguments), directory)
    try:
        yield process
    finally:
        if process.child.poll() is None:
            os.killpg(process.child.pid, signal.SIGKILL)
            process.end()


@pytest.fixture
def topics(kafka: str) -> tuple[str, str]:
    names = (f"read-{uuid4().hex[:8]}", f"write-{uuid4().hex[:8]}")
    create_topics(kafka, names, partitions=2, where="test")
    return names


@pytest.fixture
def command(kafka: str, topics: tuple[str, str], tmp_path: Path) -> list[str]:
    (tmp_path / "large_payments.py").write_text(textwrap.dedent(JOB))
    parameters = {"servers": kafka, "read": topics[0], "write": topics[1]}
    return ["run", "large_payments.py", *(part for item in parameters.items() for part in ("-p", "=".join(item)))]


def send(kafka: str, topic: str, ids: range) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka)
    for number in ids:
        producer.send(topic, json.dumps({"id": number, "amount": number}).encode(), partition=number % 2)
    producer.flush()
    producer.close()


def read_ids(kafka: str, topic: str, until: Callable[[list[int]], bool]) -> list[int]:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=kafka,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=30_000,
    )
    found: list[int] = []
    for record in consumer:
        found.append(json.loads(record.value)["id"])
        if until(found):
            break
    consumer.close()
    return found


def test_a_run_shows_its_progress_stops_cleanly_and_goes_on_where_it_stopped(
    kafka: str, topics: tuple[str, str], command: list[str], tmp_path: Path
) -> None:
    send(kafka, topics[0], range(100))
    with lockgate(tmp_path, *command, "--json") as process:
        process.wait_for(lambda: '"events_total": 100' in process.text)
        os.killpg(process.child.pid, signal.SIGTERM)
        assert process.end() == 0, process.text
    assert "guarantee at-least-once, reached at-least-once" in process.text
    assert "stopping" in process.text
    reports = [json.loads(line) for line in process.lines if line.startswith("{")]
    assert reports[-1].keys() == {
        "epoch",
        "events_total",
        "events_per_second",
        "lag",
        "watermark",
        "epoch_ms",
        "late_total",
        "fan_outs",
        "letters_total",
        "waiting",
        "processed",
        "delivered",
    }
    send(kafka, topics[0], range(100, 150))
    with lockgate(tmp_path, *command, "--until-caught-up") as process:
        assert process.end() == 0, process.text
    assert "done: 50 events" in process.text
    assert sorted(read_ids(kafka, topics[1], lambda found: len(found) == 150)) == list(range(150))
    # Spark's own noise is in its file.
    assert "WARN" not in process.text
    assert (tmp_path / ".lockgate" / "logs" / "large-payments.spark.log").is_file()


def test_a_driver_that_is_killed_loses_nothing_and_leaves_no_process_behind(
    kafka: str, topics: tuple[str, str], command: list[str], tmp_path: Path
) -> None:
    send(kafka, topics[0], range(200))
    with lockgate(tmp_path, *command, "--no-supervise", "--json", "--rows-per-epoch", "20") as process:
        process.wait_for(lambda: '"epoch": 2,' in process.text)
        family = psutil.Process(process.child.pid).children(recursive=True)
        assert any(member.name() == "java" for member in family)
        process.child.kill()
        assert process.end() == -signal.SIGKILL
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive, "the JVM outlived its driver"
    with lockgate(tmp_path, *command, "--until-caught-up", "--rows-per-epoch", "20") as process:
        assert process.end() == 0, process.text
    found = read_ids(kafka, topics[1], lambda found: set(found) == set(range(200)))
    assert set(found) == set(range(200))


def test_a_driver_that_is_killed_is_started_again_and_says_why(
    kafka: str, topics: tuple[str, str], command: list[str], tmp_path: Path
) -> None:
    send(kafka, topics[0], range(200))
    with lockgate(tmp_path, *command, "--until-caught-up", "--json", "--rows-per-epoch", "20") as process:
        process.wait_for(lambda: '"epoch": 2,' in process.text)
        (driver,) = psutil.Process(process.child.pid).children()
        family = driver.children(recursive=True)
        driver.kill()
        assert process.end() == 0, process.text
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive, "the JVM outlived its driver"
    assert re.search(r"restart 1, from epoch [2-9], in \d\.\d s: the driver was killed by SIGKILL", process.text)
    found = read_ids(kafka, topics[1], lambda found: set(found) == set(range(200)))
    assert set(found) == set(range(200))


def test_a_driver_ends_with_its_supervisor(
    kafka: str, topics: tuple[str, str], command: list[str], tmp_path: Path
) -> None:
    send(kafka, topics[0], range(20))
    with lockgate(tmp_path, *command, "--json") as process:
        process.wait_for(lambda: '"events_total": 20' in process.text)
        family = psutil.Process(process.child.pid).children(recursive=True)
        assert any(member.name() == "java" for member in family)
        process.child.kill()
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive, "the driver outlived its supervisor"
        assert process.end() == -signal.SIGKILL


def test_an_epoch_takes_no_more_rows_than_it_may_and_a_bad_value_ends_with_status_1(
    kafka: str, topics: tuple[str, str], command: list[str], tmp_path: Path
) -> None:
    send(kafka, topics[0], range(50))
    with lockgate(tmp_path, *command, "--until-caught-up", "--json", "--rows-per-epoch", "10") as process:
        assert process.end() == 0, process.text
    reports = [json.loads(line) for line in process.lines if line.startswith("{")]
    assert reports[-1]["epoch"] == 4
    assert [one["events_total"] for one in reports] == sorted(one["events_total"] for one in reports)
    producer = KafkaProducer(bootstrap_servers=kafka)
    producer.send(topics[0], b"not json", partition=1).get(timeout=30)
    producer.close()
    with lockgate(tmp_path, *command, "--until-caught-up", "--no-supervise") as process:
        assert process.end() == 1, process.text
    assert f"topic {topics[0]!r}, partition 1, offset 25" in process.text
    assert re.search(r"where: source 'payments', declared at large_payments\.py:\d+", process.text)
    assert "Traceback" not in process.text


def test_a_socket_is_read_at_most_once_and_refused_as_more(tmp_path: Path) -> None:
    job = """
        from lockgate import ConsoleSink, Guarantee, Job, SocketSource, stream

        def job(port: int, guarantee: Guarantee = Guarantee.AT_MOST_ONCE) -> Job:
            words = stream("words", SocketSource(host="127.0.0.1", port=port)).select(word="upper(line)")
            return Job("words", words.to("screen", ConsoleSink()), guarantee=guarantee)
    """
    (tmp_path / "words.py").write_text(textwrap.dedent(job))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            while True:  # the first caller only looks whether somebody listens
                try:
                    caller, _ = server.accept()
                    caller.sendall(b"hello\nworld\n")
                    callers.append(caller)
                except OSError:
                    return

        callers: list[socket.socket] = []
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with lockgate(tmp_path, "run", "words.py", "-p", f"port={port}", "-p", "guarantee=at_least_once") as process:
            assert process.end() == 2
        assert "declares at-least-once but reaches at-most-once" in process.text
        assert "source 'words', declared at words.py:5" in process.text
        assert "KafkaSource" in process.text
        with lockgate(tmp_path, "run", "words.py", "-p", f"port={port}") as process:
            process.wait_for(lambda: "HELLO" in process.text and "WORLD" in process.text)
            process.child.send_signal(signal.SIGINT)
            assert process.end() == 0, process.text
        server.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for callers
        thread.join(timeout=10)
        for caller in callers:
            caller.close()
    with lockgate(tmp_path, "run", "words.py", "-p", f"port={port}") as process:
        assert process.end() == 2
    assert f"nobody listens at 127.0.0.1:{port}" in process.text
