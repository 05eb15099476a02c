"""The hunt: a thousand random jobs are planned, and a fault that is planted is found, made small, and replayed."""

import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from lockgate.cli import main as cli
from lockgate.cli.jobfile import load_job
from lockgate.errors import BadMachine, Failed
from lockgate.lab.randomjobs import check, hunt, trial
from lockgate.lab.randomjobs.columns import calls_of
from lockgate.lab.randomjobs.draw import draw
from lockgate.lab.randomjobs.model import is_refused_at_start
from lockgate.lab.randomjobs.outcome import Outcome
from lockgate.lab.randomjobs.shrink import shrink
from lockgate.lab.randomjobs.spec import Rolling, Spec, used
from lockgate.lab.randomjobs.trial import may_refuse
from lockgate.testing import Harness
from support.process import LOCKGATE, running
from support.waiting import wait_for


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
    spec = next(spec for spec in map(draw, map(Random, range(100))) if len(spec.sources) == 1)
    wanted = spec.sources[0].events[1]
    smaller = shrink(spec, lambda one: any(wanted in source.events for source in one.sources))
    assert [source.events for source in smaller.sources] == [(wanted,)]


def has_rolling(spec: Spec) -> bool:
    return any(isinstance(step, Rolling) for step in used(spec))


def test_a_run_that_violates_is_a_finding_and_one_that_cannot_be_judged_is_counted_by_its_reason() -> None:
    seen: list[Spec] = []

    def run_trial(spec: Spec, seed: int) -> Outcome:
        seen.append(spec)
        is_broken = has_rolling(spec) and len(seen) > 3
        return Outcome("violated", ("a row is missing",)) if is_broken else Outcome("unknown", ("out0: unknown: why",))

    *_, tally = hunt.hunt(0, 200, run_trial)
    assert tally.finding is not None
    assert (tally.finding.what, tally.finding.verdict) == (("a row is missing",), "violated")
    assert [type(step) for step in tally.finding.spec.steps] == [Rolling]
    assert [*tally.unknown] == ["why"]
    assert tally.unknown["why"].jobs == tally.run - 1 == tally.runs["unknown"]
    assert tally.unknown["why"].seeds
    assert not any(check.plan_of(spec).is_refused for spec in seen)


def test_a_job_that_is_accepted_and_does_not_reach_its_end_is_a_finding_of_the_same_kind_of_error() -> None:
    def run_trial(spec: Spec, seed: int) -> Outcome:
        return Outcome("failed", ("Failed: it stopped" if has_rolling(spec) else "BadJob: it cannot start",))

    first = next(seed for seed in range(200) if has_rolling(draw(Random(seed))) and not refused(seed))
    *_, tally = hunt.hunt(first, 1, run_trial)
    assert tally.finding is not None
    assert tally.finding.verdict == "failed"
    assert [type(step) for step in tally.finding.spec.steps] == [Rolling]
    assert (tally.run, tally.judged, tally.runs["failed"]) == (1, 0, 1)


def refused(seed: int) -> bool:
    return check.plan_of(draw(Random(seed))).is_refused


def test_a_transform_that_is_declared_wrongly_is_started_and_its_refusal_is_no_finding() -> None:
    """Only the start can see it, so it is given to the run as every other job that the plan accepts."""
    seed = next(seed for seed in range(1_000) if is_refused_at_start(draw(Random(seed))) and not refused(seed))
    *_, tally = hunt.hunt(seed, 1, lambda spec, seed: Outcome("refused", ("transform 'x' is not deterministic",)))
    assert tally.finding is None
    assert (tally.accepted, tally.run, tally.runs["refused"]) == (1, 0, 1)
    assert tally.refused["transform '...' is not deterministic"].seeds == [seed]
    *_, tally = hunt.hunt(seed, 1, lambda spec, seed: Outcome("violated", ("the job ran",)))
    assert tally.finding is not None
    assert is_refused_at_start(tally.finding.spec) or tally.finding.spec.steps == ()


