"""The laws of a resource, kept by a real PostgreSQL that is killed and a ledger that moves."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import psycopg
import pyarrow as pa
import pytest
from psycopg.sql import SQL

from lockgate.commit.followers import Followers
from lockgate.commit.ledger import Entry, reset_entry
from lockgate.commit.protocol import Step
from lockgate.connectors.postgres import connect as connecting
from lockgate.connectors.postgres import store
from lockgate.connectors.postgres.sink import PostgresSink
from lockgate.connectors.postgres.staging import make_table
from lockgate.connectors.postgres.store import PostgresResource, write_plainly
from lockgate.errors import EpochFailed, Failed, InvariantBroken, Moved, Refused
from lockgate.faultpoints import Fault, as_environment
from lockgate.lab.services.postgres import Postgres
from lockgate.lab.services.smalldisk import small_disk, why_no_small_disk
from support.arrow_rows import open_sinks, opening, rows_of
from support.databases import with_schema
from support.process import program, running
from support.programs.orders import drive
from support.waiting import wait_for

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("without_spark")]

FIRST = Entry(run="run-1", query="query", epoch=0, digest="d0", at="2026-01-01T00:00:00.000+00:00")
SECOND = replace(FIRST, epoch=1, digest="d1")
THIRD = replace(FIRST, epoch=2, digest="d2")
SMALL = rows_of([{"id": 1, "name": "a"}, {"id": 2, "name": None}], [{"id": 3, "name": ""}])
MORE = rows_of([{"id": 4, "name": "d"}])


@pytest.fixture
def dsn(server: Postgres) -> str:
    """A schema of the test's own in a server that may be killed."""
    return with_schema(server.dsn)


@pytest.fixture
def orders(database: Any) -> Callable[[], list[Any]]:
    """A table of orders, and what a reader sees in it."""
    database.execute("CREATE TABLE orders (id bigint, name text)")
    return lambda: database.execute("SELECT id, name FROM orders ORDER BY id, name").fetchall()  # type: ignore[no-any-return]


@pytest.fixture
def accounts(database: Any) -> Callable[[], dict[int, Any]]:
    """A table with a key, and what a reader sees in it."""
    database.execute("CREATE TABLE accounts (id bigint PRIMARY KEY, name text)")
    return lambda: dict(database.execute("SELECT id, name FROM accounts").fetchall())


@pytest.fixture
def resource(dsn: str, orders: Any) -> Iterator[PostgresResource]:
    resource = open_sinks(out=PostgresSink(table="orders", dsn=dsn))
    assert isinstance(resource, PostgresResource)
    yield resource
    resource.close()


def staging_tables(database: Any) -> list[str]:
    found = database.execute(
        "SELECT relname FROM pg_class WHERE relname LIKE 'lockgate_staging_%' AND relkind = 'r'"
        " AND relnamespace = quote_ident(current_schema())::regnamespace ORDER BY 1"
    )
    return [name for (name,) in found]


def staged_rows(database: Any) -> int:
    tables = staging_tables(database)
    return sum(int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in tables)


def kill_and_restart(server: Postgres) -> None:
    server.kill()
    server.start()
    server.wait()


# The laws ----------------------------------------------------------------------------------------------------------


def test_what_is_staged_is_not_seen_and_what_is_published_is_seen_whole_and_once(resource: Any, orders: Any) -> None:
    assert resource.read() is None
    name = resource.stage({"out": SMALL}, 0)
    assert orders() == []
    resource.publish(name, FIRST, after=None)
    assert orders() == [(1, "a"), (2, None), (3, "")]
    assert resource.read() == FIRST
    with pytest.raises(Moved):
        resource.publish(name, FIRST, after=None)
    assert orders() == [(1, "a"), (2, None), (3, "")]


def test_a_ledger_that_names_a_foreign_table_moves_nothing(resource: Any, orders: Any, database: Any) -> None:
    """Another program may write to the topic with the ledger that decides."""
    database.execute("CREATE TABLE private AS SELECT 9::bigint AS id, 'precious' AS name")
    name = json.loads(resource.stage({"out": SMALL}, 0))
    (rows,) = name["rows"]
    for forged in ({"writes": {"private": 1}}, {"table": [rows["schema"], "private"]}):
        with pytest.raises(InvariantBroken, match="is no staging table of this job for table"):
            resource.publish(json.dumps({**name, "rows": [{**rows, **forged}]}), FIRST, after=None)
    assert (resource.read(), orders()) == (None, [])
    assert database.execute("SELECT * FROM private").fetchall() == [(9, "precious")]


def test_rows_are_added_in_the_order_in_which_they_came(resource: Any, database: Any) -> None:
    ids = [7, 3, 9, 1, 5, 8, 2]
    resource.publish(resource.stage({"out": rows_of([{"id": n, "name": "x"} for n in ids])}, 0), FIRST, after=None)
    assert [n for (n,) in database.execute("SELECT id FROM orders ORDER BY ctid")] == ids


