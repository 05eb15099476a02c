"""The decision tables of the protocol, row by row."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from lockgate.commit.ledger import Entry, Gap
from lockgate.commit.protocol import (
    TIME_OUTS,
    TRIES,
    Cause,
    Epoch,
    Next,
    Step,
    Vote,
    after_failure,
    check_claim,
    claim,
    decide,
    marker,
    tally,
    too_long,
)
from lockgate.errors import EpochFailed, Fenced, InvariantBroken, LedgerMismatch
from support.refusals import require_accepted

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
MINE, OTHER = "my-run", "other-run"


def epoch(number: int, digest: str | None = None, previous: str | None = "as logged", query: str = "query") -> Epoch:
    before = f"digest-{number - 1}" if previous == "as logged" and number > 0 else previous
    return Epoch(number, digest or f"digest-{number}", None if before == "as logged" else before, query)


def entry(number: int | None, digest: str | None = None, *, run: str = MINE, query: str | None = "query") -> Entry:
    told = None if number is None else digest or f"digest-{number}"
    return Entry(run=run, query=query, epoch=number, digest=told, at="2026-01-01T00:00:00.000+00:00")


# ---- is the epoch to be written?


@pytest.mark.parametrize(
    ("said", "asked", "step"),
    [
        pytest.param(entry(7), epoch(7), Step.SKIP, id="N with the same digest: it is out"),
        pytest.param(entry(6), epoch(7), Step.WRITE, id="N-1 with the digest of offsets/N-1: it is not out"),
        pytest.param(entry(6), epoch(7, previous=None), Step.WRITE, id="N-1, whose offsets the checkpoint forgot"),
        pytest.param(entry(None), epoch(0), Step.WRITE, id="nothing, and N is the first"),
        pytest.param(entry(0), epoch(0), Step.SKIP, id="the first one is out"),
        pytest.param(entry(0), epoch(1), Step.WRITE, id="the first one is out, the second is asked for"),
    ],
)
def test_an_epoch_is_written_only_if_the_ledger_proves_that_it_is_not_committed(
    said: Entry, asked: Epoch, step: Step
) -> None:
    assert decide(said, asked, run=MINE, where="here", job="orders") is step


@pytest.mark.parametrize(
    ("said", "asked", "what"),
    [
        pytest.param(entry(7, "other"), epoch(7), "at epoch 7, the checkpoint only at 7, with other offsets", id="N"),
        pytest.param(entry(6, "other"), epoch(7), "epoch 6 is committed with other offsets", id="N-1, other offsets"),
        pytest.param(entry(8), epoch(7), "at epoch 8, the checkpoint only at 7", id="N+1"),
        pytest.param(entry(90), epoch(7), "at epoch 90, the checkpoint only at 7", id="far ahead"),
        pytest.param(entry(5), epoch(7), "at epoch 5, the checkpoint already at 7", id="N-2"),
        pytest.param(entry(None), epoch(7), "at epoch None, the checkpoint already at 7", id="nothing"),
        pytest.param(entry(3), epoch(0), "at epoch 3, the checkpoint only at 0", id="a new checkpoint"),
    ],
)
def test_anything_else_in_the_ledger_stops_and_names_the_command_that_repairs_it(
    said: Entry, asked: Epoch, what: str
) -> None:
    with pytest.raises(LedgerMismatch, match=what) as caught:
        decide(said, asked, run=MINE, where="ledger topic 'x'", job="orders")
    before = "none" if asked.number == 0 else str(asked.number - 1)
    assert caught.value.where == "ledger topic 'x'"
    assert "lockgate ledger show orders" in caught.value.fix
    assert f"lockgate ledger set orders --epoch {before} --checkpoint PLACE" in caught.value.fix
    assert "--new-life" in caught.value.fix


def test_a_ledger_that_lost_everything_in_mid_run_stops() -> None:
    with pytest.raises(LedgerMismatch, match="is empty, although this run has written to it") as caught:
        decide(None, epoch(4), run=MINE, where="here", job="orders")
    assert "lockgate ledger set orders --epoch 3" in caught.value.fix


@pytest.mark.parametrize("number", [None, 5, 6, 7, 8])
def test_another_run_id_stops_whatever_else_the_ledger_says(number: int | None) -> None:
    with pytest.raises(Fenced, match=f"took over.*{OTHER}.*{MINE}") as caught:
        decide(entry(number, run=OTHER), epoch(7), run=MINE, where="here", job="orders")
    assert "only one run" in caught.value.fix


# ---- may this run take over?


@pytest.mark.parametrize("is_adopting", [False, True], ids=["plainly", "adopting"])
@pytest.mark.parametrize(
    ("said", "asked"),
    [
        pytest.param(None, epoch(0), id="no ledger and a new checkpoint"),
        pytest.param(entry(None, query="another"), epoch(0), id="a life that never committed, of any checkpoint"),
        pytest.param(entry(6, run=OTHER), epoch(7), id="the epoch before is out"),
        pytest.param(entry(7, run=OTHER), epoch(7), id="the epoch itself is out"),
        pytest.param(entry(6), epoch(7, previous=None), id="the epoch before is out, its offsets are forgotten"),
        pytest.param(entry(6, query=None), epoch(7), id="a person set the ledger"),
    ],
)
def test_a_run_may_claim_a_ledger_that_fits_its_checkpoint(said: Entry | None, asked: Epoch, is_adopting: bool) -> None:
    require_accepted(check_claim, said, asked, is_adopting=is_adopting, where="here", job="orders")


@pytest.mark.parametrize("said", [None, entry(None)], ids=["no ledger", "nothing is out"])
def test_a_checkpoint_that_ran_elsewhere_is_adopted_only_when_asked_for(said: Entry | None) -> None:
    check_claim(said, epoch(7), is_adopting=True, where="here", job="orders")
    with pytest.raises(LedgerMismatch, match="checkpoint of job 'orders' is at epoch 7") as caught:
        check_claim(said, epoch(7), is_adopting=False, where="here", job="orders")
    assert "lockgate ledger set orders --epoch 6 --checkpoint PLACE" in caught.value.fix
    assert "--new-life" in caught.value.fix
    assert ("adopt=True" in caught.value.fix) == (said is None)


@pytest.mark.parametrize("is_adopting", [False, True])
@pytest.mark.parametrize(
    ("said", "asked", "what", "fix"),
    [
        pytest.param(entry(6, query="b"), epoch(7), "another checkpoint", "--new-life", id="another query id"),
        pytest.param(entry(5), epoch(7), "already at 7", "ledger set orders --epoch 6", id="behind"),
        pytest.param(entry(9), epoch(7), "only at 7", "ledger set orders --epoch 6", id="ahead"),
        pytest.param(entry(6, "x"), epoch(7), "other offsets", "ledger set orders --epoch 6", id="another history"),
        pytest.param(entry(7, "x"), epoch(7), "other offsets", "ledger set orders --epoch 6", id="another epoch N"),
    ],
)
def test_a_run_may_not_claim_a_ledger_that_tells_another_story(
    said: Entry, asked: Epoch, what: str, fix: str, is_adopting: bool
) -> None:
    with pytest.raises(LedgerMismatch, match=what) as caught:
        check_claim(said, asked, is_adopting=is_adopting, where="here", job="orders")
    assert fix in caught.value.fix


# ---- what is written


def test_a_marker_names_the_epoch_its_offsets_and_what_was_staged() -> None:
    written = marker(epoch(7), run=MINE, now=NOW, staged={"out": "file-3"})
    assert written == Entry(
        run=MINE,
        query="query",
        epoch=7,
        digest="digest-7",
        at="2026-01-02T03:04:05.678+00:00",
        staged={"out": "file-3"},
    )


@pytest.mark.parametrize("is_adopting", [False, True])
def test_a_claim_is_the_same_commit_in_other_hands(is_adopting: bool) -> None:
    said = replace(entry(6, run=OTHER, query=None), staged={"out": "file-3"})
    claimed = claim(said, epoch(7), run=MINE, now=NOW, is_adopting=is_adopting)
    assert claimed == replace(said, run=MINE, query="query", at="2026-01-02T03:04:05.678+00:00")


@pytest.mark.parametrize("said", [None, entry(None, run=OTHER, query="another")], ids=["no ledger", "nothing is out"])
@pytest.mark.parametrize(
    ("asked", "is_adopting", "out", "digest"),
    [
        pytest.param(epoch(0), False, None, None, id="a new job"),
        pytest.param(epoch(0), True, None, None, id="adopting a checkpoint that has not begun"),
        pytest.param(epoch(7), True, 6, "digest-6", id="adopting what Spark's own sink wrote"),
        pytest.param(epoch(7, previous=None), True, 6, None, id="adopting, the offsets before are forgotten"),
    ],
)
def test_a_first_claim_says_that_nothing_is_committed_unless_it_adopts(
    said: Entry | None, asked: Epoch, is_adopting: bool, out: int | None, digest: str | None
) -> None:
    claimed = claim(said, asked, run=MINE, now=NOW, is_adopting=is_adopting)
    assert (claimed.run, claimed.query, claimed.epoch, claimed.digest) == (MINE, "query", out, digest)


@pytest.mark.parametrize("asked", [epoch(0), epoch(7), epoch(7, previous=None)])
@pytest.mark.parametrize("said", [None, entry(None), entry(6, run=OTHER), entry(7, run=OTHER)])
@pytest.mark.parametrize("is_adopting", [False, True])
def test_a_run_that_may_claim_can_continue_from_the_claim(said: Entry | None, asked: Epoch, is_adopting: bool) -> None:
    try:
        check_claim(said, asked, is_adopting=is_adopting, where="here", job="orders")
    except LedgerMismatch:
        return
    claimed = claim(said, asked, run=MINE, now=NOW, is_adopting=is_adopting)
    is_out = said is not None and said.epoch == asked.number
    assert decide(claimed, asked, run=MINE, where="here", job="orders") is (Step.SKIP if is_out else Step.WRITE)


def test_a_committed_epoch_is_skipped_and_the_next_one_written() -> None:
    written = marker(epoch(7), run=MINE, now=NOW, staged={})
    assert decide(written, epoch(7), run=MINE, where="here", job="orders") is Step.SKIP
    assert decide(written, epoch(8), run=MINE, where="here", job="orders") is Step.WRITE


# ---- votes

GRANTED = {("a", 0): 11, ("a", 1): 12, ("b", 0): 11}
VOTES = [Vote(11, "a", 0, 3, 2), Vote(12, "a", 1, 1, 0), Vote(11, "b", 0, 10, 9)]


def test_claims_and_markers_carry_the_gaps_of_the_checkpoint() -> None:
    gaps = (Gap("t", 0, start=5, end=9, epoch=3, at="then"),)
    after = replace(epoch(4), gaps=gaps)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert claim(entry(3), after, run=MINE, now=now, is_adopting=False).gaps == gaps
    assert marker(after, run=MINE, now=now, staged={}).gaps == gaps
    # A copy of the checkpoint from before the gap has not skipped anything.
    assert claim(replace(entry(3), gaps=gaps), epoch(4), run=MINE, now=now, is_adopting=False).gaps == ()


def test_votes_that_add_up_say_how_many_records_were_written() -> None:
    assert tally(GRANTED, VOTES, rows=14, where="epoch 7") == 14
    assert tally({}, [], rows=0, where="epoch 7") == 0


def test_sequence_numbers_go_round_after_two_to_the_31() -> None:
    assert tally({("a", 0): 1}, [Vote(1, "a", 0, 2**31 + 5, 4)], rows=2**31 + 5, where="epoch 7") == 2**31 + 5


@pytest.mark.parametrize(
    ("granted", "votes", "rows", "what"),
    [
        pytest.param(GRANTED, [*VOTES, VOTES[0]], 17, "two votes for partition 0 of topic 'a'", id="twice"),
        pytest.param(GRANTED, [*VOTES, Vote(11, "c", 0, 1, 0)], 15, "had no permit for", id="no permit at all"),
        pytest.param(GRANTED, [replace(VOTES[0], attempt=12), *VOTES[1:]], 14, "no permit for", id="another attempt"),
        pytest.param(GRANTED, VOTES[1:], 11, r"no vote for \[\('a', 0\)\]", id="a permit without a vote"),
        pytest.param(GRANTED, VOTES, 15, "15 rows came to the writers, 14 were written", id="a row is missing"),
        pytest.param(GRANTED, VOTES, 13, "13 rows came to the writers, 14 were written", id="a row too many"),
        pytest.param(
            GRANTED, [replace(VOTES[0], last_sequence=1), *VOTES[1:]], 14, "cannot end with sequence 1", id="sequence"
        ),
        pytest.param(
            GRANTED, [replace(VOTES[0], records=0, last_sequence=-1), *VOTES[1:]], 11, "0 records", id="an empty vote"
        ),
        pytest.param({}, [], 3, "3 rows came to the writers, 0 were written", id="rows and no vote"),
    ],
)
def test_votes_that_do_not_account_for_every_row_are_caught(
    granted: Mapping[tuple[str, int], int], votes: list[Vote], rows: int, what: str
) -> None:
    with pytest.raises(InvariantBroken, match=what) as caught:
        tally(granted, votes, rows=rows, where="epoch 7")
    assert caught.value.where == "epoch 7"
    assert "nothing of the epoch is visible" in caught.value.fix


# ---- after a failure


@pytest.mark.parametrize("can_repeat", [False, True])
@pytest.mark.parametrize("cause", [Cause.FINAL, Cause.CANCELLED])
def test_what_no_retry_fixes_stops_at_once(cause: Cause, can_repeat: bool) -> None:
    assert after_failure(cause, tries=1, time_outs=0, can_repeat=can_repeat) is Next.STOP


@pytest.mark.parametrize("cause", [Cause.LOST, Cause.TIMED_OUT, Cause.NOT_ALIKE])
def test_rows_that_come_out_of_state_are_computed_from_the_checkpoint_again(cause: Cause) -> None:
    assert after_failure(cause, tries=1, time_outs=1, can_repeat=False) is Next.RESTART


@pytest.mark.parametrize("cause", [Cause.LOST, Cause.TIMED_OUT])
def test_a_stateless_epoch_is_repeated_a_few_times(cause: Cause) -> None:
    follows = [after_failure(cause, tries=tries, time_outs=1, can_repeat=True) for tries in range(1, TRIES + 1)]
    assert follows == [Next.REPEAT] * (TRIES - 1) + [Next.STOP]


@pytest.mark.parametrize("can_repeat", [False, True])
def test_an_epoch_that_times_out_twice_is_too_large(can_repeat: bool) -> None:
    assert after_failure(Cause.TIMED_OUT, tries=2, time_outs=TIME_OUTS, can_repeat=can_repeat) is Next.STOP


@pytest.mark.parametrize("can_repeat", [False, True])
def test_a_lost_worker_after_a_time_out_is_not_a_second_time_out(can_repeat: bool) -> None:
    assert after_failure(Cause.LOST, tries=2, time_outs=TIME_OUTS, can_repeat=can_repeat) is not Next.STOP


def test_rows_that_have_to_be_exchanged_first_do_not_use_up_the_last_try() -> None:
    assert after_failure(Cause.NOT_ALIKE, tries=TRIES, time_outs=0, can_repeat=True) is Next.REPEAT


def test_an_epoch_that_is_too_large_names_the_ways_to_make_it_smaller() -> None:
    first = EpochFailed("the partition does not take this producer", where="there", fix="that")
    error = too_long("orders", 7, 600.0, first, "here")
    assert "Epoch 7 of job 'orders' takes longer than the transaction may (600 s), twice; first: the part" in error.what
    assert "lockgate checkpoints rollback orders --uncommitted --servers HOST:PORT --checkpoint PLACE" in error.fix
    assert "--rows-per-epoch" in error.fix
    assert "transaction.timeout.ms" in error.fix
    assert "first:" not in too_long("orders", 7, 600.0, None, "here").what
