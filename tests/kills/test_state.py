"""State that outlives its processes: windows, timers, patterns and joins give what an undisturbed run gives.

What has to come out is computed from the events alone, so it is what a run that nothing disturbs gives. If events come
too late it is computed from the epochs too, as Spark has logged them: they decide what is late.
LOCKGATE_KILL_SEED chooses another sample.
"""

import json
import random
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path

from kills.kill_matrix import SEED, Case, cases
from kills.kill_trial import ROWS_PER_EPOCH, KillTrial, Result, require
from kills.kill_workloads import PARTITIONS, WORKLOADS
from lockgate.lab.rig.faults import Kind
from lockgate.lab.rig.history import Fault, History, Read
from lockgate.lab.rig.trial import Trial
from lockgate.lab.rig.troubles.midepoch import MID_EPOCH, Cut, MidEpoch
from lockgate.lab.rig.troubles.trouble import Trouble


@cases
def test_state_outlives_its_processes(case: Case, trial: Callable[..., Result]) -> None:
    require(trial(case))


def test_what_is_sent_too_late_is_late_for_windows_and_corrects_sessions() -> None:
    workload, rng = WORKLOADS["late"], random.Random(SEED)
    made = workload.make_events(rng)
    epochs = [[next(made) for _ in range(ROWS_PER_EPOCH)] for _ in range(10)]
    found = list(workload.expect(epochs))
    counts = Counter(suffix for suffix, _, _ in found)
    assert all(counts[suffix] > 5 for suffix in workload.outputs), counts
    assert any(row["revision"] for suffix, _, row in found if suffix == "-sessions")


# -- weaker guarantees -------------------------------------------------------------------------------------------------


@cases
def test_at_least_once_loses_no_result_and_counts_no_event_twice_in_its_state(
    case: Case, trial: Callable[..., Result]
) -> None:
    result = trial(case)
    assert result.holds, result
    # A result may come out again, and is then the very same: the state is that of the epochs which are done.
    assert not result.judged.count("foreign")


class Repeats(MidEpoch):
    """The driver is killed in the midst of one epoch after the other, until rows have come again."""

    def __init__(self, trial: Trial, made: KillTrial) -> None:
        self._seen = trial.readers.seen
        # With state from the epochs before. One record of each partition may not be a row.
        cut = Cut(Kind.KILL_DRIVER, PARTITIONS + 1, lambda: trial.drivers.epochs() > self._killed_at)
        self._killed_at = 0
        super().__init__(repeat(cut, 50), made.scene(trial), trial.note)

    def step(self) -> None:
        super().step()
        self._killed_at = self.hits[-1].epoch if self.hits else 0

    @property
    def is_over(self) -> bool:
        rows = [row.content for row in self._seen()]
        return len({*rows}) < len(rows)  # one row for each event


class RepeatsTrial(KillTrial):
    """Rows come again, however many kills it takes."""

    def troubles(self, trial: Trial) -> list[Trouble]:
        return [Repeats(trial, self)]

    def due(self, history: History) -> list[tuple[str, str]]:
        return [(fault.kind, fault.point) for fault in history.of(Fault)]


@cases
def test_exactly_once_in_state_repeats_rows_as_they_were_and_counts_every_event_once(
    case: Case, kafka: str, tmp_path: Path
) -> None:
    is_repeated = case.strikes[0].point == MID_EPOCH
    kind = RepeatsTrial if is_repeated else KillTrial
    made = kind(kafka, WORKLOADS[case.workload], case, tmp_path / "trial")
    result = made.run()
    print(result)
    # Every row shows the state behind it: one that comes again and differs is foreign, which breaks the promise.
    assert result.holds, result
    assert not result.gave_up, result.gave_up
    assert result.judged.count("duplicated") or not is_repeated
    totals: dict[str, dict[str, int]] = {}
    for event in made.sent:
        before = totals.get(event["name"], {"total": 0, "count": 0})
        totals[event["name"]] = {"total": before["total"] + event["amount"], "count": before["count"] + 1}
    shown = subprocess.run(
        made.drivers.command("state", "totals", "--json"), cwd=made.directory, check=True, stdout=subprocess.PIPE
    )
    kept = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {one["key"][0]: one["state"] for one in kept} == totals


@cases
def test_at_most_once_repeats_no_event_and_begins_with_an_empty_state(case: Case, kafka: str, tmp_path: Path) -> None:
    made = KillTrial(kafka, WORKLOADS[case.workload], case, tmp_path / "trial")
    with made.trial() as trial:
        trial.limit = lambda driver: trial.feed.sent + 5
        for _ in case.strikes:  # each driver is killed when some of its rows are out, and begins with what comes next
            wanted = len(trial.readers.seen()) + 2 * ROWS_PER_EPOCH
            trial.run(partial(lambda wanted: len(trial.readers.seen()) >= wanted, wanted))
            assert not trial.drivers.gave_up, trial.drivers.gave_up
            assert trial.drivers.running is not None
            trial.drivers.running.kill()
            trial.feed.send(trial.feed.sent + ROWS_PER_EPOCH)  # no driver reads these
        facts = trial.readers.after(trial.drivers.clock)
    rows = [json.loads(fact.value or b"") for fact in facts if isinstance(fact, Read)]
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == len(ids)
    assert len(ids) < len(made.sent), "what came while no driver ran is lost"
    by_name: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: int(row["id"])):
        by_name.setdefault(row["name"], []).append(row["count"])
    restarts = [counts.index(1, 1) for counts in by_name.values() if 1 in counts[1:]]
    assert restarts, "no key was seen in both lives"
    for counts in by_name.values():
        second = counts.index(1, 1) if 1 in counts[1:] else len(counts)
        assert counts[:second] == list(range(1, second + 1))
        assert counts[second:] == list(range(1, len(counts) - second + 1))
