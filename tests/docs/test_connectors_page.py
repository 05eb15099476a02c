"""The connector of CONNECTORS.md keeps the laws as the page says, and the page names every question of the contract."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lockgate import FileSource, Guarantee, Job, plan, stream
from lockgate.commit.resource import Resource
from lockgate.dataflow import locations
from lockgate.dataflow.endpoints import Sink, Source
from lockgate.testing import EndpointContract, ResourceContract, Row

PAGE = (Path(__file__).parents[2] / "docs" / "CONNECTORS.md").read_text()
EXAMPLE, TESTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names in the tests of the page, beside the example as the module that it says it is."""
    (tmp_path / "journal.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, Any] = {}
    exec(compile(TESTS, "CONNECTORS.md", "exec"), names)  # noqa: S102 - the page is ours
    yield names
    del sys.modules["journal"]


def test_the_example_is_short() -> None:
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) < 80


def test_a_job_with_the_sink_of_the_page_reaches_exactly_once(page: dict[str, Any], tmp_path: Path) -> None:
    rows = stream("rows", FileSource(path=str(tmp_path), value="id INT"))
    job = Job("job", rows.to("out", page["JournalSink"]("out")), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    assert plan(job).refusal() is None


def test_the_page_names_every_question_of_the_contract() -> None:
    asked = {name for kind in (Source, Sink) for name in vars(kind) if not name.startswith("_")}
    table = PAGE.partition("\n| question")[2].partition("\n\n")[0]
    told = set(re.findall(r"`(\w+)`", table))
    finer = {
        *("tasks", "record", "rows_of", "has_bytes", "is_native", "partitioned_by", "is_fit_for_real_time", "summary"),
        *("expressions", "prepare", "wants_place", "untracked", "execution", "refusal_if_exact", "close", "commits_at"),
        "checks_rows_alone",
    }
    assert told <= asked
    assert asked - told == finer


def test_the_page_names_every_kind_of_location() -> None:
    kinds = {one.__name__ for one in locations.Location.__subclasses__()}
    listed = PAGE.partition("is one of the kinds in")[2].partition("\n\n")[0]
    assert {*re.findall(r"`([A-Z]\w+)`", listed)} == kinds


def test_the_contracts_of_the_page_are_those_of_the_package(page: dict[str, Any]) -> None:
    assert issubclass(page["TestJournalSink"], EndpointContract)
    assert issubclass(page["TestJournal"], ResourceContract)


class TestJournalSink(EndpointContract):
    @pytest.fixture(autouse=True)
    def set_up(self, page: dict[str, Any]) -> None:
        self._told = page["TestJournalSink"]()

    def endpoint(self) -> Source | Sink:
        made: Source | Sink = self._told.endpoint()
        return made


@pytest.mark.spark
class TestJournal(ResourceContract):
    @pytest.fixture(autouse=True)
    def set_up(self, page: dict[str, Any], tmp_path: Path, spark: SparkSession) -> None:
        self._spark, self._told = spark, page["TestJournal"]()
        self._told.sink = page["JournalSink"](str(tmp_path / "kept" / "journal"))
        self._told.spark = self.spark

    def spark(self) -> SparkSession:
        return self._spark

    def open(self, *, is_deciding: bool) -> Resource:
        opened: Resource = self._told.open(is_deciding=is_deciding)
        return opened

    def seen(self) -> list[Row]:
        rows: list[Row] = self._told.seen()
        return rows
