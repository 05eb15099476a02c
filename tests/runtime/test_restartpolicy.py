"""A query restarts only if a restart can help, and not forever."""

import pytest

from lockgate.errors import EpochFailed, FunctionFailed
from lockgate.runtime.restartpolicy import POISON_EVENTS_MAX, RESTARTS_MAX, RestartPolicy

PASSING = EpochFailed("no decision", where="job 'j'", fix="wait")
FINAL = FunctionFailed("a function failed", where="step 'map'", fix="fix it")


def test_a_failure_that_may_pass_is_repeated_a_few_times_in_a_row() -> None:
    policy = RestartPolicy()
    assert [policy.spend(PASSING, poison_event_count=0) for _ in range(RESTARTS_MAX + 1)] == [True] * RESTARTS_MAX + [
        False
    ]
    policy.renew()
    assert policy.spend(PASSING, poison_event_count=0)


@pytest.mark.parametrize("error", [FINAL, OSError("disk")])
def test_another_failure_ends_the_run_at_once(error: Exception) -> None:
    assert not RestartPolicy().spend(error, poison_event_count=0)


def test_each_event_that_kills_its_worker_is_worth_a_restart_until_there_are_too_many() -> None:
    policy = RestartPolicy()
    killed = OSError("a Python worker exited")
    assert all(policy.spend(killed, poison_event_count=count) for count in range(1, POISON_EVENTS_MAX + 1))
    assert not policy.spend(killed, poison_event_count=POISON_EVENTS_MAX)  # no new one
    assert not policy.spend(killed, poison_event_count=POISON_EVENTS_MAX + 1)
    assert not RestartPolicy().spend(FINAL, poison_event_count=1)
