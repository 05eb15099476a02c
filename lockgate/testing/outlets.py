"""The output of a test: a sink that keeps its rows in memory replaces every sink of a job.

It checks what the user's sink requires of its rows (columns, its own SQL, types), as far as possible without the
outside system. Rows are kept by epoch: an epoch that is repeated replaces its earlier rows, and an epoch that failed
has written nothing. So a test sees what a reader of an exactly-once output sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.deletes import DELETED
from lockgate.dataflow.endpoints import Sink, SinkAbility
from lockgate.guarantees import Delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(eq=False)
class Outlet:
    """The rows of one output, in the order of their epochs."""

    _epochs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    _earlier: int = 0  # epochs of earlier queries, whose checkpoints are gone
    _seen: int = -1

    def put(self, epoch: int, rows: list[dict[str, Any]]) -> None:
        """Take the rows of an epoch."""
        self._epochs[self._earlier + epoch] = rows

    def drop_behind(self, epoch: int) -> None:
        """Forget the rows of all epochs after this one, the last complete one."""
        for later in [number for number in self._epochs if number > self._earlier + epoch]:
            del self._epochs[later]

    def reset(self) -> None:
        """Continue with epochs that are numbered from 0 again."""
        self._earlier = max(self._epochs, default=-1) + 1

    def all_rows(self) -> list[dict[str, Any]]:
        """All rows so far."""
        return self._behind(-1)

    def new_rows(self) -> list[dict[str, Any]]:
        """The rows since the last call."""
        rows, self._seen = self._behind(self._seen), max(self._epochs, default=-1)
        return rows

    def _behind(self, seen: int) -> list[dict[str, Any]]:
        return [dict(row) for epoch, rows in sorted(self._epochs.items()) if epoch > seen for row in rows]


@dataclass(frozen=True)
class KeptSink(Sink):
    """Replaces a sink of the user, and puts its rows into an outlet."""

    user_sink: Sink
    outlet: Outlet

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(delivery=Delivery.PLAIN, reason="the harness keeps rows in memory", cure="run the job")

    def columns_needed(self) -> Sequence[str]:
        return self.user_sink.columns_needed()

    def expressions(self) -> Sequence[str]:
        return self.user_sink.expressions()

    def prepare(self, rows: DataFrame) -> DataFrame:
        return self.user_sink.prepare(rows)

    def check_rows(self, rows: DataFrame, where: str) -> None:
        if self.user_sink.checks_rows_alone:
            self.user_sink.check_rows(rows, where)

    def write(self, rows: DataFrame, epoch: int) -> None:
        self.outlet.put(epoch, rows.drop(DELETED).toArrow().to_pylist(maps_as_pydicts="lossy"))
