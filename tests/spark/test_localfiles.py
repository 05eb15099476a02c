"""Files of a checkpoint are written as Hadoop's own class writes them, without a process for each."""

import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lockgate.provision.java import Java, find_java
from lockgate.spark.localfiles import LOCAL_FILES, local_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

(SETTING, CLASS), *_ = LOCAL_FILES.items()
HADOOPS_OWN = "org.apache.hadoop.fs.local.LocalFs"


def test_the_class_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_CACHE", str(tmp_path))
    jar = local_files(find_java())
    assert jar is not None
    assert list(jar.parent.iterdir()) == [jar]
    assert local_files(Java(path=tmp_path / "no java", version=17)) == jar


def test_without_a_place_or_a_compiler_hadoops_own_class_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCKGATE_CACHE", str(tmp_path / "cache"))
    assert local_files(Java(path=tmp_path / "no java", version=17)) is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOCKGATE_CACHE", str(tmp_path / "file"))
    assert local_files(find_java()) is None
    assert caplog.text.count("Hadoop's own class") == 2


class Files:
    """How Spark writes a checkpoint on this machine's disk, with one of both classes."""

    def __init__(self, spark: "SparkSession", name: str, place: Path) -> None:
        self.jvm: Any = spark.sparkContext._jvm
        self.place = place
        place.mkdir()
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
        settings = self.jvm.org.apache.hadoop.conf.Configuration(hadoop)
        settings.set(SETTING.removeprefix("spark.hadoop."), name)
        self.context = self.jvm.org.apache.hadoop.fs.FileContext.getFileContext(settings)
        assert self.context.getDefaultFileSystem().getClass().getName() == name
        streaming = self.jvm.org.apache.spark.sql.execution.streaming.checkpointing
        self.manager = streaming.FileContextBasedCheckpointFileManager(self.path("."), settings)

    def path(self, name: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path((self.place / name).as_uri())

    def write(self, name: str, text: str, *, replaces: bool = False) -> str:
        return attempt(lambda: self._write(name, text, replaces))

    def _write(self, name: str, text: str, replaces: bool) -> None:
        out = self.manager.createAtomic(self.path(name), replaces)
        out.write(bytearray(text.encode()))
        out.close()

    def rename(self, source: str, target: str) -> str:
        none = self.jvm.java.lang.reflect.Array.newInstance(
            self.jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename"), 0
        )
        return attempt(lambda: self.context.rename(self.path(source), self.path(target), none))

    def found(self) -> dict[str, tuple[str, bytes]]:
        """Every file and directory, with its permissions and what it holds."""
        return {
            without_ids(str(file.relative_to(self.place))): (
                stat.filemode(file.lstat().st_mode),
                file.read_bytes() if file.is_file() else b"",
            )
            for file in sorted(self.place.rglob("*"))
        }

    @contextmanager
    def processes(self) -> Iterator[list[str]]:
        """The commands of the processes that the JVM starts meanwhile."""
        commands: list[str] = []
        recording = self.jvm.jdk.jfr.Recording()
        recording.enable("jdk.ProcessStart")
        recording.start()
        yield commands
        recording.stop()
        file = self.jvm.java.io.File(str(self.place / "recording.jfr")).toPath()
        recording.dump(file)
        recording.close()
        told = self.jvm.jdk.jfr.consumer.RecordingFile.readAllEvents(file)
        commands += [event.getString("command").split()[0] for event in told]


def without_ids(name: str) -> str:
    """The name of a file that Spark writes aside has a random part."""
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", name)


def attempt(action: Callable[[], object]) -> str:
    """Which exception an action ends with; nothing where it does not."""
    from py4j.protocol import Py4JJavaError

    try:
        action()
    except Py4JJavaError as error:
        return str(error.java_exception.getClass().getSimpleName())
    return ""


def use(files: Files) -> list[str]:
    """All that Spark does with a checkpoint, and what goes wrong of it."""
    (files.place / "link").symlink_to("first")
    (files.place / "dangling").symlink_to("nowhere")
    files.manager.mkdirs(files.path("a/b"))
    done = [
        files.write("first", "one"),
        files.write("first", "two"),  # an epoch is planned once
        files.write("second", "one"),
        files.write("second", "two", replaces=True),
        files.write("link", "through a link"),
        files.write("a/b/deep", "deep"),
        files.rename("a", "c"),
        files.rename("no such file", "d"),
        files.rename("link", "renamed link"),
        files.rename("second", "dangling"),
        attempt(lambda: files.manager.open(files.path("no such file"))),
    ]
    status = files.context.getFileLinkStatus(files.path("renamed link"))
    done += [str(status.isSymlink()), str(files.manager.exists(files.path("first")))]
    files.context.setPermission(files.path("c"), files.jvm.org.apache.hadoop.fs.permission.FsPermission("1751"))
    files.manager.delete(files.path("second"))
    done += sorted(without_ids(str(one.getPath().getName())) for one in files.manager.list(files.path(".")))
    return done


@pytest.mark.spark
def test_spark_writes_the_same_checkpoint_with_both_classes(spark: "SparkSession", tmp_path: Path) -> None:
    own, hadoops = Files(spark, CLASS, tmp_path / "own"), Files(spark, HADOOPS_OWN, tmp_path / "hadoops")
    assert use(own) == use(hadoops)
    assert own.found() == hadoops.found()
    assert own.found()["first"] == ("-rw-r--r--", b"one")
    assert own.found()["c"][0] == "drwxr-x--t"


@pytest.mark.spark
def test_no_process_is_started_for_a_file(spark: "SparkSession", tmp_path: Path) -> None:
    own, hadoops = Files(spark, CLASS, tmp_path / "own"), Files(spark, HADOOPS_OWN, tmp_path / "hadoops")
    with hadoops.processes() as started:
        hadoops.write("file", "text")
    assert {"chmod", "readlink"} <= set(started)
    with own.processes() as started:
        own.write("file", "text")
    assert started == []


@pytest.mark.spark
def test_jobs_use_the_class(spark: "SparkSession") -> None:
    assert spark.conf.get(SETTING) == CLASS
