"""What is answered when: full as soon as all scores are there, partial at the cut, the full one in its place later."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.presenter.figures import METRICS, Tally
from lockgate.presenter.gathering import Answer, Gathering, Limits

ANALYSERS = ("amount", "velocity", "place")
LIMITS = Limits(deadline=0.020, margin=0.002, kept=5.0, held_max=100)


@pytest.fixture
def tally() -> Tally:
    return Tally(ANALYSERS)


@pytest.fixture
def gathering(tally: Tally) -> Gathering:
    return Gathering(ANALYSERS, LIMITS, tally)


def score(gathering: Gathering, analyser: str, now: float, value: float | None = 0.5, id: str = "t1") -> Answer | None:
    return gathering.add_score(id, analyser, value, written=now - 0.001, now=now)


def test_a_transaction_with_all_scores_is_answered_at_once(gathering: Gathering, tally: Tally) -> None:
    assert gathering.add_transaction("t1", arrived=100.0, now=100.001) is None
    assert score(gathering, "amount", 100.004, 0.2) is None
    assert score(gathering, "place", 100.005, 0.9) is None
    answer = score(gathering, "velocity", 100.010, 0.1)
    assert answer is not None
    assert answer.facts() == {
        "id": "t1",
        "revision": 1,
        "is_partial": False,
        "is_final": True,
        "risk": 0.9,
        "scores": {"amount": 0.2, "velocity": 0.1, "place": 0.9},
        "missing": [],
        "arrived_ms": 100_000.0,
        "answered_ms": 100_010.0,
    }
    assert gathering.cut(100.5) == []
    assert (tally.answers["full"], tally.answers["partial"], tally.missed, tally.replaced) == (1, 0, 0, 0)


def test_a_transaction_is_answered_at_the_cut_with_what_is_there(gathering: Gathering, tally: Tally) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    score(gathering, "place", 100.005, 0.9)
    assert gathering.next_cut == pytest.approx(100.018)
    assert gathering.cut(100.0179) == []
    (answer,) = gathering.cut(100.018)
    assert (answer.revision, answer.scores, answer.missing) == (1, {"place": 0.9}, ("amount", "velocity"))
    assert answer.facts()["is_partial"] is True
    assert answer.facts()["is_final"] is False
    assert gathering.next_cut is None
    assert tally.missed == 0
    assert tally.missing == {"amount": 1, "velocity": 1}
    assert tally.partial_share == 1.0


def test_a_later_full_answer_replaces_the_partial_one(gathering: Gathering, tally: Tally) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    score(gathering, "place", 100.005, 0.9)
    gathering.cut(100.018)
    assert score(gathering, "amount", 100.040) is None, "one of two that are missing is no news"
    answer = score(gathering, "velocity", 100.050)
    assert answer is not None
    assert (answer.revision, answer.missing, answer.is_partial) == (2, (), False)
    assert (tally.answers["partial"], tally.answers["full"], tally.replaced) == (1, 0, 1)
    assert tally.first.quantile(0.5) == pytest.approx(0.018, rel=0.02)
    assert tally.full.quantile(0.5) == pytest.approx(0.050, rel=0.02)


def test_a_transaction_without_any_score_is_answered_too(gathering: Gathering) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    (answer,) = gathering.cut(100.018)
    assert (answer.scores, answer.risk, answer.missing) == ({}, None, ANALYSERS)


def test_a_score_of_null_is_an_answer_and_not_missing(gathering: Gathering) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    score(gathering, "place", 100.002, None)
    score(gathering, "amount", 100.002, 0.0)
    answer = score(gathering, "velocity", 100.002, 0.3)
    assert answer is not None
    assert (answer.missing, answer.risk) == ((), 0.3)


def test_scores_that_come_before_their_transaction_wait_for_it(gathering: Gathering, tally: Tally) -> None:
    for analyser in ANALYSERS:
        assert score(gathering, analyser, 100.003) is None
    assert gathering.next_cut is None
    answer = gathering.add_transaction("t1", arrived=100.0, now=100.006)
    assert answer is not None
    assert (answer.revision, answer.missing) == (1, ())
    assert tally.seen["amount"].quantile(0.5) == pytest.approx(0.003, rel=0.02)
    assert tally.written["amount"].quantile(0.5) == pytest.approx(0.002, rel=0.02)


def test_what_comes_again_changes_nothing_and_is_counted(gathering: Gathering, tally: Tally) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    assert gathering.add_transaction("t1", arrived=100.0, now=100.002) is None
    score(gathering, "amount", 100.003, 0.2)
    assert score(gathering, "amount", 100.004, 0.7) is None
    score(gathering, "place", 100.004)
    answer = score(gathering, "velocity", 100.005)
    assert answer is not None
    assert answer.scores["amount"] == 0.2
    assert score(gathering, "velocity", 100.006) is None
    assert gathering.add_transaction("t1", arrived=100.0, now=100.007) is None
    assert tally.repeated == {"transaction": 2, "score": 2}
    assert tally.transactions == tally.answers.total() == 1
    assert gathering.cut(100.1) == []


def test_a_transaction_that_is_read_too_late_is_answered_at_once_and_counted_as_missed(
    gathering: Gathering, tally: Tally
) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.3)
    (answer,) = gathering.cut(100.3)
    assert answer.is_partial
    assert tally.missed == 1


def test_a_stamp_ahead_of_the_clock_gives_no_more_time(gathering: Gathering) -> None:
    gathering.add_transaction("t1", arrived=105.0, now=100.0)
    assert gathering.next_cut == pytest.approx(100.018)


def test_cuts_come_in_the_order_of_their_deadlines(gathering: Gathering) -> None:
    gathering.add_transaction("late", arrived=100.010, now=100.011)
    gathering.add_transaction("early", arrived=100.000, now=100.012)
    assert [answer.id for answer in gathering.cut(100.019)] == ["early"]
    assert [answer.id for answer in gathering.cut(100.029)] == ["late"]


def test_transactions_are_forgotten_after_a_while_and_counted_by_what_they_lacked(
    gathering: Gathering, tally: Tally
) -> None:
    for id in ("full", "partial"):
        gathering.add_transaction(id, arrived=100.0, now=100.0)
    for analyser in ANALYSERS:
        score(gathering, analyser, 100.001, id="full")
    score(gathering, "amount", 100.001, id="nobody's")
    gathering.cut(100.018)
    assert len(gathering) == tally.held == 3
    gathering.cut(104.9)
    assert len(gathering) == 3
    gathering.cut(105.1)
    assert len(gathering) == tally.held == 0
    assert tally.forgotten == {"full": 1, "partial": 1, "unknown": 1}
    assert score(gathering, "velocity", 106.0, id="partial") is None, "nobody remembers what it belongs to"


def test_no_more_are_held_than_may_be(gathering: Gathering, tally: Tally) -> None:
    for number in range(250):
        gathering.add_transaction(str(number), arrived=100.0, now=100.0)
    assert len(gathering) == 100
    assert tally.forgotten == {"unanswered": 150}
    assert tally.missed == 150, "what is never answered is not in time"
    assert len(gathering.cut(101.0)) == 100


@pytest.mark.parametrize("deadline", [0.0005, 0.001, 0.020, 60.0, 180.0, 86_400.0])
def test_a_transaction_of_any_deadline_has_time_before_it_is_answered_and_is_answered_before_it_is_forgotten(
    deadline: float,
) -> None:
    tally = Tally(ANALYSERS)
    gathering = Gathering(ANALYSERS, Limits.of(deadline), tally)
    score(gathering, "amount", 100.0)
    arrived = 100.0 + 0.9 * Limits.of(deadline).kept  # a score may come long before its transaction
    gathering.add_transaction("t1", arrived=arrived, now=arrived)
    assert gathering.cut(arrived + 0.5 * deadline) == []
    assert gathering.next_cut is not None
    (answer,) = gathering.cut(gathering.next_cut)
    assert answer.missing == ("velocity", "place")
    assert (tally.missed, tally.forgotten) == (0, {})


def test_a_common_deadline_has_the_limits_of_always() -> None:
    assert Limits.of(0.020) == Limits()


@given(
    arrived=st.lists(st.sampled_from(["a", "b", "c"]), max_size=6),
    scored=st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(ANALYSERS)), max_size=30),
    rng=st.randoms(use_true_random=False),
)
def test_whatever_the_order_each_transaction_ends_with_all_scores_that_came(
    arrived: list[str], scored: list[tuple[str, str]], rng: object
) -> None:
    import random

    assert isinstance(rng, random.Random)
    tally = Tally(ANALYSERS)
    gathering = Gathering(ANALYSERS, LIMITS, tally)
    steps: list[tuple[str, str | None]] = [*((id, None) for id in arrived), *scored]
    rng.shuffle(steps)
    answers: list[Answer] = []
    now = 100.0
    for id, analyser in steps:
        now += rng.choice([0.0, 0.001, 0.030])
        if analyser is None:
            found = gathering.add_transaction(id, arrived=now, now=now)
        else:
            found = gathering.add_score(id, analyser, 0.1, written=now, now=now)
        answers += [found] if found else []
        answers += gathering.cut(now)
    answers += gathering.cut(now + 0.020)
    assert {answer.id for answer in answers} == {*arrived}
    for id in {*arrived}:
        mine = [answer for answer in answers if answer.id == id]
        came = {analyser for other, analyser in scored if other == id}
        assert [answer.revision for answer in mine] == [1, 2][: len(mine)]
        assert [answer.is_partial for answer in mine[:-1]] == [True] * (len(mine) - 1)
        assert mine[-1].is_partial == (came != {*ANALYSERS})
        if not mine[-1].is_partial:
            assert {*mine[-1].scores} == came
    assert tally.answers.total() == tally.transactions == len({*arrived})


def test_every_figure_is_declared_with_its_labels(gathering: Gathering, tally: Tally) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.0)
    score(gathering, "amount", 100.001)
    score(gathering, "amount", 100.001)
    gathering.cut(100.018)
    gathering.cut(200.0)
    tally.unreadable["scores"] += 1
    declared = {metric.name: metric for metric in METRICS}
    figures = tally.figures()
    assert {figure.name for figure in figures} == {*declared} - {"lockgate_presenter_full_answer_seconds"}
    assert all(len(figure.labels) == len(declared[figure.name].labels) for figure in figures)
    assert tally.facts()["partial_share"] == 1.0
    assert tally.facts()["score_seen"]["amount"]["count"] == 1
