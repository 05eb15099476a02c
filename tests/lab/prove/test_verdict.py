"""Holds, broken, unknown; the counterexample and the command that runs it again."""

import json
import shlex
from dataclasses import replace

import pytest

from lockgate.guarantees import Guarantee
from lockgate.lab.prove.settings import Settings
from lockgate.lab.prove.verdict import Check, Trial, Verdict, judge, unknown
from lockgate.lab.rig.history import (
    Committed,
    End,
    Fact,
    Fault,
    History,
    Position,
    Read,
    Reader,
    ReadToEnd,
    Sent,
    Standing,
    Start,
    Up,
)
from lockgate.lab.rig.judge.findings import Outcome
from lockgate.lab.rig.judge.promises import Promise, Row

HOLDS, BROKEN, UNKNOWN, NOT_PROMISED = Outcome.HOLDS, Outcome.BROKEN, Outcome.UNKNOWN, Outcome.NOT_PROMISED
STRIKE = ("kill driver", "AFTER_END")
SETTINGS = Settings(
    job="payments",
    guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    file="my jobs/payments.py",
    parameters={"servers": "host:9092"},
    options={"--events": "2000", "--generate": ""},
    workload="2,000 generated events",
    job_digest="abc",
    versions={"lockgate": "0.1.0"},
)
TRACE = (Position("in", 0, 4),)
PROMISES = {"out": Promise(Guarantee.END_TO_END_EXACTLY_ONCE, (Row(b"k", b"v", TRACE),), is_ordered=True)}


def read(reader: Reader, offset: int, at_seconds: float) -> Read:
    return Read(reader, "out", 0, offset, b"k", b"v", TRACE, 1, at_seconds)


def history(*offsets: int) -> History:
    facts: list[Fact] = [
        Start(0, 0.0),
        Up(0, 0.5),
        Sent("in", 0, 3, b"k", b"another", 0.9),
        Sent("in", 0, 4, b"k", b"event", 1.0),
        Fault("kill driver", "AFTER_END", "driver 0", 3.0, epoch=1),
        Start(1, 4.0),
        Up(1, 6.0),
        Committed(1, 0, (End("in", 0, 5),), 3.1),
        Standing("out", 0, 0, 9, 9, 10.0),
    ]
    for number, offset in enumerate(offsets):
        facts += [
            read(Reader.ALONG, offset, 7.0 + number),
            read(Reader.AFTER, offset, 9.0),
            read(Reader.LOG, offset, 9.0),
        ]
    return History((*facts, *(ReadToEnd(reader, 9.5) for reader in Reader)))


def judged(given: History) -> Trial:
    return judge(given, PROMISES, SETTINGS, seed=7, number=3, due=[STRIKE], seconds=12.0)


def trial(outcome: Outcome, number: int = 0, strike: tuple[str, str] = STRIKE, **counts: int) -> Trial:
    checks = {name: Check(NOT_PROMISED, count) for name, count in counts.items()}
    checks["order"] = Check(outcome, reason="so it is")
    return Trial(seed=1, number=number, due=(strike,), struck=(strike,), checks=checks, event_count=100)


def test_a_proof_ends_as_its_trials_do() -> None:
    assert Verdict(SETTINGS, (trial(HOLDS), trial(HOLDS, 1))).holds
    assert Verdict(SETTINGS, (trial(HOLDS), trial(NOT_PROMISED, 1))).outcome is UNKNOWN
    assert Verdict(SETTINGS, (trial(UNKNOWN), trial(BROKEN, 1))).outcome is BROKEN
    assert not Verdict(SETTINGS, ()).holds


def test_a_trial_in_which_nothing_but_the_trying_holds_is_unknown() -> None:
    checks = {"tried": Check(HOLDS), "recovery": Check(HOLDS), "lost": Check(NOT_PROMISED)}
    assert replace(trial(HOLDS), checks=checks).outcome is UNKNOWN


def test_a_clean_history_makes_a_trial_that_holds() -> None:
    found = judged(history(5))
    assert found.outcome is HOLDS
    assert found.counterexample is None
    assert (found.event_count, found.row_count, found.aborted_row_count) == (2, 1, 0)
    assert found.recoveries_seconds == (4.0,)
    assert found.struck == (STRIKE,)


