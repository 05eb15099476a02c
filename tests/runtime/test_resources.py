"""Jobs without Kafka: one system decides, the others follow, and every row is out once, also after a failure."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lockgate import FileSink, FileSource, Guarantee, Job, SqliteSink, plan, read_files, run, stream
from lockgate.commit.followers import Followers
from lockgate.commit.lastresource import LastResource
from lockgate.connectors.sqlite.sink import SqliteResource
from lockgate.errors import EpochFailed, LedgerMismatch

pytestmark = pytest.mark.spark

EVENTS = [{"id": number, "name": f"name-{number % 3}", "amount": number} for number in range(60)]


@pytest.fixture
def source(tmp_path: Path) -> FileSource:
    """Sixty events in six files."""
    place = tmp_path / "in"
    place.mkdir()
    for at in range(6):
        lines = (json.dumps(event) for event in EVENTS[at * 10 : at * 10 + 10])
        (place / f"{at}.json").write_text("\n".join(lines) + "\n")
    return FileSource(path=str(place), value="id INT, name STRING, amount INT")


def rows_of(path: Path, sql: str = "SELECT id FROM out ORDER BY id") -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] if len(row) == 1 else row for row in connection.execute(sql)]


def both(source: FileSource, tmp_path: Path) -> Job:
    """A job into a database and into files."""
    events = stream("events", source)
    parts = events.split(all="true", large="amount >= 30")
    return Job(
        "both",
        parts["all"].to("rows", SqliteSink(table="out", path=str(tmp_path / "out.db"))),
        parts["large"].to("large", FileSink(str(tmp_path / "large"))),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


def finish(job: Job, tmp_path: Path) -> None:
    run(job, checkpoint=str(tmp_path / "checkpoint"), until_caught_up=True, rows_per_epoch=20)


def check_both(spark: SparkSession, tmp_path: Path) -> None:
    assert rows_of(tmp_path / "out.db") == list(range(60))
    large = read_files(spark, str(tmp_path / "large"))
    assert sorted(row.id for row in large.collect()) == list(range(30, 60))


def test_every_row_is_visible_once_in_both_and_another_run_adds_nothing(
    spark: SparkSession, source: FileSource, tmp_path: Path
) -> None:
    assert plan(both(source, tmp_path)).reached is Guarantee.END_TO_END_EXACTLY_ONCE
    for _ in range(2):
        finish(both(source, tmp_path), tmp_path)
        check_both(spark, tmp_path)


@pytest.mark.slow
def test_state_continues_where_it_was(spark: SparkSession, source: FileSource, tmp_path: Path) -> None:
    totals = stream("events", source).key_by("name").rolling(total="sum(amount)", name="totals").select("name", "total")
    sink = SqliteSink(table="out", path=str(tmp_path / "out.db"), key="name")
    job = Job("totals", totals.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    finish(job, tmp_path)
    expected = [(f"name-{at}", sum(range(at, 60, 3))) for at in range(3)]
    assert rows_of(tmp_path / "out.db", "SELECT name, total FROM out ORDER BY name") == expected


@pytest.mark.usefixtures("spark")
def test_an_upsert_from_before_its_table_had_a_ledger_continues_and_a_transaction_does_not(
    source: FileSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = tmp_path / "out.db"
    rows = stream("events", source).to("out", SqliteSink(table="out", path=str(database), key="id"))
    finish(Job("upserts", rows, guarantee=Guarantee.AT_LEAST_ONCE), tmp_path)
    (tmp_path / "in" / "more.json").write_text(json.dumps({**EVENTS[0], "amount": 99}) + "\n")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DELETE FROM lockgate_ledger")
        connection.commit()
    with pytest.raises(LedgerMismatch, match="its ledger is empty or gone"):
        finish(Job("upserts", rows, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE), tmp_path)
    finish(Job("upserts", rows, guarantee=Guarantee.AT_LEAST_ONCE), tmp_path)
    assert "its ledger was empty and now says that epoch" in caplog.text
    assert rows_of(database, "SELECT id, amount FROM out ORDER BY id") == [(0, 99), *((n, n) for n in range(1, 60))]


@pytest.mark.parametrize(
    ("owner", "method", "at"),
    [
        (SqliteResource, "stage", 1),
        (SqliteResource, "publish", 1),  # the claim
        (SqliteResource, "publish", 2),
        (Followers, "stage", 1),
        (Followers, "publish", 1),
        (LastResource, "end", 2),
    ],
    ids=lambda one: one.__name__ if isinstance(one, type) else str(one),
)
@pytest.mark.parametrize("has_happened", [False, True], ids=["before", "after"])
def test_a_failure_on_either_side_of_a_step_is_repeated_without_doubling(
    owner: type,
    method: str,
    at: int,
    has_happened: bool,
    spark: SparkSession,
    source: FileSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole: Callable[..., Any] = getattr(owner, method)
    calls = 0

    def fail_once(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != at:
            return whole(*arguments, **more)
        if has_happened:
            whole(*arguments, **more)
        raise EpochFailed("planted", where="test", fix="none")

    monkeypatch.setattr(owner, method, fail_once)
    finish(both(source, tmp_path), tmp_path)
    assert calls > at or has_happened  # what took effect is in the ledger, and is not done again
    check_both(spark, tmp_path)


def test_a_follower_that_was_emptied_is_noticed(spark: SparkSession, source: FileSource, tmp_path: Path) -> None:
    finish(both(source, tmp_path), tmp_path)
    (tmp_path / "large").rename(tmp_path / "elsewhere")
    (tmp_path / "in" / "more.json").write_text(json.dumps({**EVENTS[0], "id": 99}) + "\n")
    with pytest.raises(LedgerMismatch, match="The ledger of large is empty or gone"):
        finish(both(source, tmp_path), tmp_path)
    assert 99 not in rows_of(tmp_path / "out.db")
