"""A job file of ours: the user's job, changed for one run of a proof.

lockgate run FILE -p spec=SPECIFICATION     written by `lockgate prove`
"""

from __future__ import annotations

import json
from pathlib import Path

from lockgate.cli.jobfile import load_job
from lockgate.cli.passwords import PARAMETERS, take
from lockgate.dataflow.job import Job
from lockgate.lab.prove.baseline import through_spark
from lockgate.lab.prove.redirect import Site, redirect


def job(spec: Path) -> Job:
    """The job of the specification."""
    told = json.loads(spec.read_text())
    site = Site.of_json(told["site"])
    user_job = load_job(told["file"], take(told["parameters"], PARAMETERS))
    return redirect(through_spark(user_job) if told["through_spark"] else user_job, site).job
