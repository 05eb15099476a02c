"""Jobs from Kafka to Kafka: at least 200 kills, over every point of the protocol and at any moment.

`make test-all` runs a seeded sample of them, `make prove-all` all; LOCKGATE_KILL_SEED chooses another sample.
"""

from collections.abc import Callable

import pytest

from kills.kill_matrix import DRIVER, TASK, Case, cases
from kills.kill_trial import Result, require
from lockgate.lab.rig.readers.topics import UNCOMMITTED, Topics

KILLS = 200
TRIALS = 18

# Written to the end of a job file: the driver does not believe its ledger, and writes every epoch that it gets.
DEAF = """

from lockgate.commit import protocol

protocol.decide = lambda entry, epoch, **more: protocol.Step.WRITE
"""


class Everything(Topics):
    """A reader that sees rows of open and of aborted transactions."""

    isolation = UNCOMMITTED


@cases
def test_processes_that_are_killed_or_stopped_lose_and_double_nothing(case: Case, trial: Callable[..., Result]) -> None:
    require(trial(case))


@cases
def test_a_protocol_that_does_not_ask_its_ledger_and_a_reader_that_sees_everything_are_caught(
    case: Case, trial: Callable[..., Result]
) -> None:
    found = trial(case, planted=DEAF, topics=Everything).judged
    assert found.count("duplicated")
    assert found.count("aborted seen")
    assert not found.count("lost")


@pytest.mark.prove
def test_all_these_kills_are_two_hundred_and_more_over_every_point(results: list[Result]) -> None:
    if len(results) < TRIALS:
        pytest.skip("only after all the others")
    assert sum(result.kills for result in results) >= KILLS
    hit = {point for result in results for _, point in result.judged.struck}
    assert not {*DRIVER, *TASK, "STATE_UPDATE"} - hit
    assert all(result.holds for result in results)
