"""The process from which Spark's Python workers are forked; it imports once what each of them needs.

Spark's own imports nothing before it forks. Then every worker spends most of a second on pandas, Arrow and Lockgate, a
job with state has several workers for each task, and all of them start again with every start of the job. Spark's
reason is a law here too: a process that forks has one thread, because a lock that another thread holds stays locked in
the child. pandas and Arrow start threads as soon as they are imported, unless settings prevent it, so we make these
settings. If a user wants such threads in workers, nothing is imported.
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
    "lockgate.connectors.kafka.epoch",
    "lockgate.spark.functions",
    "lockgate.spark.keyed",
    "lockgate.spark.stateful",
)
_WHERE_INSTALLED = ("kafka",)  # an extra: a job without topics works without it


def import_all() -> None:
    """Import what workers need, and leave this process as safe to fork as it was."""
    if os.environ.get("OMP_NUM_THREADS") != "1":  # Spark sets it to 1 unless the user has set it
        return
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    there = [name for name in _WHERE_INSTALLED if importlib.util.find_spec(name) is not None]
    for name in (*_NEEDED, *there):
        importlib.import_module(name)
    import numpy as np

    # Python's own generator gets a new seed in a child, numpy's does not: all workers would draw the same numbers.
    os.register_at_fork(after_in_child=np.random.seed)
    # A worker collects garbage after every task. Imported objects are not garbage, and need not be searched.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    import_all()
    manager()
