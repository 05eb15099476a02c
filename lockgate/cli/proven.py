"""A job file of ours: the author's job at the site of one run of a proof.

lockgate run FILE -p spec=SPECIFICATION     written by `lockgate prove`
"""

from __future__ import annotations

import json
from pathlib import Path

from lockgate.cli.jobfile import load_job
from lockgate.dataflow.job import Job
from lockgate.proof.redirect import Site, redirect


def job(spec: Path) -> Job:
    """The job of the specification."""
    told = json.loads(spec.read_text())
    site = Site(told["name"], told["servers"], Path(told["directory"]), told["dsn"])
    return redirect(load_job(told["file"], told["parameters"]), site).job
