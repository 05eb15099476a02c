"""What Spark computes is what PostgreSQL has, once, whatever happens to the tasks in between."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
from pyspark.sql import SparkSession

from lockgate import Guarantee, Job, SensorSource, plan, stream
from lockgate.commit.ledger import Entry
from lockgate.commit.resource import Opening, Resource
from lockgate.connectors.postgres.sink import PostgresSink
from lockgate.errors import BadJob, EpochFailed, Failed, Refused
from lockgate.faultpoints import Fault, arm, as_environment
from lockgate.guarantees import Delivery
from lockgate.testing import ResourceContract, Row, opening
from support.certificates import Authority
from support.impostors import tls_in_front
from support.process import LOCKGATE, program, run, running
from support.programs.upserts import drive

DSN = "postgresql://ada:s3cret@db:5432/sales"
AT = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)
FIRST = Entry(run="run", query="query", epoch=0, digest="d", at="now")


@pytest.fixture
def database(dsn: str) -> Iterator[Any]:
    """A connection to an empty schema, in autocommit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def open_one(spark: SparkSession, sink: PostgresSink) -> Resource:
    return sink.open(Opening(job="job", sinks={"out": sink}, spark=spark, where="test", is_deciding=True))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"deleted": "gone"}, "there is no key"),
        ({"table": ""}, "needs a table and a dsn"),
        ({"dsn": None}, "needs a table and a dsn"),
        ({"table": "a.b.c"}, "names no table"),
        ({"dsn": "env:"}, "names no environment variable"),
        ({"dsn": "file:dsn"}, "is no absolute path"),
    ],
)
def test_what_cannot_mean_anything_is_refused_where_it_is_declared(options: Any, what: str) -> None:
    with pytest.raises(BadJob, match=what) as raised:
        PostgresSink(**{"table": "orders", "dsn": DSN, **options})
    assert "test_sink.py" in raised.value.where


def test_what_a_sink_says_of_itself_never_shows_the_password() -> None:
    sink = PostgresSink(table="sales.orders", dsn=DSN, key=["shop", "id"], deleted="gone")
    assert sink.summary() == ("PostgresSink", "table sales.orders", "upsert by shop, id")
    assert sink.resource == "dbname=sales host=db port=5432 user=ada"
    assert sink.places == {(sink.resource, "'sales.orders'")}
    assert "s3cret" not in f"{sink!r} {sink.summary()} {sink.places} {sink.ability} {sink.resource}"
    assert (sink.columns_needed(), sink.expressions()) == (("shop", "id"), ("gone",))


