"""Every kind of output has its reader, under a label that is the same in all runs."""

from pathlib import Path

import pytest

from lockgate import ConsoleSink, FileSink, Job, KafkaSink, KafkaSource, MonitorSink, PostgresSink, SqliteSink, stream
from lockgate.dataflow.endpoints import Sink
from lockgate.errors import Refused
from lockgate.guarantees import Guarantee
from lockgate.lab.prove.places import Place, find_readers, place_of, unread
from lockgate.lab.prove.redirect import Redirected, Site, redirect
from lockgate.lab.rig.judge.promises import Keeping
from lockgate.lab.rig.readers.databases import PostgresRows, SqliteRows
from lockgate.lab.rig.readers.files import Files
from lockgate.lab.rig.readers.topics import Topics

AUTHORS = "postgresql://me@theirs/db"


def moved(tmp_path: Path, name: str, **sinks: Sink) -> Redirected:
    events = stream("events", KafkaSource(topic="events", servers="theirs:9092", value="id BIGINT, user STRING"))
    outputs = [events.to(output, sink, guarantee=Guarantee.AT_LEAST_ONCE) for output, sink in sinks.items()]
    job = Job("mine", *outputs, guarantee=Guarantee.AT_LEAST_ONCE)
    return redirect(job, Site(name, "localhost:1", tmp_path / name, "postgresql://ours@localhost:2/db"))


ALL: dict[str, Sink] = {
    "topic": KafkaSink(topic="results", servers="theirs:9092"),
    "table": PostgresSink(table="results", dsn=AUTHORS),
    "upserts": PostgresSink(table="latest", dsn=AUTHORS, key="id"),
    "lite": SqliteSink(table="results", path="/theirs/results.db"),
    "lite2": SqliteSink(table="latest", path="/theirs/results.db", key="id"),
    "files": FileSink("/theirs/results"),
    "screen": ConsoleSink(),
    "gauge": MonitorSink(metric="ids", value="id"),
}


def test_every_output_that_keeps_rows_has_a_place_that_is_called_the_same_in_all_runs(tmp_path: Path) -> None:
    runs = [moved(tmp_path, name, **ALL) for name in ("lockgate-proof-answer", "lockgate-proof-1-0")]
    first, second = ({one.name: place_of(one, run.site) for one in run.results} for run in runs)
    assert first == second
    assert first == {
        "topic": Place("out-0", Keeping.LOG),
        "table": Place("out-1", Keeping.ADDED),
        "upserts": Place("out-2", Keeping.REPLACED),
        "lite": Place("out-3-results", Keeping.ADDED),
        "lite2": Place("out-3-latest", Keeping.REPLACED),
        "files": Place("out-4", Keeping.ADDED, has_transactions=False),
        "screen": None,
        "gauge": None,
    }


def test_every_place_has_its_reader(tmp_path: Path) -> None:
    readers = find_readers(moved(tmp_path, "lockgate-proof-1-0", **ALL), servers="localhost:1", dsn="postgresql://real")
    kinds = [type(one) for one in readers.outputs]
    assert kinds == [Topics, PostgresRows, PostgresRows, SqliteRows, SqliteRows, Files]
    assert readers.labels == ("out-0", "out-1", "out-2", "out-3-results", "out-3-latest", "out-4")


def test_outputs_that_keep_nothing_are_reported_and_a_job_without_others_is_refused(tmp_path: Path) -> None:
    told = unread(moved(tmp_path, "lockgate-proof-1-0", **ALL))
    assert told == {
        "screen": "a ConsoleSink keeps nothing that could be read when all is over",
        "gauge": "a MonitorSink keeps nothing that could be read when all is over",
    }
    with pytest.raises(Refused, match="nothing of this job can be compared"):
        unread(moved(tmp_path, "lockgate-proof-1-0", screen=ConsoleSink()))
