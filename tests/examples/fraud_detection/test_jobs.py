"""Fraud detection: what each part promises, what the analysers score, what the table holds, and the whole show."""

import json
import re
import runpy
import signal
import sys
import uuid
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from fraud.show import DISTURBED, Settings, show
from fraud.topics import ANALYSERS, Topics
from fraud.transactions import BLACKLIST, make_transactions
from lockgate import Guarantee, Job, Mode, Plan, explain, plan
from lockgate.cli.jobfile import load_job
from lockgate.lab.services.stack import Stack
from support import process
from support.process import running
from support.records import send
from support.runs import run_to_the_end

ROOT = Path(__file__).parents[3]
FILE = ROOT / "examples" / "fraud_detection" / "job.py"
PARTS = (*ANALYSERS, "results")
PAYMENTS = 400


def job_of(part: str, **parameters: str) -> Job:
    """A part of the example, loaded as the command line loads it."""
    return load_job(str(FILE), [f"part={part}", *(f"{name}={text}" for name, text in parameters.items())])


@pytest.fixture(autouse=True)
def path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a job file makes the modules beside it importable; not for the tests after this one."""
    monkeypatch.setattr(sys, "path", [*sys.path])


# -- what each part promises ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_every_part_plans_without_an_over_claim(part: str) -> None:
    planned = plan(job_of(part))
    assert planned.refusal() is None
    is_analyser = part in ANALYSERS
    assert planned.job.mode is (Mode.REAL_TIME if is_analyser else Mode.MICRO_BATCH)
    assert planned.declared is (Guarantee.AT_LEAST_ONCE if is_analyser else Guarantee.END_TO_END_EXACTLY_ONCE)
    assert planned.reached is planned.declared


@pytest.mark.parametrize("part", ANALYSERS)
def test_an_analyser_is_native_and_says_why_it_is_at_least_once(part: str) -> None:
    planned = plan(job_of(part))
    assert {step.execution for step in planned.physical.steps} == {"native"}
    assert "at-least-once, because of" in told_of(planned)


def test_the_plan_says_that_the_upsert_takes_away_what_came_twice() -> None:
    told = told_of(plan(job_of("results")))
    for analyser in ANALYSERS:
        assert f"scores-{analyser} -> table: end-to-end exactly-once; if 'scores-{analyser}' has an event twice" in told
    assert "upserts by key" in told


def told_of(planned: Plan) -> str:
    return explain(planned.job)


def test_the_page_shows_what_the_plan_says() -> None:
    page = (ROOT / "docs" / "EXAMPLES.md").read_text()
    (section,) = (one for one in re.split(r"^## ", page, flags=re.MULTILINE) if "(`fraud_detection/`)" in one)
    (block,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    shown = re.findall(r"^\$ lockgate plan \S+ -p part=(\w+)[^\n]*\n(.*?)(?=^\$|\Z)", block, re.DOTALL | re.MULTILINE)
    assert [part for part, _ in shown] == ["place", "results"]
    for part, text in shown:
        lines = [line for line in text.splitlines() if line.strip() and line.strip() != "..."]
        assert [line for line in lines if line not in told_of(plan(job_of(part))).splitlines()] == []


# -- what they compute ------------------------------------------------------------------------------------------------


def scores_of(payments: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The scores of all analysers in plain Python, for payments in the order of time."""
    found: dict[str, dict[str, float]] = {analyser: {} for analyser in ANALYSERS}
    hours: dict[Any, list[float]] = defaultdict(list)
    minutes: dict[Any, int] = defaultdict(int)
    for payment in payments:
        at = datetime.fromisoformat(payment["at"])
        before = hours[payment["card"], at.replace(minute=0, second=0, microsecond=0)]
        average = max(0.01, sum(before)) / max(1, len(before))
        found["amount"][payment["id"]] = min(1.0, payment["amount"] / average / 10) if len(before) >= 3 else 0.0
        before.append(payment["amount"])
        minute = payment["card"], at.replace(second=0, microsecond=0)
        found["velocity"][payment["id"]] = min(1.0, minutes[minute] / 5)
        minutes[minute] += 1
        abroad = 0.8 if payment["country"] != payment["home"] else 0.0
        found["place"][payment["id"]] = abroad + (0.1 if at.hour < 5 else 0.0)
        found["blacklist"][payment["id"]] = 1.0 if payment["merchant"] in BLACKLIST else 0.0
    return found


