"""Which snapshot of a table an epoch sees: now, after a refresh, and when it is repeated."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lockgate import (
    FileSource,
    FileTable,
    Guarantee,
    Job,
    MemorySink,
    PostgresTable,
    Table,
    stream,
    table,
)
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.connectors.files.filesystem import HadoopSystem, LocalSystem, System
from lockgate.connectors.files.reading import committed_files
from lockgate.dataflow.table import TableRows
from lockgate.errors import Failed, LockgateError, Refused
from lockgate.faultpoints import Fault, as_environment
from lockgate.lab.services.hdfs import Hdfs
from lockgate.lab.services.postgres import Postgres
from lockgate.runtime import tablereading
from lockgate.runtime import tablerefresh as refreshing
from lockgate.runtime.snapshots import Snapshot, SnapshotLog, take_snapshot
from lockgate.runtime.tablereading import read_snapshot
from lockgate.runtime.tablerefresh import Refresher, Tables
from support.files import put
from support.process import program, run
from support.runs import live, run_to_the_end, wait_for_run
from support.waiting import wait_for

# -- snapshots and notes, without Spark --------------------------------------------------------------------------------


def snapshot(number: int) -> Snapshot:
    return take_snapshot(f"table {number}".encode())


def log_in(system: System) -> SnapshotLog:
    return SnapshotLog(system, "customers", where="table 'customers'")


def files_in(system: System) -> list[str]:
    return [name for name in system.names("tables/customers") if name.endswith(".parquet")]


def test_an_epoch_sees_what_is_newest_and_sees_it_again_when_it_is_repeated(tmp_path: Path) -> None:
    log = log_in(LocalSystem(tmp_path))
    assert log.choose(0, snapshot(1), is_repeat=False) == snapshot(1)
    assert log.choose(1, snapshot(1), is_repeat=False) == snapshot(1)
    assert log.noted() == [0]
    assert log.choose(2, snapshot(2), is_repeat=False) == snapshot(2)
    again = log_in(LocalSystem(tmp_path))
    assert again.choose(2, snapshot(3), is_repeat=True) == snapshot(2)
    assert again.choose(3, snapshot(3), is_repeat=False) == snapshot(3)
    assert again.noted() == [0, 2, 3]


def test_a_repeated_epoch_without_a_note_keeps_to_the_one_before_and_says_so(tmp_path: Path) -> None:
    log = log_in(LocalSystem(tmp_path))
    log.choose(0, snapshot(1), is_repeat=False)
    assert log.choose(5, snapshot(2), is_repeat=True) == snapshot(1)
    assert log.noted() == [0, 5]
    # A driver believed dead, which planned the epoch first and has a newer snapshot, comes too late with it.
    assert log.choose(5, snapshot(2), is_repeat=False) == snapshot(1)


def test_of_two_drivers_the_first_note_wins(tmp_path: Path) -> None:
    results: dict[int, Snapshot] = {}
    barrier = threading.Barrier(8)

    def drive(number: int) -> None:
        log = log_in(LocalSystem(tmp_path))
        barrier.wait()
        results[number] = log.choose(0, snapshot(number), is_repeat=False)

    drivers = [threading.Thread(target=drive, args=(number,)) for number in range(8)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert len(results) == 8
    assert len({one.digest for one in results.values()}) == 1


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9), retained=st.integers(1, 6))
def test_whatever_happens_an_epoch_never_sees_two_snapshots(
    tmp_path_factory: pytest.TempPathFactory, seed: int, retained: int
) -> None:
    rng = random.Random(seed)
    system = LocalSystem(tmp_path_factory.mktemp("checkpoint"))
    seen: dict[int, Snapshot] = {}
    log, newest, epoch, planned, oldest = log_in(system), snapshot(0), 0, -1, 0
    for step in range(1, 60):
        if rng.random() < 0.4:
            newest = snapshot(step)
        chosen = log.choose(epoch, newest, is_repeat=epoch <= planned)
        assert seen.setdefault(epoch, chosen) == chosen
        if epoch > planned:
            assert chosen == newest
        oldest = max(oldest, epoch - retained + 1)
        log.expire(oldest)
        # What the checkpoint may still repeat is there, and nothing that only older epochs saw.
        needed = {seen[number].digest for number in range(oldest, epoch + 1)}
        assert {name.removesuffix(".parquet") for name in files_in(system)} == needed
        if rng.random() < 0.3:  # it dies, and somebody may have taken back some of the last epochs
            log, newest = log_in(system), snapshot(1000 + step)
            epoch = planned = rng.randint(oldest, epoch)
            seen = {number: one for number, one in seen.items() if number <= epoch}
            for number in log.noted():
                if number > epoch:
                    system.delete(f"tables/customers/epochs/{number}")
        else:
            epoch += 1


def test_what_is_gone_is_reported_and_not_replaced(tmp_path: Path) -> None:
    log = log_in(LocalSystem(tmp_path))
    log.choose(0, snapshot(1), is_repeat=False)
    (tmp_path / "tables/customers" / f"{snapshot(1).digest}.parquet").unlink()
    with pytest.raises(Failed, match="is not in the checkpoint any more") as caught:
        log.choose(0, snapshot(2), is_repeat=True)
    assert "--new-life" in caught.value.fix


def test_leftovers_of_a_dead_driver_are_removed(tmp_path: Path) -> None:
    system = LocalSystem(tmp_path)
    log = log_in(system)
    log.choose(0, snapshot(1), is_repeat=False)
    system.write("tables/customers/.aside-12-x.parquet", b"half")
    system.write(f"tables/customers/{snapshot(7).digest}.parquet", b"never seen")
    log.expire(0)
    assert files_in(system) == [f"{snapshot(1).digest}.parquet"]


# -- reading again -----------------------------------------------------------------------------------------------------


def test_a_table_that_cannot_be_read_again_stays_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refreshing, "_TRY_AGAIN", timedelta(milliseconds=10))
    calls = 0

    def read() -> Snapshot:
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            raise Failed("the disk is away", where="here", fix="bring it back")
        if calls == 4:
            raise ValueError("odd")
        return snapshot(calls)

    refresher = Refresher("customers", read, timedelta(milliseconds=20))
    try:
        assert refresher.newest == snapshot(1)
        wait_for("a new snapshot", lambda: calls >= 5 and refresher.newest != snapshot(1))
    finally:
        refresher.stop()
    told = [record.getMessage() for record in caplog.records]
    assert sum("table customers could not be read again" in line and "the disk is away" in line for line in told) == 2
    assert sum("ValueError: odd" in line for line in told) == 1
    assert not any(thread.name.startswith("lockgate-table") for thread in threading.enumerate())


def test_a_table_that_cannot_be_read_at_first_is_an_error_of_its_own() -> None:
    def read() -> Snapshot:
        raise Refused("there is no such file", where="here", fix="make it")

    with pytest.raises(Refused, match="there is no such file"):
        Refresher("customers", read, timedelta(seconds=1))


# -- where tables are read ---------------------------------------------------------------------------------------------


def rows_in(rows: TableRows, spark: SparkSession) -> list[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    step = table("customers", rows, refresh="1 hour").step
    content = read_snapshot(step, spark, "table 'customers'").content
    read: list[dict[str, Any]] = parquet.read_table(pa.BufferReader(content)).to_pylist()
    return read


@pytest.mark.spark
def test_files_of_every_format_are_read(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,one\n2,\n")
    (tmp_path / "b.csv").write_text("k,name\n1,one\n2,\n")
    (tmp_path / "c.json").write_text('{"k": 1, "name": "one", "more": 5}\n{"k": 2}\n')
    expected = [{"k": 1, "name": "one"}, {"k": 2, "name": None}]
    for name, header in (("a.csv", False), ("b.csv", True), ("c.json", False)):
        kind = name.split(".")[1]
        rows = FileTable(path=str(tmp_path / name), format=kind, schema="k INT, name STRING", header=header)
        assert rows_in(rows, spark) == expected


@pytest.mark.spark
@pytest.mark.parametrize(
    ("content", "kind", "told"),
    [
        (None, "csv", "cannot be read as csv"),
        ("name,k\none,1\n", "csv", "cannot be read as csv"),  # the header names the columns in another order
        ("k,name\none,1\n", "csv", "cannot be read as csv"),
        ('{"k": "many"}\n', "json", "cannot be read as json"),
        ("k,name\n" + "1,a\n" * 12, "csv", "too large, more than 10 rows"),
        ("k,name\n" + f"1,{'a' * 3000}\n", "csv", "too large, 0 MB"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(
    content: str | None, kind: str, told: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tablereading, "ROWS_MAX", 10)
    monkeypatch.setattr(tablereading, "BYTES_MAX", 2000)
    if content is not None:
        (tmp_path / "t").write_text(content)
    rows = FileTable(path=str(tmp_path / "t"), format=kind, schema="k INT, name STRING", header=kind == "csv")
    with pytest.raises(LockgateError) as caught:
        rows_in(rows, spark)
    assert told in caught.value.what
    assert caught.value.where == "table 'customers'"


@pytest.mark.system
def test_a_table_of_postgres_is_read_by_its_declared_columns(server: Postgres, spark: SparkSession) -> None:
    from datetime import date, datetime
    from decimal import Decimal

    with psycopg.connect(server.dsn, autocommit=True) as database:
        database.execute(
            'CREATE TABLE "Read" (id BIGINT, "Name" TEXT, code UUID, price NUMERIC(10, 2), day DATE, at TIMESTAMPTZ,'
            " tags JSONB, unread POINT)"
        )
        database.execute(
            "INSERT INTO \"Read\" VALUES (1, 'one', '5f2b1d86-6e4c-4d6b-9a86-0d3c1f0b7a11', 1.5, '2026-01-02',"
            " '2026-01-02T03:04:05.000006+02', '[\"a\"]', '(1, 2)'), (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
        )
    schema = "id INT, name STRING, code STRING, price DECIMAL(10, 2), day DATE, at TIMESTAMP, tags ARRAY<STRING>"
    one, other = rows_in(PostgresTable(table='"Read"', dsn=server.dsn, schema=schema), spark)
    assert one == {
        "id": 1,
        "name": "one",
        "code": "5f2b1d86-6e4c-4d6b-9a86-0d3c1f0b7a11",
        "price": Decimal("1.50"),
        "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 1, 4, 5, 6, tzinfo=UTC),
        "tags": ["a"],
    }
    assert set(other.values()) == {None}


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "schema", "told"),
    [
        ("absent", "id INT", "there is no table 'absent'"),
        ("misfits", "id INT, lost INT", "lacks the column lost"),
        ("misfits", "id INT", "column 'id' of the table does not fit int32"),
        ("misfits", "price INT", "column 'price' of the table does not fit int32"),
        ("misfits", "at DATE", "column 'at' of the table does not fit date32"),
        ("misfits", "price DECIMAL(10, 1)", "column 'price' of the table does not fit decimal128"),
        ("misfits", "price DECIMAL(10, 2) NOT NULL", "is declared NOT NULL"),
    ],
)
def test_a_table_of_postgres_that_does_not_fit_is_refused(
    name: str, schema: str, told: str, server: Postgres, spark: SparkSession
) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as database:
        database.execute("CREATE TABLE IF NOT EXISTS misfits (id BIGINT, price NUMERIC, at TIMESTAMPTZ)")
        database.execute("TRUNCATE misfits")
        database.execute("INSERT INTO misfits VALUES (5000000000, 1.25, now()), (1, NULL, NULL)")
    with pytest.raises(LockgateError) as caught:
        rows_in(PostgresTable(table=name, dsn=server.dsn, schema=schema), spark)
    assert told in caught.value.what


# -- in a job ----------------------------------------------------------------------------------------------------------


def put_events(folder: Path, *events: tuple[int, int]) -> None:
    """Put events (k, n) into the directory that the job reads, as one file."""
    (folder / "in").mkdir(exist_ok=True)
    name = f"{len(list((folder / 'in').iterdir())):05}.json"
    put(folder / "in", *({"k": k, "n": n} for k, n in events), name=name)


def rated(folder: Path, rows: Table, sink: MemorySink) -> Job:
    events = stream("events", FileSource(path=str(folder / "in"), value="k INT, n INT"))
    joined = events.join(rows, on="k", how="left").select("n", "rate")
    return Job("rated", joined.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE, epoch="100 milliseconds")


def set_rates(place: Path, **rates: int) -> None:
    """Replace a table of files whole."""
    put(place.parent, *({"k": int(k[1:]), "rate": rate} for k, rate in rates.items()), name=place.name)


def rates_in(place: Path, refresh: str) -> Table:
    return table("rates", FileTable(path=str(place), format="json", schema="k INT, rate INT"), refresh=refresh)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_repeated_epoch_sees_the_table_that_it_saw_first_and_later_ones_the_new_one(tmp_path: Path) -> None:
    sink = MemorySink()
    place = tmp_path / "rates.json"
    set_rates(place, k1=10)
    for events in ([(1, 0)], [(1, 1), (2, 2)]):
        put_events(tmp_path, *events)
        run_to_the_end(rated(tmp_path, rates_in(place, "1 hour"), sink), tmp_path, rows_per_epoch=1)
    first = Counter(map(tuple, sink.rows))
    assert first == Counter([(0, 10), (1, 10), (2, None)])
    last = Checkpoint(root=str(tmp_path / "checkpoint")).epochs("commits")[-1]
    assert last == 1
    for name in (f"{last}", f".{last}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    # The table changes, and as if the driver had died before the end of the last epoch, that one is run again.
    set_rates(place, k1=99, k2=98)
    again = MemorySink()
    put_events(tmp_path, (1, 3), (2, 4))
    run_to_the_end(rated(tmp_path, rates_in(place, "1 hour"), again), tmp_path, rows_per_epoch=1)
    repeated = Counter(tuple(row) for row, epoch in zip(again.rows, again.epochs, strict=True) if epoch == last)
    assert repeated
    assert repeated <= first
    assert Counter(map(tuple, again.rows)) - repeated == Counter([(3, 99), (4, 98)])


@pytest.mark.system
@pytest.mark.usefixtures("spark")
def test_later_events_see_a_table_that_was_read_again_and_a_server_that_is_away_stops_nothing(
    server: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as database:
        database.execute("CREATE TABLE rates (k INT, rate INT)")
        database.execute("INSERT INTO rates VALUES (1, 10)")
    rows = PostgresTable(table="rates", dsn=server.dsn, schema="k INT, rate INT")
    (tmp_path / "in").mkdir()
    sink = MemorySink()
    number = 0

    def see(rate: int | None) -> None:
        """Send events until one meets this rate."""

        def is_met() -> bool:
            nonlocal number
            number += 1
            put_events(tmp_path, (1, number))
            wait_for_run("the event", lambda: any(row.n == number for row in sink.rows), running)
            return next(row.rate for row in sink.rows if row.n == number) == rate

        wait_for_run(f"rate {rate}", is_met, running)

    with live(rated(tmp_path, table("rates", rows, refresh="1 second"), sink), tmp_path, rows_per_epoch=1) as running:
        see(10)
        with psycopg.connect(server.dsn, autocommit=True) as database:
            database.execute("UPDATE rates SET rate = 20")
        see(20)
        server.stop()
        wait_for("a failure", lambda: "table rates could not be read again" in caplog.text)
        see(20)
        server.start()
        server.wait()
        with psycopg.connect(server.dsn, autocommit=True) as database:
            database.execute("DELETE FROM rates")
        see(None)
    rates = [row.rate for row in sorted(sink.rows, key=lambda row: row.n)]
    assert rates == sorted(rates, key=[10, 20, None].index), "an older table after a newer one"
    assert len(sink.rows) == number
    # Two of the three snapshots that were seen may be left, no more than the epochs that the checkpoint still has saw.
    assert len(list((tmp_path / "checkpoint" / "tables" / "rates").glob("*.parquet"))) <= 3


@pytest.mark.spark
def test_a_table_that_is_not_there_stops_the_job_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    sink = MemorySink()
    put_events(tmp_path, (1, 0))
    with pytest.raises(Failed, match=r"rates\.json cannot be read as json") as caught:
        run_to_the_end(rated(tmp_path, rates_in(tmp_path / "rates.json", "1 minute"), sink), tmp_path)
    assert "table 'rates', declared at test_tablerefresh.py:" in caught.value.where
    assert sink.rows == []
    assert not spark.streams.active
    assert not any(thread.name.startswith("lockgate-table") for thread in threading.enumerate())


@pytest.mark.spark
def test_a_checkpoint_where_nothing_can_be_put_in_place_once_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from lockgate import plan

    joined = stream("events", FileSource(path=str(tmp_path), value="k INT")).join(
        rates_in(tmp_path / "rates.json", "1 minute"), on="k"
    )
    graph = plan(Job("rated", joined.to("out", MemorySink()), guarantee=Guarantee.AT_LEAST_ONCE)).logical
    tables = Tables(graph.nodes, spark)
    try:
        with pytest.raises(Refused, match="s3a://bucket/checkpoint is on a store"):
            tables.open(Checkpoint(root="s3a://bucket/checkpoint", spark=spark))
    finally:
        tables.close()


@pytest.mark.system
def test_a_checkpoint_on_hdfs_keeps_snapshots_and_notes(hdfs: Hdfs, spark: SparkSession) -> None:
    system = HadoopSystem(f"{hdfs.uri}/tables-{random.randrange(10**9)}", spark)
    log = log_in(system)
    for epoch in range(4):
        assert log.choose(epoch, snapshot(epoch), is_repeat=False) == snapshot(epoch)
    assert log_in(system).choose(3, snapshot(9), is_repeat=True) == snapshot(3)
    log.expire(2)
    assert log.noted() == [2, 3]
    assert sorted(files_in(system)) == sorted(f"{snapshot(number).digest}.parquet" for number in (2, 3))


@pytest.mark.system
@pytest.mark.process
@pytest.mark.parametrize("point", [pytest.param("VOTES", marks=pytest.mark.prove), "BEFORE_SPARK_COMMIT"])
def test_a_driver_that_is_killed_leaves_no_epoch_with_two_tables(point: str, tmp_path: Path) -> None:
    events = [(n % 3, n) for n in range(30)]
    put_events(tmp_path, *events[:15])
    set_rates(tmp_path / "rates.json", k0=1, k1=10, k2=100)
    killed = drive(tmp_path, [Fault(point=point, action="kill")])
    assert killed == -signal.SIGKILL
    # What it had read is repeated, and with it the state behind the table; what comes now meets the new one.
    set_rates(tmp_path / "rates.json", k0=2, k1=20, k2=200)
    assert drive(tmp_path, []) == 0
    put_events(tmp_path, *events[15:])
    assert drive(tmp_path, []) == 0
    lines = [line for file in committed_files(str(tmp_path / "out")) for line in Path(file).read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    totals: dict[int, int] = {}
    expected = []
    for k, n in events:
        rate = (1 if n < 15 else 2) * 10**k
        totals[k] = totals.get(k, 0) + rate
        expected.append((k, n, rate, totals[k]))
    assert Counter((row["k"], row["n"], row["rate"], row["total"]) for row in rows) == Counter(expected)


def drive(folder: Path, faults: list[Fault]) -> int:
    """Run a driver over this directory to its end, and give its exit status."""
    done = run(*program("rates", folder), cwd=folder, environ=as_environment(faults))
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode
