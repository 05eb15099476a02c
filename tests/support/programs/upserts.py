"""A driver that upserts the rows of a folder into the table `latest`, a file per epoch, and declares at-least-once.

upserts FOLDER DSN    prints the error that ended it; its environment may arm faults
"""

from __future__ import annotations

import sys
from pathlib import Path

from lockgate import FileSource, Guarantee, Job, PostgresSink, run, stream
from lockgate.errors import LockgateError


def job(folder: Path, dsn: str) -> Job:
    rows = stream("rows", FileSource(path=str(folder / "in"), value="id INT, name STRING"))
    table = PostgresSink(table="latest", dsn=dsn, key="id", create=True)
    return Job("upserts", rows.to("table", table), guarantee=Guarantee.AT_LEAST_ONCE)


def drive(folder: Path, dsn: str, log: str) -> None:
    """Take all files that are there."""
    run(
        job(folder, dsn),
        checkpoint=str(folder / "checkpoint"),
        until_caught_up=True,
        rows_per_epoch=1,
        log_file=folder / log,
    )


if __name__ == "__main__":
    try:
        drive(Path(sys.argv[1]), sys.argv[2], "process.log")
    except LockgateError as error:
        sys.exit(str(error))