@pytest.mark.parametrize(
    "after",
    [
        None,
        replace(FIRST, run="another"),
        replace(FIRST, query="another"),
        replace(FIRST, epoch=7),
        replace(FIRST, digest="another"),
        replace(FIRST, at="another"),
        replace(FIRST, staged={"other": "name"}),
    ],
)
def test_a_ledger_that_is_not_the_one_that_was_seen_changes_nothing(resource: Any, orders: Any, after: Any) -> None:
    resource.publish(None, FIRST, after=None)
    name = resource.stage({"out": SMALL}, 1)
    with pytest.raises(Moved, match="is not what it was"):
        resource.publish(name, SECOND, after=after)
    assert (resource.read(), orders()) == (FIRST, [])
    resource.publish(name, SECOND, after=FIRST)
    assert len(orders()) == 3, "what was staged is still there"


def test_a_ledger_that_says_nothing_is_not_one_that_was_seen(resource: Any, orders: Any) -> None:
    name = resource.stage({"out": SMALL}, 1)
    with pytest.raises(Moved):
        resource.publish(name, SECOND, after=FIRST)
    assert (resource.read(), orders()) == (None, [])


def test_a_claim_moves_the_ledger_only(resource: Any, orders: Any) -> None:
    entry = replace(FIRST, staged={"kafka": 'a "name"\n'})
    resource.publish(None, entry, after=None)
    assert (resource.read(), orders()) == (entry, [])


def test_staging_again_is_something_else(resource: Any, orders: Any) -> None:
    first, second = (resource.stage({"out": rows}, 0) for rows in (SMALL, MORE))
    assert first != second
    resource.publish(second, FIRST, after=None)
    assert orders() == [(4, "d")]
    resource.publish(first, SECOND, after=FIRST)
    assert len(orders()) == 4, "publishing one name has taken another one's rows"


def test_an_empty_epoch_has_a_name_too(resource: Any, orders: Any, database: Any) -> None:
    empty = rows_of([{"id": 1, "name": "a"}])
    empty = type(empty)(tuple(part.slice(0, 0) for part in empty.parts))
    names = {resource.stage({"out": empty}, 0) for _ in range(2)}
    assert len(names) == 2
    resource.publish(names.pop(), FIRST, after=None)
    assert (resource.read(), orders(), staged_rows(database)) == (FIRST, [], 0)


def test_what_is_removed_cannot_be_published_and_nothing_else_is_touched(resource: Any, orders: Any) -> None:
    removed = resource.stage({"out": SMALL}, 0)
    leftovers = resource.leftovers()
    kept = resource.stage({"out": MORE}, 0)
    resource.remove(leftovers)
    with pytest.raises(EpochFailed, match="not there any more"):
        resource.publish(removed, FIRST, after=None)
    assert (resource.read(), orders()) == (None, [])
    resource.publish(kept, FIRST, after=None)
    assert orders() == [(4, "d")]
    assert resource.leftovers() == []


def test_what_another_driver_stages_after_a_look_is_not_removed(dsn: str, resource: Any, orders: Any) -> None:
    removed = resource.stage({"out": SMALL}, 0)
    other = open_sinks(out=PostgresSink(table="orders", dsn=dsn))
    leftovers = other.leftovers()
    kept = resource.stage({"out": MORE}, 0)
    other.remove(leftovers)
    with pytest.raises(EpochFailed, match="not there any more"):
        resource.publish(removed, FIRST, after=None)
    resource.publish(kept, FIRST, after=None)
    other.remove(other.leftovers())
    resource.publish(resource.stage({"out": SMALL}, 1), SECOND, after=FIRST)
    assert len(orders()) == 4
    other.close()


