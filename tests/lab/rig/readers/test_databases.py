"""Tables are read as they are: by a look at a time, while databases are killed, and in the end."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from lockgate.errors import Failed
from lockgate.guarantees import Guarantee
from lockgate.lab.prove.places import Readers
from lockgate.lab.rig.history import Fact, Fault, Gap, History, Read, Reader
from lockgate.lab.rig.judge.checkers import check
from lockgate.lab.rig.judge.findings import Finding, Outcome
from lockgate.lab.rig.judge.promises import Keeping, Promise, Row
from lockgate.lab.rig.readers.databases import PostgresRows, SqliteRows
from lockgate.lab.rig.readers.polling import Polled
from lockgate.lab.rig.readers.rows import canonical, key_of
from lockgate.lab.services.postgres import Postgres

EXACT = Guarantee.END_TO_END_EXACTLY_ONCE
JOB = "lockgate-proof-1-0"


def now() -> float:
    return time.monotonic()


def seen_by(output: Polled, count: int, limit_seconds: float = 30.0) -> None:
    """Until the poller has seen so many rows."""
    deadline = now() + limit_seconds
    while len(output.seen()) < count:
        assert now() < deadline, output.seen()
        time.sleep(0.05)


def values(facts: list[Fact]) -> list[Any]:
    assert not [fact for fact in facts if isinstance(fact, Gap)], facts
    return [json.loads(fact.value or b"") for fact in facts if isinstance(fact, Read)]


def places(facts: list[Fact]) -> dict[int, bytes | None]:
    return {fact.offset: fact.value for fact in facts if isinstance(fact, Read)}


def judged(facts: list[Fact], *rows: bytes) -> dict[str, Finding]:
    promise = Promise(EXACT, tuple(Row(None, row) for row in rows), keeping=Keeping.ADDED)
    found = check(History((*facts, Fault("kill", "any", "x", 0.0))), {"out": promise}, due=[("kill", "any")])
    return {one.checker: one for one in found}


# -- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_is_always_written_the_same_way() -> None:
    assert canonical({"b": 1, "a": None}) == canonical({"a": None, "b": 1}) == b'{"a":null,"b":1}'
    assert canonical({"a": b"\x01\xff", "b": 0.1, "c": True}) == b'{"a":"01ff","b":"0.1","c":true}'


def test_a_key_is_found_in_any_case_and_none_is_none() -> None:
    assert key_of({"User": "a", "n": 1}, ["user"]) == b'{"User":"a"}'
    assert key_of({"User": "a", "n": 1}, []) is None


# -- SQLite -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a site" / "out-0.db"


def execute(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def test_a_file_and_a_table_that_are_not_there_yet_have_no_rows(file: Path) -> None:
    output = SqliteRows("out", file, "counts")
    assert output.after(now) == []
    output.clear()
    assert not file.exists()
    execute(file, "CREATE TABLE other (id INTEGER)")
    assert output.after(now) == []
    assert [one.open_transactions for one in output.standing(now)] == [0]


def test_rows_of_sqlite_are_seen_along_and_are_the_same_in_the_end(file: Path) -> None:
    output = SqliteRows("out", file, "my counts")
    output.clear()
    output.start_along(now)
    execute(file, 'CREATE TABLE "my counts" (id INTEGER, part BLOB, share REAL, rowid TEXT)')
    execute(file, "INSERT INTO \"my counts\" VALUES (1, x'01ff', 0.5, 'a'), (1, x'01ff', 0.5, 'a')")
    seen_by(output, 2)
    execute(file, "INSERT INTO \"my counts\" VALUES (2, NULL, NULL, 'b')")
    along, after = output.finish_along(), output.after(now)
    one = {"id": 1, "part": "01ff", "share": "0.5", "rowid": "a"}
    assert values(along) == values(after) == [one, one, {"id": 2, "part": None, "share": None, "rowid": "b"}]
    assert places(along) == places(after)
    assert {fact.reader for fact in after if isinstance(fact, Read)} == {Reader.AFTER}


@contextmanager
def row_under_way(file: Path, begin: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SqliteRows, Any]]:
    """A row that is written and not yet committed, and was looked for twice meanwhile."""
    output, looks = SqliteRows("out", file, "counts"), list[None]()
    look = output.look

    def counted(known: Any) -> Any:
        looks.append(None)
        return look(known)

    monkeypatch.setattr(output, "look", counted)
    output.clear()
    execute(file, "CREATE TABLE counts (id INTEGER)")
    output.start_along(now)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(begin)
        connection.execute("INSERT INTO counts VALUES (1)")
        wanted, deadline = len(looks) + 3, time.monotonic() + 30  # the second of them begins behind the insert and ends
        while len(looks) < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield output, connection


def test_a_file_that_is_locked_is_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with row_under_way(file, "BEGIN EXCLUSIVE", monkeypatch) as (output, connection):
        connection.execute("COMMIT")
    assert values(output.finish_along()) == [{"id": 1}]


def test_what_is_rolled_back_is_never_seen(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with row_under_way(file, "BEGIN IMMEDIATE", monkeypatch) as (output, connection):
        connection.execute("ROLLBACK")
    assert output.finish_along() == []


def lose(file: Path) -> None:
    execute(file, "DELETE FROM counts WHERE id = 3")


def double(file: Path) -> None:
    execute(file, "INSERT INTO counts VALUES (2)")


def invent(file: Path) -> None:
    execute(file, "INSERT INTO counts VALUES (9)")


def nothing(file: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("plant", "broken"),
    [
        (nothing, set()),
        (lose, {"lost", "aborted seen"}),
        (double, {"duplicated"}),
        (invent, {"foreign"}),
    ],
)
def test_what_is_planted_in_a_table_is_caught(file: Path, plant: Callable[[Path], None], broken: set[str]) -> None:
    output = SqliteRows("out", file, "counts")
    readers = Readers((output,))
    readers.clear()
    execute(file, "CREATE TABLE counts (id INTEGER)", "INSERT INTO counts VALUES (1), (2), (3)")
    readers.start_along(now)
    seen_by(output, 3)
    plant(file)
    facts: list[Fact] = [*readers.finish_along(now), *readers.after(now), *readers.log(now), *readers.standing(now)]
    told = judged(facts, b'{"id":1}', b'{"id":2}', b'{"id":3}')
    assert {name for name, one in told.items() if one.outcome is Outcome.BROKEN} == broken
    assert not [one for one in told.values() if one.outcome is Outcome.UNKNOWN]


def test_a_row_that_was_replaced_at_its_place_is_gone(file: Path) -> None:
    output = SqliteRows("out", file, "counts")
    readers = Readers((output,))
    readers.clear()
    execute(file, "CREATE TABLE counts (id INTEGER)", "INSERT INTO counts VALUES (1), (7)")
    readers.start_along(now)
    seen_by(output, 2)
    execute(file, "DELETE FROM counts WHERE id = 7", "INSERT INTO counts VALUES (2)")
    facts: list[Fact] = [*readers.finish_along(now), *readers.after(now), *readers.standing(now)]
    told = judged(facts, b'{"id":1}', b'{"id":2}')
    assert told["aborted seen"].outcome is Outcome.BROKEN
    assert "7" in told["aborted seen"].reason


def test_rows_of_a_key_are_reported_with_their_key_and_every_value_that_was_seen(file: Path) -> None:
    output = SqliteRows("out", file, "counts", key=["user"])
    output.clear()
    execute(file, "CREATE TABLE counts (user TEXT PRIMARY KEY, n INTEGER)", "INSERT INTO counts VALUES ('b', 1)")
    output.start_along(now)
    seen_by(output, 1)
    execute(file, "DELETE FROM counts", "INSERT INTO counts VALUES ('b', 2), ('a', 5)")
    along, after = output.finish_along(), output.after(now)
    assert [one["n"] for one in values(along)] == [1, 2, 5]
    assert [(fact.offset, fact.key) for fact in after if isinstance(fact, Read)] == [
        (0, b'{"user":"a"}'),
        (1, b'{"user":"b"}'),
    ]
    assert History(tuple(along)).doubt(Reader.ALONG) == "the reader 'along' has not read to the end"


def test_staged_rows_and_a_journal_are_left_behind(file: Path) -> None:
    output = SqliteRows("out", file, "counts")
    output.clear()
    execute(file, "CREATE TABLE lockgate_staged_ab (lockgate_name TEXT)")
    assert [one.open_transactions for one in output.standing(now)] == [0]
    execute(file, "INSERT INTO lockgate_staged_ab VALUES ('x'), ('x'), ('y')")
    assert [one.open_transactions for one in output.standing(now)] == [2]
    file.with_name(f"{file.name}-journal").write_bytes(b"half")
    assert [one.open_transactions for one in output.standing(now)] == [1]
    output.clear()
    assert not list(file.parent.iterdir())


def test_a_file_that_is_none_of_sqlite_is_a_gap(file: Path) -> None:
    output = SqliteRows("out", file, "counts")
    readers = Readers((output,))
    readers.clear()
    file.write_bytes(b"this is no database" * 100)
    facts = readers.after(now)
    assert [type(fact) for fact in facts] == [Gap]


# -- PostgreSQL -------------------------------------------------------------------------------------------------------


@pytest.fixture
def table() -> str:
    return f"out_0_{uuid4().hex[:12]}"


@pytest.fixture
def connection(server: Postgres) -> Iterator["psycopg.Connection[Any]"]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        yield connection


def make(connection: "psycopg.Connection[Any]", table: str, columns: str) -> None:
    connection.execute(SQL(f"CREATE TABLE {{}} ({columns})").format(Identifier(table)))


def insert(connection: "psycopg.Connection[Any]", table: str, *rows: tuple[Any, ...]) -> None:
    for row in rows:
        marks = ", ".join(["%s"] * len(row))
        connection.execute(SQL(f"INSERT INTO {{}} VALUES ({marks})").format(Identifier(table)), row)


@pytest.mark.system
def test_a_table_that_is_not_there_yet_has_no_rows(server: Postgres, table: str) -> None:
    output = PostgresRows("out", server.dsn, table, job=JOB)
    output.clear()
    assert output.after(now) == []
    assert [one.open_transactions for one in output.standing(now)] == [0]


@pytest.mark.system
def test_values_of_postgresql_are_read_without_loss(
    server: Postgres, connection: "psycopg.Connection[Any]", table: str
) -> None:
    columns = "id bigint, price numeric(20, 4), at timestamptz, part bytea, share float8, nested jsonb, is_on boolean"
    make(connection, table, columns)
    nested = '{"b": [1, 2.50], "a": null}'
    row = (2**62, "1234567890123456.7800", "2026-01-01 12:00:00.000001+02", b"\x01\xff", 0.1, nested, True)
    insert(connection, table, row, (None,) * 7)
    found = values(PostgresRows("out", server.dsn, table, job=JOB).after(now))
    assert found[0] == {
        "id": 2**62,
        "price": "1234567890123456.7800",
        "at": "2026-01-01T10:00:00.000001+00:00",
        "part": "\\x01ff",
        "share": "0.1",
        "nested": {"a": None, "b": [1, "2.50"]},
        "is_on": True,
    }
    assert set(found[1].values()) == {None}


@pytest.mark.system
def test_a_database_that_is_killed_along_the_way_is_no_gap(server: Postgres, table: str) -> None:
    output = PostgresRows("out", server.dsn, table, job=JOB)
    readers = Readers((output,))
    readers.clear()
    readers.start_along(now)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        make(connection, table, '"row" text, id bigint')
        insert(connection, table, ("a", 1), ("a", 1))
        seen_by(output, 2)
    with psycopg.connect(server.dsn) as doomed:
        insert(doomed, table, ("never", 0))
        time.sleep(0.7)  # a look sees nothing of it
        server.kill()
        time.sleep(1.0)
        server.start()
        server.wait()
        with pytest.raises(psycopg.OperationalError):
            doomed.commit()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        insert(connection, table, ("b", 2))
    along, after = readers.finish_along(now), readers.after(now)
    assert values(along) == values(after) == [{"row": "a", "id": 1}] * 2 + [{"row": "b", "id": 2}]
    assert places(along) == places(after)
    history = History((*along, *after))
    assert history.doubt(Reader.ALONG) is history.doubt(Reader.AFTER) is None


@pytest.mark.system
def test_a_row_that_was_seen_and_is_gone_is_caught(
    server: Postgres, connection: "psycopg.Connection[Any]", table: str
) -> None:
    output = PostgresRows("out", server.dsn, table, job=JOB)
    readers = Readers((output,))
    make(connection, table, "id bigint")
    insert(connection, table, (1,), (2,))
    readers.start_along(now)
    seen_by(output, 2)
    connection.execute(SQL("DELETE FROM {} WHERE id = 2").format(Identifier(table)))
    facts: list[Fact] = [*readers.finish_along(now), *readers.after(now), *readers.standing(now)]
    told = judged(facts, b'{"id":1}', b'{"id":2}')
    broken = {name for name, one in told.items() if one.outcome is Outcome.BROKEN}
    assert broken == {"lost", "aborted seen"}


@pytest.mark.system
def test_rows_of_a_key_are_seen_with_every_value_that_a_look_finds(
    server: Postgres, connection: "psycopg.Connection[Any]", table: str
) -> None:
    output = PostgresRows("out", server.dsn, table, job=JOB, key=["k"])
    make(connection, table, "k text PRIMARY KEY, n bigint")
    insert(connection, table, ("b", 1), ("a", 1))
    output.start_along(now)
    seen_by(output, 2)
    connection.execute(SQL("UPDATE {} SET n = 2 WHERE k = 'b'").format(Identifier(table)))
    seen_by(output, 3)
    connection.execute(SQL("UPDATE {} SET n = 1 WHERE k = 'b'").format(Identifier(table)))
    along, after = output.finish_along(), output.after(now)
    assert [(one["k"], one["n"]) for one in values(along)] == [("b", 1), ("a", 1), ("b", 2), ("b", 1)]
    assert [(one["k"], one["n"]) for one in values(after)] == [("a", 1), ("b", 1)]
    assert [fact.key for fact in after if isinstance(fact, Read)] == [b'{"k":"a"}', b'{"k":"b"}']


@pytest.mark.system
def test_what_is_left_behind_is_counted_and_cleared(
    server: Postgres, connection: "psycopg.Connection[Any]", table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.lab.rig.readers.databases._SETTLING_SECONDS", 0.0)
    output = PostgresRows("out", server.dsn, table, job=JOB)

    def left() -> int:
        return output.standing(now)[0].open_transactions

    connection.execute("CREATE TABLE lockgate_staging (job text, name text PRIMARY KEY)")
    connection.execute("CREATE TABLE lockgate_ledger (job text PRIMARY KEY, entry jsonb NOT NULL)")
    try:
        insert(connection, "lockgate_ledger", (JOB, "{}"), ("another", "{}"))
        insert(connection, "lockgate_staging", ("another", "elsewhere"), (None, "plain"))
        assert left() == 0
        make(connection, table, "id bigint")
        make(connection, "lockgate_staging_of_mine", "id bigint")
        insert(connection, "lockgate_staging", (JOB, "lockgate_staging_of_mine"))
        assert left() == 1
        with psycopg.connect(server.dsn, application_name=f"lockgate {JOB}") as sleeping:
            sleeping.execute("SELECT 1")
            assert left() == 2
        assert left() == 1
        output.clear()
        assert left() == 0
        assert output.after(now) == []
        there = connection.execute("SELECT to_regclass('lockgate_staging_of_mine'), to_regclass(%s)", [table])
        assert there.fetchone() == (None, None)
        assert connection.execute("SELECT job FROM lockgate_ledger").fetchall() == [("another",)]
    finally:
        connection.execute("DROP TABLE lockgate_staging, lockgate_ledger")


@pytest.mark.system
def test_a_server_that_never_comes_back_is_a_gap_and_no_end(
    server: Postgres, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.lab.rig.readers.polling._PATIENCE_SECONDS", 1.0)
    nowhere = replace(server, port=1).dsn
    readers = Readers((PostgresRows("out", nowhere, table, job=JOB),))
    readers.start_along(now)
    history = History((*readers.finish_along(now), *readers.after(now)))
    assert "Away" in str(history.doubt(Reader.ALONG))
    assert "Away" in str(history.doubt(Reader.AFTER))
    with pytest.raises(Failed, match="PostgreSQL does not answer"):
        readers.standing(now)
