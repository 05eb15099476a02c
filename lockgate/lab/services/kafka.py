"""A real Kafka cluster on this machine: one or three nodes in KRaft mode, each broker and controller in one.

With three nodes, topics are written to three nodes, and a write counts when two have it. So any one node may be killed
with -9, and nothing is lost or stops. A single node keeps its data across its own death.

    down                 addresses, cluster id and data stay
    up after kill -9     the missing nodes are started over their own data
    other node count     refused: data placed for one shape does not fit the other

Everything listens on the loopback interface only. A node may have a detour: a second listener, which advertises
the port of a proxy. So its clients stay behind the proxy wherever the cluster sends them.
"""

import contextlib
import logging
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from lockgate.errors import BadMachine, ServiceFailed
from lockgate.lab.services.ports import HOST, require_free
from lockgate.lab.services.processes import LOG4J_CONSOLE, Daemon
from lockgate.provision.classes import broker_classes
from lockgate.provision.jars import Progress, broker_jars
from lockgate.provision.java import find_java

START_LIMIT = timedelta(seconds=90)
STOP_LIMIT = timedelta(seconds=20)
HEAP = "512m"


@dataclass(frozen=True)
class Detour:
    """The way to a node through a proxy: the port where the node listens for it, and the port that it advertises."""

    port: int
    proxy_port: int


@dataclass(frozen=True)
class Node:
    """One node's fixed facts: its id, its two ports, and the way to it through a proxy, if there is one."""

    id: int
    port: int
    controller_port: int
    detour: Detour | None = None


