"""ConsoleSink: rows for people to look at."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockgate.dataflow.endpoints import Sink, SinkAbility
from lockgate.escaping import escape
from lockgate.guarantees import Delivery
from lockgate.sinks.collecting import collect_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ConsoleSink(Sink):
    """The first `rows` rows of each epoch that has any, on standard output."""

    rows: int = 20

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(
            delivery=Delivery.PLAIN,
            reason="what is on a screen stays there, and a repeated epoch is printed again",
            cure="declare a lower guarantee for this output alone: .to(name, sink, guarantee=...)",
        )

    def columns_needed(self) -> Sequence[str]:
        return ()

    def execution(self, *, is_exact: bool) -> tuple[str, str]:
        return "driver", "the driver prints the first rows"

    def write(self, rows: DataFrame, epoch: int) -> None:
        # All rows are computed, also those that are not shown: state must be kept, and what is wrong must be found.
        rows = rows.persist()
        try:
            count = rows.count()
            shown = collect_rows(rows.limit(self.rows))
        finally:
            rows.unpersist()
        if not shown:
            return
        cells = [[_text(value) for value in row] for row in shown]
        widths = [max(len(line[index]) for line in [rows.columns, *cells]) for index in range(len(rows.columns))]
        lines = [f"epoch {epoch}"]
        for line in [rows.columns, *cells]:
            lines.append("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if count > len(shown):
            lines.append(f"  … and {count - len(shown):,} more")
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


def _text(value: object) -> str:
    return "null" if value is None else escape(str(value))
