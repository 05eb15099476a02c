"""A driver whose tasks say that they have begun, and then wait until they may end.

    gated MASTER FOLDER    runs a job for FOLDER/job-1, FOLDER/job-2, ... as soon as that directory is there

A task touches `begun-PARTITION-ATTEMPT-on-MACHINE` in the directory of its job, and waits for the file `gate`. The rows
of a job are told in the file `result`. The file `driver` holds the port of the driver's RPC, which anybody on the
machine finds who looks at its ports.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lockgate.spark.session import SessionPlan, open_session
from support.waiting import wait_for


def gated(place: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def tasks(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow
        from pyspark import TaskContext

        task, machine = TaskContext.get(), os.environ.get("LOCKGATE_SPARK_MACHINE", "0")[-1]
        assert task is not None
        (place / f"begun-{task.partitionId()}-{task.attemptNumber()}-on-{machine}").touch()
        wait_for("the gate", (place / "gate").exists)
        for batch in batches:
            yield pyarrow.RecordBatch.from_pydict({"id": batch["id"], "machine": [int(machine)] * len(batch)})

    return tasks


def main(master: str, folder: Path) -> None:
    session = open_session(SessionPlan(app="gated", master=master, jars=(), log_file=folder / "spark.log"))
    (folder / "driver.new").write_text(session.conf.get("spark.driver.port") or "")
    (folder / "driver.new").rename(folder / "driver")
    for number in itertools.count(1):
        place = folder / f"job-{number}"
        wait_for("a job", place.exists, seconds=3600)  # the driver ends with its tests
        rows = session.range(0, 100, 1, 4).mapInArrow(gated(place), "id long, machine long").collect()
        told = {"ids": sorted(row.id for row in rows), "machines": sorted({row.machine for row in rows})}
        (place / "aside").write_text(json.dumps(told))
        (place / "aside").rename(place / "result")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
