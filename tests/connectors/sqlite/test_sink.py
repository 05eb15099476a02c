"""An SQLite file keeps the laws of a resource, and holds what a job says, once."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lockgate.commit.coordinator import Coordinator
from lockgate.commit.followers import Followers
from lockgate.commit.lastresource import LastResource
from lockgate.commit.ledger import Entry
from lockgate.commit.permits import Permits
from lockgate.commit.protocol import Epoch
from lockgate.commit.resource import Opening, Resource
from lockgate.connectors.sqlite.sink import SqliteSink
from lockgate.errors import BadJob, LedgerMismatch, Refused, RowRefused
from lockgate.guarantees import Delivery
from lockgate.testing import CLAIM, FIRST, SECOND, ResourceContract, Row, opening


def query(path: str, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


class Sqlite:
    """How a test opens and reads the file."""

    path: str

    @pytest.fixture(autouse=True)
    def set_up(self, tmp_path: Path, spark: SparkSession) -> Iterator[None]:
        self.path, self._spark = str(tmp_path / "results.db"), spark
        with ExitStack() as self._opened:
            yield

    def spark(self) -> SparkSession:
        return self._spark

    def sink(self, **how: str) -> SqliteSink:
        return SqliteSink(table="out", path=self.path, **how)

    def open(self, *, is_deciding: bool) -> Resource:
        return self.opened(self.sink(), is_deciding=is_deciding)

    def opened(self, sink: SqliteSink, *, is_deciding: bool = True) -> Resource:
        resource = sink.open(opening(sink, self._spark, is_deciding=is_deciding))
        self._opened.callback(resource.close)
        return resource

    def seen(self) -> Sequence[Row]:
        has_table = query(self.path, "SELECT 1 FROM sqlite_master WHERE name = 'out'")
        return [(int(str(id)), str(name)) for id, name in query(self.path, "SELECT * FROM out")] if has_table else []


@pytest.mark.spark
class TestContract(Sqlite, ResourceContract):
    pass


@pytest.mark.spark
class TestModes(Sqlite):
    def rows(self, *values: Row) -> dict[str, DataFrame]:
        return {"out": self._spark.createDataFrame(list(values), "id INT, name STRING").coalesce(1)}

    def test_with_a_key_the_last_row_of_an_epoch_stays_and_a_deleted_one_goes(self) -> None:
        sink = self.sink(key="id", deleted="name = 'gone'")
        resource = self.opened(sink)
        resource.publish(None, CLAIM, after=None)
        first = self.rows((1, "old"), (1, "new"), (2, "stays"), (3, "gone"), (4, "gone"), (4, "back"))
        resource.publish(resource.stage({"out": sink.prepare(first["out"])}, 0), FIRST, after=CLAIM)
        assert sorted(self.seen()) == [(1, "new"), (2, "stays"), (4, "back")]
        second = self.rows((2, "gone"), (1, "newer"))
        resource.publish(resource.stage({"out": sink.prepare(second["out"])}, 1), SECOND, after=FIRST)
        assert sorted(self.seen()) == [(1, "newer"), (4, "back")]

    @pytest.mark.parametrize("there", [False, True], ids=["made by the sink", "made by others"])
    def test_a_key_that_is_null_stops_the_epoch_and_leaves_it_out_whole(self, there: bool) -> None:
        if there:
            query(self.path, "CREATE TABLE out (id INTEGER, name TEXT, PRIMARY KEY (id, name))")  # takes null, too
        sink = self.sink(key="ID" if there else "id")
        resource = self.opened(sink)
        frame = self._spark.createDataFrame([(1, "one"), (None, "none")], "id INT, name STRING")
        with pytest.raises(RowRefused, match="id is null in a row for table 'out', and is part of the key") as caught:
            resource.stage({"out": frame}, 0)
        assert caught.value.where == f"output 'out', SQLite file {self.path}, contract"  # the job and its line
        assert list(resource.leftovers()) == []
        with pytest.raises(RowRefused, match="id is null") as caught:
            sink.write(frame, 0)
        assert caught.value.where == f"SqliteSink(table='out'), SQLite file {self.path}"
        assert list(self.seen()) == []

    def test_a_key_that_is_null_is_reported_for_a_dead_letter(self) -> None:
        frame = self._spark.createDataFrame([(1, "one"), (None, "none")], "id INT, name STRING")
        refusal = self.sink(key="id").refusal(frame, within=None, where="test")
        assert refusal is not None
        assert [row[0] for row in frame.select(refusal).collect()] == [None, "id is null, and is part of the key"]
        assert self.sink().refusal(frame, within=None, where="test") is None

    def test_every_type_comes_back_as_it_was_or_as_text(self) -> None:
        at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        frame = self.spark().createDataFrame(
            [(True, 2**40, 1.5, Decimal("12.30"), at, b"\x00\xff", [1, 2], None)],
            "yes BOOLEAN, big BIGINT, real DOUBLE, money DECIMAL(10, 2), at TIMESTAMP, raw BINARY, some ARRAY<INT>,"
            " none STRING",
        )
        self.sink().write(frame, 0)
        told = "2026-01-02T03:04:05.678901+00:00"
        assert query(self.path, "SELECT * FROM out") == [(1, 2**40, 1.5, "12.30", told, b"\x00\xff", "[1, 2]", None)]

    def test_a_table_that_lacks_a_column_is_refused_and_nothing_is_staged(self) -> None:
        query(self.path, "CREATE TABLE out (id INTEGER)")
        resource = self.open(is_deciding=True)
        with pytest.raises(Refused, match="has no column 'name'"):
            resource.stage(self.rows((1, "one")), 0)
        assert list(resource.leftovers()) == []

    def test_a_row_that_the_table_refuses_stops_the_epoch_and_leaves_it_out_whole(self) -> None:
        query(self.path, "CREATE TABLE out (id INTEGER, name TEXT CHECK (name <> 'bad'))")
        resource = self.open(is_deciding=True)
        resource.publish(None, CLAIM, after=None)
        staged = resource.stage(self.rows((1, "good"), (2, "bad")), 0)
        with pytest.raises(RowRefused, match="CHECK constraint failed"):
            resource.publish(staged, FIRST, after=CLAIM)
        assert list(self.seen()) == []
        assert resource.read() == CLAIM


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"table": "", "path": "a.db"}, "needs a table and a path"),
        ({"table": "out", "path": ":memory:"}, "not a file that outlives the driver"),
        ({"table": "out", "path": "a.db", "deleted": "x"}, "there is no key"),
    ],
)
def test_a_sink_that_can_mean_nothing_is_refused(how: dict[str, str], told: str) -> None:
    with pytest.raises(BadJob, match=told):
        SqliteSink(**how)


def test_a_file_that_cannot_be_opened_is_refused_with_the_fix(tmp_path: Path) -> None:
    sink = SqliteSink(table="out", path=str(tmp_path / "missing" / "a.db"))
    with pytest.raises(Refused, match="cannot open"):
        sink.write(None, 0)  # type: ignore[arg-type]


def test_without_a_transaction_a_key_makes_it_idempotent() -> None:
    assert SqliteSink(table="out", path="a.db").ability.otherwise is Delivery.PLAIN
    assert SqliteSink(table="out", path="a.db", key="id").ability.otherwise is Delivery.IDEMPOTENT
    assert "through the driver" in SqliteSink(table="out", path="a.db").summary()


def test_an_empty_ledger_is_begun_only_if_that_is_allowed_and_then_stops_every_driver_that_is_older(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = SqliteSink(table="out", path=str(tmp_path / "out.db"), key="id")
    place = Opening(job="job", sinks={"out": sink}, spark=None, where="test", is_deciding=True)  # type: ignore[arg-type]

    def claim(number: int, *, is_adopting: bool) -> Entry | None:
        resource = sink.open(place)
        last = LastResource(resource)
        driver = Coordinator(
            "job",
            transactions=last,
            ledger=last,
            permits=Permits(),
            followers=Followers("job", {}),
            is_adopting=is_adopting,
        )
        try:
            driver.claim(Epoch(number, digest=f"d{number}", previous_digest=f"d{number - 1}", query="query"))
            return resource.read()
        finally:
            resource.close()

    with pytest.raises(LedgerMismatch, match="its ledger is empty or gone"):
        claim(7, is_adopting=False)
    found = claim(7, is_adopting=True)
    assert found is not None
    assert (found.epoch, found.digest) == (6, "d6")
    assert "its ledger was empty and now says that epoch 6 is committed" in caplog.text
    with pytest.raises(LedgerMismatch, match="the ledger is at epoch 6, the checkpoint only at 5"):
        claim(5, is_adopting=True)
