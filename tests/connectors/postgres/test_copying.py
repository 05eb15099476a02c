"""What a task copies is what PostgreSQL reads: every value, every null, in order; and all of a task or nothing."""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from lockgate.connectors.postgres import copying
from lockgate.connectors.postgres.connect import Away
from lockgate.connectors.postgres.copying import CopyOrder, as_csv
from lockgate.connectors.postgres.staging import Staging, make_registry, registered
from lockgate.connectors.postgres.tableschema import TableName
from lockgate.errors import Refused, RowRefused
from lockgate.failures import Carried, find_error

AT = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)
VALUES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "s": ("text", pa.string(), ["", None, 'say "hi", you', "two\nlines\r\n", "grüße 🚲", "\\.", "\\N", " a ", "NULL"]),
    "n": ("bigint", pa.int64(), [0, None, -(2**63), 2**63 - 1]),
    "f": ("double precision", pa.float64(), [0.1, None, math.inf, -math.inf, 1e300, 5e-324, -0.0]),
    "r": ("real", pa.float32(), [0.5, None, math.inf]),
    "b": ("boolean", pa.bool_(), [True, None, False]),
    "d": (
        "numeric(38,10)",
        pa.decimal128(38, 10),
        [Decimal("0E-10"), None, Decimal("-12345678901234567890.1234567891")],
    ),
    "e": ("numeric", pa.decimal128(20, 10), [Decimal("0.0000000001"), None]),
    "day": ("date", pa.date32(), [date(1, 1, 1), None, date(9999, 12, 31), date(1969, 12, 31)]),
    "at": (
        "timestamptz",
        pa.timestamp("us", tz="UTC"),
        [AT, None, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)],
    ),
    "vienna": ("timestamptz", pa.timestamp("us", tz="Europe/Vienna"), [AT, None]),
    "then": ("timestamp", pa.timestamp("us"), [AT.replace(tzinfo=None), None, datetime(1, 1, 1)]),
    "clock": ("time", pa.time64("ns"), [timedelta(hours=1), None]),
    "raw": ("bytea", pa.string(), ["\\x00FF10", None, "\\x"]),
    "j": ("jsonb", pa.string(), ['{"a": [1, null, "\\""]}', None]),
}


def order(dsn: str, schema: str = "nowhere", *, key: tuple[str, ...] = (), **columns: str) -> CopyOrder:
    staging = Staging(
        schema=schema,
        job="job",
        prefix="lockgate_staging_1",
        table=TableName(None, "t"),
        columns=tuple(columns),
        types=tuple(columns.values()),
        key=key,
        has_deleted=bool(key),
        is_logged=True,
    )
    return CopyOrder(dsn=dsn, staging=staging, output="out", faults=(), where="test")


@pytest.fixture
def schema(database: Any) -> str:
    """Where staging tables are made, with their registry."""
    (found,) = database.execute("SELECT current_schema()").fetchone()
    make_registry(database, found)
    return str(found)


def registered_tables(database: Any, schema: str) -> list[str]:
    return [table.name for table in registered(database, schema, "job")]


def staged_rows(database: Any, schema: str) -> int:
    (table,) = registered_tables(database, schema)
    return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_null_and_empty_differ_and_rows_are_numbered_where_that_is_asked_for() -> None:
    batch = pa.record_batch({"s": ["", None], "n": pa.array([1, None])})
    assert as_csv(batch, number=7) == b'"",1,7\n,,8\n'
    assert as_csv(batch, number=None) == b'"",1\n,\n'


@pytest.mark.system
@pytest.mark.parametrize("name", VALUES)
def test_every_value_arrives_as_it_was(name: str, dsn: str, database: Any, schema: str) -> None:
    kind, arrow, values = VALUES[name]
    if name == "clock":
        values = [3_600_000_001_000, None]
    batch = pa.record_batch({name: pa.array(values, type=arrow)})
    staged = order(dsn, schema, **{name: kind}).copy([batch], task=0)
    assert staged is not None
    assert (staged[1:], registered_tables(database, schema)) == (("out", len(values)), [staged[0]])
    found = [value for (value,) in database.execute(f'SELECT "{name}" FROM {staged[0]} ORDER BY ctid')]
    expected = {
        "raw": [b"\x00\xff\x10", None, b""],
        "j": [{"a": [1, None, '"']}, None],
        "clock": [(datetime.min + timedelta(hours=1, microseconds=1)).time(), None],
    }.get(name, values)
    assert found == expected
    assert repr(found) == repr(expected) or name != "f", "a negative zero is one still"


