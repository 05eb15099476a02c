"""Where an epoch is cut: which of its events came too late.

Spark drops a row of a native window where the window ended at or before the watermark of the epoch before; it logs that
watermark in front of the offsets of that epoch. So the line is known before an epoch runs, is the same when it is
repeated, and what is behind it is exactly what the windows of this epoch do not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockgate.errors import Failed
from lockgate.planner.flow import MISSED
from lockgate.runtime.checkpoints import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def watermark_before(checkpoint: Checkpoint, epoch: int) -> int:
    """The watermark that the epoch before has acted on, in milliseconds since 1970; 0 before the first."""
    if epoch == 0:
        return 0
    if checkpoint.read(f"offsets/{epoch - 1}") is None:
        raise Failed(
            f"the checkpoint has no offsets for epoch {epoch - 1}, so nobody could tell what is late in the next",
            where=f"checkpoint {checkpoint.root}",
            fix="put the file back from a copy of the checkpoint, or begin again with --new-life",
        )
    return checkpoint.watermark_ms(epoch - 1)


def cut_late(rows: DataFrame, watermark_ms: int) -> DataFrame:
    """The rows of an epoch without those events that only stood beside late ones and are in time."""
    from pyspark.sql import functions as F

    is_late = F.col(MISSED) <= F.timestamp_millis(F.lit(watermark_ms))
    return rows.where(F.col(MISSED).isNull() | is_late).drop(MISSED)
