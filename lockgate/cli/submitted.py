"""What the entry of a package calls, in a driver that spark-submit has started on some machine of a cluster.

There it is `lockgate run` without a supervisor: the cluster starts a driver again that has failed. The job file came in
an archive, and is loaded from a file, as everywhere.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from lockgate.cli import main as command_line
from lockgate.errors import BadMachine
from lockgate.spark.shipping import JOB_ARCHIVE


def main(job_file: str, words: Sequence[str], more: Sequence[str]) -> int:
    """Run the job of a package; its exit status.

    Args:
        words: what the package says about the run.
        more: what was said at submission, which counts where both say something.
    """
    with tempfile.TemporaryDirectory(prefix="lockgate-job-") as home:
        file = Path(home) / job_file
        file.write_bytes(_read(job_file))
        return command_line.main(["run", str(file), "--no-supervise", *words, *more])


def _read(job_file: str) -> bytes:
    for place in sys.path:
        if Path(place).name == JOB_ARCHIVE and Path(place).is_file():
            with zipfile.ZipFile(place) as packed:
                return packed.read(job_file)
    raise BadMachine(
        f"{JOB_ARCHIVE} has not come along with the driver",
        where=", ".join(place for place in sys.path if place),
        fix="submit with the commands of the package, which name it in --py-files",
    )
