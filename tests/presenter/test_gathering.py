"""What is answered when: full as soon as all scores are there, partial at the cut, the full one in its place later."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.presenter.answers import Answer, Answers
from lockgate.presenter.figures import METRICS, Tally
from lockgate.presenter.gathering import Gathering, Limits
from lockgate.runtime.metrics.figures import Figure

ANALYSERS = ("amount", "velocity", "place")
LIMITS = Limits(deadline=0.020, margin=0.002, pause=0.010, kept=5.0, held_max=100)


@pytest.fixture
def tally() -> Tally:
    return Tally(ANALYSERS)


@pytest.fixture
def answers() -> Answers:
    return Answers(LIMITS.held_max)


@pytest.fixture
def gathering(tally: Tally, answers: Answers) -> Gathering:
    return Gathering(ANALYSERS, LIMITS, tally, answers)


def shown(answers: Answers, id: str = "t1") -> Answer:
    """What is told to whoever asks."""
    found = answers.get(id, seconds=0.0, is_under_way=lambda _: False)
    assert found is not None
    return found


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
    assert (tally.answers["full"], tally.answers["partial"], tally.replaced) == (1, 0, 0)


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
    assert tally.missing == {"amount": 1, "velocity": 1}
    assert tally.partial_share == 1.0


def test_a_later_full_answer_replaces_the_partial_one(gathering: Gathering, tally: Tally) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    score(gathering, "place", 100.005, 0.9)
    gathering.cut(100.018)
    assert score(gathering, "amount", 100.040) is None, "one of two that are missing is not published at once"
    answer = score(gathering, "velocity", 100.041)
    assert answer is not None
    assert (answer.revision, answer.missing, answer.is_partial) == (3, (), False)
    assert gathering.cut(101.0) == [], "the full answer is the last one"
    assert (tally.answers["partial"], tally.answers["full"], tally.replaced, tally.revised) == (1, 0, 1, 0)


# -- scores behind the first answer, while another analyser is dead ---------------------------------------------------


def test_a_late_score_is_shown_at_once(gathering: Gathering, answers: Answers) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    score(gathering, "place", 100.005, 0.0)
    gathering.cut(100.018)
    assert (shown(answers).revision, shown(answers).risk) == (1, 0.0)
    score(gathering, "amount", 100.030, 1.0)
    assert (shown(answers).revision, shown(answers).risk, shown(answers).missing) == (2, 1.0, ("velocity",))
    assert shown(answers).answered == 100.030


def test_a_late_score_that_changes_the_risk_is_published_a_pause_later(
    gathering: Gathering, tally: Tally, answers: Answers
) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    score(gathering, "place", 100.005, 0.0)
    gathering.cut(100.018)
    score(gathering, "amount", 100.030, 1.0)
    assert gathering.cut(100.039) == []
    (revised,) = gathering.cut(100.0401)
    assert (revised.revision, revised.is_partial, revised.risk, revised.missing) == (2, True, 1.0, ("velocity",))
    assert revised == shown(answers), "what is asked for and what is read have the same revision"
    assert gathering.cut(101.0) == [], "once"
    assert (tally.revised, tally.replaced, tally.answers.total()) == (1, 0, 1)
    full = score(gathering, "velocity", 102.0, 0.2)
    assert full is not None
    assert (full.revision, full.is_partial, tally.replaced) == (3, False, 1)


def test_late_scores_that_come_together_are_published_once(tally: Tally) -> None:
    gathering = Gathering((*ANALYSERS, "dead"), LIMITS, tally, Answers(100))
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    gathering.cut(100.018)
    for late, analyser in enumerate(ANALYSERS):
        score(gathering, analyser, 100.030 + late / 1000, late / 10)
    (revised,) = gathering.cut(100.041)
    assert (revised.revision, revised.risk, revised.missing) == (4, 0.2, ("dead",))


def test_a_risk_that_changes_again_is_published_again(tally: Tally) -> None:
    gathering = Gathering((*ANALYSERS, "dead"), LIMITS, tally, Answers(100))
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    gathering.cut(100.018)
    risks = []
    for second, (analyser, value) in enumerate(zip(ANALYSERS, (0.1, 0.1, 0.7), strict=True)):
        score(gathering, analyser, 101.0 + second, value)
        risks += [answer.risk for answer in gathering.cut(101.5 + second)]
    assert risks == [0.1, 0.7]


def test_a_late_score_that_changes_no_risk_is_published_when_the_transaction_is_forgotten(
    gathering: Gathering, tally: Tally
) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    score(gathering, "place", 100.005, 0.9)
    gathering.cut(100.018)
    score(gathering, "amount", 100.030, 0.1)
    assert gathering.cut(104.9) == []
    (last,) = gathering.cut(105.1)
    assert (last.revision, last.scores, last.is_partial) == (2, {"place": 0.9, "amount": 0.1}, True)
    assert tally.forgotten == {"partial": 1}
    assert gathering.cut(110.0) == []


def test_a_changed_risk_is_published_before_it_has_to_make_room(gathering: Gathering) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    gathering.cut(100.018)
    score(gathering, "amount", 100.030, 1.0)
    for number in range(LIMITS.held_max):
        gathering.add_transaction(str(number), arrived=100.030, now=100.030)
    (last,) = gathering.cut(100.0301)
    assert (last.id, last.risk) == ("t1", 1.0)
    assert "t1" not in {answer.id for answer in gathering.cut(100.045)}


# -- the end ----------------------------------------------------------------------------------------------------------


def test_at_the_end_everything_that_came_is_published(gathering: Gathering, tally: Tally) -> None:
    for id in ("full", "revised", "late", "new"):
        gathering.add_transaction(id, arrived=100.0 if id != "new" else 100.030, now=100.031)
    for analyser in ANALYSERS:
        score(gathering, analyser, 100.031, id="full")
    score(gathering, "amount", 100.031, id="nobody's")
    assert {answer.id for answer in gathering.cut(100.031)} == {"revised", "late"}
    score(gathering, "amount", 100.032, 0.7, id="late")
    score(gathering, "place", 100.032, 0.4, id="new")
    told = {answer.id: answer for answer in gathering.finish(100.033)}
    assert {id: answer.scores for id, answer in told.items()} == {"late": {"amount": 0.7}, "new": {"place": 0.4}}
    assert tally.transactions == tally.answers.total() == 4
    assert gathering.finish(100.034) == []


# -- how long answers took --------------------------------------------------------------------------------------------


def test_an_answer_is_late_where_it_is_written_late_and_not_where_it_is_decided_late(
    gathering: Gathering, tally: Tally
) -> None:
    # Between these stamps lie 20 ms, and 20.0002 ms between the numbers.
    arrived = 1_794_938_357.008
    for id in ("in time", "late"):
        gathering.add_transaction(id, arrived=arrived, now=arrived + 0.001)
    in_time, late = gathering.cut(arrived + 0.0181)
    assert (tally.missed, tally.first.count) == (0, 0), "nothing is written yet"
    gathering.note_written(in_time, 1_794_938_357.028)
    assert tally.missed == 0
    gathering.note_written(late, 1_794_938_357.029)
    assert tally.missed == 1
    assert tally.first.quantile(1.0) == pytest.approx(0.021, rel=0.02)
    assert tally.decided.quantile(1.0) == pytest.approx(0.018, rel=0.02)
    assert tally.missed_share == 0.5


def test_only_the_first_answer_can_miss_the_deadline(gathering: Gathering, tally: Tally) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    (first,) = gathering.cut(100.018)
    gathering.note_written(first, 100.019)
    score(gathering, "amount", 100.030)
    score(gathering, "place", 100.030)
    full = score(gathering, "velocity", 100.050)
    assert full is not None
    gathering.note_written(full, 100.060)
    assert (tally.missed, tally.first.count, tally.full.count) == (0, 1, 1)
    assert tally.full.quantile(0.5) == pytest.approx(0.060, rel=0.02)


def test_an_answer_that_is_never_written_is_a_missed_deadline(gathering: Gathering, tally: Tally) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    (first,) = gathering.cut(100.018)
    gathering.note_lost(first)
    assert (tally.missed, tally.first.count) == (1, 0)


# -- what else may come -----------------------------------------------------------------------------------------------


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
    gathering.note_written(answer, 100.301)
    assert tally.missed == 1


def test_stamps_of_one_clock_are_not_mixed_with_another(gathering: Gathering, tally: Tally) -> None:
    """The broker's clock is 30 ms ahead: it has the answer 6 ms behind the transaction."""
    gathering.add_transaction("t1", arrived=100.030, now=100.001)
    for analyser in ANALYSERS:
        answer = gathering.add_score("t1", analyser, 0.5, written=100.035, now=100.006)
    assert answer is not None
    gathering.note_written(answer, 100.036)
    assert tally.missed == 0
    assert tally.facts()["answer"]["ms_p50"] == pytest.approx(6, rel=0.02)


