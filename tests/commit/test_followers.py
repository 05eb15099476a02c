"""A follower whose ledger does not fit the decision stops the job, and the message names the cure of its own case."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import pytest

from lockgate.commit.followers import Followers, Standing, stand
from lockgate.commit.ledger import Entry
from lockgate.commit.resource import Resource
from lockgate.errors import LedgerMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def at(epoch: int | None, digest: str = "d", staged: Mapping[str, str] | None = None) -> Entry:
    return Entry(run="r", query="q", epoch=epoch, digest=digest, at="now", staged=staged or {})


class Shelf(Resource):
    """A ledger in memory, which must stay as it is."""

    where = "a shelf"

    def __init__(self, says: Entry | None) -> None:
        self.says = says

    def read(self) -> Entry | None:
        return self.says

    def stage(self, rows: "Mapping[str, DataFrame]", epoch: int) -> str:
        raise AssertionError("staged")

    def publish(self, staged: str | None, entry: Entry, *, after: Entry | None) -> None:
        raise AssertionError("published")

    def leftovers(self) -> Collection[str]:
        return ()

    def remove(self, leftovers: Collection[str]) -> None:
        raise AssertionError("removed")


@pytest.mark.parametrize(
    ("seen", "decided", "expected"),
    [
        (None, at(3), Standing.NEW),
        (at(3), at(3), Standing.EVEN),
        (at(3, "other"), at(3), Standing.ELSEWHERE),
        (at(2), at(3, staged={"table": "s"}), Standing.BEHIND),
        (at(2), at(3), Standing.ELSEWHERE),
        (at(4), at(3), Standing.ELSEWHERE),
        (None, at(3, staged={"table": "s"}), Standing.ELSEWHERE),
    ],
)
def test_where_a_follower_stands(seen: Entry | None, decided: Entry, expected: Standing) -> None:
    assert stand("table", seen, decided) is expected


@pytest.mark.parametrize(
    ("seen", "cure"),
    [
        (at(4), "restore the old order"),
        (at(1), "restore what it held"),
        (None, "restore what it held"),
    ],
)
def test_a_follower_that_does_not_fit_stops_the_job_and_keeps_what_it_has(seen: Entry | None, cure: str) -> None:
    followers = Followers("orders", {"table": Shelf(seen)})
    with pytest.raises(LedgerMismatch) as caught:
        followers.claim(at(3, staged={"table": "s"}), {"table": []})
    assert cure in caught.value.fix
    assert "decided epoch 3" in caught.value.what
