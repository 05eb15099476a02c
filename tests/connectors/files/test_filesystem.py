"""A file is put in place whole and once; what fails leaves nothing behind."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from lockgate.connectors.files.filesystem import HadoopSystem, LocalSystem, System, local_path, normalise, open_system
from lockgate.errors import Refused
from lockgate.lab.services.hdfs import Hdfs

Opened = Callable[[], System]
"""Opens the same directory again, as another driver does."""


@pytest.fixture(
    params=["local", pytest.param("hadoop", marks=pytest.mark.spark), pytest.param("hdfs", marks=pytest.mark.system)]
)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Both forms, and Hadoop's also on its local file system, where a rename refuses a target that is there as HDFS
    does, but in two steps: a race is not tried there.
    """
    if request.param == "local":
        return lambda: LocalSystem(tmp_path / "out")
    spark: SparkSession = request.getfixturevalue("spark")
    if request.param == "hadoop":
        return lambda: HadoopSystem(f"file:{tmp_path / 'out'}", spark)
    hdfs: Hdfs = request.getfixturevalue("hdfs")
    root = f"{hdfs.uri}/{uuid4().hex}"
    return lambda: HadoopSystem(root, spark)


@pytest.fixture
def system(opened: Opened) -> System:
    return opened()


def test_a_file_is_put_in_place_once(system: System) -> None:
    assert system.publish("a/b/1", b"first")
    assert not system.publish("a/b/1", b"second")
    assert system.read("a/b/1") == b"first"
    assert [name for name in system.names("a/b") if not name.endswith(".crc")] == ["1"]


def test_what_was_removed_aside_is_not_put_in_place(system: System) -> None:
    system.write("a/aside", b"x")
    system.delete("a/aside")
    assert not system.put("a/aside", "a/place")
    assert not system.exists("a/place")


def test_what_is_not_there_is_nothing(system: System) -> None:
    assert system.names("none") == []
    assert system.files("none") == {}
    assert system.read("none") is None
    assert not system.exists("none")
    system.delete("none")


def test_a_file_is_read_in_full_or_only_its_head(system: System) -> None:
    content = bytes(range(256)) * 5
    system.write("a/1", content)
    assert system.read("a/1") == content
    assert system.read("a/1", limit=300) == content[:300]


def test_finished_data_files_are_listed_with_their_bytes_and_nothing_else(system: System, tmp_path: Path) -> None:
    for name in ("part-0.json", "k=ä b%2F/part-1.json", "_SUCCESS", ".part-0.json.crc", "_temporary/0/part-2.json"):
        if system.root.startswith("hdfs:"):
            system.write(f"data/job/0-a/{name}", name.encode())
        else:
            file = tmp_path / "out" / "data" / "job" / "0-a" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
    found = system.files("data/job/0-a")
    assert found == {
        "data/job/0-a/part-0.json": 11,
        "data/job/0-a/k=ä b%2F/part-1.json": len("k=ä b%2F/part-1.json".encode()),
    }
    system.sync("data/job/0-a")


def test_a_tree_is_deleted_with_all_that_is_in_it(system: System) -> None:
    for name in ("a/b/c/1", "a/b/2", "a/3"):
        system.write(name, b"x")
    system.delete("a/b")
    assert [name for name in system.names("a") if not name.startswith(".")] == ["3"]
    system.delete("a/3")
    assert system.names("a") == []


def test_a_file_that_is_there_is_not_written_over(system: System) -> None:
    system.write("a/1", b"first")
    with pytest.raises(OSError, match=r"(?i)exist"):
        system.write("a/1", b"second")


@pytest.mark.parametrize(
    ("opened", "places"), [("local", 20), pytest.param("hdfs", 5, marks=pytest.mark.system)], indirect=["opened"]
)
def test_of_many_concurrent_writers_one_wins(opened: Opened, places: int) -> None:
    gate = threading.Barrier(8)
    wins: list[int] = []

    def try_it(number: int) -> None:
        system = opened()
        for place in range(places):
            gate.wait()
            if system.publish(f"a/{place}", str(number).encode()):
                wins.append(place)

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == list(range(places))
    assert opened().names("a") == sorted(map(str, range(places)))


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = LocalSystem(tmp_path)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="No space left"):
        system.publish("a/1", b"x")
    assert list((tmp_path / "a").iterdir()) == []


def test_an_answer_that_a_network_file_system_lost_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def twice(source: Any, target: Any) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    assert LocalSystem(tmp_path).publish("a/1", b"x")


def test_what_is_durable_was_synced_with_the_folders_that_lead_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def note(handle: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    root = tmp_path / "out"
    system = LocalSystem(root)
    assert system.publish("_lockgate/job/1", b"x")
    assert {str(tmp_path), str(root), str(root / "_lockgate"), str(root / "_lockgate" / "job")} <= synced
    (root / "data" / "job" / "0-a" / "k=1").mkdir(parents=True)
    (root / "data" / "job" / "0-a" / "k=1" / "part-0").write_text("x")
    (root / "data" / "job" / "0-a" / "k=1" / ".part-0.crc").write_text("x")
    synced.clear()
    system.sync("data/job/0-a")
    below = ("data", "data/job", "data/job/0-a", "data/job/0-a/k=1", "data/job/0-a/k=1/part-0")
    assert synced == {str(root), *(str(root / name) for name in (*below, "data/job/0-a/k=1/.part-0.crc"))}


@pytest.mark.parametrize(
    ("path", "same"),
    [("out", "./out/"), ("/a/b", "file:/a/b"), ("/a/b", "file:///a/b/"), ("/a/b%20c", "file:///a/b%20c")],
)
def test_a_directory_has_one_name_however_it_is_spelt(path: str, same: str) -> None:
    assert normalise(path) == normalise(same)
    assert local_path(same) == Path(path).resolve()


@pytest.mark.parametrize("path", ["s3a://bucket/out", "gs://bucket/out", "abfss://x@y/out", "dbfs:/out"])
def test_a_store_whose_rename_is_not_known_to_be_exclusive_is_refused(path: str) -> None:
    with pytest.raises(Refused, match="two drivers could both commit") as caught:
        open_system(path, None, "output 'files'")
    assert caught.value.where == "output 'files'"
    assert "hdfs" in caught.value.fix


def test_hdfs_needs_spark(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="only with Spark"):
        open_system("hdfs://name/out", None, "here")
