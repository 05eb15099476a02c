"""Stream processing on Apache Spark whose delivery guarantee is declared, derived, kept and proven.

A name is loaded when it is first used: the command line answers at once, and Spark's workers, which need only what
writes their rows, do not load a planner with each new process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockgate.commit.resource import CommittingSink, Resource
    from lockgate.dataflow import aggregates, exchange, synopses, windows
    from lockgate.dataflow import patterns as pattern
    from lockgate.dataflow.deadletters import DeadLetters
    from lockgate.dataflow.eventtime import Late
    from lockgate.dataflow.fanout import Partial
    from lockgate.dataflow.job import Job
    from lockgate.dataflow.state import StatefulFunction, list_of, map_of, value
    from lockgate.dataflow.stream import KeyedStream, Output, Stream, WindowedStream, stream
    from lockgate.dataflow.table import FileTable, PostgresTable, Table, table
    from lockgate.dataflow.tracking import acks
    from lockgate.errors import LockgateError
    from lockgate.files.reading import read_files
    from lockgate.guarantees import Guarantee, Mode
    from lockgate.planner.explain import explain
    from lockgate.planner.plan import Plan, plan
    from lockgate.runtime.run import Run, run
    from lockgate.runtime.state import get_state
    from lockgate.runtime.writestream import write_stream
    from lockgate.sinks.console import ConsoleSink
    from lockgate.sinks.files import FileSink
    from lockgate.sinks.kafka import KafkaSink
    from lockgate.sinks.memory import MemorySink
    from lockgate.sinks.monitor import MonitorSink
    from lockgate.sinks.postgres import PostgresSink
    from lockgate.sinks.sqlite import SqliteSink
    from lockgate.sources.files import FileSource
    from lockgate.sources.kafka import KafkaSource
    from lockgate.sources.memory import MemorySource
    from lockgate.sources.mqtt import MqttSource
    from lockgate.sources.sensors import SensorSource
    from lockgate.sources.socket import SocketSource

__version__ = "0.1.0"

_HOMES = {
    "CommittingSink": "lockgate.commit.resource",
    "ConsoleSink": "lockgate.sinks.console",
    "DeadLetters": "lockgate.dataflow.deadletters",
    "FileSink": "lockgate.sinks.files",
    "FileSource": "lockgate.sources.files",
    "FileTable": "lockgate.dataflow.table",
    "Guarantee": "lockgate.guarantees",
    "Job": "lockgate.dataflow.job",
    "KafkaSink": "lockgate.sinks.kafka",
    "KafkaSource": "lockgate.sources.kafka",
    "KeyedStream": "lockgate.dataflow.stream",
    "Late": "lockgate.dataflow.eventtime",
    "LockgateError": "lockgate.errors",
    "MemorySink": "lockgate.sinks.memory",
    "MemorySource": "lockgate.sources.memory",
    "Mode": "lockgate.guarantees",
    "MonitorSink": "lockgate.sinks.monitor",
    "MqttSource": "lockgate.sources.mqtt",
    "Output": "lockgate.dataflow.stream",
    "Partial": "lockgate.dataflow.fanout",
    "Plan": "lockgate.planner.plan",
    "PostgresSink": "lockgate.sinks.postgres",
    "PostgresTable": "lockgate.dataflow.table",
    "Resource": "lockgate.commit.resource",
    "Run": "lockgate.runtime.run",
    "SensorSource": "lockgate.sources.sensors",
    "SocketSource": "lockgate.sources.socket",
    "SqliteSink": "lockgate.sinks.sqlite",
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
    "read_files": "lockgate.files.reading",
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
    "Guarantee",
    "Job",
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
