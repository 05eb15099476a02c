from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from pathlib import Path

import pytest

from lockgate import pattern
from lockgate.errors import BadJob

HOT = pattern.begin("hot", "temperature > 60")
ALARM = HOT.then("smoke", "smoke = true").within(timedelta(minutes=10))


def test_a_pattern_is_what_was_written() -> None:
    whole = (
        pattern.begin("first", "a = 1")
        .times(2, 4)
        .next("second", "a = 2")
        .optional()
        .not_followed_by("never", "a = 0")
        .then("last", "a = 3")
        .within("1 hour")
        .after_match(pattern.Skip.TO_NEXT)
    )
    assert whole.stages == (
        pattern.Stage("first", is_repeated=True, at_least=2, at_most=4),
        pattern.Stage("second", is_strict=True, is_optional=True),
        pattern.Stage("never", is_negated=True),
        pattern.Stage("last"),
    )
    assert whole.conditions == ("a = 1", "a = 2", "a = 0", "a = 3")
    assert whole.bound == timedelta(hours=1)
    assert whole.skip is pattern.Skip.TO_NEXT
    assert pattern.checked(whole) is whole


def test_one_alarm_and_not_one_for_every_hot_event_unless_it_is_asked_for() -> None:
    assert ALARM.skip is pattern.Skip.PAST_LAST


def test_each_call_returns_a_new_pattern_and_leaves_the_old_one() -> None:
    longer = HOT.then("smoke", "smoke").times(2)
    assert [stage.name for stage in HOT.stages] == ["hot"]
    assert longer.within("1 minute").bound is not None
    assert longer.bound is None
    with pytest.raises(FrozenInstanceError):
        HOT.bound = timedelta(minutes=1)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("described", "text"),
    [
        (ALARM, "hot, then smoke, within 10 minutes"),
        (HOT.times(3).next("smoke", "smoke"), "hot 3 times, next smoke"),
        (
            HOT.times(1, 3).then("smoke", "smoke").optional().not_followed_by("reset", "reset").within("90 seconds"),
            "hot 1 to 3 times, then smoke (optional), not reset, within 90 seconds",
        ),
    ],
)
def test_a_pattern_reads_as_people_say_it(described: pattern.Pattern, text: str) -> None:
    assert str(described) == text


def test_what_an_event_fits_is_one_number_in_sql() -> None:
    assert ALARM.fits == "if(temperature > 60, 1L, 0L) + if(smoke = true, 2L, 0L)"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: pattern.begin("", "a"), "'' is no name for a stage"),
        (lambda: pattern.begin("too hot", "a"), "'too hot' is no name for a stage"),
        (lambda: pattern.begin("2nd", "a"), "'2nd' is no name for a stage"),
        (lambda: pattern.begin("__hot", "a"), "'__hot' is no name for a stage"),
        (lambda: pattern.begin("Match_Start", "a"), "'Match_Start' is no name for a stage"),
        (lambda: pattern.begin(None, "a"), "None is no name for a stage"),  # type: ignore[arg-type]
        (lambda: pattern.begin("hot", " "), "the condition of stage 'hot' is SQL"),
        (lambda: pattern.begin("hot", True), "the condition of stage 'hot' is SQL"),  # type: ignore[arg-type]
        (lambda: HOT.then("HOT", "a"), "two stages of a pattern are called 'HOT'"),
        (lambda: HOT.not_followed_by("hot", "a"), "two stages of a pattern are called 'hot'"),
        (lambda: HOT.times(0), "times takes a whole number of at least one"),
        (lambda: HOT.times(-1), "times takes a whole number of at least one"),
        (lambda: HOT.times(3, 2), "not 3 and 2"),
        (lambda: HOT.times(1.5), "not 1.5"),  # type: ignore[arg-type]
        (lambda: HOT.times(True), "not True"),
        (lambda: HOT.not_followed_by("no", "a").times(2), "stage 'no' is an event that must not come"),
        (lambda: HOT.not_followed_by("no", "a").optional(), "stage 'no' is an event that must not come"),
        (lambda: HOT.optional().not_followed_by("no", "a"), "nothing has to come before 'no'"),
        (lambda: HOT.within("-1 minute"), "the bound of a pattern must be more than zero"),
        (lambda: HOT.within(timedelta(0)), "the bound of a pattern must be more than zero"),
        (lambda: HOT.within(10), "the bound of a pattern is not a duration: 10"),  # type: ignore[arg-type]
        (lambda: HOT.after_match("past last"), "after_match takes a Skip"),  # type: ignore[arg-type]
        (lambda: pattern.checked(pattern), "detect takes a pattern, not <module"),
        (lambda: pattern.checked(pattern.Pattern((), ())), "detect takes a pattern"),
        (lambda: pattern.checked(HOT.optional().within("1 hour")), "ends in 'hot', which is optional"),
        (
            lambda: pattern.checked(HOT.times(2, 3).within("1 hour")),
            "ends in 'hot', 2 to 3 times: it matches when 2 have come",
        ),
        (lambda: pattern.checked(HOT.not_followed_by("no", "a")), "ends with no 'no', but does not say for how long"),
        (lambda: pattern.checked(HOT.then("smoke", "a")), "its partial matches would be kept forever"),
        (lambda: pattern.checked(HOT.times(2)), "its partial matches would be kept forever"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused_at_its_line(make: Callable[[], object], what: str) -> None:
    with pytest.raises(BadJob) as refused:
        make()
    assert what in refused.value.what
    line = int(refused.value.where.removeprefix(f"declared at {Path(__file__).name}:"))
    assert 0 <= line - make.__code__.co_firstlineno <= 1
    assert refused.value.fix


@pytest.mark.parametrize(
    "described",
    [
        HOT,
        HOT.next("smoke", "smoke").times(3),
        HOT.next("open", "open").optional().next("smoke", "smoke"),
        HOT.then("open", "open").times(1, 3).not_followed_by("reset", "reset").within("1 hour"),
        HOT.then("open", "open").optional().not_followed_by("reset", "reset").within("1 hour"),
    ],
)
def test_a_pattern_is_whole_if_it_can_match_and_has_an_end_to_what_it_waits_for(described: pattern.Pattern) -> None:
    assert pattern.checked(described) is described


def test_the_stages_of_an_event_have_to_fit_into_one_number() -> None:
    many = HOT
    for number in range(61):
        many = many.next(f"s{number}", "a")
    with pytest.raises(BadJob, match="at most 62 stages"):
        many.next("one_more", "a")