FREE = (0.0, 0.0, 0.0, 0.0, 5.0, 0.0)
"""Amounts of a card that is used for things that cost nothing, and once for one that does."""


def card_of(value: Any) -> str | None:
    """The key of a record. The client sends no record that has neither a key nor a value."""
    if value is None:
        return "nothing"
    return str(value["card"]) if isinstance(value, dict) else None


def some_payments() -> list[dict[str, Any]]:
    """One a second, of few cards, so that cards have a history; frauds of every kind, and payments of nothing."""
    began = datetime(2026, 1, 1, 4, 57, tzinfo=UTC)
    made = make_transactions(PAYMENTS - len(FREE), seed=19, per_second=1, began=began, cards=25, fraud_share=0.04)
    payments = list(made)
    like = {**payments[100], "card": "card-free", "merchant": "merchant-1"}
    payments[101:101] = [{**like, "id": f"free-{number}", "amount": amount} for number, amount in enumerate(FREE)]
    return payments


def no_payments(payment: dict[str, Any]) -> list[bytes | None]:
    """What may stand in the topic beside payments, and is none."""
    soon = datetime.now(UTC) + timedelta(minutes=5)  # with it as the time, all others would be late
    wrong = [("id", None), ("at", "2099-01-01T00:00:00.000+00:00"), ("at", soon.isoformat()), ("amount", "much")]
    fields = [{**payment, "id": f"wrong-{name}", name: value} for name, value in wrong]
    timeless = {name: value for name, value in payment.items() if name != "at"}
    return [None, b"", b"no JSON", b"[]", b'\xff{"id": 1}', *(json.dumps(one).encode() for one in (*fields, timeless))]


def test_the_payments_of_the_test_are_worth_scoring() -> None:
    scores = scores_of(some_payments())
    for analyser, some in scores.items():
        assert len(some) == PAYMENTS
        assert 0 < sum(score > 0.7 for score in some.values()) < PAYMENTS / 4, analyser
    assert [scores["amount"][f"free-{number}"] for number in range(len(FREE))] == [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]


