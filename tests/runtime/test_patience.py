"""A query restarts only if a restart can help, and not forever."""

import pytest

from lockgate.errors import EpochFailed, FunctionFailed
from lockgate.runtime.patience import CULPRITS_MAX, RESTARTS_MAX, Patience

PASSING = EpochFailed("no decision", where="job 'j'", fix="wait")
FINAL = FunctionFailed("a function failed", where="step 'map'", fix="fix it")


def test_a_failure_that_may_pass_is_repeated_a_few_times_in_a_row() -> None:
    patience = Patience()
    assert [patience.spend(PASSING, culprits=0) for _ in range(RESTARTS_MAX + 1)] == [True] * RESTARTS_MAX + [False]
    patience.renew()
    assert patience.spend(PASSING, culprits=0)


@pytest.mark.parametrize("error", [FINAL, OSError("disk")])
def test_another_failure_ends_the_run_at_once(error: Exception) -> None:
    assert not Patience().spend(error, culprits=0)


def test_each_event_that_kills_its_worker_is_worth_a_restart_until_there_are_too_many() -> None:
    patience = Patience()
    killed = OSError("a Python worker exited")
    assert all(patience.spend(killed, culprits=count) for count in range(1, CULPRITS_MAX + 1))
    assert not patience.spend(killed, culprits=CULPRITS_MAX)  # no new one
    assert not patience.spend(killed, culprits=CULPRITS_MAX + 1)
    assert not Patience().spend(FINAL, culprits=1)