def test_a_later_open_publishes_what_an_earlier_one_staged_and_removes_the_rest(
    dsn: str, resource: Any, orders: Any, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_DROPS", 1)  # in more than one transaction
    kept, removed = (resource.stage({"out": rows}, 0) for rows in (MORE, SMALL))
    resource.close()
    later = open_sinks(out=PostgresSink(table="orders", dsn=dsn))
    leftovers = later.leftovers()
    later.publish(kept, FIRST, after=None)
    later.remove(leftovers)
    with pytest.raises(EpochFailed, match="not there any more"):
        later.publish(removed, SECOND, after=FIRST)
    assert orders() == [(4, "d")]
    assert staging_tables(database) == []
    assert database.execute("SELECT count(*) FROM lockgate_staging").fetchone() == (0,)
    later.close()


def test_a_clean_end_leaves_only_what_still_waits(dsn: str, orders: Any, database: Any) -> None:
    for count in (0, 1):  # tables
        resource = open_sinks(out=PostgresSink(table="orders", dsn=dsn))
        before = resource.read()
        resource.publish(resource.stage({"out": SMALL}, 0), replace(FIRST, epoch=count), after=before)
        if count:
            resource.stage({"out": MORE}, 1)
        resource.close()
        assert len(staging_tables(database)) == count


def test_removing_skips_what_another_process_dropped(resource: Any, orders: Any, database: Any) -> None:
    name = resource.stage({"out": SMALL}, 0)
    leftovers = resource.leftovers()
    table, _ = staging_tables(database)
    database.execute(f"DROP TABLE {table}")
    resource.remove(leftovers)
    with pytest.raises(EpochFailed, match="not there any more"):
        resource.publish(name, FIRST, after=None)
    resource.publish(resource.stage({"out": MORE}, 0), FIRST, after=None)
    assert orders() == [(4, "d")]
    assert resource.leftovers() == [], "the registry forgets it too"


def test_another_jobs_staging_is_left_alone(dsn: str, resource: Any, orders: Any) -> None:
    other = open_sinks("other", out=PostgresSink(table="orders", dsn=dsn))
    name = other.stage({"out": SMALL}, 0)
    resource.remove(resource.leftovers())
    other.publish(name, FIRST, after=None)
    assert len(orders()) == 3
    assert resource.read() is None, "the ledger is the job's own"
    other.close()


def test_staging_is_dropped_when_it_is_published(resource: Any, database: Any) -> None:
    for last, entry in [(None, FIRST), (FIRST, SECOND)]:
        resource.publish(resource.stage({"out": SMALL}, 0), entry, after=last)
        assert (staging_tables(database), resource.leftovers()) == ([], [])


# Upserts -----------------------------------------------------------------------------------------------------------


def test_the_last_row_of_a_key_wins_and_a_deleted_one_removes_it(dsn: str, accounts: Any, database: Any) -> None:
    database.execute("INSERT INTO accounts VALUES (1, 'old'), (2, 'old'), (3, 'old'), (9, 'untouched')")
    resource = open_sinks(out=PostgresSink(table="accounts", dsn=dsn, key="id", deleted="false"))
    rows = [
        (1, "newer", False), (2, "gone", True), (3, "gone", True), (3, "back", False),
        (4, "new", False), (4, "gone", True), (5, "never there", True), (1, "newest", False),
    ]  # fmt: skip
    frame = rows_of([{"id": id, "name": name, "__deleted": deleted} for id, name, deleted in rows])
    resource.publish(resource.stage({"out": frame}, 0), FIRST, after=None)
    assert accounts() == {1: "newest", 3: "back", 9: "untouched"}
    resource.close()


def test_a_key_in_another_case_and_of_several_columns(dsn: str, database: Any) -> None:
    database.execute('CREATE TABLE prices (shop text, "Item" int, price numeric(8,2), UNIQUE ("Item", shop))')
    resource = open_sinks(out=PostgresSink(table="prices", dsn=dsn, key=("Shop", "item")))
    price = pa.decimal128(8, 2)
    for epoch, (amount, last, entry) in enumerate([("1.00", None, FIRST), ("2.50", FIRST, SECOND)]):
        frame = rows_of([{"shop": "x", "Item": 1, "price": None}], Item=pa.int32(), price=price)
        part = pa.table({"shop": ["x"], "Item": pa.array([1], pa.int32()), "price": pa.array([amount]).cast(price)})
        resource.publish(resource.stage({"out": type(frame)((part,))}, epoch), entry, after=last)
    assert [(s, i, str(p)) for s, i, p in database.execute("SELECT * FROM prices")] == [("x", 1, "2.50")]
    resource.close()


def test_rows_that_are_only_a_key(dsn: str, database: Any) -> None:
    database.execute("CREATE TABLE seen (id bigint PRIMARY KEY)")
    resource = open_sinks(out=PostgresSink(table="seen", dsn=dsn, key="id"))
    for last, entry in [(None, FIRST), (FIRST, SECOND)]:
        resource.publish(resource.stage({"out": rows_of([{"id": 1}, {"id": 1}, {"id": 2}])}, 0), entry, after=last)
    assert database.execute("SELECT id FROM seen ORDER BY id").fetchall() == [(1,), (2,)]
    resource.close()


def test_a_key_that_is_null_is_not_taken(dsn: str, database: Any) -> None:
    database.execute("CREATE TABLE loose (id bigint UNIQUE, name text)")
    resource = open_sinks(out=PostgresSink(table="loose", dsn=dsn, key="id"))
    with pytest.raises(Failed, match=r"null value in column \"id\""):
        resource.stage({"out": rows_of([{"id": 1, "name": "a"}, {"id": None, "name": "b"}])}, 0)
    resource.close()


# Several outputs ---------------------------------------------------------------------------------------------------


def test_outputs_of_one_database_come_out_together_or_not_at_all(
    dsn: str, orders: Any, accounts: Any, database: Any
) -> None:
    database.execute("ALTER TABLE accounts ADD CHECK (name <> 'bad')")
    sinks = {"all": PostgresSink(table="orders", dsn=dsn), "last": PostgresSink(table="accounts", dsn=dsn, key="id")}
    assert len({sink.resource for sink in sinks.values()}) == 1
    resource = open_sinks(**sinks)
    bad = rows_of([{"id": 1, "name": "bad"}])
    with pytest.raises(Failed, match=r"accounts_name_check[\s\S]*") as raised:
        resource.publish(resource.stage({"all": SMALL, "last": bad}, 0), FIRST, after=None)
    assert "Failing row contains (1, bad)" in raised.value.what
    assert "accounts'" in raised.value.what
    assert not isinstance(raised.value, EpochFailed), "to repeat it cannot help"
    assert (resource.read(), orders(), accounts()) == (None, [], {})
    resource.publish(resource.stage({"all": SMALL, "last": MORE}, 0), FIRST, after=None)
    assert (len(orders()), accounts()) == (3, {4: "d"})
    resource.close()


def test_one_database_under_two_addresses_is_refused(server: Postgres, dsn: str, orders: Any) -> None:
    first = open_sinks(one=PostgresSink(table="orders", dsn=dsn))
    with pytest.raises(Refused, match="in two ways") as raised:
        open_sinks(two=PostgresSink(table="orders", dsn=dsn.replace("127.0.0.1", "localhost")))
    assert "s3cret-word" not in str(raised.value)
    first.close()
    open_sinks(two=PostgresSink(table="orders", dsn=dsn.replace("127.0.0.1", "localhost"))).close()


# What goes wrong ---------------------------------------------------------------------------------------------------


def test_rows_that_are_missing_are_found_before_anything_is_seen(resource: Any, orders: Any, database: Any) -> None:
    name = resource.stage({"out": SMALL}, 0)
    for table in staging_tables(database):
        database.execute(f"DELETE FROM {table} WHERE id = 3")
    with pytest.raises(EpochFailed, match="1 of 3 staged rows"):
        resource.publish(name, FIRST, after=None)
    assert (resource.read(), orders()) == (None, [])


def test_rows_of_attempts_that_lost_are_not_moved(resource: Any, orders: Any, database: Any) -> None:
    name = resource.stage({"out": SMALL}, 0)
    for table in staging_tables(database):
        lost = f"{table.rpartition('_')[0]}_lost{table[-2:]}"
        database.execute(f"CREATE TABLE {lost} AS TABLE {table}")
        database.execute("INSERT INTO lockgate_staging VALUES ('job', %s)", [lost])
    resource.publish(name, FIRST, after=None)
    assert len(orders()) == 3
    assert (staging_tables(database), resource.leftovers()) == ([], []), "and they are cleared away"


def test_two_opens_at_once_make_their_tables_once(dsn: str, orders: Any) -> None:
    gate, opened, failed = threading.Barrier(6), [], []

    def open_one() -> None:
        gate.wait()
        try:
            opened.append(open_sinks(out=PostgresSink(table="orders", dsn=dsn)))
        except Exception as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=open_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in opened:
        one.close()
    assert (len(opened), failed) == (6, [])


@pytest.mark.parametrize("after", [None, FIRST])
def test_of_drivers_that_publish_at_once_one_wins(after: Entry | None, dsn: str, orders: Any) -> None:
    drivers = [open_sinks(out=PostgresSink(table="orders", dsn=dsn)) for _ in range(4)]
    staged = [driver.stage({"out": MORE}, 0) for driver in drivers]
    if after is not None:
        drivers[0].publish(None, after, after=None)
    gate, lost, won = threading.Barrier(4), [], []

    def publish(place: int) -> None:
        gate.wait()
        try:
            drivers[place].publish(staged[place], replace(SECOND, run=f"run-{place}"), after=after)
            won.append(place)
        except Moved as error:
            lost.append(error)

    threads = [threading.Thread(target=publish, args=[place]) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost), orders()) == (1, 3, [(4, "d")])
    entry = drivers[0].read()
    assert entry is not None
    assert entry.run == f"run-{won[0]}"
    for driver in drivers:
        driver.close()


