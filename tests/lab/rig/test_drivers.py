"""How a job is started and watched: its command, the driver that runs now, and its progress in Spark's files."""

import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.errors import Failed
from lockgate.lab.rig.drivers import Driver, Drivers, Line, mark_of
from lockgate.lab.rig.history import Committed, End


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    one = Drivers(
        job_file=tmp_path / "job.py",
        parameters={"servers": "h:1", "name": "a job"},
        directory=tmp_path,
        checkpoint=tmp_path / "checkpoint",
        labels={"topic": "in"},
    )
    try:
        yield one
    finally:
        for driver in one.all:
            driver.process.kill()
            driver.process.wait()


def add(drivers: Drivers, *, has_ended: bool = False, code: int = 0, is_to_end: bool = False) -> Driver:
    ends = f"import sys; sys.exit({code})" if has_ended else "import time; time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", ends])
    if has_ended:
        process.wait()
    words, out = (drivers.directory / f"{name}-{len(drivers.all)}" for name in ("words", "out"))
    words.touch()
    out.touch()
    driver = Driver(len(drivers.all), process, words, out, {}, is_to_end=is_to_end)
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


def test_a_driver_that_pauses_while_another_one_takes_over_is_not_the_last(drivers: Drivers) -> None:
    asleep = add(drivers)
    asleep.is_aside = True
    assert drivers.last is None
    second = add(drivers)
    assert drivers.last is second
    second.process.kill()
    second.process.wait()
    assert drivers.last is second


# -- the command ------------------------------------------------------------------------------------------------------


def test_every_command_about_the_job_has_its_parameters_and_its_checkpoint(drivers: Drivers) -> None:
    command = drivers.command("state", "totals", "--json")
    assert command[3:] == [
        *("state", str(drivers.job_file), "totals", "--json"),
        *("-p", "servers=h:1", "-p", "name=a job", "--checkpoint", str(drivers.checkpoint)),
    ]
    drivers.checkpoint = None
    assert "--checkpoint" not in drivers.command("run")


def test_the_mark_of_a_directory_is_always_the_same_and_of_no_other(tmp_path: Path) -> None:
    assert mark_of(tmp_path) == mark_of(tmp_path / "a" / "..") != mark_of(tmp_path / "a")


def test_what_a_driver_says_and_keeps_is_for_its_owner_alone(drivers: Drivers) -> None:
    drivers.directory /= "trial"
    assert drivers.start({}).process.wait() == 2, "there is no such job"
    assert stat.S_IMODE(drivers.directory.stat().st_mode) == 0o700


def test_executors_on_a_cluster_get_the_mark_beside_what_the_caller_gives_to_spark(drivers: Drivers) -> None:
    drivers.environ = {"JDK_JAVA_OPTIONS": "-Xmx1g", "PYSPARK_SUBMIT_ARGS": "--conf a=b pyspark-shell"}
    local = drivers._environment()
    assert local["PYSPARK_SUBMIT_ARGS"] == "--conf a=b pyspark-shell"
    assert local["JDK_JAVA_OPTIONS"].startswith("-Xmx1g -XX:TieredStopAtLevel=1 ")
    drivers.master = "spark://h:1"
    mark = drivers.mark
    given = drivers._environment()["PYSPARK_SUBMIT_ARGS"]
    assert given == f"--conf spark.executorEnv.{mark.name}={mark.value} --conf a=b pyspark-shell"


# -- the end of a driver ----------------------------------------------------------------------------------------------


def test_a_job_that_gives_up_is_started_again_and_too_often_in_one_epoch_fails_the_trial(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "start", lambda environment: add(drivers, has_ended=True, code=1))
    drivers.give_ups_max = 2
    for count in range(3):
        drivers.tend({})
        assert len(drivers.gave_up) == count
    with pytest.raises(Failed, match="ended with 1 after 0 epochs"):
        drivers.tend({})


def test_a_job_that_was_killed_did_not_give_up(drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "start", lambda environment: add(drivers))
    drivers.give_ups_max = 0
    drivers.tend({}).kill()
    assert drivers.tend({}).number == 1
    assert drivers.gave_up == []


def test_a_job_that_has_caught_up_is_not_started_again(drivers: Drivers) -> None:
    done = add(drivers, has_ended=True, is_to_end=True)
    assert drivers.tend({}) is done
    assert done.has_caught_up


# -- progress ---------------------------------------------------------------------------------------------------------


def commit(drivers: Drivers, epoch: int, *sources: str) -> None:
    assert drivers.checkpoint is not None
    for log in ("offsets", "commits"):
        (drivers.checkpoint / log).mkdir(parents=True, exist_ok=True)
        (drivers.checkpoint / log / str(epoch)).write_text("\n".join(["v1", "{}", *sources]))


def test_epochs_are_noted_as_they_come_and_each_once(drivers: Drivers) -> None:
    assert (drivers.epochs(), drivers.consumed()) == (0, 0)
    commit(drivers, 0, '{"topic": {"0": 3, "1": 4}, "other": {"0": 9}}')
    drivers.note_commits()
    commit(drivers, 1, '{"topic": {"0": 5, "1": 4}}', "not JSON")
    drivers.note_commits()
    drivers.note_commits()
    assert (drivers.epochs(), drivers.consumed()) == (2, 9)
    noted = [(fact.epoch, fact.ends) for fact in drivers.facts if isinstance(fact, Committed)]
    assert noted == [(0, (End("in", 0, 3), End("in", 1, 4))), (1, (End("in", 0, 5), End("in", 1, 4)))]


def test_of_a_topic_that_two_branches_read_the_slower_branch_counts(drivers: Drivers) -> None:
    commit(drivers, 0, '{"topic": {"0": 3}}', '{"topic": {"0": 2}}')
    assert drivers.consumed() == 2


def test_only_whole_lines_of_a_driver_count_and_each_once(drivers: Drivers) -> None:
    drivers.checkpoint = None
    driver = add(drivers)
    text = '{"events_total": 12, "epoch_ms": 5, "lag": null}\n'
    driver.out.write_text(text + text[:9])
    drivers.look(driver)
    driver.out.write_text(text + text)
    drivers.look(driver)
    drivers.look(driver)
    assert [(line.start, line.taken) for line in drivers.lines] == [(0, 12), (0, 12)]
    assert (drivers.epochs(), drivers.consumed(), drivers.has_read(driver)) == (2, 12, True)


def test_a_job_without_a_checkpoint_tells_itself_how_many_events_it_took_and_others_by_their_checkpoint() -> None:
    text = '{"events_total": 12, "epoch_ms": 5, "lag": null}'
    assert (Line.of(text, 1, taken=None).taken, Line.of(text, 1, taken=10).taken) == (12, 10)
