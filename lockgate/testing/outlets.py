"""Where a test takes rows out: every sink of a job, replaced by one that keeps its rows in memory.

What the author's sink asks of its rows (columns, SQL of its own, types) is asked of them here too, as far as it can be
known without the system behind it. Rows are kept by epoch: an epoch that is repeated replaces what it wrote before, and
one that failed has written nothing. So a test sees what a reader of an exactly-once output sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.deletes import DELETED
from lockgate.dataflow.endpoints import Sink, SinkAbility
from lockgate.guarantees import Delivery
from lockgate.sinks.files import FileSink
from lockgate.sinks.kafka import KafkaSink
from lockgate.sinks.monitor import MonitorSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(eq=False)
class Outlet:
    """The rows of one output, in the order of their epochs."""

    _epochs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    _earlier: int = 0  # epochs of a query before, whose checkpoint is forgotten
    _seen: int = -1

    def put(self, epoch: int, rows: list[dict[str, Any]]) -> None:
        """Take the rows of an epoch."""
        self._epochs[self._earlier + epoch] = rows

    def drop_behind(self, epoch: int) -> None:
        """Forget what epochs behind this one have written, which is the last that is complete."""
        for later in [number for number in self._epochs if number > self._earlier + epoch]:
            del self._epochs[later]

    def begin_anew(self) -> None:
        """Go on with epochs that are numbered from 0 again."""
        self._earlier = max(self._epochs, default=-1) + 1

    def all_rows(self) -> list[dict[str, Any]]:
        """All rows so far."""
        return self._behind(-1)

    def new_rows(self) -> list[dict[str, Any]]:
        """The rows since this was asked last."""
        rows, self._seen = self._behind(self._seen), max(self._epochs, default=-1)
        return rows

    def _behind(self, seen: int) -> list[dict[str, Any]]:
        return [dict(row) for epoch, rows in sorted(self._epochs.items()) if epoch > seen for row in rows]


@dataclass(frozen=True)
class KeptSink(Sink):
    """Stands in the place of a sink of the author's, and puts its rows into an outlet."""

    author: Sink
    outlet: Outlet

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(delivery=Delivery.PLAIN, reason="the harness keeps rows in memory", cure="run the job")

    def columns_needed(self) -> Sequence[str]:
        return self.author.columns_needed()

    def expressions(self) -> Sequence[str]:
        return self.author.expressions()

    def prepare(self, rows: DataFrame) -> DataFrame:
        return self.author.prepare(rows)

    def check_rows(self, rows: DataFrame, where: str) -> None:
        # Others look at the system that they write into.
        if isinstance(self.author, KafkaSink | FileSink | MonitorSink):
            self.author.check_rows(rows, where)

    def write(self, rows: DataFrame, epoch: int) -> None:
        self.outlet.put(epoch, rows.drop(DELETED).toArrow().to_pylist(maps_as_pydicts="lossy"))
