"""What a rescaling has to do, for every moment at which the one before may have ended."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.rescaling import Rescaling, decide, is_behind, moved_on, refuse_unfinished
from lockgate.checkpoints.stateread import kept_partitions
from lockgate.commit.ledger import Entry
from lockgate.errors import Refused

Make = Callable[..., Checkpoint]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A checkpoint: the partitions of each epoch that is planned, and how many are committed."""

    def made(*partitions: int, committed: int) -> Checkpoint:
        (tmp_path / "metadata").write_text(json.dumps({"id": "query"}))
        for log in ("offsets", "commits"):
            (tmp_path / log).mkdir()
        for epoch, count in enumerate(partitions):
            settings = {"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": str(count)}}
            (tmp_path / "offsets" / str(epoch)).write_text(f"v1\n{json.dumps(settings)}\n{{}}")
        for epoch in range(committed):
            (tmp_path / "commits" / str(epoch)).write_text("v1\n{}")
        return Checkpoint(root=str(tmp_path))

    return made


def entry(checkpoint: Checkpoint, epoch: int | None, query: str = "query") -> Entry:
    digest = None if epoch is None else checkpoint.digest(epoch)
    return Entry(run="before", query=query, epoch=epoch, digest=digest, at="then")


@pytest.mark.parametrize(
    ("partitions", "committed", "found"),
    [
        ((4, 4), 2, Rescaling(2, 4, 7)),
        ((4, 4, 7), 2, Rescaling(2, 4, 7, is_begun=True)),
        ((4, 4, 7), 3, Rescaling(2, 4, 7, is_begun=True, is_written=True)),
        ((4, 9), 2, Rescaling(2, 9, 7)),
    ],
)
def test_the_checkpoint_says_how_far_it_has_got(
    partitions: tuple[int, ...], committed: int, found: Rescaling, make: Make
) -> None:
    checkpoint = make(*partitions, committed=committed)
    assert decide(checkpoint, 7) == found
    assert kept_partitions(checkpoint) == partitions[-1]


@pytest.mark.parametrize(
    ("partitions", "committed", "told", "fix"),
    [
        ((), 0, "there is no checkpoint", "--checkpoint"),
        ((4,), 0, "no epoch is committed yet", ".parallel"),
        ((4, 4), 1, "epoch 1 is planned and not committed", "--until-caught-up"),
        ((4, 9), 1, "from 4 to 9 partitions was begun and is not finished", "--partitions 9 --yes"),
        ((7, 7), 2, "has 7 partitions already", "nothing to do"),
    ],
)
def test_what_cannot_be_rescaled_is_refused_with_the_fix(
    partitions: tuple[int, ...], committed: int, told: str, fix: str, make: Make
) -> None:
    checkpoint = make(*partitions, committed=committed)
    with pytest.raises(Refused, match=told) as refused:
        decide(checkpoint, 7)
    assert fix in refused.value.fix


def test_a_run_is_refused_in_the_middle_and_not_before_or_behind(make: Make) -> None:
    checkpoint = make(4, 4, 7, committed=2)
    with pytest.raises(Refused, match="to 7 partitions was begun"):
        refuse_unfinished(checkpoint)
    Path(checkpoint.root, "commits", "2").write_text("v1\n{}")
    refuse_unfinished(checkpoint)
    Path(checkpoint.root, "commits", "2").unlink()
    Path(checkpoint.root, "offsets", "2").unlink()
    refuse_unfinished(checkpoint)


def test_a_ledger_moves_on_from_the_last_epoch_and_from_nowhere_else(make: Make) -> None:
    checkpoint = make(4, 4, 7, committed=3)
    rescaling = decide(checkpoint, 7)
    assert is_behind(entry(checkpoint, 1), rescaling, checkpoint, where="here")
    after = moved_on(entry(checkpoint, 1), rescaling, checkpoint, run="mine", now=_now())
    assert (after.epoch, after.digest, after.run, dict(after.staged)) == (2, checkpoint.digest(2), "mine", {})
    assert not is_behind(after, rescaling, checkpoint, where="here")
    others = [None, entry(checkpoint, 0), entry(checkpoint, None), entry(checkpoint, 1, query="another")]
    for other in [*others, Entry(run="before", query="query", epoch=1, digest="another", at="then")]:
        with pytest.raises(Refused, match="does not fit the checkpoint"):
            is_behind(other, rescaling, checkpoint, where="here")


def test_a_ledger_that_has_not_followed_comes_before_another_rescaling(make: Make) -> None:
    checkpoint = make(4, 4, 9, committed=3)
    with pytest.raises(Refused, match="a ledger has not followed") as refused:
        is_behind(entry(checkpoint, 1), decide(checkpoint, 7), checkpoint, where="here")
    assert "--partitions 9 --yes" in refused.value.fix


def _now() -> datetime:

    return datetime.now(UTC)
