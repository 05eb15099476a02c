"""A real HDFS on this machine: one NameNode and one DataNode, each a process of its own, so that each can die alone.

The NameNode has the names, in a journal that it syncs before it answers; the DataNode has the bytes, in a single copy.
Both keep what they have across their own death:

    stop, or kill -9     addresses and data stay
    start after it       what does not run is started over its own directory

It is for tests of files on HDFS. A cluster keeps three copies; one machine cannot.

Everything listens on the loopback interface only.
"""

import http.client
import json
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from lockgate.errors import BadMachine, ServiceFailed
from lockgate.lab.services import ports
from lockgate.lab.services.ports import HOST
from lockgate.lab.services.processes import LOG4J_CONSOLE, Daemon
from lockgate.provision.jars import Progress, hdfs_jars
from lockgate.provision.java import find_java

START_LIMIT = timedelta(seconds=90)
STOP_LIMIT = timedelta(seconds=20)
HEAP = "256m"

_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"


@dataclass(frozen=True)
class Hdfs:
    """Where the two nodes keep their data, and their ports."""

    directory: Path
    port: int  # of the NameNode, for clients
    names_web_port: int
    data_port: int
    data_control_port: int
    data_web_port: int

    @property
    def uri(self) -> str:
        """The address to put before a path."""
        return f"hdfs://{HOST}:{self.port}"

    @property
    def name_node(self) -> Daemon:
        """The process of the NameNode."""
        return Daemon(name="name-node", directory=self.directory / "name-node")

    @property
    def data_node(self) -> Daemon:
        """The process of the DataNode."""
        return Daemon(name="data-node", directory=self.directory / "data-node")

    @property
    def blocks(self) -> Path:
        """Where the DataNode has the bytes."""
        return self.data_node.directory / "blocks"

    def start(self, progress: Progress | None = None) -> None:
        """Start what does not run, without waiting for it; `wait` does that."""
        for daemon, main in ((self.name_node, _NAME_NODE), (self.data_node, _DATA_NODE)):
            if daemon.pid is not None:
                continue
            self._require_free(daemon)
            command = self._command(daemon, progress)
            if main == _NAME_NODE and not self._names.exists():
                self._format(command)
            daemon.start([*command, main, "-conf", str(self._settings)])

    def wait(self) -> None:
        """Return when files can be read and written; ServiceFailed where that is not so in time."""
        deadline = time.monotonic() + START_LIMIT.total_seconds()
        while time.monotonic() < deadline:
            for daemon in (self.name_node, self.data_node):
                if daemon.pid is None:
                    raise self._failure(daemon, "ended right after its start")
            has_names = self._has_names()
            if has_names and self._has_bytes():
                return
            time.sleep(0.05)
        silent = self.data_node if has_names else self.name_node
        raise self._failure(silent, f"was not ready within {START_LIMIT.total_seconds():.0f} seconds")

    def stop(self) -> bool:
        """Stop both nodes together; whether any had been running."""
        running = [daemon for daemon in (self.data_node, self.name_node) if daemon.pid is not None]
        for daemon in running:
            daemon.send(signal.SIGTERM)
        for daemon in running:
            daemon.stop(signal.SIGTERM, limit=STOP_LIMIT)
        return bool(running)

    def kill(self, daemon: Daemon) -> None:
        """Kill one node as a crash would; returns when it is dead, and so are its ports."""
        daemon.stop(signal.SIGKILL, limit=STOP_LIMIT)
        # The last threads of a process may outlive, for an instant, the moment at which it counts as ended.
        deadline = time.monotonic() + STOP_LIMIT.total_seconds()
        while time.monotonic() < deadline and not all(map(ports.is_free, self._ports_of(daemon))):
            time.sleep(0.01)

    @property
    def _names(self) -> Path:
        return self.name_node.directory / "names"

    @property
    def _settings(self) -> Path:
        return self.directory / "hdfs.xml"

    def _command(self, daemon: Daemon, progress: Progress | None) -> list[str]:
        """How Java is started for a node; its directory and its settings are there afterwards."""
        temporary = daemon.directory / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        logging = daemon.directory / "log4j2.properties"
        logging.write_text(LOG4J_CONSOLE)
        self._settings.write_text(_as_xml(settings(self)))
        # Jetty would unpack the web pages out of their jar, and read all of it for that: empty ones save seconds.
        pages = self.directory / "pages"
        for name in ("hdfs", "datanode", "static"):
            (pages / "webapps" / name).mkdir(parents=True, exist_ok=True)
        # It lives for minutes: compiling well would take longer than it saves.
        command = [str(find_java().path), f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [
            "-Djava.awt.headless=true",
            f"-Djava.io.tmpdir={temporary}",
            f"-Dlog4j2.configurationFile={logging}",
        ]
        return [*command, "-cp", ":".join(map(str, (pages, *hdfs_jars(progress))))]

    def _format(self, command: list[str]) -> None:
        """Make an empty file system aside and put it in place whole: an interrupted start leaves nothing half."""
        aside = self._names.with_suffix(".new")
        shutil.rmtree(aside, ignore_errors=True)
        place = f"dfs.namenode.name.dir={aside.as_uri()}"
        done = subprocess.run(
            [*command, _NAME_NODE, "-conf", str(self._settings), "-D", place, "-format", "-nonInteractive"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ServiceFailed(
                f"The NameNode's directory could not be made:\n{(done.stdout + done.stderr).strip()[-800:]}",
                str(aside),
                "free disk space and rights in that directory are the usual causes",
            )
        aside.rename(self._names)

    def _has_names(self) -> bool:
        """Does the NameNode know a DataNode and its blocks? Before that it accepts no writes."""
        about = "Hadoop:service=NameNode,name=FSNamesystemState"
        is_open = _ask(self.names_web_port, about, "FSState") == "Operational"
        return is_open and int(_ask(self.names_web_port, about, "NumLiveDataNodes") or 0) > 0

    def _has_bytes(self) -> bool:
        """Whether the DataNode has joined: the NameNode believes in one that was killed for minutes."""
        told = _ask(self.data_web_port, "Hadoop:service=DataNode,name=DataNodeInfo", "BPServiceActorInfo")
        return [actor["ActorState"] for actor in json.loads(told or "[]")] == ["RUNNING"]

    def _ports_of(self, daemon: Daemon) -> tuple[int, ...]:
        if daemon == self.name_node:
            return (self.port, self.names_web_port)
        return (self.data_port, self.data_control_port, self.data_web_port)

    def _require_free(self, daemon: Daemon) -> None:
        for port in self._ports_of(daemon):
            if not ports.is_free(port):
                raise BadMachine(
                    f"Port {port}, wanted by the {daemon.name} of HDFS, is taken by another program.",
                    f"{HOST}:{port}",
                    f"end that program, or use another directory than {self.directory}, with new ports",
                )

    def _failure(self, daemon: Daemon, what: str) -> ServiceFailed:
        return ServiceFailed(
            f"The {daemon.name} of HDFS {what}. The end of its log:\n{daemon.log_tail()}",
            str(daemon.log),
            f"fix what the log says and start again; or start without the data: remove {self.directory}",
        )


def new_hdfs(directory: Path) -> Hdfs:
    """An HDFS that has not run yet, on ports that are free now."""
    return Hdfs(directory.absolute(), *ports.choose(5, random.Random()))


def settings(hdfs: Hdfs) -> dict[str, str | int]:
    """What is not named here is Hadoop's default."""
    return {
        "fs.defaultFS": hdfs.uri,
        "hadoop.tmp.dir": str(hdfs.directory / "tmp"),
        "dfs.namenode.name.dir": (hdfs.name_node.directory / "names").as_uri(),
        "dfs.namenode.rpc-bind-host": HOST,
        "dfs.namenode.http-address": f"{HOST}:{hdfs.names_web_port}",
        "dfs.datanode.data.dir": hdfs.blocks.as_uri(),
        "dfs.datanode.address": f"{HOST}:{hdfs.data_port}",
        "dfs.datanode.ipc.address": f"{HOST}:{hdfs.data_control_port}",
        "dfs.datanode.http.address": f"{HOST}:{hdfs.data_web_port}",
        "dfs.datanode.hostname": HOST,
        "dfs.replication": 1,
        # Whoever may use this machine's loopback interface may do all here.
        "dfs.permissions.enabled": "false",
        # A machine may be unable to resolve its own name.
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        # One DataNode tells of all blocks there are: nothing more is worth waiting for.
        "dfs.namenode.safemode.min.datanodes": 1,
        "dfs.namenode.safemode.extension": 0,
        # Seconds; after a restart of the NameNode this is how soon the DataNode is back.
        "dfs.heartbeat.interval": 1,
        "dfs.namenode.handler.count": 4,
        "dfs.datanode.handler.count": 4,
    }


def _as_xml(told: dict[str, str | int]) -> str:
    properties = (
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>\n" for name, value in told.items()
    )
    return f"<configuration>\n{''.join(properties)}</configuration>\n"


def _ask(port: int, bean: str, attribute: str) -> Any:
    """What a node says of itself; None while it does not answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", f"/jmx?get={quote(bean)}::{attribute}")
        return json.loads(connection.getresponse().read())["beans"][0][attribute]
    except (OSError, http.client.HTTPException, ValueError, LookupError):
        return None
    finally:
        connection.close()
