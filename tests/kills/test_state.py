"""State that outlives its processes: windows, timers, patterns and joins give what an undisturbed run gives.

What has to come out is computed from the events alone, so it is what a run that nothing disturbs gives. Where events
come too late it is computed from the epochs too, as Spark has logged them: what is late hangs on them.
LOCKGATE_KILL_SEED chooses another sample.
"""

import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from kill_harness import ROWS_PER_EPOCH, Marked, Random, Result, Trial, Trouble, require, scan
from kill_workloads import PARTITIONS, WORKLOADS

from lockgate.kafka.topics import create_topics
from lockgate.services.spark import SparkCluster

SEED = int(os.environ.get("LOCKGATE_KILL_SEED", "7"))
TASK = ["STATE_UPDATE", "EMIT"]
DRIVER = ["BEFORE_END", "AFTER_END", "BEFORE_SPARK_COMMIT"]
ALONE = ["counts", "timers", "alarms", "late"]


@pytest.mark.system
def test_state_that_is_killed_in_a_task_and_around_the_decision_gives_every_result_once(
    kafka: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    faults = [(point, "kill", rng.randrange(2, 5)) for point in (*TASK, rng.choice(DRIVER))]
    require(trial(kafka, "state", Marked("sample", faults, tmp_path / "marks"), seed=SEED), kills=3)


def test_what_is_sent_too_late_is_late_for_windows_and_corrects_sessions() -> None:
    workload, rng = WORKLOADS["late"], random.Random(SEED)
    made = workload.make_events(rng)
    epochs = [[next(made) for _ in range(ROWS_PER_EPOCH)] for _ in range(10)]
    found = list(workload.expect(epochs))
    counts = Counter(suffix for suffix, _, _ in found)
    assert all(counts[suffix] > 5 for suffix in workload.outputs), counts
    assert any(row["revision"] for suffix, _, row in found if suffix == "-sessions")


@pytest.mark.prove
def test_late_events_leave_once_with_what_is_killed_and_corrections_are_numbered_as_if_nothing_was(
    kafka: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    faults = [(point, "kill", rng.randrange(3, 6)) for point in (*TASK, rng.choice(DRIVER))]
    require(trial(kafka, "late", Marked("sample", faults, tmp_path / "marks"), seed=SEED), kills=3)


@pytest.mark.prove
@pytest.mark.parametrize("workload", ALONE)
def test_workers_that_are_killed_lose_no_state(
    workload: str, kafka: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    faults = [(point, "kill", rng.randrange(2, 8)) for point in (*TASK, "STATE_UPDATE", "HALF")]
    require(trial(kafka, workload, Marked("workers", faults, tmp_path / "marks"), seed=SEED), kills=4)


@pytest.mark.prove
@pytest.mark.parametrize("workload", ALONE)
def test_drivers_that_are_killed_lose_no_state(
    workload: str, kafka: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    rng = random.Random(SEED + 1)
    faults = [(point, "kill", rng.randrange(2, 5)) for point in DRIVER]
    require(trial(kafka, workload, Marked("drivers", faults, tmp_path / "marks"), seed=SEED + 1), kills=3)


@pytest.mark.prove
def test_workers_and_drivers_that_are_killed_lose_no_pair_of_a_join(
    kafka: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    rng = random.Random(SEED + 4)
    faults = [(point, "kill", rng.randrange(2, 6)) for point in ("RECEIVE", "HALF", "EMIT", *DRIVER)]
    require(trial(kafka, "joined", Marked("every step", faults, tmp_path / "marks"), seed=SEED + 4), kills=6)


@pytest.mark.prove
def test_executors_that_are_killed_lose_no_state(
    kafka: str, cluster: SparkCluster, trial: Callable[..., Result], tmp_path: Path
) -> None:
    faults = [(point, "kill-jvm", hit) for hit in (2, 3) for point in TASK]
    trouble = Marked("executors", faults, tmp_path / "marks")
    require(trial(kafka, "state", trouble, seed=SEED + 2, cluster=cluster), kills=4)


@pytest.mark.prove
def test_processes_that_are_killed_at_any_moment_lose_no_state(kafka: str, trial: Callable[..., Result]) -> None:
    trouble = Random("any moment", {"driver": 2, "worker": 4}, SEED + 3, pause=(0.2, 3))
    require(trial(kafka, "state", trouble, seed=SEED + 3), kills=6)


# -- weaker guarantees -------------------------------------------------------------------------------------------------


@pytest.mark.prove
def test_at_least_once_loses_no_result_and_counts_no_event_twice_in_its_state(kafka: str, tmp_path: Path) -> None:
    trouble = Random("any moment", {"driver": 1, "worker": 1}, SEED, pause=(0.2, 1))
    made = Trial(kafka, WORKLOADS["counts, at least once"], trouble, tmp_path / "trial", SEED)
    verdict = made.run().verdict
    assert not verdict.lost, verdict
    assert not verdict.unknown, verdict
    # A result may come out again, and is then the very same: the state is that of the epochs which are done.
    assert set(verdict.duplicated) <= set(made.workload.expected(made.sent, made.write))


class Repeats:
    """The driver is killed when rows are out whose epoch Spark has not logged, until some have come out again."""

    name = "rows out, epoch not logged"

    def __init__(self) -> None:
        self._count, self._epoch, self._is_over = 0, 0, False  # with state from the epochs before

    def environment(self) -> dict[str, str]:
        return {}

    def step(self, trial: Trial) -> None:
        seen = trial.seen()
        once = len({row.content for row in seen})  # one row for each event
        self._is_over = once < len(seen)
        if not self._is_over and once > trial.consumed() and trial.epochs() > self._epoch:
            driver = trial.driver().process
            driver.kill()
            driver.wait()
            self._count, self._epoch = self._count + 1, trial.epochs()
            trial.tell(f"killed the driver at epoch {self._epoch}")

    @property
    def is_over(self) -> bool:
        return self._is_over

    def kills(self) -> Counter[str]:
        return Counter({self.name: self._count})

    def stops(self) -> int:
        return 0


@pytest.mark.prove
@pytest.mark.parametrize(
    "trouble",
    [Repeats(), Random("any moment", {"driver": 2, "worker": 2}, SEED, pause=(0.2, 1))],
    ids=lambda one: one.name,
)
def test_exactly_once_in_state_repeats_rows_as_they_were_and_counts_every_event_once(
    trouble: Trouble, kafka: str, tmp_path: Path
) -> None:
    made = Trial(kafka, WORKLOADS["rolling, exactly once"], trouble, tmp_path / "trial", SEED)
    result = made.run()
    print(f"{result.kills_total} kills, {len(result.verdict.duplicated)} duplicated: {result.verdict}")
    assert not result.verdict.lost, result.verdict
    assert not result.verdict.unknown, result.verdict
    assert not made.gave_up, made.gave_up
    # Every row shows the state behind it: one that comes out again is the very same.
    assert set(result.verdict.duplicated) <= set(made.expected())
    assert result.verdict.duplicated or not isinstance(trouble, Repeats)
    totals: dict[str, dict[str, int]] = {}
    for event in made.sent:
        before = totals.get(event["name"], {"total": 0, "count": 0})
        totals[event["name"]] = {"total": before["total"] + event["amount"], "count": before["count"] + 1}
    shown = subprocess.run(
        made.command("state", "job.py", "totals", "--json"), cwd=made.directory, check=True, stdout=subprocess.PIPE
    )
    kept = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {one["key"][0]: one["state"] for one in kept} == totals


class Forgetful(Trial):
    """A job that keeps nothing: each of its drivers begins with what comes next."""

    def lives(self, count: int) -> None:
        """Start so many drivers, one after the other; each is killed when some of its rows are out."""
        create_topics(self.servers, [self.read, self.write], partitions=PARTITIONS, where="test")
        (self.directory / "job.py").write_text(self.workload.source())
        try:
            with self._feeding() as producer, self._reading([self.write]):
                for _ in range(count):
                    driver, wanted = self.start_driver(), len(self.seen()) + 2 * ROWS_PER_EPOCH
                    deadline = time.monotonic() + 120
                    while len(self.seen()) < wanted:
                        assert driver.process.poll() is None, driver.tail()
                        assert time.monotonic() < deadline, f"{len(self.seen())} of {wanted} rows: {driver.tail()}"
                        self.feed(producer, 5)
                        time.sleep(0.05)
                    driver.process.kill()
                    driver.process.wait()
                    self.feed(producer, ROWS_PER_EPOCH)  # for nobody
        finally:
            assert not self._mark.kill(timedelta(seconds=30))


@pytest.mark.prove
def test_at_most_once_repeats_no_event_and_begins_with_an_empty_state(kafka: str, tmp_path: Path) -> None:
    trouble = Marked("killed when rows are out", [], tmp_path / "marks")
    made = Forgetful(kafka, WORKLOADS["rolling, at most once"], trouble, tmp_path / "trial", SEED)
    made.lives(2)
    rows = [json.loads(row.value) for row in scan(kafka, [made.write], isolation="read_committed")]
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == len(ids)
    assert len(ids) < len(made.sent), "what came while nobody ran is lost"
    by_name: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: int(row["id"])):
        by_name.setdefault(row["name"], []).append(row["count"])
    restarts = [counts.index(1, 1) for counts in by_name.values() if 1 in counts[1:]]
    assert restarts, "no key was seen in both lives"
    for counts in by_name.values():
        second = counts.index(1, 1) if 1 in counts[1:] else len(counts)
        assert counts[:second] == list(range(1, second + 1))
        assert counts[second:] == list(range(1, len(counts) - second + 1))
