"""`lockgate checkpoints rollback`: an epoch that outlived its driver is planned anew, smaller, and comes out once."""

import json
import signal
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from pyspark.sql import SparkSession

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.locking import lock_shared
from lockgate.checkpoints.marker import write_marker
from lockgate.checkpoints.tree import open_tree
from lockgate.cli import main as cli
from lockgate.commit.ledger import Entry
from lockgate.connectors.postgres.connect import connect
from lockgate.connectors.postgres.ledger import PostgresLedger
from lockgate.faultpoints import Fault
from support.checkpoints import make_logs
from support.ledgers import Place
from support.records import by_key, read_json, unique
from support.site import Site
from support.waiting import wait_for


def mark(checkpoint: Checkpoint, job: str) -> None:
    write_marker(open_tree(checkpoint.root), job, datetime(2026, 1, 31, tzinfo=UTC))


def entry(epoch: int | None, digest: str | None, query: str = "q") -> Entry:
    at = datetime(2026, 1, 31, tzinfo=UTC).isoformat()
    return Entry(run="r", query=query, epoch=epoch, digest=digest, at=at)


def test_rollback_says_what_is_to_be_rolled_back(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["checkpoints", "rollback", "j"])
    assert end.value.code == 2
    assert "--uncommitted" in capsys.readouterr().err


