"""Pass rows of first attempts only: on a cluster Spark retries some tasks however few attempts it is allowed.

If an executor ends through no fault of the job (preempted, lost with its machine, decommissioned), this does not count
as a failure of its tasks, so `spark.task.maxFailures=1` does not prevent a retry. Such an attempt is stopped before its
first row leaves. A local session has no such executor, so nothing is checked there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockgate.errors import EpochFailed
from lockgate.failures import Carried
from lockgate.signing import Signer, driver_signer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def first_attempts(rows: DataFrame) -> DataFrame:
    """The same rows; a task that is retried fails."""
    import pyarrow as pa
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf

    signer = driver_signer()

    def require_first(column: pa.Array) -> pa.Array:
        _stop_others(signer)
        return column

    # Spark reads these annotations. As texts they could not be resolved: only this function knows what pa is.
    require_first.__annotations__ = {"column": pa.Array, "return": pa.Array}
    # Not deterministic, so that Spark neither moves nor drops the filter.
    holds = arrow_udf(require_first, "boolean").asNondeterministic()  # type: ignore[call-overload] # an older form's stub
    return rows.where(holds(F.lit(True)))


def _stop_others(signer: Signer) -> None:
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is not None and task.attemptNumber() > 0:
        raise Carried(
            EpochFailed(
                "a task of an at-most-once job is retried: its executor was taken away",
                where=f"task of partition {task.partitionId()}, attempt {task.attemptNumber()}",
                fix="nothing has to be done; the events in hand are forgotten",
            ),
            signer,
        )