def test_only_what_no_plan_can_know_may_be_refused_at_the_start() -> None:
    specs = [draw(Random(seed)) for seed in range(1_000)]
    wrong, right = next(filter(is_refused_at_start, specs)), next(one for one in specs if not is_refused_at_start(one))
    refusal = "transform 'transform' is not deterministic, by rand(): ..."
    assert may_refuse(wrong, refusal)
    assert not may_refuse(right, refusal)
    assert not may_refuse(wrong, "column 'x' is not there")
    refusal = "Spark refuses rolling 'x1': [AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION] ..."
    random_sums = [one for one in specs if any(call.entry == "sum_of_noise" for s in used(one) for call in calls_of(s))]
    assert may_refuse(random_sums[0], refusal)
    assert not may_refuse(next(one for one in specs if one not in random_sums), refusal)


@pytest.mark.process
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_command_that_started_them(tmp_path: Path, by: signal.Signals) -> None:
    command = (*LOCKGATE, "simulate", "--jobs", "1000000", "--plan-only", "--processes", "2")
    with running(*command, cwd=tmp_path) as process:
        process.wait_for("the first jobs", lambda: " of 1,000,000 jobs" in process.said)
        family = process.family
        assert len(family) >= 2
        process.end(by)
        wait_for("the end of all processes", lambda: not any(one.is_running() for one in family))


def test_several_processes_count_as_one_does() -> None:
    *_, alone = hunt.hunt(0, 230, processes=1)
    *_, shared = hunt.hunt(0, 230, processes=2)
    assert (shared.jobs, shared.verdicts, shared.kinds) == (alone.jobs, alone.verdicts, alone.kinds)
    assert shared.stricter == alone.stricter


def test_a_machine_that_cannot_run_jobs_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_java(harness: Harness) -> Harness:
        raise BadMachine("there is no Java", where="PATH", fix="install Java 17")

    monkeypatch.setattr(Harness, "__enter__", without_java)
    assert simulate("--jobs", "10", "--processes", "1") == 2
    assert "there is no Java" in capsys.readouterr().err


def test_a_job_that_fails_ends_with_1_and_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopping(harness: Harness) -> Harness:
        raise Failed("it stopped", where="here", fix="repair it")

    monkeypatch.setattr(Harness, "__enter__", stopping)
    assert simulate("--jobs", "10", "--processes", "1", "--json") == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["verdict"], facts["finding"]["verdict"], facts["runs"]) == ("failed", "failed", {"failed": 1})
    assert facts["finding"]["what"][0].startswith("Failed: it stopped")


def test_runs_of_which_none_could_be_judged_do_not_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "run_trial", lambda spec, seed: Outcome("unknown", ("no answer",)))
    assert simulate("--jobs", "10", "--processes", "1") == 1
    told = capsys.readouterr().out
    assert re.search(r"^unknown: 0 of \d+ accepted jobs were judged", told, re.MULTILINE)
    assert re.search(r"^  unknown: \d+ jobs: no answer \(seeds 0", told, re.MULTILINE)


def test_the_summary_of_runs_says_how_many_were_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "run_trial", lambda spec, seed: Outcome("holds", (), 1.0, ("no driver died",)))
    assert simulate("--jobs", "20", "--processes", "1") == 0
    told = capsys.readouterr().out
    accepted = len([seed for seed in range(20) if not refused(seed)])
    assert f"\n{accepted} accepted jobs: 0 refused at their start, {accepted} run in {accepted}.0 s; " in told
    assert f"  holds, but no driver died: {accepted} jobs\n" in told
    assert f"; {accepted} of {accepted} accepted jobs were judged\n" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ("--jobs", "0"),
        ("--plan-only",),
        ("--jobs", "5", "--processes", "0"),
        ("--jobs", "5", "--mutant", "permits"),
        ("--jobs", "5", "--schedules", "10000"),
        ("--jobs", "5", "--keep", "seeds.json"),
    ],
)
def test_what_means_nothing_is_refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(*arguments) == 2
    told = capsys.readouterr().err
    assert "where:" in told
    assert "fix:" in told
