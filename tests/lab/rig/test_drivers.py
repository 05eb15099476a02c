"""Which of the starts of a job is the one that runs now."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.lab.rig.drivers import Driver, Drivers
from lockgate.services.processes import Mark


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    one = Drivers(
        job_file=tmp_path / "job.py",
        spec=tmp_path / "spec.json",
        directory=tmp_path,
        checkpoint=None,
        rows_per_epoch=1,
        master=None,
        labels={},
        mark=Mark("LOCKGATE_PROOF", "test"),
        clock=lambda: 0.0,
    )
    try:
        yield one
    finally:
        for driver in one.all:
            driver.process.kill()
            driver.process.wait()


def add(drivers: Drivers, *, has_ended: bool = False) -> Driver:
    process = subprocess.Popen([sys.executable, "-c", "" if has_ended else "import time; time.sleep(600)"])
    if has_ended:
        process.wait()
    words = drivers.directory / "words"
    driver = Driver(len(drivers.all), process, words, words, {})
    drivers.all.append(driver)
    return driver


def test_the_last_one_is_the_newest_that_runs_or_else_the_newest(drivers: Drivers) -> None:
    assert drivers.last is None
    first = add(drivers)
    assert drivers.last is first
    add(drivers, has_ended=True)
    assert drivers.last is first
    first.process.kill()
    first.process.wait()
    assert drivers.last is drivers.all[1]


def test_one_that_sleeps_while_another_one_is_to_go_on_is_not_the_last(drivers: Drivers) -> None:
    asleep = add(drivers)
    asleep.is_aside = True
    assert drivers.last is None
    second = add(drivers)
    assert drivers.last is second
    second.process.kill()
    second.process.wait()
    assert drivers.last is second
