"""What a run was asked for, and which requests are refused before Spark starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Read
from lockgate.errors import Refused
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.plan import Plan

ROWS_PER_EPOCH = 500_000
"""The most rows that an epoch takes from one source, so that a first run over a long history has no huge epoch."""


@dataclass(frozen=True)
class Options:
    """The arguments of `run`."""

    checkpoint: str | None = None
    master: str | None = None
    start: str | None = None
    until_caught_up: bool = False
    rows_per_epoch: int | None = None
    new_life: bool = False
    accept_outputs: bool = False
    accept_gap: bool = False
    keep_epochs: int | None = None
    secure: bool = False
    log_file: Path | None = None

    @property
    def rows_max(self) -> int:
        """The most rows that an epoch takes from one source."""
        return ROWS_PER_EPOCH if self.rows_per_epoch is None else self.rows_per_epoch

    def place(self, job: Job) -> str:
        """The checkpoint of a job that keeps one."""
        return str(self.checkpoint or default_checkpoint(job.name))

    def checked(self, planned: Plan) -> Options:
        """The same, with a start that every version of Python reads; Refused if they do not suit the job."""
        job = planned.job
        where = f"job {job.name!r}, declared at {job.origin}"
        checked = replace(self, start=_read_start(self.start, job))
        if self.until_caught_up:
            _refuse_endless(planned)
        for name, fix in (
            ("rows_per_epoch", "take at least one row an epoch"),
            ("keep_epochs", "keep at least one: a restart needs it"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise Refused(f"{name} is {value}", where=f"job {job.name!r}", fix=fix)
        if self.checkpoint is not None and job.guarantee is Guarantee.AT_MOST_ONCE:
            raise Refused(
                "an at-most-once job keeps no checkpoint",
                where=where,
                fix="omit the checkpoint, or declare a stronger guarantee",
            )
        return checked


def default_checkpoint(name: str) -> Path:
    """The default place for the checkpoint of a job with this name."""
    return Path(".lockgate").resolve() / "checkpoints" / name


def _read_start(start: str | None, job: Job) -> str | None:
    if start in (None, "earliest", "latest"):
        return start
    try:
        moment = datetime.fromisoformat(str(start).strip())
        if moment.tzinfo is not None:
            return moment.isoformat()
    except ValueError:
        pass
    raise Refused(
        f"{start!r} is not a place to start from",
        where=f"job {job.name!r}",
        fix="use earliest, latest, or a time with its zone, e.g. 2026-01-31T12:00:00Z",
    )


def _refuse_endless(planned: Plan) -> None:
    for node in planned.logical.nodes:
        endless = node.step.source.endless if isinstance(node.step, Read) else None
        if endless is not None:
            raise Refused(
                f"{endless} never reports that everything is read, so the job would never be caught up",
                where=node.where,
                fix="run it without --until-caught-up, and stop it with Ctrl-C",
            )
    if planned.job.mode is Mode.REAL_TIME:
        raise Refused(
            "a real-time query has no end",
            where=f"job {planned.job.name!r}, declared at {planned.job.origin}",
            fix="run it without --until-caught-up, or declare mode=Mode.MICRO_BATCH",
        )
