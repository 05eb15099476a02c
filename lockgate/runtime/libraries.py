"""The libraries that a job needs besides Spark: extras of this package, and modules that its tasks import."""

from __future__ import annotations

from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.locations import topics_among
from lockgate.dataflow.steps import Read, Write
from lockgate.guarantees import Guarantee
from lockgate.planner.plan import Plan

ALWAYS = ("numpy", "ormsgpack", "pandas", "pyarrow", "google.protobuf")
"""What workers import in every job."""


def extras_of(planned: Plan) -> tuple[str, ...]:
    """The extras of this package that a job needs, as in `pip install 'lockgate[kafka]'`."""
    sources = [node.step.source for node in planned.logical.nodes if isinstance(node.step, Read)]
    extras = {*(source.extra for source in sources), *(sink.extra for sink in _sinks_of(planned))}
    return tuple(sorted(extra for extra in extras if extra is not None))


def modules_of(planned: Plan) -> tuple[str, ...]:
    """The modules that tasks of a job import, other than Spark's and ours."""
    is_exact = planned.job.guarantee is Guarantee.END_TO_END_EXACTLY_ONCE
    own = (name for sink in _sinks_of(planned) for name in sink.task_modules(is_exact=is_exact))
    return (*ALWAYS, *dict.fromkeys(own))


def uses_kafka(planned: Plan) -> bool:
    """Does a job need Kafka's connector?"""
    sources = [node.step.source for node in planned.logical.nodes if isinstance(node.step, Read)]
    return any(topics_among([*sources, *_sinks_of(planned)]))


def _sinks_of(planned: Plan) -> list[Sink]:
    letters = planned.job.dead_letters
    sinks = [node.step.sink for node in planned.logical.nodes if isinstance(node.step, Write)]
    return sinks if letters is None else [*sinks, letters.sink]