def test_an_epoch_of_a_job_without_kafka_is_given_up_by_the_ledger_of_the_system_that_decides(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = make_logs(tmp_path / "checkpoint", planned=3, committed=2)
    rollback = ["checkpoints", "rollback", place.job, *place.option, "--checkpoint", checkpoint.root, "--uncommitted"]
    assert cli.main([*rollback, "--yes"]) == 2
    assert "carries no marker" in capsys.readouterr().err
    mark(checkpoint, place.job)
    held = lock_shared(checkpoint.local, place.job)
    assert held is not None
    with closing(held):
        assert cli.main([*rollback, "--yes"]) == 2
        assert "runs: it holds the checkpoint" in capsys.readouterr().err
    assert cli.main([*rollback, "--yes"]) == 2
    assert "it is unknown whether epoch 2 is committed" in capsys.readouterr().err
    with closing(place.open()) as ledger:
        ledger.replace(None, entry(2, checkpoint.digest(2)))
        assert cli.main([*rollback, "--yes"]) == 2
        assert f"epoch 2 of job {place.job!r} is committed" in capsys.readouterr().err
        before = entry(1, checkpoint.digest(1))
        ledger.replace(entry(2, checkpoint.digest(2)), before)
        assert cli.main(rollback) == 0
        told = capsys.readouterr().out
        assert "safe only if the named system decides" in told
        assert told.endswith("nothing was removed; add --yes\n")
        assert (checkpoint.epochs("offsets"), ledger.peek()) == ([0, 1, 2], before)
        assert cli.main([*rollback, "--yes"]) == 0
        claimed = ledger.peek()
        assert claimed is not None
        assert (claimed.epoch, claimed.digest) == (1, before.digest)
        assert claimed.run.startswith("rollback-")
    assert checkpoint.epochs("offsets") == [0, 1]


def test_an_epoch_is_given_up_on_any_file_system(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, checkpoint = "hdfs://host/checkpoint", make_logs(tmp_path / "checkpoint", planned=3, committed=2)
    mark(checkpoint, place.job)
    with closing(place.open()) as ledger:
        ledger.replace(None, entry(1, checkpoint.digest(1)))
    opened = {there: (checkpoint, open_tree(checkpoint.root))}  # as if a JVM had found it there
    monkeypatch.setattr("lockgate.checkpoints.uncommitted.open_checkpoint", opened.pop)
    rollback = ["checkpoints", "rollback", place.job, *place.option, "--checkpoint", there, "--uncommitted"]
    assert cli.main([*rollback, "--yes"]) == 0
    assert checkpoint.epochs("offsets") == [0, 1]


@pytest.mark.system
def test_a_driver_that_is_connected_to_the_database_is_seen(
    dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = f"alive-{uuid4().hex[:8]}-{'x' * 100}"  # PostgreSQL cuts long names
    checkpoint = make_logs(tmp_path / "checkpoint", planned=1, committed=0)
    mark(checkpoint, job)
    with closing(PostgresLedger(dsn, job, where="test")) as ledger:
        ledger.replace(None, entry(None, None))
    rollback = ["checkpoints", "rollback", job, "--postgres", dsn, "--checkpoint", checkpoint.root, "--uncommitted"]
    with closing(connect(dsn, where="test", name=f"lockgate {job}")):
        assert cli.main([*rollback, "--yes"]) == 2
        assert "seems to run: it is connected to the database since" in capsys.readouterr().err
    assert checkpoint.epochs("offsets") == [0]


JOB = """
    from lockgate import Guarantee, Job, KafkaSink, KafkaSource, PostgresSink, stream

    def job(servers: str, name: str, dsn: str = "") -> Job:
        payments = stream("payments", KafkaSource(topic=f"{name}-in", servers=servers, value="id INT, card STRING"))
        totals = payments.key_by("card").rolling(name="count", payments="count(*)")
        kafka = totals.to("totals", KafkaSink(topic=f"{name}-out", servers=servers, key="card"))
        table = payments.to("rows", PostgresSink(table=name.replace("-", "_"), dsn=dsn or "host=none", create=True))
        return Job(name, table if dsn else kafka, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
"""
ROWS, CARDS = 1000, 10


@pytest.fixture
def site(kafka: str, tmp_path: Path) -> Site:
    return fill(Site(servers=kafka, place=tmp_path, name=unique("totals")))


def fill(site: Site) -> Site:
    """Let there be rows, and a driver that dies in its second epoch; it has state where its rows go to Kafka."""
    site.make(JOB)
    payments = [{"id": number, "card": f"c{number % CARDS}"} for number in range(ROWS)]
    site.send(payments, partition=lambda payment: payment["id"] % CARDS % 2)
    # All rows of epoch 1 are written and its state is stored, but nobody decides.
    ended = site.command("--rows-per-epoch", "600", faults=[Fault(point="VOTES", action="kill", hit=2)])
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return site


@pytest.mark.system
def test_an_uncommitted_epoch_is_planned_again_smaller_and_is_committed_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(site.place)
    checkpoint = Checkpoint(root=str(site.checkpoint))
    assert (checkpoint.epochs("offsets"), checkpoint.epochs("commits")) == ([0, 1], [0])
    rollback = ["checkpoints", "rollback", *site.target, "--uncommitted"]

    # The dead driver's transaction is still open: it may be alive.
    assert cli.main([*rollback, "--yes"]) == 2
    refused = capsys.readouterr().err
    assert "seems to run: its transaction is open (Ongoing)" in refused
    assert f"lockgate transactions abort {site.name}" in refused
    assert cli.main(["transactions", "abort", *site.target, "--yes"]) == 0
    assert f"{site.name}-out-0" in capsys.readouterr().out

    assert cli.main(rollback) == 0
    told = capsys.readouterr().out
    assert "epoch       1 is planned, and not committed in the checkpoint or in the ledger" in told
    assert "400 offsets in all" in told
    assert "offsets/1" in told
    assert told.endswith("nothing was removed; add --yes\n")
    assert checkpoint.epochs("offsets") == [0, 1]

    assert cli.main(["ledger", "show", *site.target, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert (before["entry"]["epoch"], before["next_epoch"], before["fits"]) == (0, 1, True)

    assert cli.main([*rollback, "--yes", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["epoch"], facts["removed"], facts["records_at_most"]) == (1, True, 400)
    assert any(name.startswith("state/") for name in facts["files"])
    assert checkpoint.epochs("offsets") == [0]
    assert cli.main(["ledger", "show", *site.target, "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["entry"]["digest"] == before["entry"]["digest"]
    assert after["entry"]["run"].startswith("rollback-")
    assert cli.main([*rollback, "--yes"]) == 2
    assert "nothing is uncommitted" in capsys.readouterr().err

    ended = site.command("--rows-per-epoch", "150")
    assert ended.returncode == 0, ended.stderr
    assert checkpoint.epochs("offsets") == checkpoint.epochs("commits") == [0, 1, 2, 3]
    counts = by_key(read_json(site.servers, site.write), "card", "payments")
    # Once each, and with the right state: a card counts up without a gap and without a repetition.
    assert counts == {f"c{card}": list(range(1, ROWS // CARDS + 1)) for card in range(CARDS)}


@pytest.mark.prove
@pytest.mark.system
def test_the_same_holds_where_a_database_decides(
    kafka: str,
    dsn: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = fill(Site(servers=kafka, place=tmp_path, name=unique("totals"), given={"dsn": dsn}))
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpoint(root=str(site.checkpoint))
    assert (checkpoint.epochs("offsets"), checkpoint.epochs("commits")) == ([0, 1], [0])
    rollback = ["checkpoints", "rollback", *site.target, "--uncommitted"]

    def accepted() -> str:
        code, printed = cli.main(rollback), capsys.readouterr()
        assert code == 0 or "seems to run" in printed.err
        return printed.out if code == 0 else ""

    told = wait_for("a server that has noticed that the driver is dead", accepted)
    assert "epoch       1 is planned, and not committed in the checkpoint or in the ledger" in told
    assert "400 offsets in all" in told

    # All rows of the epoch are staged, and nobody has published them.
    assert cli.main(["ledger", "show", *site.target, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert (before["entry"]["epoch"], before["next_epoch"], before["fits"]) == (0, 1, True)
    assert before["table"] == "lockgate_ledger"
    assert before["waiting"]
    assert all(name.startswith("lockgate_staging_") for name in before["waiting"])

    assert cli.main([*rollback, "--yes", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["epoch"], facts["removed"], facts["records_at_most"]) == (1, True, 400)
    assert facts["files"] == ["offsets/1"]
    site.run(rows_per_epoch=150)
    assert checkpoint.epochs("offsets") == checkpoint.epochs("commits") == [0, 1, 2, 3]
    with psycopg.connect(dsn) as connection:
        table = site.name.replace("-", "_")
        rows = connection.execute(f"SELECT id FROM {table} ORDER BY id").fetchall()
    assert rows == [(number,) for number in range(ROWS)]
    assert cli.main(["ledger", "show", *site.target, "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert (after["entry"]["epoch"], after["waiting"], after["fits"]) == (3, [], True)
