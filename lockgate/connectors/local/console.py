"""ConsoleSink: rows for people to look at."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockgate.columns import columns
from lockgate.connectors.collecting import collect_rows
from lockgate.dataflow.endpoints import Sink, SinkAbility
from lockgate.dataflow.relocation import Relocation
from lockgate.guarantees import Delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ConsoleSink(Sink):
    """The first rows of each epoch, on standard output.

    Args:
        rows: how many.

    >>> screen = orders.to("screen", ConsoleSink(rows=5))
    """

    rows: int = 20

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(
            delivery=Delivery.PLAIN,
            reason="a line that is printed stays on the screen, and a repeated epoch is printed again",
            cure="declare a lower guarantee for this output alone: .to(name, sink, guarantee=...)",
        )

    def columns_needed(self) -> Sequence[str]:
        return ()

    def relocate(self, to: Relocation) -> ConsoleSink:
        return self  # it prints, and touches nothing

    def execution(self, *, is_exact: bool) -> tuple[str, str]:
        return "driver", "the driver prints the first rows"

    def write(self, rows: DataFrame, epoch: int) -> None:
        # All rows are computed, also those that are not shown: state must be kept, and errors must be found.
        rows = rows.persist()
        try:
            count = rows.count()
            shown = collect_rows(rows.limit(self.rows))
        finally:
            rows.unpersist()
        if not shown:
            return
        cells = [["null" if value is None else str(value) for value in row] for row in shown]
        lines = [f"epoch {epoch}", *columns([rows.columns, *cells], indent=2)]
        if count > len(shown):
            lines.append(f"  … and {count - len(shown):,} more")
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
