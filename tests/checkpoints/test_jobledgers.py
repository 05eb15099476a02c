"""What the ledgers of a job say beside its checkpoint, and what it means to set one."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lockgate.checkpoints.checkpoint import Checkpoint, next_epoch
from lockgate.checkpoints.jobledgers import entry_for, judge, refuse_useless, weigh
from lockgate.commit.ledger import Entry
from lockgate.errors import Refused
from support.checkpoints import make_logs

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
QUERY = "0b7c4b8e-query"


def entry(epoch: int | None, *, query: str | None = QUERY, digest: str | None = None) -> Entry:
    told = digest or (None if epoch is None else f"digest-{epoch}")
    return Entry(run="a-run", query=query, epoch=epoch, digest=told, at=NOW.isoformat())


def written(checkpoint: Checkpoint, epoch: int) -> Entry:
    """The entry that the commit of this epoch has left."""
    return entry(epoch, digest=checkpoint.digest(epoch))


@pytest.mark.parametrize(
    ("before", "after", "again", "never", "words"),
    [
        (entry(9), entry(7), (8, 9), None, "epochs 8..9 will be written again, and readers see their rows TWICE"),
        (entry(8), entry(7), (8, 8), None, "epoch 8 will be written again"),
        (entry(2), entry(None), (0, 2), None, "you set that no epoch is committed: epochs 0..2 will be written again"),
        (entry(5), entry(7), None, (6, 7), "epochs 6..7 will never be written again by this job"),
        (
            entry(None),
            entry(0),
            None,
            (0, 0),
            "says that no epoch is committed, you set 0: epoch 0 will never be written",
        ),
        (entry(7), entry(7), None, None, "nothing is doubled, nothing is lost"),
        (entry(None), entry(None), None, None, "nothing is doubled, nothing is lost"),
        (entry(7), entry(7, digest="other"), None, None, "with other offsets"),
        (None, entry(7), None, (0, 7), "epochs 0..7 will never be written again"),
        (None, entry(None), None, None, "Epoch 0 and all after it will be written"),
        (entry(9, query="another"), entry(7), None, (0, 7), "belongs to another checkpoint (query another)"),
    ],
)
def test_what_may_be_doubled_or_lost_is_said_in_numbers(
    before: Entry | None, after: Entry, again: tuple[int, int] | None, never: tuple[int, int] | None, words: str
) -> None:
    change = weigh(before, after)
    assert (change.again and (change.again[0], change.again[-1])) == again
    assert (change.never and (change.never[0], change.never[-1])) == never
    assert words in " ".join(change.says)


def test_an_unknown_ledger_may_lose_and_double() -> None:
    told = " ".join(weigh(None, entry(7)).says)
    assert "LOST" in told
    assert "Epoch 8 and all after it will be written; rows of them that are committed are DOUBLED" in told


def test_a_checkpoint_is_judged_by_its_next_epoch(tmp_path: Path) -> None:
    checkpoint = make_logs(tmp_path / "planned", planned=3, committed=2, query=QUERY)
    upcoming = next_epoch(checkpoint)
    assert upcoming is not None
    assert upcoming.is_planned
    fits = {number: judge(written(checkpoint, number), upcoming, job="j", where="w") for number in (0, 1, 2)}
    assert [fits[number].is_fit for number in (0, 1, 2)] == [False, True, True]
    assert "next epoch is 2, planned and not committed: it will be written" in fits[1].says
    assert "epoch 2 is committed and will be skipped" in fits[2].says
    assert "the ledger is at epoch 0, the checkpoint already at 2" in fits[0].says
    assert not judge(None, upcoming, job="j", where="w").is_fit

    done = make_logs(tmp_path / "done", planned=3, committed=3, query=QUERY)
    upcoming = next_epoch(done)
    assert upcoming is not None
    assert judge(written(done, 2), upcoming, job="j", where="w").says.endswith("next epoch is 3: it will be written")
    assert "other offsets" in judge(entry(2, digest="another"), upcoming, job="j", where="w").says
    assert "another checkpoint" in judge(entry(2, query="another"), upcoming, job="j", where="w").says

    empty = make_logs(tmp_path / "empty", planned=0, committed=0, query=QUERY)
    upcoming = next_epoch(empty)
    assert upcoming is not None
    assert upcoming.epoch.number == 0
    assert judge(None, upcoming, job="j", where="w").is_fit
    assert judge(entry(None), upcoming, job="j", where="w").is_fit
    assert next_epoch(Checkpoint(root=str(tmp_path / "absent"))) is None


def test_a_ledger_at_which_every_run_would_stop_is_refused_with_those_that_fit(tmp_path: Path) -> None:
    checkpoint = make_logs(tmp_path, planned=5, committed=4, query=QUERY)
    upcoming = next_epoch(checkpoint)
    assert upcoming is not None
    for useless in (written(checkpoint, 1), entry(None)):
        with pytest.raises(Refused, match="continues with epoch 4") as refused:
            refuse_useless(useless, upcoming, job="j", root=checkpoint.root)
        assert "--epoch 3 (epoch 4 is not committed" in refused.value.fix
        assert "--epoch 4 (epoch 4 is committed" in refused.value.fix
    assert "epoch 4 is committed" in refuse_useless(written(checkpoint, 4), upcoming, job="j", root=checkpoint.root)


def test_an_epoch_that_the_checkpoint_does_not_have_is_refused_with_those_it_has(tmp_path: Path) -> None:
    checkpoint = make_logs(tmp_path / "c", planned=3, committed=3, query=QUERY)
    with pytest.raises(Refused, match="no offsets for epoch 7") as refused:
        entry_for(checkpoint, 7, now=NOW, run="r")
    assert refused.value.fix.endswith("0, 1, 2")
    made = entry_for(checkpoint, 1, now=NOW, run="r")
    assert made.digest == hashlib.sha256((tmp_path / "c" / "offsets" / "1").read_bytes()).hexdigest()
    assert (made.query, made.run, made.at) == (QUERY, "r", "2026-01-31T12:00:00.000+00:00")
    none = entry_for(checkpoint, None, now=NOW, run="r")
    assert (none.epoch, none.digest) == (None, None)
    with pytest.raises(Refused, match="there is no checkpoint"):
        entry_for(Checkpoint(root=str(tmp_path / "absent")), 1, now=NOW, run="r")