def test_a_stopped_task_blocks_no_other_task(dsn: str, resource: Any, orders: Any, database: Any) -> None:
    resource.publish(resource.stage({"out": MORE}, 0), FIRST, after=None)
    with psycopg.connect(dsn) as zombie:
        table = make_table(zombie, resource._prepared["out"].staging)
        zombie.execute(SQL("INSERT INTO {} VALUES (99, 'zombie')").format(table.sql))
        began = time.monotonic()
        resource.remove(resource.leftovers())
        resource.publish(resource.stage({"out": SMALL}, 1), SECOND, after=FIRST)
        assert time.monotonic() - began < 5
        zombie.commit()
    assert resource.leftovers() == [table.name], "the zombie does hold it"
    resource.publish(resource.stage({"out": MORE}, 2), THIRD, after=SECOND)
    assert len(orders()) == 5, "a zombie's row came out"
    assert (staging_tables(database), resource.leftovers()) == ([], [])


def test_a_task_that_dies_right_before_the_server_does_not_keep_it_from_coming_back(
    dsn: str, server: Postgres, resource: Any, orders: Any
) -> None:
    resource.publish(resource.stage({"out": MORE}, 0), FIRST, after=None)
    task = psycopg.connect(dsn)
    table = make_table(task, resource._prepared["out"].staging)
    task.execute(SQL("INSERT INTO {} VALUES (99, 'dead')").format(table.sql))
    task.close()
    kill_and_restart(server)  # before the log has that its work was undone
    resource.remove(resource.leftovers())
    resource.publish(resource.stage({"out": SMALL}, 1), SECOND, after=FIRST)
    with psycopg.connect(dsn) as reader:
        assert reader.execute("SELECT count(*) FROM orders").fetchone() == (4,)


