"""Stream processing on Apache Spark whose delivery guarantee is declared, derived, kept and proven.

A name is loaded at its first use. So the command line answers at once, and Spark's workers, which only write rows, do
not load a planner with each new process.

The examples in docstrings start like a job file, and read these two streams:

    >>> from lockgate import *
    >>> bought = MemorySource([], value="id BIGINT, ip STRING, amount DOUBLE, at TIMESTAMP")
    >>> orders = stream("orders", bought)
    >>> clicks = stream("clicks", MemorySource([], value="ip STRING, url STRING, seen TIMESTAMP"))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockgate.commit.resource import CommittingSink, Resource
    from lockgate.connectors.files.reading import read_files
    from lockgate.connectors.files.sink import FileSink
    from lockgate.connectors.files.source import FileSource
    from lockgate.connectors.kafka.sink import KafkaSink
    from lockgate.connectors.kafka.source import KafkaSource
    from lockgate.connectors.local.console import ConsoleSink
    from lockgate.connectors.local.memorysink import MemorySink
    from lockgate.connectors.local.memorysource import MemorySource
    from lockgate.connectors.local.sensors import SensorSource
    from lockgate.connectors.local.socket import SocketSource
    from lockgate.connectors.monitor.sink import MonitorSink
    from lockgate.connectors.mqtt.source import MqttSource
    from lockgate.connectors.postgres.sink import PostgresSink
    from lockgate.connectors.sqlite.sink import SqliteSink
    from lockgate.dataflow import aggregates, exchange, synopses, windows
    from lockgate.dataflow import patterns as pattern
    from lockgate.dataflow.deadletters import DeadLetters
    from lockgate.dataflow.eventtime import Late
    from lockgate.dataflow.fanout import Partial
    from lockgate.dataflow.format import Format
    from lockgate.dataflow.job import Job
    from lockgate.dataflow.joinkind import JoinKind
    from lockgate.dataflow.state import StatefulFunction, list_of, map_of, value
    from lockgate.dataflow.stream import KeyedStream, Output, Stream, WindowedStream, stream
    from lockgate.dataflow.table import FileTable, PostgresTable, Table, table
    from lockgate.dataflow.tracking import acks
    from lockgate.errors import LockgateError
    from lockgate.guarantees import Guarantee, Mode
    from lockgate.planner.explain import explain
    from lockgate.planner.plan import Plan, plan
    from lockgate.runtime.run import run
    from lockgate.runtime.running import Run
    from lockgate.runtime.state import get_state
    from lockgate.runtime.writestream import write_stream

__version__ = "0.1.0"

_HOMES = {
    "CommittingSink": "lockgate.commit.resource",
    "ConsoleSink": "lockgate.connectors.local.console",
    "DeadLetters": "lockgate.dataflow.deadletters",
    "FileSink": "lockgate.connectors.files.sink",
    "FileSource": "lockgate.connectors.files.source",
    "FileTable": "lockgate.dataflow.table",
    "Format": "lockgate.dataflow.format",
    "Guarantee": "lockgate.guarantees",
    "Job": "lockgate.dataflow.job",
    "JoinKind": "lockgate.dataflow.joinkind",
    "KafkaSink": "lockgate.connectors.kafka.sink",
    "KafkaSource": "lockgate.connectors.kafka.source",
    "KeyedStream": "lockgate.dataflow.stream",
    "Late": "lockgate.dataflow.eventtime",
    "LockgateError": "lockgate.errors",
    "MemorySink": "lockgate.connectors.local.memorysink",
    "MemorySource": "lockgate.connectors.local.memorysource",
    "Mode": "lockgate.guarantees",
    "MonitorSink": "lockgate.connectors.monitor.sink",
    "MqttSource": "lockgate.connectors.mqtt.source",
    "Output": "lockgate.dataflow.stream",
    "Partial": "lockgate.dataflow.fanout",
    "Plan": "lockgate.planner.plan",
    "PostgresSink": "lockgate.connectors.postgres.sink",
    "PostgresTable": "lockgate.dataflow.table",
    "Resource": "lockgate.commit.resource",
    "Run": "lockgate.runtime.running",
    "SensorSource": "lockgate.connectors.local.sensors",
    "SocketSource": "lockgate.connectors.local.socket",
    "SqliteSink": "lockgate.connectors.sqlite.sink",
    "StatefulFunction": "lockgate.dataflow.state",
    "Stream": "lockgate.dataflow.stream",
    "Table": "lockgate.dataflow.table",
    "WindowedStream": "lockgate.dataflow.stream",
    "acks": "lockgate.dataflow.tracking",
    "aggregates": "lockgate.dataflow.aggregates",
    "exchange": "lockgate.dataflow.exchange",
    "explain": "lockgate.planner.explain",
    "get_state": "lockgate.runtime.state",
    "list_of": "lockgate.dataflow.state",
    "map_of": "lockgate.dataflow.state",
    "pattern": "lockgate.dataflow.patterns",
    "plan": "lockgate.planner.plan",
    "read_files": "lockgate.connectors.files.reading",
    "run": "lockgate.runtime.run",
    "stream": "lockgate.dataflow.stream",
    "table": "lockgate.dataflow.table",
    "synopses": "lockgate.dataflow.synopses",
    "value": "lockgate.dataflow.state",
    "windows": "lockgate.dataflow.windows",
    "write_stream": "lockgate.runtime.writestream",
}

__all__ = [
    "CommittingSink",
    "ConsoleSink",
    "DeadLetters",
    "FileSink",
    "FileSource",
    "FileTable",
    "Format",
    "Guarantee",
    "Job",
    "JoinKind",
    "KafkaSink",
    "KafkaSource",
    "KeyedStream",
    "Late",
    "LockgateError",
    "MemorySink",
    "MemorySource",
    "Mode",
    "MonitorSink",
    "MqttSource",
    "Output",
    "Partial",
    "Plan",
    "PostgresSink",
    "PostgresTable",
    "Resource",
    "Run",
    "SensorSource",
    "SocketSource",
    "SqliteSink",
    "StatefulFunction",
    "Stream",
    "Table",
    "WindowedStream",
    "acks",
    "aggregates",
    "exchange",
    "explain",
    "get_state",
    "list_of",
    "map_of",
    "pattern",
    "plan",
    "read_files",
    "run",
    "stream",
    "synopses",
    "table",
    "value",
    "windows",
    "write_stream",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lockgate' has no attribute {name!r}")
    module = importlib.import_module(home)
    value = module if name in ("aggregates", "exchange", "pattern", "synopses", "windows") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
