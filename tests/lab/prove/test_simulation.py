"""The commit protocol under thousands of schedules, its mutants, and the schedules that were kept."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockgate.connectors.kafka.ledgertopic import LedgerTopic
from lockgate.connectors.kafka.wire import Producer
from lockgate.lab.prove.simulation.connection import ModelLedger
from lockgate.lab.prove.simulation.journal import Journal, Left, NotRepeatable
from lockgate.lab.prove.simulation.mutants import MUTANTS, mutated
from lockgate.lab.prove.simulation.runs import live, live_on_all_cores, time_line
from lockgate.lab.prove.simulation.schedule import Fault, draw

SCHEDULES = 10_000
KEPT = Path(__file__).with_name("seeds.json")

BROKEN_AS = {
    "fencing": "is visible",
    "claim": "another one had taken over",
    "ledger": "visible twice",
    "stable-offset": "the ledger goes from|visible twice",
    "permits": "is visible",
    "tail": "the ledger goes from",
}
"""What each mutant has to be found by: not any trouble that it makes, but what its law is there to keep."""


@pytest.mark.parametrize("schedules", [500, pytest.param(SCHEDULES, marks=pytest.mark.slow)])
def test_the_protocol_holds_in_all_schedules(schedules: int) -> None:
    lived = list(live_on_all_cores(range(schedules), mutant=None, processes=os.cpu_count() or 1))
    failure = lived[-1].failure
    assert failure is None, f"{failure}; lockgate simulate --seed {failure.seed} --schedules 1"
    assert sum(one.schedules for one in lived) == schedules


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_simulation_misses_the_law_of(mutant: str) -> None:
    seed = 0
    while seed < SCHEDULES:
        failure = live(range(seed, SCHEDULES), mutant=mutant).failure
        assert failure is not None, f"{SCHEDULES} schedules do not miss {mutant}"
        if re.search(BROKEN_AS[mutant], failure.told):
            return
        seed = failure.seed + 1
    pytest.fail(f"{SCHEDULES} schedules do not miss {mutant} by what it is there for")


def kept() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("one", kept(), ids=lambda one: f"{one['mutant']}-{one['seed']}")
def test_a_schedule_that_was_kept_ends_as_it_did(one: dict[str, object]) -> None:
    """With the law switched off it breaks in the same way, with the law it holds: of what was mended, too."""
    seed, mutant = one["seed"], one["mutant"]
    assert isinstance(seed, int)
    if mutant is not None:
        assert isinstance(mutant, str)
        assert time_line(seed, mutant=mutant)[1] == one["broken"]
    assert time_line(seed)[1] is None


def test_every_mutant_has_a_schedule_that_was_kept() -> None:
    assert {one["mutant"] for one in kept()} >= set(MUTANTS)


def test_a_seed_gives_the_same_schedule_in_every_process_with_or_without_a_time_line() -> None:
    code = (
        "import hashlib; from lockgate.lab.prove.simulation.runs import live, time_line;"
        "told = repr([time_line(seed) for seed in range(60)]);"
        "print(hashlib.sha256(told.encode()).hexdigest(), live(range(60)).steps)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2", "3")
    }
    (once,) = found
    steps = [int(time_line(seed)[0][-1].split()[0]) for seed in range(60)]
    assert sum(steps) <= int(once.split()[1]), "a time line ends before its schedule does"
    assert len(set(steps)) > 20, "schedules differ"


def test_a_mutant_is_gone_when_it_is_left() -> None:
    for mutant in MUTANTS:
        with mutated(mutant):
            pass
    assert live(range(50)).failure is None


def test_schedules_reach_what_they_are_made_for() -> None:
    """Faults that never happen, and answers that never come, would prove nothing."""
    text = "\n".join(line for seed in range(400) for line in time_line(seed)[0])
    for wanted in (
        "is gone",
        "lost",
        "the reply is lost",
        "delayed",
        "the network            brings",
        "again, of",
        "stands still before",
        "gives up a transaction that timed out",
        "the broker             restarts",
        "takes attempt",
        "does not know that it was deposed",
        "no permit: the try that this task belongs to is over",
        "no permit: task",
        "is held by task",
        "stops: Fenced",
        "stops: LedgerMismatch",
        "stops: ConcurrentUpdate",
        "stops: EpochTooLong",
        "fails: the ledger was read up to",
        "fails: ",
        "begin: CONCURRENT_TRANSACTIONS",
        "PRODUCER_FENCED",
        "INVALID_PRODUCER_EPOCH",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "TRANSACTION_ABORTABLE",
        "the storm              is over",
    ):
        assert wanted in text, wanted
    assert {fault for seed in range(400) for fault in draw(seed)[0].faults} == set(Fault)


def test_the_quick_encoder_gives_the_bytes_of_the_real_one() -> None:
    for value in (b"", b"{}", b"x" * 63, b"x" * 64, b"x" * 9000):
        facts = (value, Producer(7, 3))
        quick = ModelLedger._encode(None, *facts, now_ms=1234567890123)  # type: ignore[arg-type]
        assert quick == LedgerTopic._encode(None, *facts, now_ms=1234567890123)  # type: ignore[arg-type]


def test_code_that_is_run_again_has_the_answers_that_it_had() -> None:
    clock = iter(range(100))
    journal = Journal(lambda: float(next(clock)))
    effects: list[str] = []

    def fail() -> None:
        effects.append("fail")
        raise ValueError("no")

    def leave() -> None:
        raise Left

    def code(last: object) -> None:
        assert journal.once("first", lambda: effects.append("first") or 1) == 1  # type: ignore[func-returns-value]
        with pytest.raises(ValueError, match="no"):
            journal.once("second", fail)
        times.append(journal.now)
        try:
            journal.once("third", last)  # type: ignore[arg-type]
        finally:
            journal.once("clean up", lambda: effects.append("clean up"))

    times: list[float] = []
    journal.begin()
    with pytest.raises(Left):
        code(leave)
    assert effects == ["first", "fail"], "what is left cleans nothing up"
    journal.rewind()
    code(lambda: effects.append("third"))
    assert effects == ["first", "fail", "third", "clean up"]
    assert times[0] == times[1]


def test_code_that_asks_for_something_else_when_it_is_run_again_is_caught() -> None:
    journal = Journal(lambda: 0.0)
    journal.begin()
    journal.once("one", lambda: 1)
    journal.rewind()
    with pytest.raises(NotRepeatable, match="two, and before that one"):
        journal.once("two", lambda: 2)