def test_a_driver_that_was_stopped_while_it_reads_staging_blocks_no_other_driver(
    dsn: str, resource: Any, orders: Any, database: Any
) -> None:
    removed = resource.stage({"out": MORE}, 0)
    (table,) = staging_tables(database)
    with psycopg.connect(dsn) as zombie:
        zombie.execute(f"SELECT FROM {table}")
        began = time.monotonic()
        resource.remove(resource.leftovers())
        assert time.monotonic() - began < 5
        assert (staging_tables(database), staged_rows(database)) == ([table], 0), "its rows go, the table stays"
        with pytest.raises(EpochFailed, match="1 of 1 staged rows"):
            resource.publish(removed, FIRST, after=None)
    resource.remove(resource.leftovers())
    assert (staging_tables(database), resource.leftovers(), orders()) == ([], [], [])


def test_a_driver_that_was_stopped_in_its_transaction_is_ended_by_the_server(
    dsn: str, resource: Any, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource.publish(None, FIRST, after=None)
    monkeypatch.setattr(connecting, "IDLE_LIMIT", timedelta(seconds=1))
    with connecting.connect(dsn, where="test", name="zombie") as zombie:
        zombie.execute("SELECT * FROM lockgate_ledger FOR UPDATE")
        resource.publish(None, SECOND, after=FIRST)
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            zombie.execute("SELECT 1")
        zombie.close()
    assert resource.read() == SECOND


def test_an_upsert_of_a_driver_that_was_replaced_is_refused(dsn: str, accounts: Any) -> None:
    sink = PostgresSink(table="accounts", dsn=dsn, key="id")
    sleeper, other = open_sinks(out=sink), open_sinks(out=sink)
    claim = replace(FIRST, epoch=None, digest=None)
    sleeper.publish(None, claim, after=None)
    older = sleeper.stage({"out": rows_of([{"id": 1, "name": "older"}])}, 0)
    takeover = replace(claim, run="run-2")
    other.publish(None, takeover, after=claim)
    newer = [other.stage({"out": rows_of([{"id": 1, "name": name}])}, 0) for name in ("older", "newer")]
    first, second = replace(FIRST, run="run-2"), replace(SECOND, run="run-2")
    other.publish(newer[0], first, after=takeover)
    other.publish(newer[1], second, after=first)
    for seen in (None, claim, first):  # whatever it saw before it slept: the run id differs, or the epoch is older
        with pytest.raises(Moved):
            sleeper.publish(older, FIRST, after=seen)
    assert (accounts(), other.read()) == ({1: "newer"}, second)
    sleeper.close()
    other.close()


@pytest.mark.process
@pytest.mark.parametrize("point", ["STAGED", "HALF", "EMIT", "VOTES", "BEFORE_END"])
def test_a_driver_that_wakes_up_when_another_one_took_over_changes_nothing(
    point: str, dsn: str, orders: Any, database: Any, tmp_path: Path
) -> None:
    faults = as_environment([Fault(point=point, action="stop", mark=str(tmp_path / "mark"))])
    with running(*program("orders", dsn), cwd=tmp_path, environ=faults) as zombie:
        process = psutil.Process(zombie.pid)
        zombie.wait_for("the stop", lambda: process.status() == psutil.STATUS_STOPPED)
        assert drive(dsn).step is Step.WRITE
        seen = orders()
        process.resume()
        assert zombie.end() == 1
        assert "Another driver of job 'job' took over" in zombie.said
    assert seen == orders() == [(1, "a"), (2, "b"), (3, "c")]
    drive(dsn)
    assert (orders(), staging_tables(database)) == (seen, []), "the next one sweeps what it left"


@pytest.mark.parametrize("is_deciding", [True, False])
def test_a_server_that_crashes_between_stage_and_publish(
    is_deciding: bool, server: Postgres, dsn: str, orders: Any, tmp_path: Path
) -> None:
    resource = open_sinks(is_deciding=is_deciding, out=PostgresSink(table="orders", dsn=dsn))
    name = resource.stage({"out": SMALL}, 0)
    kill_and_restart(server)
    if is_deciding:  # what is not logged is gone, and nothing of the epoch is visible
        with pytest.raises(EpochFailed, match=r"3 of 3 staged rows|not there any more"):
            resource.publish(name, FIRST, after=None)
        assert resource.read() is None
        name = resource.stage({"out": SMALL}, 0)
    resource.publish(name, FIRST, after=None)
    with psycopg.connect(dsn) as reader:
        assert reader.execute("SELECT count(*) FROM orders").fetchone() == (3,)
    assert resource.read() == FIRST
    resource.close()


def test_a_connection_that_is_lost_before_the_commit_is_made_again(resource: Any, orders: Any, database: Any) -> None:
    name = resource.stage({"out": SMALL}, 0)
    end_sessions(database)
    assert resource.read() is None
    end_sessions(database)
    resource.publish(name, FIRST, after=None)
    assert len(orders()) == 3


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_answer_to_a_commit_that_is_lost_is_not_guessed(
    is_committed: bool, resource: Any, orders: Any, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = resource.stage({"out": SMALL}, 0)
    commit = psycopg.Connection.commit

    def commit_and_lose(connection: Any) -> None:
        monkeypatch.setattr(psycopg.Connection, "commit", commit)
        if is_committed:
            commit(connection)
        end_sessions(database)
        connection.execute("SELECT 1")

    monkeypatch.setattr(psycopg.Connection, "commit", commit_and_lose)
    with pytest.raises(EpochFailed, match="while the transaction was committed"):
        resource.publish(name, FIRST, after=None)
    assert resource.read() == (FIRST if is_committed else None)
    assert len(orders()) == (3 if is_committed else 0)


def test_a_server_that_stays_away_ends_in_an_error_that_repeats_the_epoch(
    server: Postgres, resource: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "PATIENCE", timedelta(seconds=0.3))
    server.stop()
    try:
        with pytest.raises(EpochFailed, match="PostgreSQL is not there"):
            resource.read()
    finally:
        server.start()
        server.wait()
    assert resource.read() is None


def end_sessions(database: Any) -> None:
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lockgate job'")
    left = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'lockgate job'"
    wait_for("the end of the sessions", lambda: database.execute(left).fetchone() is None)


@pytest.mark.parametrize("name", ["", "[]", '"x"', '{"rows": [{}]}', '{"rows": [{"staging": 1}]}'])
def test_what_names_nothing_is_not_guessed_at(resource: Any, name: str) -> None:
    with pytest.raises(InvariantBroken, match="names nothing"):
        resource.publish(name, FIRST, after=None)


def test_a_ledger_that_another_version_wrote_is_not_read(resource: Any, database: Any) -> None:
    facts = {**FIRST.as_facts(), "format": 99}
    database.execute("INSERT INTO lockgate_ledger VALUES ('job', %s)", [json.dumps(facts)])
    with pytest.raises(InvariantBroken, match="format 99"):
        resource.read()


@pytest.mark.parametrize(
    ("constraint", "rows", "said"),
    [
        ("ALTER COLUMN name SET NOT NULL", SMALL, 'null value in column "name"'),
        ("ADD UNIQUE (id)", rows_of([{"id": 1, "name": "a"}], [{"id": 1, "name": "b"}]), "Key (id)=(1) already exists"),
    ],
)
def test_a_row_that_the_table_does_not_take_stops_the_epoch_with_nothing_of_it_visible(
    constraint: str, rows: Any, said: str, resource: Any, orders: Any, database: Any
) -> None:
    database.execute(f"ALTER TABLE orders {constraint}")
    with pytest.raises(Failed) as raised:
        resource.publish(resource.stage({"out": rows}, 0), FIRST, after=None)
    assert not isinstance(raised.value, EpochFailed), "to repeat it cannot help"
    assert said in raised.value.what
    assert "orders'" in raised.value.what
    assert "correct the rows" in raised.value.fix
    assert (resource.read(), orders()) == (None, [])
    resource.publish(resource.stage({"out": MORE}, 0), FIRST, after=None)
    assert orders() == [(4, "d")]


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        ("ALTER COLUMN name SET NOT NULL", 'null value in column "name"'),
        ("ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED", "Key (id)=(1) already exists"),
    ],
)
def test_a_follower_refuses_such_a_row_while_it_stages_because_later_others_have_the_epoch(
    constraint: str, said: str, dsn: str, orders: Any, database: Any
) -> None:
    database.execute(f"ALTER TABLE orders {constraint}")
    database.execute("INSERT INTO orders VALUES (1, 'first')")
    resource = open_sinks(is_deciding=False, out=PostgresSink(table="orders", dsn=dsn))
    with pytest.raises(Failed) as raised:
        resource.stage({"out": SMALL}, 0)
    assert said in raised.value.what
    resource.publish(resource.stage({"out": MORE}, 0), FIRST, after=None)
    assert orders() == [(1, "first"), (4, "d")]
    resource.close()


