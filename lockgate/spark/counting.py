"""Count rows on their way through a query, for metrics.

Spark fuses steps, so what passes between them is invisible without `DataFrame.observe`. That costs a little for every
row, so it is done only if metrics are wanted. What is counted is what was computed: if a commit fails and the rows of
an epoch are computed again in the same run of it, they count twice.

    a source                  the rows that leave it, which Spark's own number counts once for every branch
    a step                    the rows that leave it, unless it is one expression with others (the parts of a split)
    an output                 its rows, at the end of the query; not those that the run cuts off or adds later
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STEP_ROWS = "lockgate rows of step "
OUTPUT_ROWS = "lockgate rows of outputs"


def count_step(frame: DataFrame, step: str) -> DataFrame:
    """The same rows, counted under the name of their step."""
    from pyspark.sql import functions as F

    return frame.observe(f"{STEP_ROWS}{step}", F.count(F.lit(1)).alias("rows"))


def count_outputs(frame: DataFrame, tag: str, tags: Sequence[int | None]) -> DataFrame:
    """The same rows, counted by the tag of their output; None is the only output of a query."""
    from pyspark.sql import functions as F

    counts = [
        F.count(F.lit(1) if one is None else F.when(F.col(tag) == one, 1)).alias(f"rows_{one or 0}") for one in tags
    ]
    return frame.observe(OUTPUT_ROWS, *counts)
