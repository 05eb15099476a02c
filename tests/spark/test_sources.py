"""Where a run begins to read, as the plan and the command line say."""

import pytest

from lockgate import FileSource, Guarantee, Job, KafkaSource, MemorySink, SocketSource, plan, stream
from lockgate.dataflow.endpoints import Reading, Source
from lockgate.spark.sources import read_from

KAFKA = KafkaSource(topic="t", servers="localhost:9092", value="id INT")
FILES = FileSource(path="in", value="id INT")
SOCKET = SocketSource(host="localhost", port=1)


def reading(source: Source, guarantee: Guarantee, start: str | None = None, is_rolling: bool = False) -> Reading:
    read = stream("in", source)
    last = read.key_by("id").rolling(n="count(*)") if is_rolling else read
    planned = plan(Job("reading", last.to("out", MemorySink()), guarantee=guarantee))
    return read_from(planned, planned.logical.node("in"), start, rows_per_epoch=7)


@pytest.mark.parametrize(
    ("source", "guarantee", "start", "expected"),
    [
        (KAFKA, Guarantee.AT_LEAST_ONCE, None, "earliest"),
        (KAFKA, Guarantee.AT_LEAST_ONCE, "latest", "latest"),
        # It remembers nothing of the run before, so the only way not to repeat a row is to begin with what comes next.
        (KAFKA, Guarantee.AT_MOST_ONCE, None, "latest"),
        (KAFKA, Guarantee.AT_MOST_ONCE, "earliest", "earliest"),
        (FILES, Guarantee.AT_MOST_ONCE, None, "earliest"),
        (SOCKET, Guarantee.AT_MOST_ONCE, None, "earliest"),
    ],
)
def test_a_run_begins_where_it_must(source: Source, guarantee: Guarantee, start: str | None, expected: str) -> None:
    assert reading(source, guarantee, start).start == expected


def test_order_is_asked_for_only_if_a_step_depends_on_it() -> None:
    assert not reading(FILES, Guarantee.AT_LEAST_ONCE).is_order_needed
    assert reading(FILES, Guarantee.AT_LEAST_ONCE, is_rolling=True).is_order_needed
