"""A job file of ours: the author's job in the disguise of one run of a comparison.

lockgate run FILE -p spec=SPECIFICATION     written by `lockgate compare`
"""

from __future__ import annotations

import json
from pathlib import Path

from lockgate.cli.jobfile import load_job
from lockgate.compare.contenders import Contender
from lockgate.compare.renamed import Disguise, disguise
from lockgate.dataflow.job import Job


def job(spec: Path) -> Job:
    """The job of the specification."""
    told = json.loads(spec.read_text())
    as_what = Disguise(told["name"], Contender.of_json(told["contender"]), told["servers"], told["topics"])
    return disguise(load_job(told["file"], told["parameters"]), as_what)
