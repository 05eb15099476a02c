"""Files on a real HDFS keep the laws that they keep on a local disk, also while its nodes and the driver are killed."""

import json
import os
import signal
import sqlite3
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from lockgate import FileSink, FileSource, Guarantee, Job, read_files, run, stream
from lockgate.checkpoints.tree import HadoopTree
from lockgate.commit.resource import Resource
from lockgate.connectors.files import listing
from lockgate.connectors.files.compaction import compact
from lockgate.connectors.files.confined import LeadsOutside
from lockgate.connectors.files.filesystem import HadoopSystem
from lockgate.connectors.files.store import FileStore
from lockgate.errors import EpochFailed, Refused
from lockgate.faultpoints import Fault, as_environment
from lockgate.lab.services.hdfs import Hdfs
from lockgate.lab.services.processes import Daemon
from lockgate.testing import ResourceContract, Row, opening
from support import process
from support.filesjob import entry
from support.process import LOCKGATE, parameters
from support.waiting import PATIENCE_SECONDS, Patience, wait_for

pytestmark = pytest.mark.system

EXACT = Guarantee.END_TO_END_EXACTLY_ONCE
ROWS_PER_FILE = 10


@dataclass(frozen=True)
class Place:
    """A directory on HDFS, and what a reader sees below it."""

    spark: SparkSession
    root: str

    def below(self, name: str) -> str:
        return f"{self.root}/{name}"

    def store(self, job: str, *, kind: str = "parquet") -> FileStore:
        system = HadoopSystem(self.root, self.spark)
        return FileStore(system, job, kind=kind, partition_by=(), roll_bytes=1 << 27)

    def ids(self, name: str) -> list[int]:
        """The ids that are out, in order; none where no epoch is."""
        try:
            rows = read_files(self.spark, self.below(name)).select("id").collect()
        except Refused:
            return []
        return sorted(row.id for row in rows)


@pytest.fixture(scope="module")
def hdfs(own_hdfs: Hdfs) -> Hdfs:
    """One whose nodes may be killed."""
    return own_hdfs


@pytest.fixture
def place(hdfs: Hdfs, spark: SparkSession) -> Place:
    return Place(spark, f"{hdfs.uri}/{uuid4().hex}")


def write_events(directory: Path, files: int) -> None:
    """Files of ten events each, one for each epoch: they are larger than what one epoch takes."""
    directory.mkdir()
    for at in range(files):
        ids = range(at * ROWS_PER_FILE, (at + 1) * ROWS_PER_FILE)
        lines = (json.dumps({"id": id, "text": "x" * 600}) for id in ids)
        file = directory / f"{at}.json"
        file.write_text("\n".join(lines) + "\n")
        os.utime(file, (at + 1, at + 1))  # the eldest is read first


def are_whole(ids: Sequence[int]) -> bool:
    """Are these all the events of the first epochs, each once?"""
    return list(ids) == list(range(len(ids))) and len(ids) % ROWS_PER_FILE == 0


# -- the laws, and a job in peace ---------------------------------------------------------------------------------


@pytest.mark.prove
class TestFilesOnHdfsKeepTheLaws(ResourceContract):
    @pytest.fixture(autouse=True)
    def _opened(self, place: Place) -> None:
        self._place = place
        self._sink = FileSink(place.below("out"))

    def spark(self) -> SparkSession:
        return self._place.spark

    def open(self, *, is_deciding: bool) -> Resource:
        return self._sink.open(opening(self._sink, self.spark(), is_deciding=is_deciding))

    def seen(self) -> list[Row]:
        try:
            return [(row.id, row.name) for row in read_files(self.spark(), self._sink.path).collect()]
        except Refused:  # nothing is out yet
            return []


def test_a_job_writes_whole_epochs_in_two_formats_and_small_files_are_merged(place: Place, tmp_path: Path) -> None:
    write_events(tmp_path / "in", files=4)
    parts = stream("events", FileSource(path=str(tmp_path / "in"), value="id INT, text STRING")).split(
        all="true", large="id >= 20"
    )
    job = Job(
        "copies",
        parts["all"].to("rows", FileSink(place.below("rows"))),
        parts["large"].to("lines", FileSink(place.below("lines"), "json")),
        guarantee=EXACT,
    )
    started = run(job, checkpoint=place.below("checkpoint"), until_caught_up=True, rows_per_epoch=20, wait=False)
    patience = Patience("the end of the job")
    while not started.wait(timeout=0.5):
        assert are_whole(place.ids("rows"))
        patience.check()
    assert place.ids("rows") == list(range(40))
    assert place.ids("lines") == list(range(20, 40))

    def merge() -> Any:
        return compact(place.spark, place.below("rows"), "copies", smaller_than="1 MB", roll="1 MB", grace=timedelta(0))

    done = merge()
    assert (done.replaced, done.written, done.deleted) == (4, 1, 0)
    assert place.ids("rows") == list(range(40))
    assert merge().deleted == 4
    assert place.ids("rows") == list(range(40))
    assert len(HadoopSystem(place.below("rows"), place.spark).files("data/copies")) == 1