def test_the_counterexample_of_a_doubled_row_shows_its_history() -> None:
    found = judged(history(5, 6))
    assert found.outcome is BROKEN
    assert found.counterexample is not None
    assert found.counterexample.checker == "duplicated"
    told = [(one.at_seconds, one.lane, one.text) for one in found.counterexample.moments]
    assert told == [
        (1.0, "event", "sent as in-0@4: event"),
        (3.0, "fault", "kill driver at AFTER_END (driver 0), in epoch 1"),
        (3.1, "epoch", "epoch 1 committed by driver 0"),
        (4.0, "driver", "driver 1 started"),
        (6.0, "driver", "driver 1 up"),
        (7.0, "reader", "read at out-0@5, of epoch 1: v"),
        (8.0, "reader", "read at out-0@6, of epoch 1: v"),
        (9.5, "reader", "in the end at out-0@5, out-0@6"),
    ]
    assert found.counterexample.replay in found.counterexample.lines()[-1]


def test_the_counterexample_of_a_lost_row_says_what_the_log_has() -> None:
    given = history()
    found = judged(History((*given.facts, read(Reader.LOG, 2, 9.0))))
    assert found.counterexample is not None
    assert found.aborted_row_count == 1
    texts = [one.text for one in found.counterexample.moments]
    assert texts[0] == "sent as in-0@4: event"
    assert texts[-2:] == ["in the log, not committed, at out-0@2", "in the end it is not there"]


def test_the_counterexample_of_an_open_transaction_names_the_partition() -> None:
    given = history(5)
    facts = (replace(one, open_transactions=1) if isinstance(one, Standing) else one for one in given.facts)
    found = judged(History(tuple(facts))).counterexample
    assert found is not None
    assert "out-0: 1 open transactions" in found.moments[-1].text
    assert [one.lane for one in found.moments].count("fault") == 1


def test_a_trial_is_replayed_with_its_settings() -> None:
    words = shlex.split(SETTINGS.replay(seed=7, number=3))
    assert words[:3] == ["lockgate", "prove", "my jobs/payments.py"]
    assert words[3:] == ["-p", "servers=host:9092", "--events", "2000", "--generate", "--seed", "7", "--trial", "3"]


def test_settings_are_known_by_what_they_say() -> None:
    assert Settings.of_json(json.loads(json.dumps(SETTINGS.as_json()))) == SETTINGS


def test_settings_and_the_commands_on_a_page_hold_no_password() -> None:
    parameters = {"dsn": "postgresql://ada:c4nary@db.example/orders", "password": "with blanks c4nary", "n": "1"}
    settings = replace(SETTINGS, parameters=parameters)
    shown = f"{settings.as_json()} {settings.replay(7, 3)} {settings.command(7, 10)}"
    assert "c4nary" not in shown
    assert "dsn=postgresql://ada:***@db.example/orders" in shown
    assert "-p n=1" in shown
    turned = replace(SETTINGS, options=dict(reversed([*SETTINGS.options.items()])), file="elsewhere/payments.py")
    assert turned.digest == SETTINGS.digest
    assert replace(SETTINGS, job_digest="abd").digest != SETTINGS.digest


@pytest.mark.parametrize("found", [judged(history(5, 6)), judged(history(5)), judged(history())])
def test_a_trial_comes_back_as_it_was(found: Trial) -> None:
    assert Trial.of_json(json.loads(json.dumps(found.as_json()))) == found


def test_a_trial_that_was_not_brought_to_its_end_is_unknown() -> None:
    found = unknown(seed=1, number=2, due=[STRIKE], reason="no broker", seconds=3.0)
    assert (found.outcome, found.reason) == (UNKNOWN, "no broker")
    assert Verdict(SETTINGS, (trial(HOLDS), found)).outcome is UNKNOWN


def test_the_table_counts_a_trial_at_each_of_its_points_and_the_totals_count_it_once() -> None:
    other = ("stop worker", "HALF")
    both = replace(trial(BROKEN, 1, lost=2, duplicated=1), struck=(STRIKE, other, other))
    verdict = Verdict(SETTINGS, (trial(HOLDS), both, trial(UNKNOWN, 2, other)))
    table = verdict.table
    assert (table[STRIKE].outcome, table[STRIKE].trial_count, table[STRIKE].strike_count) == (BROKEN, 2, 2)
    assert (table[other].strike_count, table[other].broken_count, table[other].unknown_count) == (3, 1, 1)
    assert table[STRIKE].wrongs["lost"] == table[other].wrongs["lost"] == 2
    assert (verdict.lost, verdict.duplicated, verdict.event_count) == (2, 1, 300)
    assert (verdict.strike_count, verdict.kill_count) == (5, 2)


def test_a_fault_that_did_not_strike_has_its_cell() -> None:
    missed = replace(trial(UNKNOWN), struck=())
    cell = Verdict(SETTINGS, (missed,)).table[STRIKE]
    assert (cell.outcome, cell.trial_count, cell.strike_count) == (UNKNOWN, 1, 0)