def test_a_row_that_the_table_refuses_only_after_the_decision_waits_until_it_is_taken(
    dsn: str, orders: Any, database: Any
) -> None:
    resource = open_sinks(is_deciding=False, out=PostgresSink(table="orders", dsn=dsn))
    followers = Followers("job", {"table": resource})
    followers.forget(reset_entry(datetime.now(UTC)))
    decided = replace(FIRST, staged=followers.stage({"table": {"out": SMALL}}, 0))
    database.execute("ALTER TABLE orders ADD CONSTRAINT small CHECK (id < 2)")
    with pytest.raises(Failed, match=r"is decided, but table refuses the rows[\s\S]*change the table"):
        followers.publish(decided)
    database.execute("ALTER TABLE orders DROP CONSTRAINT small")
    followers.publish(decided)
    assert len(orders()) == 3
    followers.close()


def test_rows_that_a_trigger_of_the_table_takes_away_are_not_missed(resource: Any, orders: Any, database: Any) -> None:
    database.execute(
        "CREATE FUNCTION filter() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.id = 1 THEN RETURN NULL; END IF; RETURN NEW; END $$"
    )
    database.execute("CREATE TRIGGER filtered BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION filter()")
    resource.publish(resource.stage({"out": SMALL}, 0), FIRST, after=None)
    assert len(orders()) == 2


