"""The process that Spark's Python workers are forked from, with everything imported once that each of them needs.

Spark's own imports nothing before it forks: every worker then spends most of a second on pandas, Arrow and us, a job
with state has several for each task, and all of them begin anew with every start of the job. Spark's reason is a law
here too: a process that forks has one thread, because a lock that another one holds stays locked in the child. pandas
and Arrow start threads as soon as they are imported unless they are told not to, so they are told; and where somebody
wants such threads in workers, nothing is imported.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os

MODULE = "lockgate.spark.workers"

_NEEDED = (
    "pyspark.worker",
    "pandas",
    "pyarrow",
    "lockgate.sinks.kafkaepoch",
    "lockgate.spark.functions",
    "lockgate.spark.keyed",
    "lockgate.spark.stateful",
)
_WHERE_INSTALLED = ("kafka",)  # an extra: a job without topics does without it


def import_all() -> None:
    """Import what workers need, and leave this process as fit to fork as it was."""
    if os.environ.get("OMP_NUM_THREADS") != "1":  # Spark sets it to 1 where nobody has set it
        return
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    there = [name for name in _WHERE_INSTALLED if importlib.util.find_spec(name) is not None]
    for name in (*_NEEDED, *there):
        importlib.import_module(name)
    import numpy as np

    # Python's own generator begins anew in a child, numpy's does not: workers would all throw the same dice.
    os.register_at_fork(after_in_child=np.random.seed)
    # A worker collects garbage after every task. What was imported is none, and need not be looked through.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    import_all()
    manager()