def test_files_of_a_source_are_compared_and_archived(place: Place, tmp_path: Path) -> None:
    system = HadoopSystem(place.root, place.spark)

    def finish(name: str, source: FileSource) -> list[int]:
        read = stream("events", source)
        job = Job(name, read.to("out", FileSink(place.below(f"out-{name}"), "json")), guarantee=EXACT)
        run(job, checkpoint=str(tmp_path / name), until_caught_up=True)
        return place.ids(f"out-{name}")

    system.write("in/2026/a b.json", b'{"id": 1}\n')
    archiving = FileSource(path=place.below("in"), value="id INT", archive=place.below("done"))
    assert finish("archiving", archiving) == [1]
    assert (system.names("in/2026"), system.names("done/2026")) == ([], ["a b.json"])
    system.write("kept/b.json", b'{"id": 2}\n')
    keeping = FileSource(path=place.below("k*t"), value="id INT")
    assert finish("keeping", keeping) == [2]
    system.delete("kept/b.json")
    system.write("kept/b.json", b'{"id": 2}\n{"id": 3}\n')
    with pytest.raises(
        Refused, match=r"kept/b\.json was changed after it was read: it had 10 bytes of .* has 20 bytes"
    ):
        finish("keeping", keeping)


def test_the_root_of_an_hdfs_is_a_directory_too(hdfs: Hdfs, spark: SparkSession) -> None:
    system = HadoopSystem(f"{hdfs.uri}/", spark)
    name = uuid4().hex
    system.write(f"{name}/part-0.json", b"x")
    assert name in system.names("")
    assert system.files(name) == {f"{name}/part-0.json": 1}
    system.delete(name)
    assert name not in system.names("")


# -- a node dies --------------------------------------------------------------------------------------------------


def holding(at: int, mark: str, go: str) -> Callable[[Any], tuple[int]]:
    """A function that stands still at one row, once, until it may go on."""

    def hold(row: Any) -> tuple[int]:
        if row.id == at and not Path(mark).exists():
            Path(mark).touch()
            wait_for("leave to go on", Path(go).exists)
        return (row.id,)

    return hold


def half_blocks(hdfs: Hdfs) -> set[str]:
    """What the DataNode has of files that are still being written, or never were to the end."""
    halves = hdfs.blocks.glob("current/BP-*/current/rbw/blk_*[0-9]")
    return {file.name for file in halves if file.stat().st_size}


@pytest.mark.parametrize("node", ["name_node", pytest.param("data_node", marks=pytest.mark.prove)])
def test_a_node_that_dies_while_an_epoch_is_written_and_comes_back_costs_no_row(
    node: str, hdfs: Hdfs, place: Place, tmp_path: Path
) -> None:
    first, count, held = ROWS_PER_FILE, 40_000, 35_000
    source = tmp_path / "in"
    write_events(source, files=1)
    (source / "1.json").write_text("".join(f'{{"id": {id}}}\n' for id in range(first, count)))
    mark, go = tmp_path / "mark", tmp_path / "go"
    halves = half_blocks(hdfs)
    events = stream("events", FileSource(path=str(source), value="id INT"))
    rows = events.map(holding(held, str(mark), str(go)), "id INT").select("id", text="repeat('x', 60)")
    job = Job("outage", rows.to("out", FileSink(place.below("out"), "json")), guarantee=EXACT)
    started = run(job, checkpoint=str(tmp_path / "checkpoint"), until_caught_up=True, rows_per_epoch=1, wait=False)
    daemon: Daemon = getattr(hdfs, node)
    try:
        wait_for("a half-written epoch", lambda: mark.exists() and half_blocks(hdfs) > halves)
        hdfs.kill(daemon)
        assert daemon.pid is None
        if node == "name_node":
            go.touch()  # who asks the NameNode in the meantime has to try again
        hdfs.start()
        hdfs.wait()
        # A DataNode that died has broken off what was written to it, whether it is back or not.
        assert go.exists() or place.ids("out") == list(range(first))
        go.touch()
        assert started.wait(timeout=PATIENCE_SECONDS), "the job does not come to its end"
    finally:
        go.touch()
        hdfs.start()
        hdfs.wait()
        started.stop()
    assert place.ids("out") == list(range(count))


