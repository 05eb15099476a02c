"""Rows of first attempts only: on a cluster Spark tries some tasks again however few attempts it is allowed.

An executor that is taken away by no fault of the job's (preempted, lost with its machine, told to go) does not count as
a failure of its tasks, so `spark.task.maxFailures=1` does not keep them from being tried again. Such an attempt is
stopped before its first row leaves. In a local session there is no such executor, and nothing is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockgate.errors import EpochFailed
from lockgate.failures import Carried
from lockgate.signing import Signer, driver_signer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def first_attempts(rows: DataFrame) -> DataFrame:
    """The rows as they are; a task that is tried again fails."""
    import pyarrow as pa
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf

    signer = driver_signer()

    def is_first(column: pa.Array) -> pa.Array:
        _stop_others(signer)
        return column

    # Spark goes by these, and could not read them as text: only this function knows what pa is.
    is_first.__annotations__ = {"column": pa.Array, "return": pa.Array}
    # Not deterministic, so that Spark neither moves nor drops the filter.
    holds = arrow_udf(is_first, "boolean").asNondeterministic()  # type: ignore[call-overload] # an older form's stub
    return rows.where(holds(F.lit(True)))


def _stop_others(signer: Signer) -> None:
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is not None and task.attemptNumber() > 0:
        raise Carried(
            EpochFailed(
                "a task of an at-most-once job is tried again: its executor was taken away",
                where=f"task of partition {task.partitionId()}, attempt {task.attemptNumber()}",
                fix="nothing is to be done; what it had in hand is forgotten",
            ),
            signer,
        )
