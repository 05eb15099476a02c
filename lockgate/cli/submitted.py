"""The entry of a package calls this, in a driver that spark-submit has started on some machine of a cluster.

It is `lockgate run` without a supervisor: the cluster restarts a failed driver. The job file arrives in an archive, and
is loaded from a file, as everywhere.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from lockgate.cli import main as command_line
from lockgate.errors import BadMachine
from lockgate.spark.shipping import is_job_archive


def main(job_file: str, words: Sequence[str], more: Sequence[str]) -> int:
    """Run the job of a package; returns its exit status.

    Args:
        words: the arguments that the package sets.
        more: the arguments of the submission, which win over those of the package.
    """
    with tempfile.TemporaryDirectory(prefix="lockgate-job-") as home:
        file = Path(home) / job_file
        file.write_bytes(_read(job_file))
        return command_line.main(["run", str(file), "--no-supervise", *words, *more])


def _read(job_file: str) -> bytes:
    for place in sys.path:
        if is_job_archive(Path(place).name) and Path(place).is_file():
            with zipfile.ZipFile(place) as packed:
                return packed.read(job_file)
    raise BadMachine(
        "the archive with the job has not arrived with the driver",
        where=", ".join(place for place in sys.path if place),
        fix="submit with the commands of the package, which name it in --py-files",
    )
