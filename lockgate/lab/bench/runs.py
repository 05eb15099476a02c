"""Runs of the job: in a Spark driver of our own, each with its own name, checkpoint and topic.

A run that found another run's checkpoint, ledger or records would continue there instead of doing the timed work. A
warm driver would help the side that goes first. So only the input is used again.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lockgate.connectors.kafka.ledgertopic import ledger_topic
from lockgate.dataflow.job import Job
from lockgate.errors import Refused
from lockgate.guarantees import Guarantee
from lockgate.lab.bench.counting import GoOn
from lockgate.lab.bench.settings import WHERE, job
from lockgate.lab.bench.site import Site, Tell
from lockgate.provision.kafkajars import kafka_jars
from lockgate.runtime.progress import Progress
from lockgate.runtime.run import run
from lockgate.runtime.running import Run
from lockgate.spark.session import SessionPlan, open_session

_LOOK_SECONDS = 0.05


class Runs:
    """The runs of one measurement, all over the same topic of payments."""

    def __init__(self, site: Site, *, payments: str, checkpoints: Path, log: Path) -> None:
        self.site = site
        self.payments = payments  # the topic
        self.checkpoints = checkpoints
        self.log = log
        self._count = 0

    def driver(self, *, are_tasks_retried: bool = True) -> AbstractContextManager[Any]:
        """A driver that reads and writes Kafka."""
        jars = kafka_jars()
        return driver(jars, log=self.log, tell=self.site.tell, are_tasks_retried=are_tasks_retried)

    @contextlib.contextmanager
    def output(self) -> Iterator[tuple[str, str]]:
        """A name for a job and a new topic for it, both deleted afterwards."""
        self._count += 1
        name = f"{self.site.name}-{self._count}"
        out = f"{name}-out"
        self.site.make(out, self.site.settings.partitions)
        self.site.note(ledger_topic(name))
        try:
            yield name, out
        finally:
            shutil.rmtree(self.checkpoints / name, ignore_errors=True)
            self.site.delete(out, ledger_topic(name))

    def run(self, side: Guarantee, *, name: str, out: str, rows_per_epoch: int) -> list[Progress]:
        """Run the job until it has caught up; the progress of each of its epochs."""
        site = self.site
        described = job(site.settings, side, servers=site.servers, payments=self.payments, out=out, name=name)
        return self.run_job(described, rows_per_epoch=rows_per_epoch)

    def run_job(self, described: Job, *, rows_per_epoch: int) -> list[Progress]:
        """Run a job over the payments, the same way."""
        is_tracked = described.guarantee is not Guarantee.AT_MOST_ONCE
        started = run(
            described,
            checkpoint=str(self.checkpoints / described.name) if is_tracked else None,
            start="earliest",
            until_caught_up=True,
            rows_per_epoch=rows_per_epoch,
            log_file=self.log,
            wait=False,
        )
        return watch(started, self.site.go_on)


@contextlib.contextmanager
def driver(jars: Sequence[Path], *, log: Path, tell: Tell, are_tasks_retried: bool = True) -> Iterator[Any]:
    """A Spark driver of our own: an existing, warm one would help the side that goes first."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        raise Refused(
            "this process has a Spark driver already",
            where=WHERE,
            fix="stop it, or measure in a process of its own",
        )
    tell("starting Spark")
    on_interrupt = signal.getsignal(signal.SIGINT)
    wanted = SessionPlan(app=WHERE, master=None, jars=jars, log_file=log.resolve(), are_tasks_retried=are_tasks_retried)
    spark = open_session(wanted)
    if threading.current_thread() is threading.main_thread():
        # A new driver takes Ctrl-C for itself, but the command handles it already.
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield spark
    finally:
        spark.sparkContext.stop()


def watch(started: Run, go_on: GoOn) -> list[Progress]:
    """Wait for the end of a run, noticing it at once; the progress of each of its epochs."""
    epochs = []
    try:
        while started.is_running:
            go_on()
            news = started.progress()
            epochs += [news] if news is not None else []
            time.sleep(_LOOK_SECONDS)
        started.wait(on_progress=epochs.append)
    except BaseException:
        started.stop()
        raise
    return [epoch for epoch in epochs if epoch.events_per_second]
