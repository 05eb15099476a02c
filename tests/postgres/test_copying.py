"""What a task copies is what PostgreSQL reads: every value, every null, in order; and all of a task or nothing."""

import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from lockgate.errors import Failed
from lockgate.failures import Carried, find_error
from lockgate.postgres.connect import StagingGone
from lockgate.postgres.copying import CopyOrder, as_csv
from lockgate.postgres.tables import TableName

AT = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=timezone.utc)
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
        [AT, None, datetime(1969, 12, 31, 23, 59, 59, 999999, timezone.utc)],
    ),
    "vienna": ("timestamptz", pa.timestamp("us", tz="Europe/Vienna"), [AT, None]),
    "then": ("timestamp", pa.timestamp("us"), [AT.replace(tzinfo=None), None, datetime(1, 1, 1)]),
    "clock": ("time", pa.time64("ns"), [timedelta(hours=1), None]),
    "raw": ("bytea", pa.string(), ["\\x00FF10", None, "\\x"]),
    "j": ("jsonb", pa.string(), ['{"a": [1, null, "\\""]}', None]),
}


def order(dsn: str, *columns: str, **others: Any) -> CopyOrder:
    given = {"has_deleted": False, "output": "out", "faults": (), "where": "test", **others}
    return CopyOrder(
        dsn=dsn, staging=TableName(None, "lockgate_staging_t"), table=TableName(None, "t"), columns=columns, **given
    )


@pytest.fixture
def staging(database: Any) -> Any:
    def make(**columns: str) -> None:
        listed = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        own = "__write uuid, __number bigint, __deleted boolean DEFAULT false"
        database.execute(f"CREATE TABLE lockgate_staging_t ({listed}, {own})")

    return make


def test_null_and_empty_differ_and_rows_are_numbered() -> None:
    batch = pa.record_batch({"s": ["", None], "n": pa.array([1, None])})
    assert as_csv(batch, write="w", number=7) == b'"",1,"w",7\n,,"w",8\n'


@pytest.mark.system
@pytest.mark.parametrize("name", VALUES)
def test_every_value_arrives_as_it_was(name: str, dsn: str, database: Any, staging: Any) -> None:
    kind, arrow, values = VALUES[name]
    staging(**{name: kind})
    if name == "clock":
        values = [3_600_000_001_000, None]
    batch = pa.record_batch({name: pa.array(values, type=arrow)})
    assert order(dsn, name).copy([batch], write=str(uuid4()), task=0) == len(values)
    found = [value for (value,) in database.execute(f'SELECT "{name}" FROM lockgate_staging_t ORDER BY __number')]
    expected = {
        "raw": [b"\x00\xff\x10", None, b""],
        "j": [{"a": [1, None, '"']}, None],
        "clock": [(datetime.min + timedelta(hours=1, microseconds=1)).time(), None],
    }.get(name, values)
    assert found == expected
    assert repr(found) == repr(expected) or name != "f", "a negative zero is one still"


@pytest.mark.system
def test_not_a_number_stays_one(dsn: str, database: Any, staging: Any) -> None:
    staging(f="double precision", g="real")
    batch = pa.record_batch({"f": pa.array([math.nan]), "g": pa.array([math.nan], pa.float32())})
    order(dsn, "f", "g").copy([batch], write=str(uuid4()), task=0)
    assert all(map(math.isnan, database.execute("SELECT f, g FROM lockgate_staging_t").fetchone()))


@pytest.mark.system
def test_running_numbers_keep_the_order_of_a_task_over_batches(dsn: str, database: Any, staging: Any) -> None:
    staging(n="int")
    batches = [pa.record_batch({"n": pa.array(part, pa.int32())}) for part in ([3, 1], [], [2])]
    write = uuid4()
    assert order(dsn, "n").copy(batches, write=str(write), task=5) == 3
    found = database.execute(
        "SELECT n, __number, __write, __deleted FROM lockgate_staging_t ORDER BY __number"
    ).fetchall()
    assert found == [(n, (5 << 40) + place, write, False) for place, n in enumerate([3, 1, 2])]


@pytest.mark.system
def test_the_deleted_column_comes_last(dsn: str, database: Any, staging: Any) -> None:
    staging(n="int")
    batch = pa.record_batch({"n": [1, 2], "__deleted": [True, False]})
    order(dsn, "n", has_deleted=True).copy([batch], write=str(uuid4()), task=0)
    assert database.execute("SELECT n, __deleted FROM lockgate_staging_t ORDER BY n").fetchall() == [
        (1, True),
        (2, False),
    ]


def test_no_rows_need_no_server() -> None:
    nowhere = order("postgresql://nobody@127.0.0.1:1/x", "n")
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
    kind: str, value: Any, said: str, dsn: str, database: Any, staging: Any
) -> None:
    staging(x=kind)
    batches = [pa.record_batch({"x": pa.array(["1"])}), pa.record_batch({"x": pa.array([value], pa.string())})]
    (told,) = order(dsn, "x").vote(batches, task=0)
    (vote,) = told.to_pylist()
    failure = find_error(vote["failure"])
    assert type(failure) is Failed
    assert said in failure.what
    assert "table 't'" in failure.what
    assert "lockgate_staging" not in failure.what
    assert "x" in failure.what.replace("text", "")
    assert "s3cret-word" not in str(failure)
    assert vote["rows"] == 0
    assert database.execute("SELECT count(*) FROM lockgate_staging_t").fetchone() == (0,), "half a task is staged"


@pytest.mark.system
def test_staging_that_is_gone_fails_the_attempt(dsn: str) -> None:
    with pytest.raises(Carried) as raised:
        list(order(dsn, "n").vote([pa.record_batch({"n": [1]})], task=0))
    assert type(find_error(str(raised.value))) is StagingGone


@pytest.mark.system
def test_a_connection_that_ends_in_the_middle_stages_nothing(dsn: str, database: Any, staging: Any) -> None:
    staging(n="bigint")

    def batches() -> Any:
        yield pa.record_batch({"n": pa.array(range(10))})
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'lockgate task%'"
        )
        for _ in range(50):
            yield pa.record_batch({"n": pa.array(range(10_000))})

    with pytest.raises(Carried, match="PostgreSQL is not there"):
        list(order(dsn, "n").vote(batches(), task=0))
    assert database.execute("SELECT count(*) FROM lockgate_staging_t").fetchone() == (0,)
