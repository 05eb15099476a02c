"""What is made of the stamps: answers by phase, scores between and at epoch ends, nothing left out."""

import json
import re

from fraud.measured import (
    ALL,
    BETWEEN,
    Given,
    Measured,
    Phase,
    Stamps,
    count_answers,
    count_epoch_ends,
    count_unscored,
    time_scores,
)

QUIET = Phase("undisturbed", 0, 10_000)
STOPPED = Phase("place stopped", 10_000, 20_000)


def stamps(**more: object) -> Stamps:
    arrivals = {f"p{number}": number * 100 for number in range(200)}  # one every 100 ms
    scores = {
        "amount": {id: at + 30 for id, at in arrivals.items()},
        "place": {id: at + 4 for id, at in arrivals.items() if at < 10_000},
    }
    answers = {
        id: [Given(at + 30, is_partial=False)]
        if at < 10_000
        else [Given(at + 18, is_partial=True, missing=("place",)), Given(at + 5000, is_partial=False)]
        for id, at in arrivals.items()
    }
    given = {
        "arrivals": arrivals,
        "scores": scores,
        "answers": answers,
        "epoch_ends": {"amount": [5000], "place": []},
        "phases": [QUIET, STOPPED],
        "deadline_ms": 20,
    }
    return Stamps(**{**given, **more})  # type: ignore[arg-type]


def test_answers_are_counted_in_the_phase_in_which_the_payment_came() -> None:
    counts = count_answers(stamps())
    quiet, stopped = counts["undisturbed"].facts(), counts["place stopped"].facts()
    assert (quiet["payments"], quiet["partial"], quiet["missed_deadlines"], quiet["replaced"]) == (100, 0, 100, 0)
    assert (stopped["payments"], stopped["partial"], stopped["missed_deadlines"]) == (100, 100, 0)
    assert (stopped["replaced"], stopped["partial_share"], stopped["missing"]) == (100, 1.0, {"place": 100})
    assert (stopped["answer"]["count"], stopped["full_answer"]["count"]) == (100, 100)
    assert 17.8 < stopped["answer"]["ms_p99"] < 18.3


def test_a_payment_without_an_answer_is_counted_as_such() -> None:
    given = dict(stamps().answers)
    del given["p3"]
    facts = count_answers(stamps(answers=given))["undisturbed"].facts()
    assert (facts["payments"], facts["unanswered"], facts["answer"]["count"]) == (100, 1, 99)
    assert facts["missed_deadlines"] == 100, "who waits for it has missed it"


def test_payments_between_the_phases_are_counted_too() -> None:
    counts = count_answers(stamps(phases=[Phase("late", 15_000, 20_000)]))
    assert {name: count.payments for name, count in counts.items()} == {"late": 50, BETWEEN: 150, ALL: 200}
    assert (counts[BETWEEN].missed, counts[ALL].missed, counts[ALL].partial) == (100, 100, 100)


def test_scores_at_the_end_of_an_epoch_are_distinguished_and_none_is_omitted() -> None:
    scores = {"amount": {id: at + (400 if 4000 <= at <= 6000 else 3) for id, at in stamps().arrivals.items()}}
    timed = time_scores(stamps(scores=scores), QUIET)["amount"]
    counts = {kind: times.latencies.count for kind, times in timed.items()}
    assert counts == {"between": 79, "epoch_ends": 21, "all": 100}
    assert 2.9 < 1000 * (timed["between"].latencies.quantile(0.999) or 0) < 3.1
    assert 390 < 1000 * (timed["epoch_ends"].latencies.quantile(0.5) or 0) < 410
    assert (timed["between"].longest_ms, timed["epoch_ends"].longest_ms, timed["all"].longest_ms) == (3, 400, 400)


def test_payments_that_an_analyser_never_scored_are_counted() -> None:
    assert count_unscored(stamps()) == {"amount": 0, "place": 100}


def test_payments_without_a_score_are_in_the_rows_of_the_scores() -> None:
    """p3 came between the ends of epochs, p45 at one; p150 in another phase."""
    scores = {"amount": {id: at + 3 for id, at in stamps().arrivals.items() if id not in ("p3", "p45", "p150")}}
    timed = time_scores(stamps(scores=scores), QUIET)["amount"]
    assert {kind: times.unscored for kind, times in timed.items()} == {"between": 1, "epoch_ends": 1, "all": 2}
    text = Measured(stamps(scores={"amount": {}}), {"rows": 0, "whole": 0}, timed=1).text()
    assert re.search(r"^amount +all +0 +100 +- +- +- +-$", text, re.MULTILINE)


def test_ends_of_epochs_count_for_the_phase_whose_scores_they_hold_up() -> None:
    ends = {"amount": [-1001, -1000, 5000, 10_500, 15_000], "place": []}
    assert count_epoch_ends(stamps(epoch_ends=ends), QUIET) == {"amount": 3, "place": 0}
    assert count_epoch_ends(stamps(epoch_ends=ends), STOPPED) == {"amount": 2, "place": 0}


def test_the_text_has_what_the_facts_have() -> None:
    measured = Measured(stamps(), {"rows": 200, "whole": 100}, timed=1)
    facts, text = measured.facts(), measured.text()
    assert facts["table"] == {"rows": 200, "whole": 100}
    assert facts["epoch_ends"] == {"amount": 1, "place": 0}
    assert [*facts["scores"]] == ["undisturbed"]
    scores = facts["scores"]["undisturbed"]
    assert {name: told["stall_ms_max"] for name, told in scores.items()} == {"amount": 30, "place": None}
    assert {name: told["meets_bar"] for name, told in scores.items()} == {"amount": False, "place": True}
    assert json.loads(json.dumps(facts)) == facts
    assert "200 of 200 payments, 100 with all scores" in text
    for words in ("place stopped", "at epoch ends", "behind 20 ms", "p99.9 ms"):
        assert words in text
    for line in (
        "Goal between epoch ends: p50 5 ms, p99 20 ms: amount missed, place met",
        "Ends of epochs: amount 1, place 0",
        "Longest stall at one, in ms: amount 30, place -",
        "Never scored, to the end of the show: amount 0, place 100",
        "  undisturbed: none",
        "  place stopped: place 100",
        "  between these: none",
        "  all: place 100",
    ):
        assert line in text.splitlines()
    assert re.search(r"^place stopped +100 +0 +100 +100\.0% +100 +0 +0\.0% ", text, re.MULTILINE)


def test_scores_are_timed_in_each_phase_in_which_nothing_is_done_to_an_analyser() -> None:
    beside = Phase("results beside", 10_000, 15_000)
    measured = Measured(stamps(phases=[QUIET, beside, STOPPED]), {"rows": 0, "whole": 0}, timed=2)
    scores = measured.facts()["scores"]
    assert {name: told["amount"]["all"]["count"] for name, told in scores.items()} == {
        "undisturbed": 100,
        "results beside": 50,
    }
    # A payment that never gets its score is no quick one.
    assert scores["results beside"]["place"]["meets_bar"] is False
    assert "From a payment's arrival to its scores (results beside)" in measured.text()
