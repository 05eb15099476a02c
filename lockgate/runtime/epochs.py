"""One epoch end to end: the rows of every output into its sink.

Spark calls this with the rows of an epoch after it has logged their offsets, and logs the commit after it returns. A
crash in between repeats the epoch, with the same number and the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockgate.spark.compile import CompiledOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_epoch(outputs: tuple[CompiledOutput, ...], rows: DataFrame, epoch: int) -> None:
    """Write the rows of one epoch; returning means that every sink has its part."""
    if len(outputs) == 1:
        outputs[0].sink.write(outputs[0].rows_of(rows), epoch)
        return
    # Each sink is an action of its own, and an action that recomputes would read the source, and update the state,
    # once more.
    rows = rows.persist()
    try:
        for output in outputs:
            output.sink.write(output.rows_of(rows), epoch)
    finally:
        rows.unpersist()
