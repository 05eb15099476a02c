"""Memory: the largest Python worker, by the size of the epoch.

Each size has a driver of its own, because a worker keeps the memory of an earlier run: in one driver a small epoch
after a large one would look equally large.
"""

from __future__ import annotations

import contextlib
import threading

from lockgate.lab.bench.report import TaskMemory
from lockgate.lab.bench.runs import Runs
from lockgate.lab.bench.settings import SIDES

_LOOK_SECONDS = 0.05


def measure_memory(runs: Runs) -> tuple[TaskMemory, ...]:
    """The memory of a task at each of the sizes that are compared."""
    return tuple(_measure(runs, size) for size in runs.site.settings.epoch_sizes())


def _measure(runs: Runs, rows_per_epoch: int) -> TaskMemory:
    with runs.driver() as spark, runs.output() as (name, out):
        with _Peaks(spark.sparkContext._gateway.proc.pid) as peaks:
            epochs = runs.run(SIDES[1], name=name, out=out, rows_per_epoch=rows_per_epoch)
        peak = max(peaks.by_worker.values(), default=0)
        runs.site.tell(f"{rows_per_epoch:,} rows an epoch: the largest worker took {peak / 2**20:.0f} MiB")
        return TaskMemory(
            rows_per_epoch=rows_per_epoch,
            epoch_count=len(epochs),
            workers=len(peaks.by_worker),
            peak_bytes=peak,
        )


class _Peaks:
    """Measures the Python workers of a driver during a run: the maximum memory of each."""

    def __init__(self, driver: int) -> None:
        self.by_worker: dict[int, int] = {}
        self._driver = driver
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lockgate-memory", daemon=True)

    def __enter__(self) -> _Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        import psutil

        while not self._is_over.wait(_LOOK_SECONDS):
            with contextlib.suppress(psutil.Error):
                for daemon in psutil.Process(self._driver).children():
                    for worker in daemon.children():  # the daemon itself only forks workers
                        taken = worker.memory_info().rss
                        self.by_worker[worker.pid] = max(taken, self.by_worker.get(worker.pid, 0))
