"""The local services together: up, down and status of a Kafka cluster and a PostgreSQL.

A stack keeps everything below its root, so two checkouts are independent:

    .lockgate-services      marks the directory as ours; without it nothing is written and nothing is ever deleted
    state.json              what stays the same from one start to the next: ports, cluster id, password (mode 600)
    kafka/broker-N/         configuration, data, log and pid file of each node
    postgres/               the same for PostgreSQL

`up` starts what is missing, and nothing else: after a crash it starts the dead parts with their data. One `up` or
`down` works on a root at a time. A failed start stops what it had started, and nothing else.
"""

import base64
import contextlib
import fcntl
import json
import os
import random
import secrets
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lockgate.errors import BadMachine
from lockgate.lab.services import ports
from lockgate.lab.services.home import home
from lockgate.lab.services.kafka import Detour, KafkaCluster, Node
from lockgate.lab.services.postgres import Postgres
from lockgate.private import make_private
from lockgate.provision.jars import Progress
from lockgate.untrusted import read_object

MARKER = ".lockgate-services"


def default_root() -> Path:
    """Where this checkout's services live: $LOCKGATE_HOME, or .lockgate here; in it, `services`."""
    return home().absolute() / "services"


@dataclass(frozen=True)
class BrokerStatus:
    """One Kafka node as it is now."""

    id: int
    port: int
    pid: int | None
    running: bool
    log: str


@dataclass(frozen=True)
class KafkaStatus:
    """The Kafka cluster as it is now; `servers` is known, and stays the same, also while it is down."""

    running: bool
    servers: str | None
    brokers: tuple[BrokerStatus, ...]


@dataclass(frozen=True)
class PostgresStatus:
    """PostgreSQL as it is now; `wanted` is whether the last `up` asked for it."""

    running: bool
    wanted: bool
    dsn: str | None
    port: int | None
    pid: int | None
    log: str | None


@dataclass(frozen=True)
class Status:
    """The whole stack as it is now."""

    root: str
    kafka: KafkaStatus
    postgres: PostgresStatus

    @property
    def is_running(self) -> bool:
        """Whether everything that was asked for runs."""
        return self.kafka.running and (self.postgres.running or not self.postgres.wanted)

    def as_json(self) -> dict[str, Any]:
        """The names that `lockgate status --json` prints."""
        return asdict(self)


@dataclass(frozen=True)
class _State:
    """What is decided at the first start and kept until --fresh."""

    cluster_id: str
    nodes: tuple[Node, ...]
    postgres_port: int
    postgres_password: str
    postgres_wanted: bool


