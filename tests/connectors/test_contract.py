"""Every source and sink of the package answers about itself as the contract says."""

import inspect
from collections.abc import Callable

import pytest

from lockgate import (
    ConsoleSink,
    FileSink,
    FileSource,
    KafkaSink,
    KafkaSource,
    MemorySink,
    MemorySource,
    MonitorSink,
    MqttSource,
    PostgresSink,
    SensorSource,
    SocketSource,
    SqliteSink,
)
from lockgate.dataflow.endpoints import Sink, Source
from lockgate.dataflow.relocation import Relocation
from lockgate.testing import EndpointContract

VALUE = "k STRING, v INT"
MADE: list[Callable[[], Source | Sink]] = [
    lambda: KafkaSource(topic="in", servers="h:9092", value="v INT", key="k STRING"),
    lambda: FileSource(path="/in", value=VALUE, archive="/done"),
    lambda: SocketSource("h", 1, value=VALUE, format="json"),
    lambda: MqttSource(topic="in", host="h", value=VALUE),
    lambda: SensorSource(),
    lambda: MemorySource([], value=VALUE),
    lambda: KafkaSink(topic="out", servers="h:9092", key="k", headers="h"),
    lambda: KafkaSink(route="k", servers="h:9092"),
    lambda: FileSink("/out", partition_by="k"),
    lambda: FileSink("s3://bucket/out"),
    lambda: PostgresSink(table="shop.out", dsn="postgresql://h/db", key="k"),
    lambda: SqliteSink(table="out", path="/out.db", key="k"),
    lambda: MonitorSink(metric="m", value="v", labels="k"),
    lambda: ConsoleSink(),
    lambda: MemorySink(),
]


class TestContract(EndpointContract):
    @pytest.fixture(autouse=True, params=MADE, ids=lambda make: type(make()).__name__)
    def set_up(self, request: pytest.FixtureRequest) -> None:
        self._make = request.param

    def endpoint(self) -> Source | Sink:
        made: Source | Sink = self._make()
        return made


def laws() -> list[str]:
    return [name for name, one in inspect.getmembers(EndpointContract, inspect.isfunction) if name.startswith("test_")]


class Stays(KafkaSink):
    """Says that it moves, and does not."""

    def relocate(self, to: Relocation) -> "Stays":
        return self


class Inherits(KafkaSink):
    """May use more than its parent, and does not say where that moves."""


class Unkeyed(SqliteSink):
    """Replaces rows by a column that it does not ask for."""

    def columns_needed(self) -> tuple[str, ...]:
        return ()


class Unplaced(MemorySource):
    """Its rows have no position."""

    def hidden_columns(self) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize(
    "wrong",
    [
        Stays(topic="out", servers="h:1"),
        Inherits(topic="out", servers="h:1"),
        Unkeyed(table="t", path="/out.db", key="k"),
        Unplaced([], value=VALUE),
    ],
    ids=lambda wrong: type(wrong).__name__,
)
def test_an_endpoint_that_breaks_a_law_is_caught(wrong: Source | Sink) -> None:
    class Contract(EndpointContract):
        def endpoint(self) -> Source | Sink:
            return wrong

    def breaks(law: str) -> bool:
        try:
            getattr(Contract(), law)()
        except AssertionError:
            return True
        return False

    assert len([law for law in laws() if breaks(law)]) >= 1
