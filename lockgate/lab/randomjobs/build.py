"""A spec as a `Job`, through the public API only: the text of its job file, run."""

from __future__ import annotations

from typing import Any

from lockgate.dataflow.job import Job
from lockgate.lab.randomjobs.jobfile import job_text
from lockgate.lab.randomjobs.spec import Spec


def build(spec: Spec) -> Job:
    """The job of a spec; raises BadJob for a description that the API refuses."""
    # A module of this name does not exist, so functions and classes travel to workers by value.
    names: dict[str, Any] = {"__name__": "random_job"}
    exec(compile(job_text(spec), "random_job.py", "exec"), names)  # noqa: S102 - our own text, made from the catalogue
    made = names["job"]()
    assert isinstance(made, Job)
    return made
