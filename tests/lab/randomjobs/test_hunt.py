"""The hunt: a thousand random jobs are planned, and a fault that is planted is found, made small, and replayed."""

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from lockgate.cli import main as cli
from lockgate.cli.jobfile import load_job
from lockgate.lab.randomjobs import check, hunt
from lockgate.lab.randomjobs.draw import draw
from lockgate.lab.randomjobs.outcome import Outcome
from lockgate.lab.randomjobs.shrink import shrink
from lockgate.lab.randomjobs.spec import Rolling, Spec, used


def simulate(*arguments: str) -> int:
    return cli.main(["simulate", *arguments])


@pytest.fixture
def planner_that_forgets_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that claims end-to-end exactly-once for every job with a rolling aggregate."""
    truly = check.plan_of

    def plan_of(spec: Spec) -> check.Planned:
        planned = truly(spec)
        if not planned.outputs or not any(isinstance(step, Rolling) for step in used(spec)):
            return planned
        return replace(planned, is_refused=False, reached=4, outputs=dict.fromkeys(planned.outputs, 4))

    monkeypatch.setattr(check, "plan_of", plan_of)


def test_a_thousand_jobs_are_planned_without_a_violation(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--jobs", "1000", "--seed", "0", "--plan-only", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["verdict"], facts["jobs"], facts["runs"]) == ("holds", 1000, {})
    assert set(facts["verdicts"]) == {"accepted", "refused", "stricter"}
    assert sum(facts["verdicts"].values()) == 1000
    assert facts["verdicts"]["accepted"] > 500
    assert {"Where", "Join", "FanOut", "WindowAggregate"} <= set(facts["step_kinds"])
    assert {"what", "steps", "jobs"} == set(facts["stricter"][0])


def test_the_summary_is_by_verdict_and_by_kind_of_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--jobs", "30", "--seed", "5", "--plan-only") == 0
    told = capsys.readouterr().out
    assert re.match(r"30 jobs, \d+\.\d s: \d+ accepted, \d+ refused, \d+ stricter, 0 violation\n", told)
    assert re.search(r"^Where +\d+ +\d+ +\d+ +0$", told, re.MULTILINE)
    assert "holds: no job is accepted" in told


@pytest.mark.usefixtures("planner_that_forgets_state")
def test_a_violation_ends_with_1_its_job_file_and_how_to_replay_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert simulate("--jobs", "500", "--seed", "0", "--plan-only") == 1
    told = capsys.readouterr().out
    broken = told[told.index("broken by seed") :].splitlines()
    file = tmp_path / "job.py"
    file.write_text(told[told.index("from lockgate import") : told.index("broken by seed")], encoding="utf-8")
    assert load_job(str(file)).outputs
    assert simulate(*broken[-1].split("lockgate simulate ")[1].split()) == 1
    assert broken[0] in capsys.readouterr().out


@pytest.mark.usefixtures("planner_that_forgets_state")
def test_the_shrinker_leaves_nothing_but_what_violates() -> None:
    *_, tally = hunt.hunt(0, 500)
    assert tally.finding is not None
    (step,) = tally.finding.spec.steps
    assert isinstance(step, Rolling)
    assert len(tally.finding.spec.outputs) == len(tally.finding.spec.sources) == 1
    assert tally.finding.spec.sources[0].events == ()
    assert tally.verdicts["violation"] == 1


def test_events_are_removed_one_by_one_while_it_still_shows() -> None:
    spec = draw(Random(1))
    wanted = spec.sources[0].events[1]
    smaller = shrink(spec, lambda one: any(wanted in source.events for source in one.sources))
    assert [source.events for source in smaller.sources] == [(wanted,)]


def test_a_run_that_violates_is_a_finding_and_one_that_cannot_be_judged_is_listed() -> None:
    seen: list[Spec] = []

    def run_trial(spec: Spec, seed: int) -> Outcome:
        seen.append(spec)
        if any(isinstance(step, Rolling) for step in used(spec)) and len(seen) > 3:
            return Outcome("violated", ("a row is missing",))
        return Outcome("unknown", ("no answer",))

    *_, tally = hunt.hunt(0, 200, run_trial)
    assert tally.finding is not None
    assert tally.finding.what == ("a row is missing",)
    assert [type(step) for step in tally.finding.spec.steps] == [Rolling]
    assert tally.unknown
    assert all(what == ("no answer",) for what in tally.unknown.values())
    assert not any(check.plan_of(spec).is_refused for spec in seen)


@pytest.mark.parametrize("arguments", [("--jobs", "0"), ("--plan-only",)])
def test_what_means_nothing_is_refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(*arguments) == 2
    assert "fix:" in capsys.readouterr().err