def test_a_changed_risk_is_not_waited_for_longer_than_its_pause(gathering: Gathering) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    gathering.cut(100.018)
    assert gathering.next_cut is None
    score(gathering, "amount", 100.030, 1.0)
    assert gathering.next_cut == pytest.approx(100.030 + LIMITS.pause)


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


def test_no_more_transactions_are_held_than_allowed_and_the_removed_one_is_answered_first(
    gathering: Gathering, tally: Tally
) -> None:
    for number in range(250):
        gathering.add_transaction(str(number), arrived=100.0, now=100.0)
    assert len(gathering) == 100
    assert tally.forgotten == {"partial": 150}
    assert [answer.id for answer in gathering.cut(100.001)] == [str(number) for number in range(150)]
    assert [answer.id for answer in gathering.cut(101.0)] == [str(number) for number in range(150, 250)]
    assert tally.answers.total() == tally.transactions == 250


def test_cuts_are_no_more_than_twice_what_may_be_held(gathering: Gathering) -> None:
    for number in range(5_000):
        gathering.add_transaction(str(number), arrived=100.0, now=100.0)
    assert len(gathering._cuts) <= 2 * LIMITS.held_max


def test_one_that_made_room_and_came_again_has_its_own_time(tally: Tally) -> None:
    gathering = Gathering(ANALYSERS, LIMITS, tally, Answers(1))  # its answer is forgotten, too
    gathering.add_transaction("t1", arrived=100.0, now=100.0)
    for number in range(LIMITS.held_max + 1):
        gathering.add_transaction(str(number), arrived=100.010, now=100.010)
    assert [answer.id for answer in gathering.cut(100.011)] == ["t1", "0"]
    gathering.add_transaction("t1", arrived=100.012, now=100.012)
    assert "t1" not in {answer.id for answer in gathering.cut(100.019)}
    assert "t1" in {answer.id for answer in gathering.cut(100.031)}