@pytest.fixture
def impatient(spark: SparkSession) -> Iterator[None]:
    """Who opens a file system now does not wait for its NameNode."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in (("dfs.client.retry.policy.enabled", "false"), ("fs.hdfs.impl.disable.cache", "true")):
        conf.set(name, value)
    yield
    conf.set("dfs.client.retry.policy.enabled", "true")
    conf.unset("fs.hdfs.impl.disable.cache")


@pytest.mark.usefixtures("impatient")
def test_a_name_node_that_stays_away_stops_a_publish_with_a_clear_word_and_nothing_is_half(
    hdfs: Hdfs, place: Place
) -> None:
    store = place.store("job")
    rows = [place.spark.range(at * 10, at * 10 + 10, numPartitions=2) for at in range(2)]
    store.publish(store.stage({"out": rows[0]}, 0), entry(0), after=None)
    staged = store.stage({"out": rows[1]}, 1)
    hdfs.kill(hdfs.name_node)
    try:
        with pytest.raises(EpochFailed, match=r"the file system failed: \w+Exception: ") as caught:
            store.publish(staged, entry(1), after=entry(0))
        assert "HDFS answers" in caught.value.fix
        assert "\n" not in caught.value.what
    finally:
        hdfs.start()
        hdfs.wait()
    assert place.ids("") == list(range(10))
    assert store.read() == place.store("job").read() == entry(0)
    store.publish(staged, entry(1), after=entry(0))
    assert place.ids("") == list(range(20))


@pytest.mark.parametrize("name", ["../victim", "a/../../victim", "/victim", ""])
def test_nothing_outside_of_a_directory_is_deleted_or_moved(place: Place, name: str) -> None:
    HadoopSystem(place.root, place.spark).write("victim", b"precious")
    system, tree = HadoopSystem(place.below("out"), place.spark), HadoopTree(place.below("out"), place.spark)
    attempts: list[Callable[[], object]] = [
        lambda: system.delete(name),
        lambda: tree.remove(name),
        lambda: listing.remove(place.below("out"), name, place.spark),
        lambda: listing.move(place.below("out"), name, place.below("done"), "stolen", place.spark),
    ]
    for attempt in attempts:
        with pytest.raises(LeadsOutside):
            attempt()
    assert HadoopSystem(place.root, place.spark).read("victim") == b"precious"


# -- the driver dies ----------------------------------------------------------------------------------------------

JOB = """
    from lockgate import FileSink, FileSource, Guarantee, Job, SqliteSink, stream

    def job(read: str, table: str, files: str) -> Job:
        events = stream("events", FileSource(path=read, value="id INT, text STRING"))
        return Job(
            "killed",
            events.to("table", SqliteSink(table="out", path=table)),
            events.to("files", FileSink(files)),
            guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
        )
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("point", "hit", "in_table", "in_files"),
    [
        ("PUBLISH", 3, 20, 10),  # the second epoch is decided, and HDFS does not show it yet
        pytest.param("STAGED", 2, 10, 10, marks=pytest.mark.prove),  # it lies on HDFS, and is decided nowhere
    ],
)
def test_a_driver_that_dies_around_the_decision_leaves_every_row_once(
    point: str, hit: int, in_table: int, in_files: int, place: Place, tmp_path: Path
) -> None:
    write_events(tmp_path / "in", files=4)
    (tmp_path / "killed.py").write_text(textwrap.dedent(JOB))
    fault = Fault(point=point, action="kill", hit=hit, mark=str(tmp_path / "mark"))
    command = ["run", "--no-supervise", "killed.py", "--until-caught-up", "--rows-per-epoch", "20"]
    command += ["--checkpoint", place.below("checkpoint")]
    command += parameters(read=tmp_path / "in", table=tmp_path / "out.db", files=place.below("out"))

    def drive() -> tuple[int, str]:
        done = process.run(*LOCKGATE, *command, cwd=tmp_path, environ=as_environment([fault]))
        return done.returncode, done.stdout + done.stderr

    def table() -> list[int]:
        with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM out ORDER BY id")]

    code, told = drive()
    assert code == -signal.SIGKILL, told
    assert table() == list(range(in_table))
    assert place.ids("out") == list(range(in_files))
    code, told = drive()
    assert code == 0, told
    assert table() == place.ids("out") == list(range(4 * ROWS_PER_FILE))
    system = HadoopSystem(place.below("out"), place.spark)
    assert FileStore(system, "killed", kind="parquet", partition_by=(), roll_bytes=1).leftovers() == ()