def test_a_disk_that_is_full_when_rows_are_moved_repeats_the_epoch(resource: Any, orders: Any, database: Any) -> None:
    database.execute(
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE SQLSTATE '53100' USING MESSAGE = 'No space left on device'; END $$"
    )
    database.execute("CREATE TRIGGER filled AFTER INSERT ON orders FOR EACH STATEMENT EXECUTE FUNCTION fill()")
    name = resource.stage({"out": SMALL}, 0)
    with pytest.raises(EpochFailed, match=r"disk is full: No space left[\s\S]*free space") as raised:
        resource.publish(name, FIRST, after=None)
    assert type(raised.value) is EpochFailed
    assert (resource.read(), orders()) == (None, [])
    database.execute("DROP TRIGGER filled ON orders")
    resource.publish(name, FIRST, after=None)
    assert len(orders()) == 3


@pytest.fixture
def tablespace(server: Postgres, tmp_path: Path) -> Iterator[Path]:
    """A tablespace of two megabytes, which new tables use."""
    if why_no_small_disk():
        pytest.skip("this user may not mount a small disk")
    place, name = tmp_path / "small", f"small_{uuid4().hex[:8]}"
    with small_disk(place, size_mib=2):
        owner = server.data.stat()
        os.chown(place, owner.st_uid, owner.st_gid)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE {name} LOCATION '{place}'")
            connection.execute(f"ALTER ROLE lockgate SET default_tablespace = {name}")
            yield place
            connection.execute("ALTER ROLE lockgate RESET default_tablespace")
            for kind in ("TABLE", "INDEX"):
                connection.execute(f"ALTER {kind} ALL IN TABLESPACE {name} SET TABLESPACE pg_default")
            connection.execute(f"DROP TABLESPACE {name}")


def test_a_disk_that_is_full_while_rows_are_staged_repeats_the_epoch(
    tablespace: Path, dsn: str, orders: Any, database: Any
) -> None:
    resource = open_sinks(out=PostgresSink(table="orders", dsn=dsn))
    many = rows_of([{"id": n, "name": "x" * 200} for n in range(4_000)])
    ballast = tablespace / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    with pytest.raises(EpochFailed, match=r"disk is full.*No space left on device"):
        resource.stage({"out": many}, 0)
    assert (resource.read(), orders(), staged_rows(database)) == (None, [], 0)
    ballast.unlink()
    resource.publish(resource.stage({"out": MORE}, 0), FIRST, after=None)
    assert orders() == [(4, "d")]
    resource.close()


# Opening -----------------------------------------------------------------------------------------------------------


