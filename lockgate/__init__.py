"""Stream processing on Apache Spark whose delivery guarantee is declared, derived, kept and proven."""

from lockgate.dataflow import exchange, windows
from lockgate.dataflow.eventtime import Late
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import KeyedStream, Output, Stream, WindowedStream, stream
from lockgate.errors import LockgateError
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.explain import explain
from lockgate.planner.plan import Plan, plan
from lockgate.runtime.run import Run, run
from lockgate.runtime.writestream import write_stream
from lockgate.sinks.console import ConsoleSink
from lockgate.sinks.files import FileSink
from lockgate.sinks.kafka import KafkaSink
from lockgate.sinks.memory import MemorySink
from lockgate.sources.files import FileSource
from lockgate.sources.kafka import KafkaSource
from lockgate.sources.memory import MemorySource
from lockgate.sources.sensors import SensorSource
from lockgate.sources.socket import SocketSource

__version__ = "0.1.0"

__all__ = [
    "ConsoleSink",
    "FileSink",
    "FileSource",
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
    "Output",
    "Plan",
    "Run",
    "SensorSource",
    "SocketSource",
    "Stream",
    "WindowedStream",
    "exchange",
    "explain",
    "plan",
    "run",
    "stream",
    "windows",
    "write_stream",
]
