"""`lockgate run` as a user meets it: a process of its own, real Kafka, real signals."""

import os
import re
import signal
import socket
import textwrap
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from support import records
from support.process import LOCKGATE, Process, parameters, running
from support.records import make_topics, unique
from support.waiting import wait_for

pytestmark = [pytest.mark.system, pytest.mark.process]

JOB = """
    from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream

    def job(servers: str, read: str, write: str) -> Job:
        payments = stream("payments", KafkaSource(topic=read, servers=servers, value="id INT, amount INT"))
        large = payments.where("amount >= 0")
        return Job("large-payments", large.to("large", KafkaSink(topic=write, servers=servers, key="id")),
                   guarantee=Guarantee.AT_LEAST_ONCE)
"""


def lockgate(directory: Path, *words: str) -> AbstractContextManager[Process]:
    return running(*LOCKGATE, *words, cwd=directory)


@pytest.fixture
def topics(kafka: str) -> tuple[str, str]:
    read, write = make_topics(kafka, unique("read"), unique("write"))
    return read, write


@pytest.fixture
def command(kafka: str, topics: tuple[str, str], tmp_path: Path) -> list[str]:
    (tmp_path / "large_payments.py").write_text(textwrap.dedent(JOB))
    return ["run", "large_payments.py", *parameters(servers=kafka, read=topics[0], write=topics[1])]


def send(kafka: str, topic: str, ids: range) -> None:
    payments = [{"id": number, "amount": number} for number in ids]
    records.send(kafka, topic, payments, partition=lambda payment: payment["id"] % 2)


def read_ids(kafka: str, topic: str, until: Callable[[list[int]], bool]) -> list[int]:
    """The ids of all rows, as soon as they are so."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [row["id"] for row in records.read_json(kafka, topic)]
        return until(found)

    wait_for("rows", look, explain=lambda: str(found))
    return found


def test_a_run_shows_its_progress_stops_cleanly_and_continues_where_it_stopped(
    kafka: str, topics: tuple[str, str], command: list[str], tmp_path: Path
) -> None:
    send(kafka, topics[0], range(100))
    with lockgate(tmp_path, *command, "--json") as process:
        process.wait_for("100 events", lambda: '"events_total": 100' in process.text)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.end() == 0, process.text
    assert "guarantee at-least-once, reached at-least-once" in process.text
    assert "stopping" in process.text
    reports = process.reports
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
        process.wait_for("epoch 2", lambda: '"epoch": 2,' in process.text)
        family = process.family
        assert any(member.name() == "java" for member in family)
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
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
        process.wait_for("epoch 2", lambda: '"epoch": 2,' in process.text)
        (driver,) = psutil.Process(process.pid).children()
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
        process.wait_for("20 events", lambda: '"events_total": 20' in process.text)
        family = process.family
        assert any(member.name() == "java" for member in family)
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive, "the driver outlived its supervisor"


def test_an_epoch_takes_no_more_rows_than_it_may_and_a_bad_value_ends_with_status_1(
    kafka: str, topics: tuple[str, str], command: list[str], tmp_path: Path
) -> None:
    send(kafka, topics[0], range(50))
    with lockgate(tmp_path, *command, "--until-caught-up", "--json", "--rows-per-epoch", "10") as process:
        assert process.end() == 0, process.text
    reports = process.reports
    assert reports[-1]["epoch"] == 4
    assert [one["events_total"] for one in reports] == sorted(one["events_total"] for one in reports)
    records.send(kafka, topics[0], [b"not json"], partition=lambda value: 1)
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
            process.wait_for("both words", lambda: "HELLO" in process.text and "WORLD" in process.text)
            assert process.end(signal.SIGINT) == 0, process.text
        server.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for callers
        thread.join(timeout=10)
        for caller in callers:
            caller.close()
    with lockgate(tmp_path, "run", "words.py", "-p", f"port={port}") as process:
        assert process.end() == 2
    assert f"no server listens at 127.0.0.1:{port}" in process.text
