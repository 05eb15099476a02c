"""The measurement: run the requested parts on their services, one at a time, and remove everything afterwards.

Figures of two runs on two days cannot be compared. So each part runs the same job over the same input with both
guarantees in turn, and the result is the quotient of the two medians.

    throughput     both sides over the same events
    transactions   what an epoch pays beside its records
    memory         the largest Python worker, by the size of the epoch
    table          both sides into PostgreSQL, without Kafka
    lateness       late events against the wait for results; one side
    windows        native windows against the hand-written query, without Kafka
    at-most-once   a job that tracks nothing, against the hand-written pipeline and stronger guarantees
    acks           at-least-once by acknowledgement, against the same by checkpoint
    backlog        the memory of a job that is far behind, until it has caught up
    state          steps in Python against hand-written transformWithState; few keys against many; without Kafka

It removes whatever it creates: topics, ledgers, checkpoints, services.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from lockgate.lab.bench.acknowledgement import measure_acks
from lockgate.lab.bench.backlog import measure_backlog
from lockgate.lab.bench.contest import Arena
from lockgate.lab.bench.counting import GoOn
from lockgate.lab.bench.lateness import measure_lateness
from lockgate.lab.bench.memory import measure_memory
from lockgate.lab.bench.payments import Payments, send
from lockgate.lab.bench.plain import measure_at_most_once
from lockgate.lab.bench.report import Machine, Report
from lockgate.lab.bench.runs import Runs, driver
from lockgate.lab.bench.settings import Settings
from lockgate.lab.bench.site import Site, Tell
from lockgate.lab.bench.state import measure_keys, measure_state
from lockgate.lab.bench.table import measure_table, own_server, version_of
from lockgate.lab.bench.throughput import measure_throughput
from lockgate.lab.bench.transactions import measure_transactions
from lockgate.lab.bench.windows import measure_windows
from lockgate.lab.services.directorylock import locked_directory
from lockgate.lab.services.stack import Stack
from lockgate.provision.jars import jdbc_jars

_WITHOUT_KAFKA = {"windows", "state", "keys"}
_OVER_PAYMENTS = {"throughput", "memory", "at-most-once", "acks", "backlog"}
_WAIT = "wait for its end: two would measure each other"

PREFIX = "lockgate-bench-"


def measure(
    settings: Settings,
    home: Path,
    *,
    servers: str | None,
    now: datetime,
    tell: Tell,
    go_on: GoOn = lambda: None,
) -> Report:
    """Measure the requested parts, and remove what was created.

    Args:
        home: a directory for input, checkpoints, the log and services of its own (Kafka only without `servers`).
        now: names the topics.
        go_on: called often; what it raises ends the measurement.
    """
    report = Report(settings=settings, machine=_look_at_machine())
    payments = Payments(settings)
    log = home / "bench.spark.log"
    with locked_directory(home, what="a measurement is running here already", fix=_WAIT):
        try:
            if set(settings.parts) - {"table", *_WITHOUT_KAFKA}:
                with _kafka(home, servers, tell) as found:
                    name = f"{PREFIX}{now:%Y%m%d-%H%M%S}"
                    site = Site(settings, servers=found, name=name, tell=tell, go_on=go_on)
                    with contextlib.closing(site):
                        runs = Runs(site, payments=f"{name}-payments", checkpoints=home / "checkpoints", log=log)
                        report = _measure_over_kafka(report, runs, payments)
            if "table" in settings.parts:
                jars = jdbc_jars(tell)  # first: without a network it ends here
                with own_server(home, tell) as server:
                    speed = measure_table(settings, payments, server, jars, home=home, tell=tell, go_on=go_on)
                    report = replace(report, table=speed, machine=replace(report.machine, postgres=version_of(server)))
            if _WITHOUT_KAFKA & set(settings.parts):
                arena = Arena(settings, home=home, tell=tell, go_on=go_on)
                with driver((), log=arena.log, tell=tell):
                    if "windows" in settings.parts:
                        report = replace(report, windows=measure_windows(arena))
                    if "state" in settings.parts:
                        report = replace(report, state=measure_state(arena))
                    if "keys" in settings.parts:
                        report = replace(report, keys=measure_keys(arena))
        finally:
            for made in ("checkpoints", "payments"):
                shutil.rmtree(home / made, ignore_errors=True)
    return report


def _measure_over_kafka(report: Report, runs: Runs, payments: Payments) -> Report:
    site = runs.site
    parts = site.settings.parts
    # One after another, the input first: anything that runs at the same time would be measured, too.
    event_bytes = send(payments, runs.payments, site) if _OVER_PAYMENTS & set(parts) else 0
    throughput = measure_throughput(runs, payments) if "throughput" in parts else None
    costs = measure_transactions(site) if "transactions" in parts else ()
    memory = measure_memory(runs) if "memory" in parts else ()
    lateness = measure_lateness(runs) if "lateness" in parts else None
    at_most_once = measure_at_most_once(runs, payments) if "at-most-once" in parts else None
    acknowledged = measure_acks(runs) if "acks" in parts else None
    backlog = measure_backlog(runs) if "backlog" in parts else None
    return replace(
        report,
        machine=replace(report.machine, kafka=".".join(map(str, site.connection.broker_version))),
        event_bytes=event_bytes,
        throughput=throughput,
        transactions=costs,
        memory=memory,
        lateness=lateness,
        at_most_once=at_most_once,
        acks=acknowledged,
        backlog=backlog,
    )


def _look_at_machine() -> Machine:
    import psutil
    import pyspark

    from lockgate.provision.java import find_java

    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=int(psutil.virtual_memory().total),
        load_before=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        spark=pyspark.__version__,
        java=str(find_java().version),
    )


@contextlib.contextmanager
def _kafka(home: Path, servers: str | None, tell: Tell) -> Iterator[str]:
    """The servers to measure: the given ones, or a Kafka of our own that is deleted afterwards."""
    if servers is not None:
        yield servers
        return
    root = home / "services"
    stack = Stack(root, brokers=1)
    try:
        stack.up(fresh=True, postgres=False, progress=tell)
        yield stack.status().kafka.servers or ""
    finally:
        stack.down(progress=tell)
        shutil.rmtree(root, ignore_errors=True)