class Stack:
    """A Kafka cluster and a PostgreSQL under one root directory.

    Args:
        brokers: None is as many as there were, else one.
        is_proxied: every broker gets a second door for clients that come through a proxy; also one that had none.
    """

    def __init__(self, root: Path, brokers: int | None = None, *, is_proxied: bool = False) -> None:
        if brokers not in (None, 1, 3):
            raise BadMachine(
                f"A local cluster of {brokers} brokers is not offered.", f"brokers={brokers}", "ask for 1 or 3"
            )
        self.root = root.absolute()
        self.brokers = brokers
        self.is_proxied = is_proxied

    def up(
        self,
        *,
        fresh: bool = False,
        postgres: bool = True,
        kafka_port: int | None = None,
        postgres_port: int | None = None,
        progress: Progress = lambda line: None,
    ) -> bool:
        """Start what does not run and wait until it answers; whether anything had to be started.

        Args:
            fresh: stop everything and delete its data first.
            kafka_port: for the first broker; further brokers take the ports after it. Else free ports are chosen.
        """
        with self._alone():
            self._claim()
            if fresh:
                self._wipe(progress)
            state = self._decide(self._read(), postgres, kafka_port, postgres_port)
            self._write(state)
            kafka, database = self._kafka(state), self._postgres(state)
            started: list[Callable[[], object]] = []
            try:
                if kafka.missing():
                    progress(f"starting Kafka, {len(kafka.missing())} of {len(kafka.nodes)} broker(s) ...")
                    already = set(kafka.nodes) - set(kafka.missing())
                    started += [replace(kafka, nodes=tuple(n for n in kafka.nodes if n not in already)).stop]
                    kafka.start(progress)
                if postgres and database.daemon.pid is None:
                    progress("starting PostgreSQL ...")
                    started += [database.stop]
                    database.start()
                kafka.wait()
                if postgres:
                    database.wait()
            except BaseException:
                for stop in started:
                    stop()
                raise
            return bool(started)

    def down(self, progress: Progress = lambda line: None) -> bool:
        """Stop what runs; data and addresses stay. Whether anything had been running."""
        if not self._is_ours():
            return False
        with self._alone():
            return self._stop(progress)

    def status(self) -> Status:
        """What runs now, and its addresses."""
        state = self._read() if self._is_ours() else None
        if state is None:
            return Status(
                root=str(self.root),
                kafka=KafkaStatus(running=False, servers=None, brokers=()),
                postgres=PostgresStatus(running=False, wanted=False, dsn=None, port=None, pid=None, log=None),
            )
        kafka, database = self._kafka(state), self._postgres(state)
        brokers = []
        for node in kafka.nodes:
            daemon = kafka.daemon(node)
            pid = daemon.pid
            brokers.append(
                BrokerStatus(id=node.id, port=node.port, pid=pid, running=pid is not None, log=str(daemon.log))
            )
        pid = database.daemon.pid
        is_known = state.postgres_wanted or database.data.exists()
        return Status(
            root=str(self.root),
            kafka=KafkaStatus(
                running=all(broker.running for broker in brokers), servers=kafka.servers, brokers=tuple(brokers)
            ),
            postgres=PostgresStatus(
                running=pid is not None,
                wanted=state.postgres_wanted,
                dsn=database.dsn if is_known else None,
                port=database.port if is_known else None,
                pid=pid,
                log=str(database.daemon.log) if is_known else None,
            ),
        )

    @property
    def kafka(self) -> KafkaCluster:
        """The Kafka cluster, running or not; BadMachine before the first `up`."""
        return self._kafka(self._require())

    @property
    def postgres(self) -> Postgres:
        """The PostgreSQL, running or not; BadMachine before the first `up`."""
        return self._postgres(self._require())

    def kill_broker(self, id: int) -> None:
        """Kill a Kafka node with -9, as a crash would; `up` brings it back with its data."""
        self.kafka.kill(id)

    # -- what is remembered ---------------------------------------------------------------------------------------

    def _require(self) -> _State:
        state = self._read() if self._is_ours() else None
        if state is None:
            raise BadMachine("There are no services here.", str(self.root), "start them first: lockgate up")
        return state

    def _kafka(self, state: _State) -> KafkaCluster:
        return KafkaCluster(directory=self.root / "kafka", cluster_id=state.cluster_id, nodes=state.nodes)

    def _postgres(self, state: _State) -> Postgres:
        return Postgres(directory=self.root / "postgres", port=state.postgres_port, password=state.postgres_password)

    def _decide(
        self, known: _State | None, postgres: bool, kafka_port: int | None, postgres_port: int | None
    ) -> _State:
        """The state to bring about: what is remembered, changed where asked, refused where that cannot be."""
        if known is None:
            return self._invent(postgres, kafka_port, postgres_port)
        if self.brokers not in (None, len(known.nodes)):
            raise BadMachine(
                f"There is data of a cluster of {len(known.nodes)} broker(s) here, and {self.brokers} were asked for.",
                str(self.root),
                f"delete that data (lockgate up --fresh --brokers {self.brokers}), or keep it and leave --brokers out, "
                "or use another directory: LOCKGATE_HOME=/a/directory",
            )
        kafka, database = self._kafka(known), self._postgres(known)
        if kafka_port is not None and kafka_port != known.nodes[0].port:
            if len(kafka.missing()) < len(kafka.nodes):
                raise _still_running(f"Kafka runs on port {known.nodes[0].port}", self.root)
            doors = [detour.port for detour in kafka.detours.values()]
            doors += [detour.proxy_port for detour in kafka.detours.values()]
            self._require_apart(kafka_port, len(known.nodes), [*doors, *(node.controller_port for node in known.nodes)])
            moved = tuple(replace(node, port=kafka_port + index) for index, node in enumerate(known.nodes))
            known = replace(known, nodes=moved)
        if postgres_port is not None and postgres_port != known.postgres_port:
            if database.daemon.pid is not None:
                raise _still_running(f"PostgreSQL runs on port {known.postgres_port}", self.root)
            ports.require_free(postgres_port, "PostgreSQL", "--postgres-port")
            known = replace(known, postgres_port=postgres_port)
        if self.is_proxied and len(kafka.detours) < len(kafka.nodes):
            if len(kafka.missing()) < len(kafka.nodes):
                raise _still_running("Kafka runs without a door for proxies", self.root)
            known = replace(known, nodes=_with_detours(known.nodes, taken=[known.postgres_port]))
        wanted = postgres or database.daemon.pid is not None
        return replace(known, postgres_wanted=wanted)

    def _invent(self, postgres: bool, kafka_port: int | None, postgres_port: int | None) -> _State:
        count = self.brokers or 1
        given = list(range(kafka_port, kafka_port + count)) if kafka_port is not None else []
        for index, port in enumerate(given, start=1):
            ports.require_free(port, f"Kafka broker {index}", "--kafka-port")
        if postgres_port is not None:
            ports.require_free(postgres_port, "PostgreSQL", "--postgres-port")
            if postgres_port in given:
                raise BadMachine(
                    f"Port {postgres_port} is wanted by Kafka and by PostgreSQL.",
                    f"--kafka-port {kafka_port} --postgres-port {postgres_port}",
                    "give two ports that differ",
                )
        taken = [*given, *([postgres_port] if postgres_port is not None else [])]
        free = iter(ports.choose(2 * count + 1, random.Random(), taken))
        brokers = given or [next(free) for _ in range(count)]
        nodes = tuple(Node(id=i, port=port, controller_port=next(free)) for i, port in enumerate(brokers, start=1))
        if postgres_port is None:
            postgres_port = next(free)
        return _State(
            cluster_id=base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode(),
            nodes=_with_detours(nodes, taken=[postgres_port]) if self.is_proxied else nodes,
            postgres_port=postgres_port,
            postgres_password=secrets.token_urlsafe(16),
            postgres_wanted=postgres,
        )

    def _require_apart(self, first: int, count: int, kept: list[int]) -> None:
        for port in range(first, first + count):
            if port in kept:
                raise BadMachine(
                    f"Port {port} is the port of a controller, or of a door for proxies, of one of these brokers.",
                    f"--kafka-port {first}",
                    "choose another",
                )
            ports.require_free(port, "Kafka", "--kafka-port")

    def _read(self) -> _State | None:
        path = self.root / "state.json"
        try:
            raw = read_object(path.read_bytes())
            raw["nodes"] = tuple(_node(**node) for node in raw["nodes"])
            return _State(**raw)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadMachine(
                f"What was remembered about the services cannot be read: {error}",
                str(path),
                f"put the file right, or delete the services and their data: lockgate down; rm -r {self.root}",
            ) from error

    def _write(self, state: _State) -> None:
        aside = self.root / "state.json.new"
        aside.unlink(missing_ok=True)
        aside.touch(mode=0o600)  # it holds a password
        aside.write_text(json.dumps(asdict(state), indent=1))
        aside.replace(self.root / "state.json")

    # -- the directory --------------------------------------------------------------------------------------------

    def _is_ours(self) -> bool:
        return (self.root / MARKER).is_file()

    def _make(self) -> None:
        """Only its owner may look into it. If that is root, PostgreSQL, which refuses to be root, must pass through."""
        is_new = not self.root.is_dir()
        make_private(self.root)
        if is_new and os.geteuid() == 0:
            self.root.chmod(0o711)

    def _claim(self) -> None:
        """Make the directory ours; one that holds anything else is left alone."""
        make_private(self.root / "kafka")
        (self.root / "postgres").mkdir(exist_ok=True)  # its data is private, and belongs to the user that it runs as

    def _wipe(self, progress: Progress) -> None:
        if not self._is_ours():  # checked at the claim, and again before deleting
            raise BadMachine(
                "This directory is not ours to delete from.", str(self.root), "choose another LOCKGATE_HOME"
            )
        self._stop(progress)
        progress("deleting the data of the earlier services ...")
        for part in ("kafka", "postgres"):
            shutil.rmtree(self.root / part)
        (self.root / "state.json").unlink(missing_ok=True)
        self._claim()

    def _stop(self, progress: Progress) -> bool:
        state = self._read()
        if state is None:
            return False
        stopped = False
        if self._postgres(state).daemon.pid is not None:
            progress("stopping PostgreSQL ...")
            stopped |= self._postgres(state).stop()
        if len(self._kafka(state).missing()) < len(state.nodes):
            progress("stopping Kafka ...")
            stopped |= self._kafka(state).stop()
        return stopped

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the root's lock; other ups and downs on it wait."""
        try:
            self._make()
            if not self._is_ours():
                if any(self.root.iterdir()):
                    raise BadMachine(
                        "This directory holds something that is not from Lockgate's services; it is left alone.",
                        str(self.root),
                        "choose another directory: LOCKGATE_HOME=/a/directory",
                    )
                (self.root / MARKER).write_text("Lockgate's local services own this directory and may delete it.\n")
            file = (self.root / MARKER).open("r+")
        except OSError as error:
            raise BadMachine(
                f"The directory of the services cannot be written: {error.strerror}.",
                str(self.root),
                "make it writable, or choose another: LOCKGATE_HOME=/a/directory",
            ) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _node(detour: dict[str, int] | None = None, **facts: int) -> Node:
    return Node(**facts, detour=None if detour is None else Detour(**detour))


def _with_detours(nodes: tuple[Node, ...], taken: list[int]) -> tuple[Node, ...]:
    """The nodes, each with a second door of its own and a port for the proxy before it."""
    spoken_for = [*taken, *(port for node in nodes for port in (node.port, node.controller_port))]
    free = iter(ports.choose(2 * len(nodes), random.Random(), spoken_for))
    return tuple(replace(node, detour=Detour(port=next(free), proxy_port=next(free))) for node in nodes)


def _still_running(what: str, root: Path) -> BadMachine:
    return BadMachine(f"{what}, and another was asked for.", str(root), "stop it first: lockgate down")
