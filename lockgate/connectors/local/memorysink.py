"""MemorySink: rows kept in the driver's memory, for tests and first steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockgate.connectors.collecting import collect_rows
from lockgate.dataflow.endpoints import Sink, SinkAbility
from lockgate.guarantees import Delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


@dataclass(frozen=True)
class MemorySink(Sink):
    """Rows that stay in the process that runs the job, for tests and first steps.

    >>> sink = MemorySink()
    >>> kept = orders.to("kept", sink)
    """

    _kept: list[tuple[int, Row]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def rows(self) -> list[Row]:
        """All rows so far, epoch by epoch.

        >>> MemorySink().rows
        []
        """
        return [row for _, row in self._kept]

    @property
    def epochs(self) -> list[int]:
        """The epoch of every row.

        >>> MemorySink().epochs
        []
        """
        return [epoch for epoch, _ in self._kept]

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(
            delivery=Delivery.PLAIN,
            reason="memory ends with its process, and a repeated epoch is added again",
            cure="write to a sink that outlives the process",
        )

    def columns_needed(self) -> Sequence[str]:
        return ()

    def execution(self, *, is_exact: bool) -> tuple[str, str]:
        return "driver", "all rows pass through the driver"

    def write(self, rows: DataFrame, epoch: int) -> None:
        self._kept.extend((epoch, row) for row in collect_rows(rows))
