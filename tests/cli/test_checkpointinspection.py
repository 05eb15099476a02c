"""`lockgate checkpoints list, show, verify, diff` over real checkpoints: whole, broken in each way, live, on HDFS."""

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lockgate import get_state
from lockgate.checkpoints import verifying
from lockgate.checkpoints.facts import look_at
from lockgate.checkpoints.tree import HadoopTree, LocalTree
from lockgate.checkpoints.verifying import look_for_damage, verify
from lockgate.cli import main as cli
from lockgate.cli.jobfile import load_job
from lockgate.errors import Failed
from lockgate.lab.services.hdfs import Hdfs
from support.process import running
from support.runs import run_to_the_end
from support.waiting import PATIENCE_SECONDS, Patience

EPOCHS = 5
JOB = """
from lockgate import Guarantee, Job, MemorySource, SqliteSink, StatefulFunction, stream, value


class Totals(StatefulFunction):
    schema = "k STRING, total BIGINT"
    total = value("BIGINT")

    def process(self, row, context):
        self.total.set((self.total.get() or 0) + row.v)
        yield {{"k": row.k, "total": self.total.get()}}


def job() -> Job:
    events = [("abc"[at % 3], at) for at in range(4 * {epochs})]
    read = stream("events", MemorySource(events, value="k STRING, v INT", per_epoch=4))
    totals = read.key_by("k").process(Totals(), name="totals")
    return Job(
        "looked-at",
        totals.to("out", SqliteSink(path={db!r}, table="totals")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )
"""


@dataclass(frozen=True)
class Made:
    """A job that has run to its end."""

    file: Path
    checkpoint: Path

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.checkpoint, to)
        return to


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("looked-at")
    file = root / "totals.py"
    file.write_text(JOB.format(epochs=EPOCHS, db=str(root / "results.db")))
    run_to_the_end(load_job(str(file), []), root)
    return Made(file, root / "checkpoint")


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Run a command with --json."""

    def run_command(*words: str | Path) -> tuple[int, Any]:
        capsys.readouterr()
        status = cli.main(["checkpoints", *map(str, words), "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run_command


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_is_listed_shown_and_verified_with_its_ledger(
    made: Made, tell: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, listed = tell("list", made.file, "--checkpoint", made.checkpoint)
    assert status == 0
    epochs = listed["epochs"]
    assert [epoch["epoch"] for epoch in epochs] == [*range(EPOCHS)]
    assert all(epoch["is_committed"] and epoch["state_bytes"] > 0 and epoch["bytes"] > 0 for epoch in epochs)
    assert [epoch["sources"][0]["events"] for epoch in epochs] == [4] * EPOCHS
    assert [operator["steps"] for operator in listed["operators"]] == [["totals"]]

    status, shown = tell("show", made.file, "--checkpoint", made.checkpoint, "--epoch", "2")
    assert (status, shown["epoch"]["epoch"], shown["ledger"]["entry"]["epoch"]) == (0, 2, EPOCHS - 1)
    assert shown["epoch"]["conf"]["spark.sql.shuffle.partitions"] == str(len(shown["epoch"]["state"]))
    assert all(
        (store["snapshot"], store["changes"], store["missing"]) == (1, [2, 3], []) for store in shown["epoch"]["state"]
    )

    status, verified = tell("verify", made.file, "--checkpoint", made.checkpoint)
    assert (status, verified["findings"], verified["is_ledger_looked_at"]) == (0, [], True)

    # The last epoch planned and not committed, as after a crash: still whole, and the ledger still fits.
    copy = made.copy(tmp_path / "crashed")
    (copy / f"commits/{EPOCHS - 1}").unlink()
    status, verified = tell("verify", made.file, "--checkpoint", copy)
    assert (status, verified["findings"]) == (0, [])
    # An older copy: the ledger has gone on.
    (copy / f"offsets/{EPOCHS - 1}").unlink()
    (copy / f"commits/{EPOCHS - 2}").unlink()
    status, verified = tell("verify", made.file, "--checkpoint", copy)
    assert (status, [one["is_fatal"] for one in verified["findings"]]) == (1, [True])
    assert "ledger" in verified["findings"][0]["what"]

    status, difference = tell("diff", made.checkpoint, copy)
    assert (status, difference["lineage"], difference["offsets"][0]["records"]) == (0, "same", -8)

    for words in (["list"], ["show"], ["verify"]):
        assert cli.main(["checkpoints", *words, str(made.file), "--checkpoint", str(made.checkpoint)]) == 0
    assert cli.main(["checkpoints", "diff", str(made.checkpoint), str(copy)]) == 0
    told = capsys.readouterr().out
    for text in ("totals (transformWithState", f"epoch {EPOCHS - 1} is committed", "the ledger fits", "one lineage"):
        assert text in told


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x01
    file.write_bytes(content)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("pattern", "way", "is_fatal"),
    [
        (f"offsets/{EPOCHS - 1}", cut, True),
        ("offsets/1", Path.unlink, False),
        ("commits/2", flip, False),
        ("metadata", flip, True),
        ("state/0/1/3.changelog", Path.unlink, True),
        (f"state/0/1/{EPOCHS}.changelog", flip, True),
        ("state/0/0/1.zip", cut, True),
        ("state/0/0/1.zip", Path.unlink, True),
        ("state/0/2/SSTs/*.sst", flip, True),
        ("state/0/2/SSTs/*.sst", Path.unlink, True),
        ("state/0/_metadata/v2/0", cut, True),
        ("state/0/_stateSchema/default/0_*", Path.unlink, True),
    ],
)
def test_each_damage_is_named_alone(
    made: Made,
    tell: Callable[..., tuple[int, Any]],
    tmp_path: Path,
    pattern: str,
    way: Callable[[Path], None],
    is_fatal: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifying, "_PAUSES_SECONDS", (0.0, 0.0, 0.0))  # nothing runs beside it
    copy = made.copy(tmp_path / "broken")
    (file,) = copy.glob(pattern)
    way(file)
    status, verified = tell("verify", "--checkpoint", copy)
    assert status == 1
    (found,) = verified["findings"]
    assert (found["where"], found["is_fatal"]) == (file.relative_to(copy).as_posix(), is_fatal)
    assert found["fix"]
    assert verified["is_ledger_looked_at"] is False


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("name", ["state/0/1/3.changelog", "state/0/0/1.zip"])
def test_state_that_is_reported_to_be_lost_cannot_be_loaded_by_spark(made: Made, tmp_path: Path, name: str) -> None:
    job = load_job(str(made.file), [])
    copy = made.copy(tmp_path / "broken")
    assert len(get_state(job, "totals", checkpoint=str(copy))) == 3
    (copy / name).unlink()
    with pytest.raises((Failed, Py4JJavaError)):
        get_state(job, "totals", checkpoint=str(copy))


LIVE = """
import sys
from pyspark.sql import SparkSession