@dataclass(frozen=True)
class KafkaCluster:
    """The nodes of a cluster and the directory of their data."""

    directory: Path
    cluster_id: str
    nodes: tuple[Node, ...]

    @property
    def servers(self) -> str:
        """The addresses to give to clients."""
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    @property
    def detours(self) -> dict[int, Detour]:
        """The ways through a proxy, by the ids of the nodes."""
        return {node.id: node.detour for node in self.nodes if node.detour is not None}

    @property
    def proxied_servers(self) -> str:
        """The addresses to give to clients that are to stay behind the proxies of all nodes."""
        if len(self.detours) < len(self.nodes):
            raise BadMachine(
                "These brokers know no proxies, and would lead clients past them.",
                str(self.directory),
                "start them with detours: Stack(root, is_proxied=True).up()",
            )
        return ",".join(f"{HOST}:{detour.proxy_port}" for detour in self.detours.values())

    def daemon(self, node: Node) -> Daemon:
        """The process of a node."""
        return Daemon(name="broker", directory=self.directory / f"broker-{node.id}")

    def missing(self) -> list[Node]:
        """The nodes that do not run."""
        return [node for node in self.nodes if self.daemon(node).pid is None]

    def start(self, progress: Progress) -> None:
        """Start every node that does not run, without waiting for it; `wait` does that."""
        missing = self.missing()
        found = find_java()
        java = str(found.path)
        for node in missing:
            require_free(node.port, f"Kafka broker {node.id}", "--kafka-port")
            require_free(node.controller_port, f"the controller of Kafka broker {node.id}", "--kafka-port")
            if node.detour is not None:
                require_free(node.detour.port, f"the second door of Kafka broker {node.id}", "--kafka-port")
        jars = broker_jars(progress)
        class_path = ":".join(str(jar) for jar in jars)
        classes = broker_classes(jars).options(found)
        self._format(missing, java, class_path)
        for node in missing:
            home = self._home(node)
            (home / "server.properties").write_text(server_properties(self, node))
            (home / "log4j2.properties").write_text(_LOG4J)
            command = [java, f"-Xmx{HEAP}", f"-Xms{HEAP}", "-XX:MaxGCPauseMillis=20"]
            command += classes
            command += ["-Djava.awt.headless=true", f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}"]
            self.daemon(node).start([*command, "-cp", class_path, "kafka.Kafka", str(home / "server.properties")])

    def wait(self) -> None:
        """Return when every node is known to the cluster and answers; ServiceFailed where one does not in time."""
        deadline = time.monotonic() + START_LIMIT.total_seconds()
        wanted = {node.id for node in self.nodes}
        known: set[int] = set()
        while time.monotonic() < deadline:
            for node in self.missing():
                raise self._failure(node, "ended right after its start")
            if all(_answers(node.port) for node in self.nodes):
                known = _known_brokers(self.servers)
            if known >= wanted:
                return
            time.sleep(0.1)
        silent = next(node for node in self.nodes if node.id not in known)
        raise self._failure(silent, f"did not answer within {START_LIMIT.total_seconds():.0f} seconds")

    def stop(self) -> bool:
        """Stop all nodes together; whether any had been running."""
        running = [self.daemon(node) for node in self.nodes if self.daemon(node).pid is not None]
        for daemon in running:
            daemon.send(signal.SIGTERM)
        # Nodes that leave together cannot all say goodbye to a quorum that is leaving too, and would wait for it for
        # minutes. The operating system has all that they wrote: killing the last ones loses nothing.
        deadline = time.monotonic() + STOP_LIMIT.total_seconds()
        for daemon in running:
            daemon.wait_for_end(timedelta(seconds=max(0.0, deadline - time.monotonic())))
        for daemon in running:
            daemon.stop(signal.SIGKILL, limit=STOP_LIMIT)
        return bool(running)

    def kill(self, node_id: int) -> None:
        """Kill one node as a crash would; returns when it is dead."""
        node = next((node for node in self.nodes if node.id == node_id), None)
        if node is None:
            raise BadMachine(
                f"There is no broker {node_id}.", str(self.directory), f"name one of {[n.id for n in self.nodes]}"
            )
        self.daemon(node).stop(signal.SIGKILL, limit=STOP_LIMIT)

    def _home(self, node: Node) -> Path:
        return self.directory / f"broker-{node.id}"

    def _format(self, nodes: list[Node], java: str, class_path: str) -> None:
        """Give new nodes their empty storage, all at once; nodes that have one keep it."""
        formats: list[tuple[Node, subprocess.Popen[str]]] = []
        for node in nodes:
            home = self._home(node)
            if (home / "data" / "meta.properties").exists():
                continue
            home.mkdir(parents=True, exist_ok=True)
            (home / "server.properties").write_text(server_properties(self, node))
            command = [java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", class_path, "kafka.tools.StorageTool"]
            # One word: an id may begin with a dash, and would pass for an option.
            command += ["format", f"--cluster-id={self.cluster_id}", "--config", str(home / "server.properties")]
            formats.append(
                (node, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            )
        outputs = [(node, process.communicate()[0], process.returncode) for node, process in formats]
        for node, output, code in outputs:
            if code == 0:
                continue
            raise ServiceFailed(
                f"The storage of Kafka broker {node.id} could not be prepared:\n{output.strip()[-800:]}",
                str(self._home(node)),
                "free disk space and rights in that directory are the usual causes; then: lockgate up",
            )

    def _failure(self, node: Node, what: str) -> ServiceFailed:
        daemon = self.daemon(node)
        return ServiceFailed(
            f"Kafka broker {node.id} {what}. The end of its log:\n{daemon.log_tail()}",
            str(daemon.log),
            "fix what the log says and run again: lockgate up; or start without the data: lockgate up --fresh",
        )


def server_properties(cluster: KafkaCluster, node: Node) -> str:
    """A node's whole configuration: what is not named here is Kafka's default."""
    replicas = min(len(cluster.nodes), 3)
    in_sync = max(1, replicas - 1)
    voters = ",".join(f"{each.id}@{HOST}:{each.controller_port}" for each in cluster.nodes)
    listeners = {"BROKER": node.port, "CONTROLLER": node.controller_port}
    advertised = {"BROKER": node.port}
    if node.detour is not None:
        listeners["PROXIED"], advertised["PROXIED"] = node.detour.port, node.detour.proxy_port
    settings: dict[str, str | int] = {
        "process.roles": "broker,controller",
        "node.id": node.id,
        "controller.quorum.voters": voters,
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
        "advertised.listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in advertised.items()),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(cluster.directory / f"broker-{node.id}" / "data"),
        # For development: the first record makes its topic. Lockgate itself never relies on it.
        "auto.create.topics.enable": "true",
        "num.partitions": 4,
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        # Timed-out transactions are looked for every second, not every ten: tests wait for exactly that.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
        # Kafka deletes by the records' own times; events of last year would vanish minutes after they were written.
        "log.retention.ms": -1,
        # A node that was killed may come back under its name when its old session has run out.
        "broker.session.timeout.ms": 6000,
        "broker.heartbeat.interval.ms": 1000,
        "log.cleaner.dedupe.buffer.size": 16_777_216,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


_LOG4J = f"""\
{LOG4J_CONSOLE}logger.snapshots.name=org.apache.kafka.image
logger.snapshots.level=warn
logger.configs.name=org.apache.kafka.common.config
logger.configs.level=warn
"""


# ApiVersions, version 0, correlation id 7, no client name: the one request that every broker answers to any client.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def _answers(port: int) -> bool:
    """Whether a broker answers requests on this port: it takes connections long before it does."""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(_API_VERSIONS)
            return connection.recv(8)[4:] == struct.pack(">i", 7)
    except OSError:
        return False


def _known_brokers(servers: str) -> set[int]:
    """The ids of the brokers that serve clients now, asked of the cluster itself; empty while it does not answer."""
    try:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError
    except ImportError as error:
        raise BadMachine(
            "The Kafka client library is not installed.", "package kafka-python", "pip install 'lockgate[kafka]'"
        ) from error
    with _silenced("kafka"), contextlib.suppress(KafkaError, OSError):
        admin = KafkaAdminClient(
            bootstrap_servers=servers.split(","), bootstrap_timeout_ms=5000, request_timeout_ms=5000
        )
        try:
            return {int(broker["broker_id"]) for broker in admin.describe_cluster()["brokers"]}
        finally:
            admin.close()
    return set()


@contextlib.contextmanager
def _silenced(name: str) -> Iterator[None]:
    """While a node is coming up, refused connections are no news."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
