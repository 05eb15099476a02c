"""What an earlier version wrote, this version continues: checkpoints, ledgers and files of stored fixtures."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from compat.jobs import JOBS, PER_EPOCH, SIZE, WITH_SERVICES, keys_and_ids
from compat.places import EXPECTED, FIXTURES, JOB_FILE, SAVEPOINT, unpack, visible, words
from compat.stores import Database, Store, Topics
from lockgate.checkpoints.checkpoint import Checkpoint
from support.cli import call
from support.records import unique
from support.runs import run_to_the_end

ARCHIVES = sorted(FIXTURES.glob("*/*.tar.xz"))


def name_of(archive: Path) -> str:
    """Of the job that an archive is of."""
    return archive.name.removesuffix(".tar.xz")


def shown(archive: Path) -> str:
    """An archive, in the name of its test."""
    return f"{archive.parent.name}-{name_of(archive)}"


def test_every_job_has_a_fixture() -> None:
    assert ARCHIVES
    assert {name_of(archive) for archive in ARCHIVES} == {*JOBS, *WITH_SERVICES}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("archive", [one for one in ARCHIVES if name_of(one) in JOBS], ids=shown)
def test_a_job_continues_what_an_earlier_version_left(
    archive: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name_of(archive)
    unpack(archive, tmp_path)
    monkeypatch.chdir(tmp_path)
    restored = call("checkpoints", "restore", SAVEPOINT, JOB_FILE, *words(name))
    assert restored.status == 0, restored.text
    expected = json.loads((tmp_path / EXPECTED).read_text())
    checkpoint = Checkpoint(root=str(tmp_path / "checkpoint"))
    assert max(checkpoint.epochs("commits")) + 1 < SIZE / PER_EPOCH, "events are left"
    assert visible(tmp_path, spark) != expected
    run_to_the_end(JOBS[name](), tmp_path)
    assert visible(tmp_path, spark) == expected
    assert max(checkpoint.epochs("commits")) >= SIZE / PER_EPOCH - 1


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """An empty database of its own; its DSN."""
    name = unique("compat")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield f"{postgres.rsplit('/', 1)[0]}/{name}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def continue_with(store: Store, archive: Path, place: Path, address: str, **options: Any) -> None:
    """Lay out a fixture, its broker or database too, and let this version do the rest."""
    name = name_of(archive)
    unpack(archive, place)
    store.load(place)
    before = store.rows()
    assert before, "the earlier version has committed rows"
    assert Counter(keys_and_ids()) - Counter(before), "and left some"
    restored = call("checkpoints", "restore", SAVEPOINT, JOB_FILE, *words(name, address), cwd=place)
    assert restored.status == 0, restored.text
    run_to_the_end(WITH_SERVICES[name](address), place, **options)


@pytest.mark.system
@pytest.mark.parametrize("archive", [one for one in ARCHIVES if name_of(one) == "kafka"], ids=shown)
def test_a_job_continues_a_ledger_in_kafka(archive: Path, kafka: str, spark: SparkSession, tmp_path: Path) -> None:
    address = f"{kafka}/{unique('compat')}"
    store = Topics(address)
    continue_with(store, archive, tmp_path, address, accept_outputs=True)  # the topics have been created again
    assert store.rows() == keys_and_ids()


@pytest.mark.system
@pytest.mark.parametrize("archive", [one for one in ARCHIVES if name_of(one) == "postgres"], ids=shown)
def test_a_job_continues_a_ledger_in_postgres(
    archive: Path, database: str, spark: SparkSession, tmp_path: Path
) -> None:
    store = Database(database)
    continue_with(store, archive, tmp_path, database)
    assert store.rows() == keys_and_ids()
