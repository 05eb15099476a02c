"""Jobs that run in this process, on the Spark session of the tests.

The checkpoint of a job and the log of Spark are in one directory, as `checkpoint` and `spark.log`.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lockgate import Job, Run
from lockgate.runtime.options import Options
from lockgate.runtime.starting import launch
from support.waiting import wait_for


def start(job: Job, place: Path, **options: Any) -> Run:
    """Start a job in a directory; with until_caught_up= wait for the end, unless wait=False."""
    wait = options.pop("wait", True)
    beside = {name: options.pop(name) for name in ("stepper", "job_file", "meter") if name in options}
    places = {"checkpoint": str(place / "checkpoint"), "log_file": place / "spark.log"}
    started = launch(job, Options(**{**places, **options}), **beside)
    if options.get("until_caught_up") and wait:
        started.wait()
    return started


def run_to_the_end(job: Job, place: Path, **options: Any) -> Run:
    """Run a job in a directory until it has taken all that is there."""
    return start(job, place, until_caught_up=True, **options)


@contextmanager
def live(job: Job, place: Path, **options: Any) -> Iterator[Run]:
    """A job that runs until the context ends."""
    started = start(job, place, **options)
    try:
        yield started
    finally:
        started.stop()


def wait_for_run(what: str, holds: Callable[[], object], *runs: Run, may_restart: bool = False) -> None:
    """Wait until something holds; fail if one of the runs ends before.

    Args:
        may_restart: a query that fails is started again if the run does that; what ends the run is raised.
    """

    def look() -> bool:
        if holds():
            return True
        for one in runs:
            if may_restart:
                assert not one.wait(timeout=0), f"the run ended before {what}"
            else:
                assert one.is_running, f"the run ended before {what}: {one._query.exception()}"
        return False

    wait_for(what, look)


def reports_of(started: Run) -> list[dict[str, Any]]:
    """What Spark has reported about the last epochs of a run."""
    reports = started._query.recentProgress
    return [dict(one) if isinstance(one, dict) else json.loads(one.json) for one in reports]
