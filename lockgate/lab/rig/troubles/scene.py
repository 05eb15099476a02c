"""What a fault finds: the job that runs, the services that it runs on, and the files that it keeps."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lockgate.errors import Failed
from lockgate.kafka.settings import read_settings
from lockgate.kafka.wire import Connection
from lockgate.lab.rig.drivers import Driver, Drivers
from lockgate.lab.rig.faults import Strike
from lockgate.lab.rig.history import Fault
from lockgate.services.kafkaproxy import KafkaProxy
from lockgate.services.postgresproxy import PostgresProxy
from lockgate.services.spark import SparkCluster
from lockgate.services.stack import Stack

_LOOK_SECONDS = 0.1
_WHERE = "the proof's Kafka"


@dataclass(frozen=True)
class Scene:
    """Where faults are done. What is None is not there, and nothing can be done to it."""

    name: str  # of the job at its site
    drivers: Drivers
    stack: Stack
    rng: random.Random
    marks: Path  # a directory for the marks of faults that processes do to themselves
    sent: Callable[[], int]  # how many events are there for the job
    topics: Sequence[str] = ()  # that the job writes
    checkpoint: Path | None = None
    kafka_proxy: KafkaProxy | None = None
    postgres_proxy: PostgresProxy | None = None
    cluster: SparkCluster | None = None

    @property
    def running(self) -> Driver | None:
        """The driver that runs now; None where there is none."""
        driver = self.drivers.last
        return driver if driver is not None and driver.process.poll() is None else None

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """To Kafka itself, past the proxy."""
        servers = self.stack.status().kafka.servers or ""
        connection = Connection(read_settings(servers, {}, where=_WHERE), where=_WHERE)
        try:
            yield connection
        finally:
            connection.close()

    def wait(self, is_there: Callable[[], bool], what: str, *, seconds: float) -> None:
        """Until something is so; Failed where it takes too long."""
        deadline = time.monotonic() + seconds
        while not is_there():
            if time.monotonic() > deadline:
                raise Failed(
                    f"{what} did not come about within {seconds:.0f} s",
                    where=str(self.drivers.directory),
                    fix="see what the drivers say there",
                )
            time.sleep(_LOOK_SECONDS)

    def pause(self, seconds: tuple[float, float]) -> None:
        """Let some time pass, as much as the seed says."""
        time.sleep(self.rng.uniform(*seconds))

    def stop_for(self, pid: int | None, seconds: tuple[float, float]) -> bool:
        """Stop a process for a while; False where it is not there."""
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return False
        try:
            self.pause(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return True

    def fact(self, one: Strike, process: str) -> Fault:
        """A fault that has struck."""
        # A job that keeps no checkpoint counts its epochs anew with every start.
        epoch = None if self.checkpoint is None else self.drivers.epochs()
        return Fault(one.kind.value, one.point, process, self.drivers.clock(), epoch)
