"""Find the events of an epoch that came too late.

Spark drops a row of a native window if the window ended at or before the watermark of the epoch before. Spark logs
that watermark with the offsets of that epoch. So the limit is known before an epoch runs, and a repeated epoch has the
same limit. The events behind it are exactly those that the windows of this epoch lack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.errors import Failed
from lockgate.planner.flow import MISSED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def watermark_before(checkpoint: Checkpoint, epoch: int) -> int:
    """The watermark that the epoch before used, in milliseconds since 1970; 0 before the first."""
    if epoch == 0:
        return 0
    if checkpoint.read(f"offsets/{epoch - 1}") is None:
        raise Failed(
            f"the checkpoint has no offsets for epoch {epoch - 1}, so it is unknown which events are late in the next",
            where=f"checkpoint {checkpoint.root}",
            fix="restore the file from a copy of the checkpoint, or start from the beginning with --new-life",
        )
    return checkpoint.watermark_ms(epoch - 1)


def cut_late(rows: DataFrame, watermark_ms: int) -> DataFrame:
    """The rows of an epoch without the events that came along with late ones and are in time."""
    from pyspark.sql import functions as F

    is_late = F.col(MISSED) <= F.timestamp_millis(F.lit(watermark_ms))
    return rows.where(F.col(MISSED).isNull() | is_late).drop(MISSED)