settings = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "4",
    "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0",
    "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).load().selectExpr("value % 50 AS k")
query = rows.groupBy("k").count().writeStream.format("noop").outputMode("update")
query.option("checkpointLocation", sys.argv[1]).start().awaitTermination()
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.process
def test_a_live_query_that_cleans_up_is_never_found_damaged(tmp_path: Path) -> None:
    """A stranger's query, which keeps four epochs and cleans up ten times a second."""
    checkpoint = tmp_path / "cp"
    script = tmp_path / "live.py"
    script.write_text(textwrap.dedent(LIVE))
    tree = LocalTree(checkpoint)
    looks, epochs = 0, set()
    patience = Patience("forty epochs", 2 * PATIENCE_SECONDS)
    with running(sys.executable, script, checkpoint, cwd=tmp_path) as driver:
        driver.wait_for("an epoch", lambda: any(checkpoint.glob("commits/[0-9]*")))
        while len(epochs) < 40:
            patience.check()
            assert driver.child.poll() is None, driver.text[-2000:]
            epochs |= {epoch.number for epoch in look_at(tree).epochs}
            assert verify(lambda: look_for_damage(tree), time.sleep, alike=lambda one: one.where) == []
            looks += 1
    assert looks >= 5
    assert min(epochs) not in {epoch.number for epoch in look_at(tree).epochs}, "nothing was cleaned up"
    # Killed in the midst of it, it is whole too.
    assert verify(lambda: look_for_damage(tree), time.sleep, alike=lambda one: one.where) == []


@pytest.mark.system
def test_a_checkpoint_on_hdfs_is_listed_and_verified(
    made: Made, hdfs: Hdfs, spark: SparkSession, tell: Callable[..., tuple[int, Any]]
) -> None:
    place = f"{hdfs.uri}/looked-at"
    tree = HadoopTree(place, spark)
    for entry in LocalTree(made.checkpoint).entries():
        if not entry.name.endswith(".crc"):
            tree.write(entry.name, (made.checkpoint / entry.name).read_bytes())
    status, listed = tell("list", "--checkpoint", place)
    assert (status, [epoch["epoch"] for epoch in listed["epochs"]]) == (0, [*range(EPOCHS)])
    status, verified = tell("verify", made.file, "--checkpoint", place)
    assert (status, verified["findings"], verified["is_ledger_looked_at"]) == (0, [], True)
    status, difference = tell("diff", made.checkpoint, place)
    assert (difference["lineage"], difference["offsets"][0]["records"]) == ("same", 0)
    tree.remove("state/0/1/3.changelog")
    status, verified = tell("verify", "--checkpoint", place)
    assert (status, [one["where"] for one in verified["findings"]]) == (1, ["state/0/1/3.changelog"])


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert cli.main(["checkpoints", *map(str, words)]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "show", "verify"])
def test_what_is_no_checkpoint_is_refused(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not said which checkpoint" in refused(capsys, command)
    assert "does not exist" in refused(capsys, command, "--checkpoint", tmp_path / "nowhere")
    (tmp_path / "mine.txt").write_text("x")
    assert "is not a checkpoint" in refused(capsys, command, "--checkpoint", tmp_path)
    assert "is not a checkpoint" in refused(capsys, "diff", tmp_path, tmp_path)


def test_a_checkpoint_of_another_system_is_reported_to_carry_no_marker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in {
        "metadata": '{"id":"q"}',
        "offsets/0": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1767225600000,"conf":{}}\n{"t":{"0":7}}',
        "commits/0": "v1\n{}",
    }.items():
        (tmp_path / "cp" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cp" / name).write_text(content)
    for command in ("list", "show", "verify"):
        assert cli.main(["checkpoints", command, "--checkpoint", str(tmp_path / "cp")]) == 0
        assert "no marker of Lockgate's" in capsys.readouterr().out
    assert "has no epoch 4" in refused(capsys, "show", "--checkpoint", tmp_path / "cp", "--epoch", "4")
    (tmp_path / "cp" / "lockgate.json").write_text('{"job": "orders", "made": "2026-01-31", "format": 1}')
    assert cli.main(["checkpoints", "list", "--checkpoint", str(tmp_path / "cp")]) == 0
    assert "orders, since 2026-01-31" in capsys.readouterr().out