@pytest.mark.system
@pytest.mark.process
def test_analysers_score_every_payment_and_the_table_has_them_joined(
    stack: Stack, spark: SparkSession, tmp_path: Path
) -> None:
    status = stack.status()
    topics = Topics(status.kafka.servers or "", f"fraud-{uuid.uuid4().hex[:8]}-")
    topics.make(partitions=1)
    payments = some_payments()
    broken = no_payments(payments[0])
    values = [*payments[: PAYMENTS // 2], *broken, *payments[PAYMENTS // 2 :]]
    send(topics.servers, topics.payments, values, key=card_of)

    # All analysers in one driver, in real-time mode: every payment gets its score as of it, and what is none stops no
    # one.
    command = [sys.executable, "-m", "fraud.driver", str(FILE), "--home", str(tmp_path / "driver")]
    command += [word for analyser in ANALYSERS for word in ("--part", analyser)]
    command += process.parameters(servers=topics.servers, prefix=topics.prefix)
    (tmp_path / "driver").mkdir()
    names = list(topics.scores.values())
    with running(*command, cwd=tmp_path, environ={"PYTHONPATH": str(FILE.parent)}) as driver:
        driver.wait_for("all scores", lambda: all(n >= PAYMENTS for n in topics.counts(names).values()))
        assert driver.end(signal.SIGTERM) == 0, driver.said
    expected = scores_of(payments)
    scored = {analyser: [value for value, _ in topics.read(topic)] for analyser, topic in topics.scores.items()}
    for analyser, rows in scored.items():
        assert len(rows) == PAYMENTS, "each has one row, since nothing was repeated"
        assert {row["id"]: row["score"] for row in rows} == pytest.approx(expected[analyser]), analyser

    # At-least-once: some scores come again. The table has each payment once, with its scores.
    send(topics.servers, topics.scores["velocity"], scored["velocity"][:50], key=lambda row: row["id"])
    send(topics.servers, topics.scores["place"], [b"no JSON"])
    parameters = {"servers": topics.servers, "prefix": topics.prefix, "dsn": status.postgres.dsn or ""}
    results = job_of("results", **parameters)
    run_to_the_end(results, tmp_path, checkpoint=str(tmp_path / "results"))
    events = {"payments": payments, **{f"scores-{analyser}": rows for analyser, rows in scored.items()}}
    timed = {name: [{**row, "at": moment(row["at"]), "_late": False} for row in rows] for name, rows in events.items()}
    answer = {row["id"]: row for row in runpy.run_path(str(FILE))["answer"](timed)["table"]}
    with psycopg.connect(parameters["dsn"], row_factory=psycopg.rows.dict_row) as connection:
        found = {row["id"]: row for row in connection.execute(f'SELECT * FROM "{topics.table}"').fetchall()}
        letters_table = f"{topics.prefix}letters".replace("-", "_")
        letters = connection.execute(f'SELECT * FROM "{letters_table}" ORDER BY at').fetchall()
        for name in (topics.table, letters_table):
            connection.execute(f'DROP TABLE "{name}"')
    assert 100 < len(found) == len(answer) < PAYMENTS
    for id, row in answer.items():
        numbers = {name: value for name, value in row.items() if isinstance(value, float)}
        assert {name: found[id][name] for name in numbers} == pytest.approx(numbers)
        assert found[id]["card"] == row["card"]
        assert set(numbers) == {"amount", "risk", *(f"{analyser}_score" for analyser in ANALYSERS)}
        assert found[id]["is_partial"] is row["is_partial"] is False
    # What could not be used is put aside, byte by byte.
    values = [one["value"] for one in letters if one["source"] == "payments"]
    assert [None if value is None else bytes(value) for value in values] == broken
    assert [bytes(one["value"]) for one in letters if one["source"] == "scores-place"] == [b"no JSON"]
    assert {one["step"] for one in letters} == {"payments", "scores-place", "event_time"}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_the_answer_joins_what_has_come_for_a_payment_and_is_ended() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    payments = [
        {"id": f"p{number}", "card": "c", "amount": 5.0, "at": began + timedelta(minutes=number), "_late": False}
        for number in range(4)
    ]
    scores = [{"id": f"p{number}", "score": 0.5, "at": payments[number]["at"], "_late": False} for number in (0, 3)]
    answer = runpy.run_path(str(FILE))["answer"]
    rows = answer({"payments": payments, "scores-place": scores})["table"]
    assert [row["id"] for row in rows] == ["p0"], "that of the second minute ends a second too late"
    assert (rows[0]["place_score"], rows[0]["amount_score"], rows[0]["card"]) == (0.5, None, "c")
    assert (rows[0]["risk"], rows[0]["is_partial"]) == (0.5, True)
    assert answer({"payments": payments, "scores-place": scores[:1]})["table"] == [], "the slowest topic counts"


# -- the show ---------------------------------------------------------------------------------------------------------


@pytest.mark.prove
@pytest.mark.process
def test_answers_continue_in_part_while_an_analyser_is_stopped_and_killed(stack: Stack, tmp_path: Path) -> None:
    settings = Settings(rate=100, warm_up=10.0, undisturbed=20.0, beside=5.0, stopped=5.0, killed=5.0)
    told: list[str] = []
    measured = show(FILE, stack, settings=settings, now=datetime.now(), tell=told.append, home=tmp_path / "show")
    facts = measured.facts()
    assert [line for line in told if line.startswith("SIG")] == [
        f"{name} {DISTURBED}" for name in ("SIGSTOP", "SIGCONT", "SIGKILL")
    ]
    assert facts["unscored"] == dict.fromkeys(ANALYSERS, 0), "at-least-once: each has a score in the end"
    came = len(measured.stamps.arrivals)
    assert facts["table"] == {"rows": came, "whole": came}
    assert came > 1000
    phases = facts["phases"]
    assert phases["all"]["payments"] == came
    assert phases["all"]["unanswered"] == 0
    assert phases["all"]["replaced"] == phases["all"]["partial"], "each is whole in the end"
    for name in (f"{DISTURBED} stopped", f"{DISTURBED} killed"):
        assert phases[name]["payments"] > 100
        assert phases[name]["missing"][DISTURBED] > 0.9 * phases[name]["payments"]
        # Far from the deadline on a busy machine, but nobody waits for the analyser.
        assert phases[name]["answer"]["ms_p50"] < 1000 * settings.stopped / 4
    for name in ("undisturbed", "results beside"):
        assert facts["scores"][name]["place"]["all"]["count"] == phases[name]["payments"]