@pytest.mark.system
def test_a_lone_null_is_no_empty_line(dsn: str, database: Any, schema: str) -> None:
    staged = order(dsn, schema, s="text").copy([pa.record_batch({"s": pa.array([None, "", None])})], task=0)
    assert staged is not None
    assert database.execute(f"SELECT s FROM {staged[0]} ORDER BY ctid").fetchall() == [(None,), ("",), (None,)]


@pytest.mark.system
def test_not_a_number_stays_one(dsn: str, database: Any, schema: str) -> None:
    batch = pa.record_batch({"f": pa.array([math.nan]), "g": pa.array([math.nan], pa.float32())})
    staged = order(dsn, schema, f="double precision", g="real").copy([batch], task=0)
    assert staged is not None
    assert all(map(math.isnan, database.execute(f"SELECT f, g FROM {staged[0]}").fetchone()))


@pytest.mark.system
def test_with_a_key_running_numbers_keep_the_order_of_a_task_over_batches(dsn: str, database: Any, schema: str) -> None:
    batches = [
        pa.record_batch({"n": pa.array(part, pa.int32()), "__deleted": pa.array([n == 1 for n in part], pa.bool_())})
        for part in ([3, 1], [], [2])
    ]
    staged = order(dsn, schema, key=("n",), n="int").copy(batches, task=5)
    assert staged is not None
    found = database.execute(f"SELECT n, __number, __deleted FROM {staged[0]} ORDER BY __number").fetchall()
    assert found == [(n, (5 << 40) + place, n == 1) for place, n in enumerate([3, 1, 2])]


@pytest.mark.system
def test_every_attempt_has_a_table_of_its_own(dsn: str, database: Any, schema: str) -> None:
    orders = order(dsn, schema, n="int")
    staged = [orders.copy([pa.record_batch({"n": pa.array([1], pa.int32())})], task=0) for _ in range(2)]
    assert sorted(one[0] for one in staged if one) == registered_tables(database, schema)
    assert len(registered_tables(database, schema)) == 2


def test_no_rows_need_no_server() -> None:
    nowhere = order("postgresql://nobody@127.0.0.1:1/x", n="int")
    assert list(nowhere.vote([], task=0)) == []
    assert list(nowhere.vote([pa.record_batch({"n": pa.array([], pa.int32())})], task=0)) == []


@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("int", "12x", '"12x"'),
        ("varchar(3)", "abcd", "too long"),
        ("text NOT NULL", None, "null value"),
        ("smallint", "70000", "out of range"),
        ("text", "a\0b", "0x00"),
        ("jsonb", '{"a":', "json"),
    ],
)
def test_a_row_that_is_not_taken_is_the_tasks_result(
    kind: str, value: Any, said: str, dsn: str, database: Any, schema: str
) -> None:
    batches = [pa.record_batch({"x": pa.array(["1"])}), pa.record_batch({"x": pa.array([value], pa.string())})]
    (told,) = order(dsn, schema, x=kind).vote(batches, task=0)
    (vote,) = told.to_pylist()
    failure = find_error(vote["failure"])
    assert type(failure) is RowRefused
    assert said in failure.what
    assert "table 't'" in failure.what
    assert "lockgate_staging" not in failure.what
    assert "x" in failure.what.replace("text", "")
    assert str(urlsplit(dsn).password) not in str(failure)
    assert vote["rows"] == 0
    assert staged_rows(database, schema) == 0, "half a task is staged"


def test_a_server_that_is_away_is_the_tasks_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_PATIENCE", timedelta(seconds=0.1))
    nowhere = order("postgresql://nobody@127.0.0.1:1/x", n="int")
    (told,) = nowhere.vote([pa.record_batch({"n": [1]})], task=0)
    (vote,) = told.to_pylist()
    assert type(find_error(vote["failure"])) is Away, "the driver waits for it, and tells so; Spark would not"
    assert vote["rows"] == 0


def test_a_reference_that_leads_nowhere_on_a_worker_is_the_tasks_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERS_DSN", raising=False)
    (told,) = order("env:ORDERS_DSN", n="int").vote([pa.record_batch({"n": [1]})], task=0)
    (vote,) = told.to_pylist()
    failure = find_error(vote["failure"])
    assert type(failure) is Refused
    assert "env:ORDERS_DSN leads to no value on this machine" in failure.what
    assert "workers" in failure.fix


@pytest.mark.system
def test_a_connection_that_ends_in_the_middle_stages_nothing(dsn: str, database: Any, schema: str) -> None:
    def batches() -> Any:
        yield pa.record_batch({"n": pa.array(range(10))})
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'lockgate task%'"
        )
        for _ in range(50):
            yield pa.record_batch({"n": pa.array(range(10_000))})

    with pytest.raises(Carried, match="PostgreSQL is not there"):
        list(order(dsn, schema, n="bigint").vote(batches(), task=0))
    assert staged_rows(database, schema) == 0
