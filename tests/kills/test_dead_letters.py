"""Letters and acknowledgement while processes die: every event ends once, as a result or as a letter."""

from collections.abc import Callable

from kills.kill_matrix import Case, cases
from kills.kill_trial import Result, require


@cases
def test_an_event_is_one_result_or_one_dead_letter_whichever_process_is_killed(
    case: Case, trial: Callable[..., Result]
) -> None:
    require(trial(case))


@cases
def test_acks_lose_no_event_whichever_process_is_killed(case: Case, trial: Callable[..., Result]) -> None:
    result = trial(case)
    assert result.holds, result
    assert not result.judged.count("foreign"), "a row that no event has, or an event that has used up its attempts"