def test_it_is_under_way_from_its_arrival_to_its_first_answer(gathering: Gathering) -> None:
    score(gathering, "amount", 100.0)
    assert not gathering.is_under_way("t1"), "nobody knows whether it will come"
    gathering.add_transaction("t1", arrived=100.0, now=100.001)
    assert gathering.is_under_way("t1")
    gathering.cut(100.018)
    assert not gathering.is_under_way("t1")


def test_one_that_comes_again_after_it_was_forgotten_does_not_replace_a_risk_by_nothing(
    gathering: Gathering, tally: Tally, answers: Answers
) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.0)
    score(gathering, "amount", 100.001, 0.9)
    gathering.cut(100.020)
    gathering.cut(300.0)
    assert tally.forgotten == {"partial": 1}
    assert gathering.add_transaction("t1", arrived=300.0, now=300.001) is None
    assert gathering.cut(301.0) == []
    assert shown(answers).risk == 0.9


@pytest.mark.parametrize("is_score_first", [False, True])
def test_one_that_comes_again_after_it_was_forgotten_does_not_replace_its_full_answer(
    is_score_first: bool, gathering: Gathering, tally: Tally, answers: Answers
) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.0)
    for analyser in ANALYSERS:
        score(gathering, analyser, 100.001)
    gathering.cut(200.0)
    assert tally.forgotten == {"full": 1}
    if is_score_first:
        score(gathering, "amount", 200.0)
    assert gathering.add_transaction("t1", arrived=200.0, now=200.001) is None
    assert gathering.cut(201.0) == []
    assert not shown(answers).is_partial
    assert (tally.repeated, tally.transactions, tally.held) == ({"transaction": 1}, 1, 0)