def test_a_missing_table_is_refused_at_open(dsn: str) -> None:
    sink = PostgresSink(table="nowhere", dsn=dsn)
    with pytest.raises(Refused, match="no table 'nowhere'"):
        sink.open(opening(out=sink))


def test_a_missing_table_is_refused_with_its_statement_when_the_rows_are_known(dsn: str) -> None:
    with pytest.raises(Refused) as raised:
        PostgresSink(table="nowhere", dsn=dsn, key="id").check_rows(SMALL, "test")
    assert 'CREATE TABLE "nowhere" ("id" bigint, "name" text, PRIMARY KEY ("id"))' in raised.value.fix


def test_a_missing_table_is_made_where_that_is_asked_for(dsn: str, database: Any) -> None:
    sink = PostgresSink(table="fresh", dsn=dsn, key="ID", create=True)
    sink.check("test")
    sink.check_rows(SMALL, "test")
    assert database.execute("SELECT to_regclass('fresh')").fetchone() == (None,), "a check leaves nothing behind"
    resource = open_sinks(out=sink)
    resource.publish(resource.stage({"out": SMALL}, 0), FIRST, after=None)
    resource.publish(resource.stage({"out": SMALL}, 1), SECOND, after=FIRST)
    assert database.execute("SELECT count(*) FROM fresh").fetchone() == (3,)
    resource.close()


def test_rows_that_do_not_fit_are_refused(dsn: str, orders: Any) -> None:
    sink = PostgresSink(table="orders", dsn=dsn)
    sink.check("test")
    with pytest.raises(Refused, match="column 'more': comes as double"):
        sink.check_rows(rows_of([{"id": 1, "more": 1.5}]), "test")


@pytest.mark.parametrize(("old", "new"), [("s3cret-word", "wr0ng-word"), ("/lockgate?", "/elsewhere?")])
def test_a_wrong_address_is_refused_at_open(dsn: str, old: str, new: str) -> None:
    sink = PostgresSink(table="orders", dsn=dsn.replace(old, new))
    with pytest.raises(Refused) as raised:
        sink.open(opening(out=sink))
    assert "-word" not in str(raised.value)


def test_a_user_who_may_not_make_tables_is_refused_at_open(
    server: Postgres, dsn: str, database: Any, orders: Any
) -> None:
    database.execute("DROP ROLE IF EXISTS reader")
    database.execute("CREATE ROLE reader LOGIN PASSWORD 'other-word'")
    schema = database.execute("SELECT current_schema()").fetchone()[0]
    database.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO reader')
    sink = PostgresSink(table="orders", dsn=dsn.replace("lockgate:s3cret-word", "reader:other-word"))
    with pytest.raises(Refused, match="permission denied"):
        sink.open(opening(out=sink))


def test_a_search_path_without_a_schema_is_refused(dsn: str) -> None:
    sink = PostgresSink(table="orders", dsn=dsn.replace("Test-", "Gone-"))
    with pytest.raises(Refused, match="search path"):
        sink.open(opening(out=sink))


# Without a ledger --------------------------------------------------------------------------------------------------


def test_a_plain_write_is_whole_and_leaves_nothing_behind(dsn: str, orders: Any, accounts: Any, database: Any) -> None:
    PostgresSink(table="orders", dsn=dsn).write(SMALL, 0)
    PostgresSink(table="orders", dsn=dsn).write(SMALL, 0)
    PostgresSink(table="accounts", dsn=dsn, key="id").write(SMALL, 0)
    PostgresSink(table="accounts", dsn=dsn, key="id").write(SMALL, 0)
    assert (len(orders()), len(accounts()), staging_tables(database)) == (6, 3, [])
    assert database.execute("SELECT count(*) FROM lockgate_ledger").fetchone() == (0,)


def test_a_plain_write_drops_what_dead_ones_left_and_not_what_live_ones_use(
    dsn: str, orders: Any, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = PostgresSink(table="orders", dsn=dsn)

    def die(*args: Any, **names: Any) -> None:
        copy(*args, **names)
        raise KeyboardInterrupt

    def write_another(frame: Any, prepared: Any, **names: Any) -> Any:
        monkeypatch.setattr(store, "_copy", copy)
        sink.write(MORE, 0)
        return copy(frame, prepared, **names)

    copy = store._copy
    monkeypatch.setattr(store, "_copy", die)
    with pytest.raises(KeyboardInterrupt):
        sink.write(SMALL, 0)
    assert len(staging_tables(database)) == 2
    database.execute("INSERT INTO lockgate_staging VALUES (NULL, 'lockgate_staging_dropped_by_hand')")
    monkeypatch.setattr(store, "_copy", write_another)
    write_plainly(SMALL, sink._target, dsn, where="test")
    assert (len(orders()), staging_tables(database)) == (4, [])
    assert database.execute("SELECT count(*) FROM lockgate_staging").fetchone() == (0,)
