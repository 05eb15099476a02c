"""A job file of ours: the user's job, changed for one run of a comparison.

lockgate run FILE -p spec=SPECIFICATION     written by `lockgate compare`
"""

from __future__ import annotations

import json
from pathlib import Path

from lockgate.cli.jobfile import load_job
from lockgate.cli.passwords import PARAMETERS, take
from lockgate.dataflow.job import Job
from lockgate.lab.compare.contenders import Contender
from lockgate.lab.compare.renamed import Disguise, disguise


def job(spec: Path) -> Job:
    """The job of the specification."""
    told = json.loads(spec.read_text())
    as_what = Disguise(told["name"], Contender.of_json(told["contender"]), told["servers"], told["topics"])
    return disguise(load_job(told["file"], take(told["parameters"], PARAMETERS)), as_what)