@pytest.mark.parametrize("deadline", [0.0005, 0.001, 0.020, 60.0, 180.0, 86_400.0])
def test_a_transaction_of_any_deadline_has_time_before_it_is_answered_and_is_answered_before_it_is_forgotten(
    deadline: float,
) -> None:
    tally = Tally(ANALYSERS)
    gathering = Gathering(ANALYSERS, Limits.of(deadline), tally, Answers(100))
    score(gathering, "amount", 100.0)
    arrived = 100.0 + 0.9 * Limits.of(deadline).kept  # a score may come long before its transaction
    gathering.add_transaction("t1", arrived=arrived, now=arrived)
    assert gathering.cut(arrived + 0.5 * deadline) == []
    assert gathering.next_cut is not None
    (answer,) = gathering.cut(gathering.next_cut)
    assert answer.missing == ("velocity", "place")
    assert tally.forgotten == {}


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
    tally, newest = Tally(ANALYSERS), Answers(100)
    gathering = Gathering(ANALYSERS, LIMITS, tally, newest)
    steps: list[tuple[str, str | None]] = [*((id, None) for id in arrived), *scored]
    rng.shuffle(steps)
    answers: list[Answer] = []
    now = 100.0
    for id, analyser in steps:
        now += rng.choice([0.0, 0.001, 0.030])
        if analyser is None:
            found = gathering.add_transaction(id, arrived=now, now=now)
        else:
            found = gathering.add_score(id, analyser, rng.choice([None, 0.1, 0.5]), written=now, now=now)
        answers += [found] if found else []
        answers += gathering.cut(now)
    answers += gathering.finish(now)
    assert {answer.id for answer in answers} == {*arrived}
    for id in {*arrived}:
        mine = [answer for answer in answers if answer.id == id]
        came = {analyser for other, analyser in scored if other == id}
        assert mine[0].revision == 1
        for before, after in itertools.pairwise(mine):
            assert before.is_partial
            assert after.revision - before.revision == len(after.scores) - len(before.scores) > 0
        assert {*mine[-1].scores} == came
        assert mine[-1] == shown(newest, id)
    assert tally.answers.total() == tally.transactions == len({*arrived})


def test_every_figure_is_declared_with_its_labels(gathering: Gathering, tally: Tally) -> None:
    gathering.add_transaction("t1", arrived=100.0, now=100.0)
    score(gathering, "amount", 100.001)
    score(gathering, "amount", 100.001)
    for answer in gathering.cut(100.018):
        gathering.note_written(answer, 100.019)
    gathering.cut(200.0)
    tally.unreadable["scores"] += 1
    tally.note_question(True, 0.001)
    declared = {metric.name: metric for metric in METRICS}
    figures = tally.figures()
    assert {figure.name for figure in figures} == {*declared} - {"lockgate_presenter_full_answer_seconds"}
    assert all(len(figure.labels) == len(declared[figure.name].labels) for figure in figures)
    assert tally.facts()["partial_share"] == 1.0
    assert tally.facts()["score_seen"]["amount"]["count"] == 1


def test_figures_are_served_while_another_thread_counts(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = (tally.repeated, tally.unreadable, tally.forgotten)

    def figure(name: str, value: float, labels: tuple[str, ...] = ()) -> Figure:
        for count in counts:
            count[f"new-{len(count)}"] += 1  # as the other thread would, between one figure and the next
        return Figure(name, value, labels)

    for count in counts:
        count.update("ab")
    monkeypatch.setattr("lockgate.presenter.figures.Figure", figure)
    assert {"a", "b"} <= {figure.labels[0] for figure in tally.figures() if figure.labels}