def test_a_plan_of_a_reference_shows_the_reference_and_needs_no_value() -> None:
    sink = PostgresSink(table="orders", dsn="env:NOT_SET_ANYWHERE", key="id")
    assert sink.resource == "PostgreSQL at env:NOT_SET_ANYWHERE"
    assert repr(sink) == "PostgresSink(table='orders', key=('id',), deleted=None, create=False)"
    rows = stream("sensors", SensorSource()).select("sensor", id="sensor")
    job = Job("orders", rows.to("orders", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    assert plan(job).reached is Guarantee.END_TO_END_EXACTLY_ONCE


CANARY_JOB = """
from lockgate import FileSource, Guarantee, Job, PostgresSink, stream

def job(dsn: str, events: str) -> Job:
    rows = stream("events", FileSource(path=events, value="id BIGINT"))
    sink = PostgresSink(table="canary", dsn=dsn, create=True)
    return Job("canary", rows.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
"""


@pytest.mark.system
@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
def test_a_run_over_tls_by_reference_delivers_and_leaves_the_password_nowhere(
    dsn: str, database: Any, tmp_path: Path
) -> None:
    facts, authority = urlsplit(dsn), Authority(tmp_path / "authority")
    place = tmp_path / "place"
    (place / "events").mkdir(parents=True)
    (place / "events" / "1.json").write_text("".join(f'{{"id": {number}}}\n' for number in range(100)))
    (place / "job.py").write_text(CANARY_JOB)
    (schema,) = database.execute("SELECT current_schema()").fetchone()
    with tls_in_front(int(facts.port or 0), authority.server_context("db.example")) as port:
        secret = (
            f"host=db.example hostaddr=127.0.0.1 port={port} user={facts.username} password={facts.password}"
            f" dbname={facts.path[1:]} options='-csearch_path=\"{schema}\"'"
        )
        words = [*LOCKGATE, "run", "job.py", "--until-caught-up", "--json", "-p", f"events={place / 'events'}"]
        words += ["-p", "dsn=env:CANARY_DSN"]
        refused = run(*words, cwd=place, environ={"CANARY_DSN": secret})
        assert database.execute("SELECT to_regclass('canary')").fetchone() == (None,)
        trusted = {"CANARY_DSN": f"{secret} sslrootcert={authority.certificate}"}
        done = run(*words, cwd=place, environ=trusted)
    assert refused.returncode == 2
    assert "certificate verify failed" in refused.stderr
    assert "PostgreSQL at env:CANARY_DSN" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert database.execute("SELECT count(DISTINCT id), count(*) FROM canary").fetchone() == (100, 100)
    files = [file for file in place.rglob("*") if file.is_file()]
    assert any("checkpoint" in str(file) for file in files)
    canary = str(facts.password).encode()
    assert [file for file in files if canary in file.read_bytes()] == []


@pytest.mark.parametrize("key", [None, "id"])
def test_both_forms_are_transactional(key: str | None) -> None:
    sink = PostgresSink(table="orders", dsn=DSN, key=key)
    assert sink.ability.delivery is Delivery.TRANSACTIONAL
    assert ("upserted by id" in sink.ability.reason) is (key is not None)
    assert sink.ability.otherwise is (Delivery.PLAIN if key is None else Delivery.IDEMPOTENT)


def test_outputs_of_one_database_are_one_resource() -> None:
    one = PostgresSink(table="a", dsn=DSN)
    two = PostgresSink(table="b", dsn="host=db port=5432 user=ada dbname=sales password=other", key="id")
    other = PostgresSink(table="a", dsn=DSN.replace("/sales", "/stock"))
    assert one.resource == two.resource != other.resource


@pytest.mark.process
def test_a_plan_needs_neither_the_client_library_nor_a_jvm() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = sys.modules['pyspark'] = None\n"
        "from lockgate.connectors.postgres.sink import PostgresSink\n"
        f"sink = PostgresSink(table='t', dsn={DSN!r}, key='id', deleted='gone')\n"
        "print(sink.summary(), sink.ability, sink.resource, sink.places)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in done.stdout


def test_a_server_that_is_not_there_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockgate.connectors.postgres.sink._CHECK_PATIENCE", timedelta(seconds=0.1))
    with pytest.raises(Refused, match="PostgreSQL is not there") as raised:
        PostgresSink(table="t", dsn="postgresql://ada:s3cret@127.0.0.1:1/sales").check("test")
    assert "s3cret" not in str(raised.value)


@pytest.mark.system
class TestPostgresKeepsTheLaws(ResourceContract):
    @pytest.fixture(autouse=True, params=[None, "id"], ids=["append", "upsert"])
    def _opened(self, request: pytest.FixtureRequest, spark: SparkSession, dsn: str, database: Any) -> Iterator[None]:
        self._spark, self._database, self._resources = spark, database, list[Resource]()
        self._sink = PostgresSink(table="rows", dsn=dsn, key=request.param, create=True)
        yield
        for resource in self._resources:
            resource.close()

    def spark(self) -> SparkSession:
        return self._spark

    def open(self, *, is_deciding: bool) -> Resource:
        self._resources.append(self._sink.open(opening(self._sink, self._spark, is_deciding=is_deciding)))
        return self._resources[-1]

    def seen(self) -> list[Row]:
        found = self._database.execute("SELECT to_regclass('rows')").fetchone() != (None,)
        return self._database.execute("SELECT id, name FROM rows").fetchall() if found else []


@pytest.mark.system
def test_values_of_every_type_arrive_as_they_were(spark: SparkSession, dsn: str, database: Any) -> None:
    frame = spark.sql(
        "SELECT 1Y AS tiny, 2S AS small, 3 AS plain, 4L AS big, 0.5F AS half, double('NaN') AS nan, true AS yes,"
        " 'q\"\\'\\n,é' AS text, '' AS empty, CAST(NULL AS STRING) AS nothing, X'00FF5C' AS raw, X'' AS no_bytes,"
        " 12.50BD AS price, DATE'2026-01-01' AS day, TIMESTAMP'2026-01-01 12:30:00.123456Z' AS at,"
        " TIMESTAMP_NTZ'2026-01-01 12:30:00.123456' AS local,"
        " array(1, NULL) AS list, map('k', 1.5D) AS pairs,"
        " named_struct('a', 'x\"y', 'at', TIMESTAMP'2026-01-01 12:30:00Z', 'none', CAST(NULL AS INT)) AS `Odd name`"
    )
    sink = PostgresSink(table="made", dsn=dsn, create=True)
    sink.check_rows(frame, "test")
    resource = open_one(spark, sink)
    resource.publish(resource.stage({"out": frame}, 0), FIRST, after=None)
    resource.close()
    with database.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        found = cursor.execute("SELECT * FROM made").fetchone()
    assert str(found.pop("nan")) == "nan"
    assert found == {
        "tiny": 1, "small": 2, "plain": 3, "big": 4, "half": 0.5, "yes": True,
        "text": "q\"'\n,é", "empty": "", "nothing": None, "raw": b"\x00\xff\x5c", "no_bytes": b"",
        "price": Decimal("12.50"), "day": date(2026, 1, 1), "at": AT, "local": AT.replace(tzinfo=None),
        "list": [1, None], "pairs": {"k": 1.5},
        "Odd name": {"a": 'x"y', "at": "2026-01-01T12:30:00.000000Z", "none": None},
    }  # fmt: skip
    kinds = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'made'"
    made = dict(database.execute(kinds).fetchall())
    assert (made["at"], made["local"]) == ("timestamp with time zone", "timestamp without time zone")
    assert (made["price"], made["raw"], made["list"]) == ("numeric", "bytea", "jsonb")


@pytest.mark.system
def test_the_sinks_own_sql_deletes_and_the_last_row_wins(spark: SparkSession, dsn: str, database: Any) -> None:
    database.execute("CREATE TABLE stock (item text PRIMARY KEY, left_over int)")
    database.execute("INSERT INTO stock VALUES ('a', 1), ('b', 1), ('d', 1)")
    sink = PostgresSink(table="stock", dsn=dsn, key="item", deleted="left_over = 0")
    rows = [("a", 5), ("b", 2), ("b", 0), ("c", 0), ("c", 7), ("d", None)]
    frame = spark.createDataFrame(rows, "item STRING, left_over INT").coalesce(1)
    resource = open_one(spark, sink)
    resource.publish(resource.stage({"out": frame}, 0), FIRST, after=None)
    resource.close()
    assert dict(database.execute("SELECT * FROM stock").fetchall()) == {"a": 5, "c": 7, "d": None}


@pytest.mark.system
def test_a_plain_write_needs_no_ledger(spark: SparkSession, dsn: str, database: Any) -> None:
    sink = PostgresSink(table="plain", dsn=dsn, create=True)
    for _ in range(2):
        sink.write(spark.range(100, numPartitions=3), 0)
    sink.write(spark.range(0), 1)
    assert database.execute("SELECT count(*), count(DISTINCT id) FROM plain").fetchone() == (200, 100)
    assert database.execute("SELECT count(*) FROM lockgate_ledger").fetchone() == (0,)


@pytest.mark.system
def test_a_row_that_is_not_taken_is_reported_in_one_piece(spark: SparkSession, dsn: str, database: Any) -> None:
    database.execute("CREATE TABLE short (name varchar(4))")
    resource = open_one(spark, PostgresSink(table="short", dsn=dsn))
    frame = spark.sql("SELECT IF(id = 7, 'too long', 'ok') AS name FROM range(0, 20, 1, 2)")
    with pytest.raises(Failed, match=r"table '[^']+\.short'.*too long for type character varying\(4\)") as raised:
        resource.stage({"out": frame}, 0)
    assert not isinstance(raised.value, EpochFailed)
    assert "too long" in raised.value.what
    assert str(urlsplit(dsn).password) not in str(raised.value)
    assert resource.read() is None
    resource.close()


@pytest.mark.system
@pytest.mark.parametrize("point", ["RECEIVE", "HALF", "EMIT"])
def test_a_task_that_is_killed_loses_and_doubles_nothing(
    point: str, spark: SparkSession, dsn: str, database: Any, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE numbers (id bigint)")
    resource = open_one(spark, PostgresSink(table="numbers", dsn=dsn))
    arm([Fault(point=point, action="kill", mark=str(tmp_path / "mark"))])
    try:
        name = resource.stage({"out": spark.range(0, 50_000, 1, 2)}, 0)
    finally:
        arm(())
    assert (tmp_path / "mark").exists(), "nothing was killed"
    tables = [table for (table,) in database.execute("SELECT name FROM lockgate_staging")]
    staged = sum(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
    assert staged == (75_000 if point == "EMIT" else 50_000), "an attempt that died after its COPY leaves its rows"
    resource.publish(name, FIRST, after=None)
    resource.close()
    assert database.execute("SELECT count(*), count(DISTINCT id) FROM numbers").fetchone() == (50_000, 50_000)


@pytest.mark.system
@pytest.mark.process
@pytest.mark.usefixtures("spark")
def test_a_driver_that_slept_writes_no_older_row_over_a_newer_one(dsn: str, database: Any, tmp_path: Path) -> None:
    def put(name: str) -> None:
        (tmp_path / "aside").write_text(f'{{"id": 1, "name": "{name}"}}\n')
        (tmp_path / "aside").rename(tmp_path / "in" / f"{name}.json")

    def table() -> list[Any]:
        return database.execute("SELECT id, name FROM latest").fetchall()  # type: ignore[no-any-return]

    (tmp_path / "in").mkdir()
    put("older")
    mark = tmp_path / "mark"
    faults = as_environment([Fault(point="RECEIVE", action="stop", mark=str(mark))])
    with running(*program("upserts", tmp_path, dsn), cwd=tmp_path, environ=faults) as sleeper:
        sleeper.wait_for("its task, with the row in hand", lambda: mark.exists() and mark.read_text().strip())
        driver, task = psutil.Process(sleeper.pid), psutil.Process(int(mark.read_text()))
        driver.suspend()
        sleeper.wait_for("the stop", lambda: {driver.status(), task.status()} == {psutil.STATUS_STOPPED})
        put("newer")
        drive(tmp_path, dsn, "spark.log")
        assert table() == [(1, "newer")]
        task.resume()
        driver.resume()
        code = sleeper.end()
        assert table() == [(1, "newer")]
        assert code == 1
        assert "Another driver of job 'upserts' took over" in sleeper.said
    drive(tmp_path, dsn, "spark.log")
    assert table() == [(1, "newer")]
