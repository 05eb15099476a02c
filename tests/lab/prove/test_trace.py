"""Records tell where they came from under proof, and only then."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from lockgate import Guarantee, Job, KafkaSink, MemorySource, run, stream, windows
from lockgate.connectors.kafka.sink import TRACE
from lockgate.connectors.kafka.topics import create_topics
from lockgate.errors import BadJob
from support.records import read

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [(f"k{n % 3}", n, BEGAN + n * timedelta(seconds=1), [("own", b"header")] if n % 2 else None) for n in range(40)]
SCHEMA = "k STRING, v INT, at TIMESTAMP, h ARRAY<STRUCT<key: STRING, value: BINARY>>"


def test_a_sink_is_traced_by_a_proof_alone() -> None:
    sink = KafkaSink(topic="out", servers="h:1")
    traced = sink.traced()
    assert (sink.wants_place, traced.wants_place) == (False, True)
    assert repr(sink) == repr(traced)
    assert traced.untracked().wants_place is True
    with pytest.raises(BadJob, match="no argument is_traced="):
        KafkaSink(topic="out", servers="h:1", is_traced=True)  # type: ignore[call-arg]


def traces(records: list[Any]) -> list[dict[str, Any]]:
    return [json.loads(dict(record.headers)[TRACE]) for record in records]


@pytest.mark.system
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.END_TO_END_EXACTLY_ONCE], ids=["plain", "transactional"]
)
def test_a_traced_record_names_its_event_and_epoch(kafka: str, tmp_path: Path, guarantee: Guarantee) -> None:
    name = f"traced-{uuid4().hex[:8]}"
    topics = {one: f"{name}-{one}" for one in ("rows", "sums", "plain", "letters")}
    create_topics(kafka, list(topics.values()), partitions=2, where="test")

    def doubled(row: Any) -> Any:
        if row.v == 7:
            raise ValueError("seven")
        yield row.k, row.v
        yield row.k, -row.v

    source = stream("in", MemorySource(ROWS, value=SCHEMA, per_epoch=20))
    window = source.event_time("at", lateness="0 seconds").key_by("k").window(windows.tumbling("10 seconds"))
    job = Job(
        name,
        source.to("rows", KafkaSink(topic=topics["rows"], servers=kafka, key="k", headers="h").traced()),
        window.aggregate(total="sum(v)").to("sums", KafkaSink(topic=topics["sums"], servers=kafka).traced()),
        source.flat_map(doubled, "k STRING, v INT").to("plain", KafkaSink(topic=topics["plain"], servers=kafka)),
        guarantee=guarantee,
        dead_letters=KafkaSink(topic=topics["letters"], servers=kafka).traced(),
    )
    run(job, until_caught_up=True, checkpoint=str(tmp_path / "checkpoint"), log_file=tmp_path / "spark.log")

    rows = read(kafka, topics["rows"])
    told = {json.loads(record.value)["v"]: trace for record, trace in zip(rows, traces(rows), strict=True)}
    part = told[0]["part"]
    assert told == {n: {"epoch": n // 20, "source": "in", "part": part, "at": n} for n in range(40)}
    assert {json.loads(record.value)["v"] % 2: len(record.headers) for record in rows} == {0: 1, 1: 2}
    sums = traces(read(kafka, topics["sums"]))
    assert sums
    assert all(trace.keys() == {"epoch"} for trace in sums)
    plain = read(kafka, topics["plain"])
    assert len(plain) == 78
    assert all(record.headers in (None, [], ()) for record in plain)
    assert traces(read(kafka, topics["letters"])) == [{"epoch": 0, "source": "in", "part": part, "at": 7}]
