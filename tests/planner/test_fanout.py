"""A fan-out in a plan: its columns, its form, what it is worth, and where it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockgate import (
    ConsoleSink,
    FileSink,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    Late,
    Mode,
    Partial,
    Plan,
    PostgresSink,
    Stream,
    explain,
    plan,
    stream,
    windows,
)
from lockgate.dataflow.endpoints import Sink
from lockgate.errors import BadJob
from lockgate.lab.prove.determinism import find_reasons
from lockgate.planner.replaysafety import find_hindrances

EXACT, ONCE, LEAST = Guarantee.END_TO_END_EXACTLY_ONCE, Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE
MARKS = ("is_partial", "missing", "why_missing")
UPSERT = PostgresSink(table="scores", dsn="postgresql://db/x", key="id")
TOPIC = KafkaSink(topic="scores", servers="k:9092", key="id")


def score(row: Any) -> float:
    return 1.0


def payments() -> Stream:
    return stream("payments", KafkaSource(topic="payments", servers="k:9092", value="id STRING, at TIMESTAMP, x INT"))


def scored(before: Stream | None = None, **options: Any) -> Stream:
    given = {"deadline": "20 ms", "schema": "amount DOUBLE, place DOUBLE", "amount": score, "place": score}
    return (before or payments()).fan_out(**{**given, **options})


def planned(result: Stream, sink: Sink = TOPIC, guarantee: Guarantee = EXACT, **options: Any) -> Plan:
    return plan(Job("fraud", result.to("out", sink), guarantee=guarantee, **options))


def test_results_have_the_columns_of_the_event_the_scores_and_what_is_missing() -> None:
    node = planned(scored()).logical.node("fan_out")
    assert node.flow.columns is not None
    assert node.flow.columns.names == ("id", "at", "x", "amount", "place", *MARKS)
    assert [column.type for column in node.flow.columns.columns[3:6]] == ["DOUBLE", "DOUBLE", "BOOLEAN"]
    behind = planned(payments().transform(lambda frame: frame).fan_out(deadline="1 second", schema="a INT", a=score))
    assert behind.logical.node("fan_out").flow.columns is None


def test_a_score_with_the_name_of_a_column_is_refused() -> None:
    with pytest.raises(BadJob, match="column x would exist twice"):
        planned(payments().fan_out(deadline="20 ms", schema="x INT", x=score))


def test_the_plan_shows_functions_deadline_policy_form_and_why() -> None:
    text = explain(Job("fraud", scored().to("out", TOPIC), guarantee=EXACT), width=200)
    assert "fan_out amount, place" in text
    assert "within 20 milliseconds, partial: publish" in text
    (line,) = [line for line in text.splitlines() if line.startswith("  fan_out ") and ", Python: " in line]
    assert "Python: amount, place side by side" in line
    assert "starts when the task gives them the event" in line
    assert "real-time mode" in line


@pytest.mark.parametrize("policy", Partial)
def test_without_state_a_repeated_epoch_is_harmless_to_a_transaction(policy: Partial) -> None:
    letters = KafkaSink(topic="letters", servers="k:9092")
    into_topic = planned(scored(partial=policy), dead_letters=letters)
    assert into_topic.reached is EXACT
    assert "nothing of the first try is committed" in into_topic.reasons[0]
    assert planned(scored(partial=policy), UPSERT, dead_letters=letters).reached is EXACT


def test_above_state_it_caps_at_at_least_once_with_the_reason_and_the_fix() -> None:
    timed = scored().event_time("at", lateness="1 second").key_by("id")
    result = planned(timed.window(windows.tumbling("1 minute")).aggregate(n="count(*)"))
    assert result.reached is LEAST
    refusal = result.refusal()
    assert refusal is not None
    assert "its deadline decides which scores are in a result" in refusal.what
    assert "an upsert" in refusal.fix
    assert "exactly-once to a topic from which a second job continues" in refusal.fix


def test_behind_state_it_is_harmless() -> None:
    rolled = payments().key_by("id").rolling(total="sum(x)")
    assert planned(scored(rolled)).reached is EXACT


@pytest.mark.parametrize(
    "result",
    [
        scored(),
        scored(partial=Partial.DEAD_LETTER),  # in one try a row, in another a letter
        scored().where("NOT is_partial"),  # in one try a row, in another none
        scored().select("amount", id="concat(id, amount)"),  # in each try another key
    ],
)
def test_an_upsert_is_committed_with_the_ledger_so_other_scores_do_no_harm(result: Stream) -> None:
    letters = KafkaSink(topic="letters", servers="k:9092")
    made = planned(result, UPSERT, LEAST, dead_letters=letters)
    (path,) = [path for path in made.paths if path.output == "out"]
    assert path.reached is EXACT
    assert "nothing of the first try is committed then" in path.lifts[0]


def test_dead_letters_need_a_sink() -> None:
    with pytest.raises(BadJob) as refused:
        planned(scored(partial=Partial.DEAD_LETTER))
    assert "dead_letters=" in refused.value.fix
    assert "fan_out 'fan_out'" in refused.value.where


def plan_outputs(*results: Stream) -> Plan:
    outputs = [one.to(f"out-{number}", FileSink(path=f"/tmp/{number}")) for number, one in enumerate(results)]
    return plan(Job("fraud", *outputs, guarantee=LEAST))


def windowed(late: Late) -> Stream:
    timed = scored().event_time("at", lateness="1 second", late=late).key_by("id")
    return timed.window(windows.tumbling("1 minute")).aggregate(n="count(*)")


def test_several_outputs_of_one_pass_are_planned() -> None:
    fan = scored()
    parts = fan.split(whole="NOT is_partial", partial="is_partial")
    assert plan_outputs(*parts.values())
    assert plan_outputs(fan, fan.where("amount > 1").select("id", risk="amount + place"))
    paid = payments()
    assert plan_outputs(scored(paid), scored(paid)), "each of the two is in one pass"
    rolled = fan.key_by("id").rolling(total="sum(amount)")
    assert plan_outputs(rolled, rolled.where("total > 1"))
    assert plan_outputs(windowed(Late.DROP))


@pytest.mark.parametrize(
    "branch",
    [
        lambda fan: fan.map(lambda row: {"id": row.id}, schema="id STRING"),
        lambda fan: fan.where(lambda row: True),
        lambda fan: fan.split(whole="NOT is_partial")["whole"].parallel(2),
        lambda fan: fan.select(risk="amount + place", high="risk > 1"),
        lambda fan: fan.where("is_partial").merge(fan.where("NOT is_partial")),
    ],
)
def test_the_results_of_a_fan_out_are_kept_for_branches_that_are_no_pass(branch: Callable[[Stream], Stream]) -> None:
    fan = scored()
    assert plan_outputs(fan, branch(fan)).cuts.ends == ("fan_out",)


def test_a_fan_out_with_state_behind_one_of_several_branches_is_refused() -> None:
    fan = scored()
    rolled = fan.key_by("id").rolling(total="sum(amount)")
    with pytest.raises(BadJob) as refused:
        plan_outputs(fan, rolled)
    assert "because its rows go several ways" in refused.value.what
    assert "fan_out 'fan_out'" in refused.value.where
    assert "split" in refused.value.fix
    assert plan_outputs(rolled)


def test_late_events_of_a_native_window_behind_it_would_need_another_pass() -> None:
    with pytest.raises(BadJob, match="because its rows go several ways"):
        plan_outputs(windowed(Late.LOG))
    counts = windowed(Late.TO_SIDE_OUTPUT)
    with pytest.raises(BadJob, match="because its rows go several ways"):
        plan_outputs(counts, counts.late)


def test_a_fan_out_behind_more_ways_than_atoms_is_planned_at_once() -> None:
    rows = payments()
    for _ in range(60):
        parts = rows.split(odd="x % 2 = 1", even="x % 2 = 0")
        rows = parts["odd"].merge(parts["even"]).key_by("id").rolling(n="max(x)").select("id", "at", "x")
    assert plan_outputs(scored(rows))


def test_dead_letters_are_no_pass_of_their_own() -> None:
    made = planned(scored(partial=Partial.DEAD_LETTER), dead_letters=KafkaSink(topic="letters", servers="k:9092"))
    assert made.reached is EXACT


def test_real_time_mode_runs_none_and_names_the_native_form() -> None:
    with pytest.raises(BadJob) as refused:
        planned(scored(), guarantee=LEAST, mode=Mode.REAL_TIME)
    assert "it runs no Python functions" in refused.value.what
    assert "a real-time job of its own" in refused.value.fix


def test_late_events_of_a_native_window_do_not_pass_it() -> None:
    timed = payments().event_time("at", lateness="1 second", late=Late.TO_SIDE_OUTPUT)
    counts = timed.window(windows.tumbling("1 minute")).aggregate(n="count(*)")
    late = scored(counts.late)
    with pytest.raises(BadJob, match="late events can pass where"):
        plan(Job("fraud", counts.to("n", ConsoleSink()), late.to("late", FileSink(path="x")), guarantee=LEAST))


def test_event_time_is_declared_after_it() -> None:
    timed = payments().event_time("at", lateness="1 second")
    with pytest.raises(BadJob, match="time"):
        planned(scored(timed).window(windows.tumbling("1 minute")).aggregate(n="count(*)"))


def test_a_proof_knows_that_it_has_no_single_answer() -> None:
    reasons = [str(reason) for reason in find_reasons(planned(scored()))]
    assert any("has a deadline, so its results depend on the clock" in reason for reason in reasons)


def test_a_dead_letter_of_it_may_be_sent_back() -> None:
    job = planned(scored(partial=Partial.DEAD_LETTER), dead_letters=KafkaSink(topic="letters", servers="k:9092"))
    assert find_hindrances(job.logical, step="fan_out", source="payments", is_child=False) == ()
