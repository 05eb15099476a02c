"""A proof in pieces adds up, and never with trials of another one."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockgate.errors import Refused
from lockgate.guarantees import Guarantee
from lockgate.lab.prove.results import Results
from lockgate.lab.prove.settings import Settings
from lockgate.lab.prove.verdict import Check, Trial
from lockgate.lab.rig.judge.findings import Outcome

SETTINGS = Settings(
    job="payments",
    guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    file="payments.py",
    parameters={},
    options={"--events": "2000"},
    workload="2,000 generated events",
    job_digest="abc",
    versions={"lockgate": "0.1.0"},
)


def trial(number: int, outcome: Outcome = Outcome.HOLDS, seed: int = 1) -> Trial:
    strike = ("kill driver", "VOTES")
    return Trial(seed, number, (strike,), (strike,), {"lost": Check(outcome)}, event_count=100)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "made" / "results.jsonl"


def test_pieces_add_up(file: Path) -> None:
    first = Results(file, SETTINGS)
    assert first.verdict().outcome is Outcome.UNKNOWN
    for number in range(3):
        first.add(trial(number))
    second = Results(file, SETTINGS)
    second.add(trial(0, seed=2))
    verdict = Results(file, SETTINGS).verdict()
    assert [(one.seed, one.number) for one in verdict.trials] == [(1, 0), (1, 1), (1, 2), (2, 0)]
    assert verdict.holds
    assert verdict.event_count == 400
    assert verdict == second.verdict()


def test_the_same_trial_twice_counts_once(file: Path) -> None:
    results = Results(file, SETTINGS)
    results.add(trial(0))
    results.add(trial(0))
    assert Results(file, SETTINGS).verdict().strike_count == 1


@pytest.mark.parametrize(
    ("outcomes", "kept"),
    [
        ([Outcome.BROKEN, Outcome.HOLDS], Outcome.BROKEN),
        ([Outcome.HOLDS, Outcome.BROKEN], Outcome.BROKEN),
        ([Outcome.UNKNOWN, Outcome.HOLDS], Outcome.HOLDS),
        ([Outcome.HOLDS, Outcome.UNKNOWN], Outcome.HOLDS),
        ([Outcome.BROKEN, Outcome.UNKNOWN], Outcome.BROKEN),
    ],
)
def test_a_broken_trial_stays_broken_in_a_retry(file: Path, outcomes: list[Outcome], kept: Outcome) -> None:
    for outcome in outcomes:
        Results(file, SETTINGS).add(trial(0, outcome))
    assert Results(file, SETTINGS).verdict().outcome is kept


def test_what_is_unknown_is_still_outstanding(file: Path) -> None:
    results = Results(file, SETTINGS)
    for number, outcome in enumerate([Outcome.HOLDS, Outcome.UNKNOWN, Outcome.BROKEN]):
        results.add(trial(number, outcome))
    assert results.outstanding((1, number) for number in range(4)) == [(1, 1), (1, 3)]


def test_a_line_that_was_being_written_is_cut_off(file: Path) -> None:
    results = Results(file, SETTINGS)
    results.add(trial(0))
    whole = file.read_bytes()
    results.add(trial(1))
    file.write_bytes(file.read_bytes()[: len(whole) + 40])
    again = Results(file, SETTINGS)
    assert again.outstanding([(1, 0), (1, 1)]) == [(1, 1)]
    again.add(trial(1))
    assert len(Results(file, SETTINGS).verdict().trials) == 2


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (replace(SETTINGS, job_digest="abd"), "job digest was abc, is abd"),
        (replace(SETTINGS, options={"--events": "3000"}), "options was {'--events': '2000'}"),
        (replace(SETTINGS, versions={"lockgate": "0.2.0"}), "versions was"),
        (replace(SETTINGS, guarantee=Guarantee.AT_LEAST_ONCE), "is AT_LEAST_ONCE"),
    ],
)
def test_another_job_and_other_settings_are_refused(file: Path, changed: Settings, told: str) -> None:
    Results(file, SETTINGS).add(trial(0))
    before = file.read_bytes()
    with pytest.raises(Refused, match="another proof") as refusal:
        Results(file, changed)
    assert told in refusal.value.what
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", ["my diary", "my\ndiary", "[]\n", '{"digest": 1}\n', "\n"])
def test_what_is_no_file_of_results_is_refused_and_left_as_it_is(tmp_path: Path, content: str) -> None:
    file = tmp_path / "diary"
    file.write_text(content)
    with pytest.raises(Refused, match="no file of results"):
        Results(file, SETTINGS)
    assert file.read_text() == content
