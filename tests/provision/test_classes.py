"""An archive of classes is whole or absent, belongs to one class path on one Java, and is really used."""

import os
from pathlib import Path

import pytest

from lockgate.lab.services.warmup import make_archives
from lockgate.provision.classes import ClassArchive, broker_classes, spark_classes
from lockgate.provision.jars import broker_jars
from lockgate.provision.java import Java, find_java
from support.process import run


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """A launcher that is looked at and never run, with a cache of its own."""
    monkeypatch.setenv("LOCKGATE_CACHE", str(tmp_path / "cache"))
    launcher = tmp_path / "java"
    launcher.write_text("one build")
    return Java(path=launcher, version=17)


def archive(tmp_path: Path, name: str = "jars") -> ClassArchive:
    jars = tmp_path / name
    jars.mkdir(exist_ok=True)
    return ClassArchive("spark", (jars,))


def test_without_an_archive_java_gets_no_option(java: Java, tmp_path: Path) -> None:
    assert archive(tmp_path).options(java) == []


def test_an_archive_is_made_once_and_then_used(java: Java, tmp_path: Path) -> None:
    one = archive(tmp_path)
    assert one.make(java, lambda file: file.write_bytes(b"classes") and None)
    assert one.options(java)[0] == f"-XX:SharedArchiveFile={one.file(java)}"

    def again(_: Path) -> None:
        raise AssertionError("made a second time")

    assert one.make(java, again)


def test_a_process_that_wrote_nothing_leaves_nothing(java: Java, tmp_path: Path) -> None:
    one = archive(tmp_path)
    assert not one.make(java, lambda file: None)
    assert one.options(java) == []
    assert list(one.file(java).parent.iterdir()) == []


def test_a_process_that_fails_half_way_leaves_nothing(java: Java, tmp_path: Path) -> None:
    one = archive(tmp_path)

    def fail(file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        one.make(java, fail)
    assert list(one.file(java).parent.iterdir()) == []


def test_another_build_of_java_and_another_class_path_have_archives_of_their_own(java: Java, tmp_path: Path) -> None:
    one, other = archive(tmp_path), archive(tmp_path, "other")
    before = one.file(java)
    assert other.file(java) != before
    java.path.write_text("a newer build")
    assert one.file(java) != before


def test_the_archive_of_an_environment_that_is_gone_is_removed(java: Java, tmp_path: Path) -> None:
    old, new = archive(tmp_path, "old"), archive(tmp_path, "new")
    assert old.make(java, lambda file: file.write_bytes(b"classes") and None)
    kept = old.file(java)
    old.class_path[0].rmdir()
    assert new.make(java, lambda file: file.write_bytes(b"classes") and None)
    assert not kept.exists()
    assert new.file(java).is_file()


@pytest.mark.parametrize("change", ["newer", "longer", "one more"])
def test_an_environment_re_created_at_the_old_path_has_an_archive_of_its_own(
    java: Java, tmp_path: Path, change: str
) -> None:
    one = archive(tmp_path)
    jar = one.class_path[0] / "spark.jar"
    jar.write_text("classes")
    os.utime(jar, (1_000, 1_000))
    before = one.file(java)
    if change == "newer":
        os.utime(jar, (2_000, 2_000))
    elif change == "longer":
        jar.write_text("more classes")
        os.utime(jar, (1_000, 1_000))
    else:
        (one.class_path[0] / "another.jar").write_text("classes")
    assert one.file(java) != before


@pytest.mark.system
def test_spark_takes_its_classes_from_the_archive(tmp_path: Path) -> None:
    make_archives(print)
    told = [*spark_classes().options(find_java()), f"-Xlog:class+load:file={tmp_path / 'loaded'}"]
    home = spark_classes().class_path[0].parent
    environ = {"SPARK_CONF_DIR": None, "SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": " ".join(told)}
    assert run(home / "bin" / "spark-submit", "--version", cwd=tmp_path, environ=environ).returncode == 0
    loaded = (tmp_path / "loaded").read_text()
    assert "org.apache.spark.deploy.SparkSubmit$ source: shared objects file (top)" in loaded


@pytest.mark.system
def test_the_broker_takes_its_classes_from_the_archive(tmp_path: Path) -> None:
    make_archives(print)
    java, archive = find_java(), broker_classes(broker_jars())
    class_path = ":".join(map(str, archive.class_path))
    command = [java.path, *archive.options(java), "-Xlog:class+load", "-cp", class_path, "kafka.Kafka", "--help"]
    assert "kafka.Kafka$ source: shared objects file (top)" in run(*command, cwd=tmp_path).stdout
