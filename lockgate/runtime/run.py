"""`run(job)`: what users call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockgate.dataflow.job import Job
from lockgate.runtime.options import Options
from lockgate.runtime.running import Run
from lockgate.runtime.starting import launch


def run(
    job: Job,
    *,
    checkpoint: str | None = None,
    master: str | None = None,
    start: str | None = None,
    until_caught_up: bool = False,
    rows_per_epoch: int | None = None,
    new_life: bool = False,
    accept_outputs: bool = False,
    accept_gap: bool = False,
    keep_epochs: int | None = None,
    secure: bool = False,
    log_file: Path | None = None,
    wait: bool = True,
) -> Run:
    """Run a job on Spark, and return the run.

    Args:
        job: what to run.
        checkpoint: the directory of the checkpoint; default: `.lockgate/checkpoints/` and the job's name.
        master: the Spark master, such as `local[4]` or `spark://host:7077`; default: this machine.
        start: "earliest", "latest" or an ISO-8601 time. It counts only without a checkpoint. By default a job skips
            nothing, but an at-most-once job starts with what comes next.
        until_caught_up: end when the job has processed everything that was there.
        rows_per_epoch: the limit of rows in an epoch. By default the run chooses it, and for topics adapts it to
            `Job(epoch=)`.
        new_life: reset the job under the same name. The checkpoint is renamed, and delivered rows are delivered again.
        accept_outputs: continue with output topics that were deleted and created again.
        accept_gap: skip records that were removed from a source before the job read them. The checkpoint and the ledger
            note it.
        keep_epochs: how many epochs a rollback can reach; default: 100. The run removes older ones from the checkpoint.
        secure: refuse a driver whose Spark ports do not ask for a secret; without it the run warns of one.
        log_file: where Spark writes its log; default: `.lockgate/logs/`.
        wait: with `until_caught_up`, return only at the end.

    Raises:
        Refused: nothing has run: the job is not valid (BadJob), declares more than it reaches (OverClaim), or the
            machine or a system that it needs is not fit.
        RecordsGone: a source has lost records before the job read them.
        Failed: with `until_caught_up`, something went wrong while the job ran.

    >>> numbers = stream("numbers", MemorySource([(1,), (2,), (3,)], value="n INT"))
    >>> sink = MemorySink()
    >>> job = Job("squares", numbers.select(square="n * n").to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    >>> done = run(job, until_caught_up=True)
    >>> sorted(row.square for row in sink.rows)
    [1, 4, 9]
    """
    settings: dict[str, Any] = {name: value for name, value in locals().items() if name not in ("job", "wait")}
    started = launch(job, Options(**settings))
    if until_caught_up and wait:
        started.wait()
    return started
