"""What a fault finds: the job that runs, the services that it runs on, and the files that it keeps."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.topics import asked
from lockgate.connectors.kafka.wire import Connection
from lockgate.errors import Failed
from lockgate.lab.rig.drivers import Driver, Drivers
from lockgate.lab.rig.faults import Strike
from lockgate.lab.rig.history import Fault
from lockgate.lab.services.kafkaproxy import KafkaProxy
from lockgate.lab.services.postgres import Postgres
from lockgate.lab.services.postgresproxy import PostgresProxy
from lockgate.lab.services.spark import SparkCluster
from lockgate.lab.services.stack import Stack

WHERE = "the Kafka of the trial"
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Scene:
    """Where faults strike. What is None is not there, and no fault can strike it."""

    name: str  # of the job
    drivers: Drivers
    servers: str  # of Kafka itself, not of a proxy
    rng: random.Random
    sent: Callable[[], int]  # how many events the job has got
    topics: Sequence[str] = ()  # that the job writes
    stack: Stack | None = None  # whose brokers may be killed
    postgres: Postgres | None = None
    kafka_proxy: KafkaProxy | None = None
    postgres_proxy: PostgresProxy | None = None
    cluster: SparkCluster | None = None

    @property
    def running(self) -> Driver | None:
        """The driver that runs now."""
        return self.drivers.running

    def connect(self) -> Connection:
        """Connect to Kafka itself; the caller closes the connection."""
        return Connection(read_settings(self.servers, {}, where=WHERE), where=WHERE)

    def ends(self, connection: Connection) -> dict[tuple[str, int], int]:
        """How many records are in each partition of the job's topics, committed or not."""
        shapes = asked(lambda: connection.shapes([*self.topics]), WHERE)
        places = [
            (topic, number, leader) for topic in self.topics for number, leader in enumerate(shapes[topic].leaders)
        ]
        return asked(
            lambda: {(t, n): connection.end_offset((t, n), leader=leader)[1] for t, n, leader in places}, WHERE
        )

    def wait(self, is_there: Callable[[], bool], what: str, *, seconds: float) -> None:
        """Wait until something is so; Failed if it takes too long."""
        deadline = time.monotonic() + seconds
        while not is_there():
            if time.monotonic() > deadline:
                raise Failed(
                    f"{what} did not happen within {seconds:.0f} s",
                    where=str(self.drivers.directory),
                    fix="see what the drivers say there",
                )
            time.sleep(_LOOK_SECONDS)

    def pause(self, seconds: tuple[float, float]) -> None:
        """Let some time pass, as much as the seed says."""
        time.sleep(self.rng.uniform(*seconds))

    def stop_for(self, pid: int | None, seconds: tuple[float, float]) -> bool:
        """Stop a process for a while; False if it is not there."""
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
        # A job without a checkpoint counts its epochs from 0 with every start.
        epoch = None if self.drivers.checkpoint is None else self.drivers.epochs()
        return Fault(one.kind.value, one.point, process, self.drivers.clock(), epoch)
