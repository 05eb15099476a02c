"""Python processes of Spark use the PySpark that is installed, whose byte code is kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate.spark.interpreter import local_python


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCKGATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.process
def test_what_spark_puts_in_front_is_taken_off_and_all_else_stays(cache: Path) -> None:
    spark = ["/s/python/lib/pyspark.zip", "/s/python/lib/py4j-src.zip", "/s/jars/spark-core_2.13-4.3.0.jar"]
    words = [local_python(), "-c", "import sys; print(sys.executable, *sys.path, *sys.argv[1:], sep='\\n')", "a b"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*spark, "/mine", "/yours"])}
    told = subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout.splitlines()
    assert told[0] == sys.executable
    assert told[1:3] == ["/mine", "/yours"], "and not the working directory"
    assert not {*spark} & {*told}
    assert told[-1] == "a b"


@pytest.mark.process
def test_a_path_without_them_stays_as_it_is(cache: Path) -> None:
    words = [local_python(), "-c", "import sys; print(*sys.path, sep='\\n')"]
    environ = {**os.environ, "PYTHONPATH": "/mine"}
    assert "/mine" in subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.process
@pytest.mark.parametrize("name", ["lockgate", "pyspark", "hmac"])
def test_a_module_of_another_user_in_the_working_directory_is_not_run(name: str, cache: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / f"{name}.py").write_text("from pathlib import Path\nPath('planted').touch()\n")
    for python, is_run in ((local_python(), False), (sys.executable, True)):
        words = [python, "-m", "lockgate.hooks" if name == "lockgate" else name]
        subprocess.run(words, cwd=shared, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
        assert (shared / "planted").exists() is is_run


def test_it_is_written_once(cache: Path) -> None:
    first = Path(local_python())
    before = first.stat().st_ino
    assert Path(local_python()) == first
    assert first.stat().st_ino == before
    assert [*first.parent.iterdir()] == [first]


def test_without_a_cache_it_is_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("not a directory")
    monkeypatch.setenv("LOCKGATE_CACHE", str(tmp_path / "cache"))
    assert local_python() == sys.executable


@pytest.mark.spark
def test_a_worker_has_the_modules_that_are_installed(spark: SparkSession) -> None:
    def where(number: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    (found,) = spark.sparkContext.parallelize([1], 1).map(where).collect()
    assert ".zip" not in found
    assert Path(found).is_file()
