"""A machine is gone with all that its disk had, another one with an empty disk comes, and the job goes on.

The state of a job is in its checkpoint on HDFS, and nowhere else that counts.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kills.kill_endurance import EnduranceRun
from kills.kill_matrix import Case, cases
from lockgate.lab.services.hdfs import Hdfs
from lockgate.lab.services.spark import SparkCluster


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[SparkCluster]:
    """A cluster of one Worker."""
    with SparkCluster(tmp_path / "spark", workers=1, cores=2) as cluster:
        yield cluster


@cases
def test_another_worker_with_an_empty_disk_continues_from_the_state_on_hdfs(
    case: Case, kafka: str, hdfs: Hdfs, lonely: SparkCluster, tmp_path: Path
) -> None:
    site = EnduranceRun(kafka, tmp_path / "site", lonely, checkpoint=f"{hdfs.uri}/checkpoints/worker-replaced")
    with site.running():
        site.sender.send(2000)
        site.await_rows(2000)
        driver, executors = site.driver, lonely.executors()
        assert driver is not None
        assert executors
        site.sender.send(1000)  # some of these are in the hands of the Worker that dies
        lonely.kill_worker(0)
        shutil.rmtree(lonely.root / "worker-0")
        site.sender.send(1000)
        lonely.start_worker(0)
        site.await_rows(4000)
        assert not {*executors} & {*lonely.executors()}
        assert site.finish() == []
    assert not (site.directory / ".lockgate" / "checkpoints").exists(), "there was state on this disk"
