import hashlib
import json
import os
import stat
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate.errors import BadMachine
from lockgate.provision import jars
from lockgate.provision.classes import ClassArchive
from lockgate.provision.jars import JarSet, broker, cache_directory, connector, hdfs, jdbc
from lockgate.provision.java import Java
from lockgate.spark.interpreter import local_python
from support.process import LOCKGATE, run
from support.records import make_topics, unique

SOME = {"one.jar": b"one", "two.jar": b"two"}
DIGESTS = {name: hashlib.sha256(content).hexdigest() for name, content in SOME.items()}


def some_set(expected: dict[str, str] | None = None) -> JarSet:
    return JarSet(name="some", coordinates=("group:some:1",), expected=expected)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("LOCKGATE_CACHE", str(tmp_path / "cache"))
    for name in ("LOCKGATE_KAFKA_CONNECTOR", "LOCKGATE_KAFKA_BROKER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def fetches(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fetch SOME without Ivy; the list grows with every fetch."""
    fetched: list[str] = []

    def resolve(wanted: JarSet, aside: Path, log: Path, progress: jars.Progress) -> list[Path]:
        fetched.append(wanted.name)
        (aside / "ivy").mkdir()
        paths = []
        for name, content in SOME.items():
            path = aside / "ivy" / name
            path.write_bytes(content)
            paths.append(path)
        return paths

    monkeypatch.setattr(jars, "_resolve", resolve)
    monkeypatch.setattr(jars, "find_java", lambda: None)
    return fetched


def test_jars_are_fetched_once_and_then_come_from_the_cache(fetches: list[str]) -> None:
    first = some_set(DIGESTS).jars()
    assert {path.name: path.read_bytes() for path in first} == SOME
    assert some_set(DIGESTS).jars() == first
    assert fetches == ["some"]


def test_two_at_once_fetch_once(fetches: list[str]) -> None:
    threads = [threading.Thread(target=lambda: some_set(DIGESTS).jars(lambda line: None)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetches == ["some"]


@pytest.mark.parametrize(
    "expected", [{**DIGESTS, "two.jar": "0" * 64}, {"one.jar": DIGESTS["one.jar"]}, {**DIGESTS, "three.jar": "0" * 64}]
)
def test_what_is_not_expected_is_not_kept(fetches: list[str], cache: Path, expected: dict[str, str]) -> None:
    wanted = some_set(expected)
    with pytest.raises(BadMachine, match=r"not what was expected: (two|three)\.jar"):
        wanted.jars()
    assert not wanted.directory.exists()
    assert not list(cache.glob("jars/.fetching-*"))


def test_a_changed_jar_is_refused_with_its_name_and_the_fix(fetches: list[str]) -> None:
    wanted = some_set(DIGESTS)
    changed = wanted.jars()[1]
    changed.write_bytes(b"evil")
    with pytest.raises(BadMachine, match=r"two\.jar has been changed[\s\S]*delete .*some-.* and fetch again"):
        wanted.jars()


def test_a_jar_of_the_same_size_and_time_but_other_bytes_is_refused(fetches: list[str]) -> None:
    wanted = some_set(DIGESTS)
    changed = wanted.jars()[1]
    before = changed.stat()
    changed.write_bytes(b"TWO")
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))  # whoever changes a file can set its time too
    with pytest.raises(BadMachine, match=r"two\.jar has been changed"):
        wanted.jars()


def test_a_lost_jar_is_refused_with_its_name(fetches: list[str]) -> None:
    wanted = some_set(DIGESTS)
    wanted.jars()[0].unlink()
    with pytest.raises(BadMachine, match=r"cannot be read: one\.jar"):
        wanted.jars()


def test_a_cache_that_an_earlier_version_made_is_taken(fetches: list[str]) -> None:
    wanted = some_set(DIGESTS)
    paths = wanted.jars()
    manifest = paths[0].parent / "manifest.json"
    facts = {path.name: {"sha256": DIGESTS[path.name], "bytes": 3, "mtime_ns": 1} for path in paths}
    manifest.write_text(json.dumps({"coordinates": wanted.coordinates, "jars": facts}))
    assert wanted.jars() == paths
    assert fetches == ["some"]


def test_a_cache_is_made_for_its_owner_alone(fetches: list[str], cache: Path) -> None:
    some_set(DIGESTS).jars()
    assert {stat.S_IMODE(place.stat().st_mode) for place in (cache, cache / "jars")} == {0o700}


@pytest.mark.parametrize("depth", [0, 1, 2, 3], ids=["the jar", "the set", "all jars", "the cache"])
def test_a_cache_that_others_may_write_to_is_refused(fetches: list[str], depth: int) -> None:
    wanted = some_set(DIGESTS)
    jar = wanted.jars()[0]
    place = [jar, *jar.parents][depth]
    place.chmod(0o777)
    with pytest.raises(BadMachine, match=f"every user may write to {place}") as refused:
        wanted.jars()
    assert "LOCKGATE_CACHE" in refused.value.fix


def test_what_is_made_here_is_not_run_if_others_may_write_to_it(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(local_python())
    assert path.is_relative_to(cache)
    archive = ClassArchive("some", ())
    java = Java(Path(sys.executable), 17)

    def fill(file: Path) -> None:
        file.write_bytes(b"classes")

    assert archive.make(java, fill)
    assert archive.options(java)
    cache.chmod(0o777)
    assert local_python() == sys.executable
    assert archive.options(java) == []
    assert f"every user may write to {cache}" in caplog.text


def test_a_damaged_manifest_is_refused(fetches: list[str]) -> None:
    wanted = some_set(DIGESTS)
    wanted.jars()
    (wanted.directory / "manifest.json").write_text("{")
    with pytest.raises(BadMachine, match="list of cached jars cannot be read"):
        wanted.jars()


def test_a_manifest_cannot_vouch_for_jars_that_this_release_does_not_expect(fetches: list[str]) -> None:
    some_set(None).jars(lambda line: None)
    with pytest.raises(BadMachine, match=r"not the expected ones: two\.jar"):
        some_set({**DIGESTS, "two.jar": "0" * 64}).jars()


def test_other_coordinates_are_trusted_at_the_first_fetch_and_that_is_said(fetches: list[str]) -> None:
    said: list[str] = []
    wanted = some_set(None)
    paths = wanted.jars(said.append)
    assert any("trusted" in line for line in said)
    recorded = json.loads((wanted.directory / "manifest.json").read_text())["jars"]
    assert {name: fact["sha256"] for name, fact in recorded.items()} == DIGESTS
    paths[0].write_bytes(b"changed later")
    with pytest.raises(BadMachine, match="has been changed"):
        wanted.jars()


def test_other_coordinates_never_meet_the_default_jars(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default = broker()
    assert default.expected
    monkeypatch.setenv("LOCKGATE_KAFKA_BROKER", "org.apache.kafka:kafka_2.13:9.9.9 group:other:1")
    other = broker()
    assert other.coordinates == ("org.apache.kafka:kafka_2.13:9.9.9", "group:other:1")
    assert other.expected is None
    assert other.directory != default.directory


def test_a_partial_file_that_vanishes_while_it_is_counted_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "whole.jar").write_bytes(b"12345")
    (tmp_path / "whole.jar.part").symlink_to(tmp_path / "gone")  # listed, and not there when looked at
    assert jars._bytes_in(tmp_path) == 5


def test_every_default_jar_has_its_checksum() -> None:
    for each in (connector(), broker(), hdfs(), jdbc()):
        assert each.expected
        assert all(len(digest) == 64 and name.endswith(".jar") for name, digest in each.expected.items())


def test_the_cache_is_found_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LOCKGATE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "")
    assert cache_directory().name == "lockgate"
    assert cache_directory().is_absolute()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "lockgate"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "lockgate"
    monkeypatch.setenv("LOCKGATE_CACHE", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"


@pytest.mark.system
@pytest.mark.process
def test_an_empty_cache_without_a_network_is_refused_in_time_with_the_fix(cache: Path, tmp_path: Path) -> None:
    nowhere = " ".join(f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=1" for scheme in ("http", "https"))
    environ = {"JAVA_TOOL_OPTIONS": f"{nowhere} -Duser.home={tmp_path}"}
    done = run(*LOCKGATE, "jars", cwd=tmp_path, environ=environ)
    assert done.returncode == 2, done.stderr
    assert "fetching jars" in done.stderr
    assert f"cache {cache}" in done.stderr
    assert "LOCKGATE_CACHE=" in done.stderr
    assert "Traceback" not in done.stderr
    assert not connector().directory.exists()


@pytest.mark.system
def test_spark_writes_to_kafka_and_reads_back_with_the_connector(kafka: str, spark: SparkSession) -> None:
    """The connector is of another version than Spark: this shows that the mix works."""
    (topic,) = make_topics(kafka, unique("connector"))
    rows = spark.range(100).selectExpr("cast(id as string) as value")
    rows.write.format("kafka").options(**{"kafka.bootstrap.servers": kafka, "topic": topic}).save()
    back = spark.read.format("kafka").options(**{"kafka.bootstrap.servers": kafka, "subscribe": topic}).load()
    assert sorted(int(row.value) for row in back.select("value").collect()) == list(range(100))
