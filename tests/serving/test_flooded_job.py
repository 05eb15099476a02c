"""A real job with 1,024 open files whose ports are flooded: `/health` answers, and epochs continue.

The figures that SECURITY.md gives are those that these tests print:

    pytest -n 1 -rP tests/serving/test_flooded_job.py
"""

import http.client
import itertools
import re
import signal
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from support.flood import flooded
from support.process import LOCKGATE, Process, parameters, running
from support.records import count_ids, make_topics, send, unique

pytestmark = [pytest.mark.system, pytest.mark.slow]

FILES, STRANGERS, EPOCHS = 1_024, 2_000, 10
_BATCH = 20
_PROBE_SECONDS = 60.0
_QUEUE_SECONDS = 0.2  # a few of Spark's ports have a short queue, which is full at once
FIXED = ("sh", "-c", f'ulimit -n {FILES} && exec "$@"', "sh")
"""For the supervisor, the driver, the JVM and the workers; none of them can raise it."""

RAISED = ("sh", "-c", f'ulimit -Sn {FILES} && exec "$@"', "sh")
"""Java raises its own limit as far as the system lets it, as it does on most machines."""
JOB = """
    from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream

    def job(name: str, servers: str) -> Job:
        rows = stream("in", KafkaSource(topic=f"{name}-in", servers=servers, value="id BIGINT"))
        return Job(
            name,
            rows.to("out", KafkaSink(topic=f"{name}-out", servers=servers, key="id")),
            guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
        )
"""


def ports_of(process: Process, *, with_java: bool) -> set[int]:
    """The ports at which the supervisor and the driver listen, and Spark's in the driver's JVM."""
    found = set()
    for one in [psutil.Process(process.pid), *process.family]:
        with suppress(psutil.Error):  # it has ended
            # PySpark's workers are omitted: each connection is a process there, which this machine would notice.
            is_ours = "lockgate.cli.main" in one.cmdline()
            if is_ours or (with_java and one.name().startswith("java")):
                lines = one.net_connections("tcp")
                found |= {line.laddr.port for line in lines if line.status == psutil.CONN_LISTEN}
    return found


class Flooded:
    """A job that runs, what it gets and what is asked of it."""

    def __init__(self, process: Process, servers: str, name: str) -> None:
        self.process, self.servers, self.name = process, servers, name
        self._ids = itertools.count()
        self.sent: Counter[Any] = Counter()
        self.health_seconds: list[float] = []
        self.epoch_seconds: list[float] = []

    @property
    def port(self) -> int | None:
        found = re.search(r"metrics at http://[^:]+:([0-9]+)/", self.process.said)
        return int(found[1]) if found else None

    def ask_health(self) -> None:
        """As a probe does: a connection of its own each time."""
        assert self.port is not None
        began = time.monotonic()
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PROBE_SECONDS)
        client.request("GET", "/health")
        assert client.getresponse().status == 200
        client.close()
        self.health_seconds.append(time.monotonic() - began)

    def pass_epoch(self) -> None:
        """Send events and wait until readers see them; in the meantime ask whether the job is well."""
        ids = [next(self._ids) for _ in range(_BATCH)]
        self.sent.update(ids)
        began = time.monotonic()
        send(self.servers, f"{self.name}-in", [{"id": id} for id in ids])

        def is_there() -> bool:
            self.ask_health()
            return count_ids(self.servers, f"{self.name}-out") == self.sent

        self.process.wait_for("its rows", is_there)
        self.epoch_seconds.append(time.monotonic() - began)


@contextmanager
def job_under_way(kafka: str, place: Path, limit: tuple[str, ...]) -> Iterator[Flooded]:
    name = unique("flooded")
    make_topics(kafka, f"{name}-in", f"{name}-out", partitions=2)
    (place / "flooded.py").write_text(textwrap.dedent(JOB))
    command = [*limit, *LOCKGATE, "run", "flooded.py", *parameters(name=name, servers=kafka), "--metrics", "0"]
    with running(*command, cwd=place) as process:
        job = Flooded(process, kafka, name)
        process.wait_for("an address", lambda: job.port)
        job.pass_epoch()
        job.health_seconds.clear()
        job.epoch_seconds.clear()
        yield job
        assert process.end(signal.SIGTERM) == 0, process.text


@pytest.mark.parametrize(
    ("limit", "with_java", "may_restart"),
    [(FIXED, False, False), (RAISED, True, False), (FIXED, True, True)],
    ids=["ports of Lockgate's processes", "Spark's too", "Spark's too, and Java has no more files either"],
)
def test_epochs_continue_and_health_answers_under_2000_connections(
    limit: tuple[str, ...], with_java: bool, may_restart: bool, kafka: str, tmp_path: Path
) -> None:
    with job_under_way(kafka, tmp_path, limit) as job:
        ports = ports_of(job.process, with_java=with_java)
        assert job.port in ports
        assert len(ports) > 2
        with flooded(*ports, connections=STRANGERS, queue_seconds=_QUEUE_SECONDS):
            for _ in range(EPOCHS):
                job.pass_epoch()
        assert median(job.health_seconds) < 1.0, job.health_seconds
        restarts = job.process.said.count("\nrestart ")
        assert may_restart or not restarts, job.process.said
        print(
            f"{len(ports)} ports: /health {median(job.health_seconds):.4f} s (median),"
            f" {max(job.health_seconds):.3f} s (worst of {len(job.health_seconds)});"
            f" {EPOCHS} times sent and seen: {min(job.epoch_seconds):.1f} to {max(job.epoch_seconds):.1f} s;"
            f" restarts: {restarts}"
        )
