"""A process without the secret asks a driver, by Spark's own protocol: what it gets, and from whom it gets nothing.

The first two tests are the attack, on a driver without authentication: they show that the others could fail.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from lockgate.lab.services.spark import SparkCluster
from lockgate.spark.authentication import REFERENCE, SECRET_VARIABLE
from support.process import Process, program, run, running

SECRET = "0123456789abcdef-of-the-cluster"


@contextmanager
def at_work(master: str, place: Path, environ: dict[str, str | None]) -> Iterator[Process]:
    """A driver whose tasks have begun, and wait."""
    place.mkdir()
    (place / "job-1").mkdir()
    with running(*program("gated", master, place), cwd=place, environ=environ) as driver:
        driver.wait_for("a task", lambda: [*(place / "job-1").glob("begun-*")])
        yield driver


def result(driver: Process, place: Path) -> list[int]:
    """Let the tasks end; the rows of the job."""
    (place / "job-1" / "gate").touch()
    driver.wait_for("the result", (place / "job-1" / "result").exists)
    ids = json.loads((place / "job-1" / "result").read_text())["ids"]
    assert isinstance(ids, list)
    return ids


def intrude(place: Path) -> dict[str, Any]:
    """What somebody else gets from the driver that works there."""
    port = (place / "driver").read_text()
    done = run(*program("intruder", port), cwd=place, environ={SECRET_VARIABLE: None})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def shown_secrets() -> list[str]:
    """The command lines of this machine that show the secret: every user can read them."""
    lines = (" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if SECRET in line]


@pytest.mark.system
def test_without_a_secret_any_client_gets_settings_code_and_functions_from_the_driver_of_a_cluster(
    tmp_path: Path,
) -> None:
    place = tmp_path / "driver"
    with SparkCluster(tmp_path / "cluster", workers=1) as cluster, at_work(cluster.master, place, {}) as driver:
        found = intrude(place)
        assert "Spark's ports ask for no secret" in driver.said
        assert "docs/DEPLOYING.md" in driver.said
    assert found["settings"]["got"]["spark.app.name"] == "gated"
    assert bytes.fromhex(found["file"]["got"]).startswith(b"PK"), "the archive with the code"
    assert place.parent.name.encode() in bytes.fromhex(found["functions"]["got"]), "what the function holds"


@pytest.mark.system
def test_a_cluster_with_a_secret_runs_the_job_and_gives_nothing_to_other_clients(tmp_path: Path) -> None:
    place = tmp_path / "driver"
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    (tmp_path / "secret").chmod(0o600)
    named = {REFERENCE: f"file:{tmp_path}/secret"}
    with SparkCluster(tmp_path / "cluster", workers=1, secret=SECRET) as cluster:
        with at_work(cluster.master, place, {**named, SECRET_VARIABLE: None}) as driver:
            found = intrude(place)
            assert not shown_secrets()
            assert result(driver, place) == [*range(100)]
            assert "Spark's ports ask for no" not in driver.said
        assert all("got" not in one for one in found.values()), found
        # Nor does the Master give it work to do.
        alone = tmp_path / "alone"
        alone.mkdir()
        done = run(*program("gated", cluster.master, alone), cwd=alone, environ={SECRET_VARIABLE: "another"})
        assert done.returncode != 0
        assert "BadMachine" in done.stderr
        assert "check that" in done.stderr
        assert "docs/DEPLOYING.md" in done.stderr


@pytest.mark.system
def test_on_one_machine_other_users_get_nothing_unless_its_settings_say_otherwise(tmp_path: Path) -> None:
    place, open_place, settings = tmp_path / "driver", tmp_path / "open", tmp_path / "settings"
    with at_work("local[2]", place, {}) as driver:
        found = intrude(place)
        assert result(driver, place) == [*range(100)]
        assert "Spark's ports ask for no" not in driver.said
    assert all("got" not in one for one in found.values()), found
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text("spark.authenticate false\n")
    with at_work("local[2]", open_place, {"SPARK_CONF_DIR": str(settings)}) as driver:
        found = intrude(open_place)
        assert "other users of this machine can read" in driver.said
    assert open_place.parent.name.encode() in bytes.fromhex(found["functions"]["got"])


@pytest.mark.system
def test_a_job_that_insists_is_refused_by_a_cluster_without_a_secret(tmp_path: Path) -> None:
    (tmp_path / "sensors.py").write_text(
        "from lockgate import ConsoleSink, Guarantee, Job, SensorSource, stream\n"
        "def job() -> Job:\n"
        "    readings = stream('readings', SensorSource(sensors=1, events=10))\n"
        "    return Job('sensors', readings.to('out', ConsoleSink()), guarantee=Guarantee.AT_LEAST_ONCE)\n"
    )
    words = ["run", "sensors.py", "--no-supervise", "--until-caught-up", "--secure", "--master", "spark://127.0.0.1:9"]
    done = run(sys.executable, "-m", "lockgate.cli.main", *words, cwd=tmp_path, environ={SECRET_VARIABLE: None})
    assert done.returncode == 2, done.stderr
    assert "Spark's ports ask for no secret (no secret is named for it)" in done.stderr
    assert "docs/DEPLOYING.md" in done.stderr
