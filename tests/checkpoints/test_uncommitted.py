"""An epoch is given up only if the ledger shows that it is not committed, and its files go in a safe order."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.cleaning import remove_all
from lockgate.checkpoints.tree import open_tree
from lockgate.checkpoints.uncommitted import refuse_unsafe, uncommitted_epoch, uncommitted_files
from lockgate.commit.ledger import Entry
from lockgate.commit.protocol import Epoch
from lockgate.errors import Refused
from support.checkpoints import make_logs
from support.refusals import require_accepted

EPOCH = Epoch(number=3, digest="of-3", previous_digest="of-2", query="q")


def entry(epoch: int | None, digest: str | None, query: str = "q") -> Entry:
    at = datetime(2026, 1, 31, tzinfo=UTC).isoformat()
    return Entry(run="r", query=query, epoch=epoch, digest=digest, at=at)


def test_an_epoch_is_given_up_only_if_the_ledger_shows_that_it_is_not_committed() -> None:
    require_accepted(refuse_unsafe, entry(2, "of-2"), EPOCH, job="j", where="w")
    first = Epoch(number=0, digest="of-0", previous_digest=None, query="q")
    require_accepted(refuse_unsafe, entry(None, None), first, job="j", where="w")
    require_accepted(refuse_unsafe, None, first, job="j", where="w")


@pytest.mark.parametrize(
    ("ledger", "told"),
    [
        (entry(3, "of-3"), "epoch 3 of job 'j' is committed"),
        (entry(3, "another"), "do not fit"),
        (entry(2, "another"), "other offsets"),
        (entry(1, "of-1"), "the ledger is at epoch 1, the checkpoint already at 3"),
        (entry(4, "of-4"), "the ledger is at epoch 4"),
        (entry(2, "of-2", query="another"), "another checkpoint"),
        (entry(None, None), "nothing is committed"),
        (None, "empty or gone"),
    ],
)
def test_anything_else_is_refused(ledger: Entry | None, told: str) -> None:
    with pytest.raises(Refused, match=told):
        refuse_unsafe(ledger, EPOCH, job="j", where="w")


def test_only_an_epoch_that_is_planned_and_not_committed_is_found(tmp_path: Path) -> None:
    assert uncommitted_epoch(make_logs(tmp_path / "a", planned=3, committed=2)).number == 2
    assert uncommitted_epoch(make_logs(tmp_path / "b", planned=1, committed=0)).number == 0
    with pytest.raises(Refused, match="epoch 2, the last one planned, is committed"):
        uncommitted_epoch(make_logs(tmp_path / "c", planned=3, committed=3))
    with pytest.raises(Refused, match="no epoch is planned yet"):
        uncommitted_epoch(make_logs(tmp_path / "d", planned=0, committed=0))
    with pytest.raises(Refused, match="there is no checkpoint"):
        uncommitted_epoch(Checkpoint(root=str(tmp_path / "absent")))


def test_the_state_that_the_epoch_left_behind_goes_before_its_offsets(tmp_path: Path) -> None:
    checkpoint = make_logs(tmp_path, planned=3, committed=2)
    store = tmp_path / "state" / "0" / "1"
    (store / "SSTs").mkdir(parents=True)
    kept = ["2.zip", "2.changelog", "3.sst", "SSTs/3.sst", "3", "_metadata"]
    gone = ["3.zip", "3.changelog", "3.delta", "3.snapshot", "3_d41d8cd9-8f00.zip", "3_d41d8cd9-8f00.changelog"]
    for name in (*kept, *gone, ".3.zip.crc"):
        (store / name).write_text("x")
    tree = open_tree(checkpoint.root)
    files = uncommitted_files(tree, 2)
    assert files[-1] == "offsets/2"
    assert {*files[:-1]} == {f"state/0/1/{name}" for name in gone}
    remove_all(tree, files)
    assert not (store / ".3.zip.crc").exists()
    assert not (tmp_path / "offsets" / ".2.crc").exists()
    assert all((store / name).exists() for name in kept)
    assert checkpoint.epochs("offsets") == [0, 1]
    assert checkpoint.epochs("commits") == [0, 1]
