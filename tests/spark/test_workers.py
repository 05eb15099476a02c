"""Workers are forked from a process that has imported what they need, has one thread, and shares no dice with them."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.process import run

LOOK = """
import json, os, sys
from lockgate.spark.workers import import_all
import_all()
print(json.dumps([len(os.listdir("/proc/self/task")), "pandas" in sys.modules, "lockgate.spark.keyed" in sys.modules]))
"""


def seen_after_the_imports(place: Path, code: str = LOOK, **environ: str) -> list[object]:
    plain = {name: None for name in os.environ if name.endswith("_NUM_THREADS")}
    return list(json.loads(run(sys.executable, "-c", code, cwd=place, environ={**plain, **environ}).stdout))


@pytest.mark.process
def test_what_forks_has_one_thread_and_all_that_is_needed(tmp_path: Path) -> None:
    assert seen_after_the_imports(tmp_path, OMP_NUM_THREADS="1") == [1, True, True]


@pytest.mark.process
@pytest.mark.parametrize("asked", [{}, {"OMP_NUM_THREADS": "4"}])
def test_if_a_setting_asks_for_threads_in_workers_nothing_is_imported(asked: dict[str, str], tmp_path: Path) -> None:
    assert seen_after_the_imports(tmp_path, **asked) == [1, False, False]


@pytest.mark.process
def test_a_machine_without_the_client_of_kafka_has_workers_too(tmp_path: Path) -> None:
    hidden = "import sys\nsys.modules['kafka'] = None\n"  # as if it were not installed
    assert seen_after_the_imports(tmp_path, hidden + LOOK, OMP_NUM_THREADS="1") == [1, True, True]


@pytest.mark.spark
def test_workers_of_a_job_come_from_it_and_throw_dice_of_their_own(spark: SparkSession) -> None:
    def look(batches: Iterator[object]) -> Iterator[object]:
        import numpy as np
        import pyarrow as pa
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        BarrierTaskContext.get().barrier()  # both tasks run at once, so in two workers
        parent = open(f"/proc/{os.getppid()}/cmdline").read()  # noqa: PTH123, SIM115 - runs in a worker
        yield pa.RecordBatch.from_pylist([{"worker": os.getpid(), "parent": parent, "dice": float(np.random.random())}])

    schema = "worker LONG, parent STRING, dice DOUBLE"
    one, other = spark.range(0, 2, 1, 2).mapInArrow(look, schema, barrier=True).collect()  # type: ignore[arg-type]
    assert one["worker"] != other["worker"]
    assert "lockgate.spark.workers" in one["parent"]
    assert one["dice"] != other["dice"]
