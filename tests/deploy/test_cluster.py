"""A job on a real standalone cluster whose machines have never heard of Lockgate or of the job."""

import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyspark
import pytest

from lockgate.connectors.kafka.topics import create_topics
from lockgate.lab.services.spark import SparkCluster
from support import records
from support.cli import call
from support.process import LOCKGATE, parameters, run
from support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.system

SPARK_HOME = Path(pyspark.__file__).parent
JOB = """
    from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream
    from prices import taxed

    def job(servers: str, read: str, write: str) -> Job:
        source = KafkaSource(topic=read, servers=servers, value="id INT, shop STRING, cents INT")
        orders = stream("orders", source).map(
            lambda row: {"id": row.id, "shop": row.shop, "cents": taxed(row.cents)}, "id INT, shop STRING, cents INT"
        )
        sums = orders.key_by("shop").rolling(total="sum(cents)", name="sums").select("id", "shop", "total")
        return Job(write, sums.to("out", KafkaSink(topic=write, servers=servers, key="shop")),
                   guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
"""
SENSORS = """
    from lockgate import ConsoleSink, Guarantee, Job, SensorSource, stream

    def job() -> Job:
        readings = stream("readings", SensorSource(sensors=2, events=100)).map(lambda row: {"a": 1}, "a INT")
        return Job("sensors", readings.to("out", ConsoleSink()), guarantee=Guarantee.AT_LEAST_ONCE)
"""


UNKNOWN: dict[str, str | None] = {"PYTHONPATH": None, "PYSPARK_PYTHON": None}
"""Without what leads to this package."""


def make_python(place: Path, libraries: Path | None) -> Path:
    """A Python of its own that finds some libraries, or none but its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (modules,) = place.glob("lib/python*/site-packages")
    if libraries is not None:
        (modules / "libraries.pth").write_text(f"{libraries}\n")
    return place / "bin" / "python"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all that is installed here, but for this package, however that was installed."""
    libraries = tmp_path_factory.mktemp("libraries")
    for place in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}:
        for one in place.iterdir():
            if "lockgate" not in one.name and one.suffix != ".pth":
                (libraries / one.name).symlink_to(one)
    python = make_python(tmp_path_factory.mktemp("bare"), libraries)
    knows = [python, "-c", "import importlib.util; print(importlib.util.find_spec('lockgate'))"]
    assert run(*knows, cwd=libraries, environ=UNKNOWN).stdout == "None\n"
    return python


@pytest.fixture(scope="module")
def cluster(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark") / "cluster", workers=2, python=bare) as cluster:
        yield cluster


def send(kafka: str, topic: str, ids: range) -> None:
    events = [{"id": number, "shop": f"shop-{number % 5}", "cents": number} for number in ids]
    records.send(kafka, topic, events, key=lambda event: event["shop"])


def expected(count: int) -> list[dict[str, object]]:
    totals: dict[str, int] = {}
    rows: list[dict[str, object]] = []
    for number in range(count):
        shop = f"shop-{number % 5}"
        totals[shop] = totals.get(shop, 0) + number * 119 // 100
        rows.append({"id": number, "shop": shop, "total": totals[shop]})
    return rows


def by_id(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: int(str(row["id"])))


def test_a_package_and_then_a_plain_run_deliver_every_event_once_on_machines_that_know_nothing_of_either(
    bare: Path, cluster: SparkCluster, kafka: str, tmp_path: Path
) -> None:
    name = f"deploy-{uuid4().hex[:8]}"
    read, write, checkpoint = f"{name}-in", f"{name}-out", f"file://{tmp_path}/checkpoint"
    create_topics(kafka, [read, write], partitions=2, where="test")
    send(kafka, read, range(1500))
    home = tmp_path / "jobs"
    home.mkdir()
    (home / "orders.py").write_text(textwrap.dedent(JOB))
    (home / "prices.py").write_text("def taxed(cents):\n    return cents * 119 // 100\n")
    given = parameters(servers=kafka, read=read, write=write)
    words = [str(home / "orders.py"), *given, "--checkpoint", checkpoint]

    # 1. Packed here, carried away, submitted by somebody who has Spark and a Python.
    assert call("package", *words, "--out", tmp_path / "packed").status == 0
    away = tmp_path / "elsewhere"
    shutil.move(tmp_path / "packed", away)
    shutil.move(home, tmp_path / "gone")
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    environ = UNKNOWN | {"MASTER": cluster.master, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": str(bare)}
    environ["SPARK_SUBMIT"] = str(SPARK_HOME / "bin" / "spark-submit")
    submitted = run(
        away / "submit-standalone.sh", "--until-caught-up", cwd=nowhere, environ=environ, seconds=2 * PATIENCE_SECONDS
    )
    assert submitted.returncode == 0, submitted.stderr
    assert "done: 1,500 events" in submitted.stdout
    assert by_id(records.read_json(kafka, write)) == expected(1500)

    # 2. The next version is run from the author's machine, whose modules the others have not either.
    shutil.move(tmp_path / "gone", home)
    send(kafka, read, range(1500, 2000))
    command = [*LOCKGATE, "run", *words, "--until-caught-up", "--master", cluster.master]
    done = run(*command, cwd=tmp_path, environ={"PYSPARK_PYTHON": str(bare)}, seconds=2 * PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert "done: 500 events" in done.stdout
    assert by_id(records.read_json(kafka, write)) == expected(2000)


def test_machines_that_lack_a_library_are_named_before_anything_runs(cluster: SparkCluster, tmp_path: Path) -> None:
    (tmp_path / "sensors.py").write_text(textwrap.dedent(SENSORS))
    empty = make_python(tmp_path / "empty", None)
    words = ["run", "sensors.py", "--until-caught-up", "--master", cluster.master]
    done = run(*LOCKGATE, *words, cwd=tmp_path, environ={"PYSPARK_PYTHON": str(empty)}, seconds=2 * PATIENCE_SECONDS)
    assert done.returncode == 2, done.stderr
    assert "the machines of the cluster cannot run Python for this job: ModuleNotFoundError: No module named" in (
        done.stderr
    )
    assert "PYSPARK_PYTHON names another path" in done.stderr
    assert not (tmp_path / ".lockgate" / "checkpoints").exists()
