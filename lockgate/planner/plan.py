"""Plan: what a job will run, what it declares, what it reaches and why.

Planning is pure. It never raises for a job that declares too much, so that its plan can be shown. The run time and the
command line raise `refusal`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lockgate.dataflow.job import Job
from lockgate.errors import OverClaim
from lockgate.guarantees import Guarantee
from lockgate.planner.derive import PathGuarantee, derive
from lockgate.planner.logical import LogicalGraph, build_logical
from lockgate.planner.passes import Cuts, find_cuts
from lockgate.planner.physical import PhysicalGraph, build_physical


@dataclass(frozen=True)
class Plan:
    """What a job will run, and which guarantee it reaches. `plan(job)` makes it.

    >>> job = Job("orders", orders.to("out", FileSink("out")), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    >>> plan(job).reached.label, plan(job).refusal()
    ('end-to-end exactly-once', None)
    """

    job: Job
    declared: Guarantee
    reached: Guarantee
    reasons: tuple[str, ...]
    logical: LogicalGraph
    physical: PhysicalGraph
    paths: tuple[PathGuarantee, ...]
    cuts: Cuts = field(default_factory=Cuts)

    def refusal(self) -> OverClaim | None:
        """Return the error for a job that declares more than it reaches; None if it does not.

        >>> job = Job("orders", orders.to("screen", ConsoleSink()), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
        >>> plan(job).refusal().fix.endswith("or declare Guarantee.AT_LEAST_ONCE")
        True
        """
        broken = [path for path in self.paths if not path.is_kept]
        if not broken:
            return self._lowered_refusal()
        worst = min(broken, key=lambda path: path.reached)
        cap = worst.caps[0]
        output = "" if worst.declared is self.declared else f" for output {worst.output!r}"
        return OverClaim(
            f"Job {self.job.name!r} declares {worst.declared.label}{output} but reaches {worst.reached.label}:"
            f" {cap.reason}.",
            where=cap.where,
            fix=f"{cap.cure}, or declare Guarantee.{worst.reached.name}",
        )

    def _lowered_refusal(self) -> OverClaim | None:
        """The error for a job that reaches less than it declares, because every output declares less; or None."""
        if self.reached >= self.declared:
            return None
        cap = min(self.paths, key=lambda path: path.reached).caps[0]
        return OverClaim(
            f"Job {self.job.name!r} declares {self.declared.label}, every output of it declares less, and it reaches"
            f" {self.reached.label}: {cap.reason}.",
            where=cap.where,
            fix=f"declare Guarantee.{self.reached.name} for the job",
        )


def plan(job: Job) -> Plan:
    """Find out what a job will run and which guarantee it reaches. This needs no Spark.

    Args:
        job: the job.

    Raises:
        BadJob: the description cannot be valid, for example because a column is unknown.

    >>> plan(Job("orders", orders.to("screen", ConsoleSink()), guarantee=Guarantee.AT_LEAST_ONCE)).reached.name
    'AT_LEAST_ONCE'
    """
    logical = build_logical(job)
    cuts = find_cuts(logical)
    physical = build_physical(logical)
    paths = derive(logical)
    # An output that is declared lower on purpose does not lower the whole job.
    lowered = {node.name for node in logical.of_kind("sink") if getattr(node.step, "guarantee", None) is not None}
    deciding = [path for path in paths if path.output not in lowered] or list(paths)
    return Plan(
        job=job,
        declared=job.guarantee,
        reached=min(path.reached for path in deciding),
        reasons=tuple(_reason(path) for path in paths),
        logical=logical,
        physical=physical,
        paths=paths,
        cuts=cuts,
    )


def with_partitions(planned: Plan, kept: int | None) -> Plan:
    """The same plan over existing state with so many partitions; the user's `.parallel(n)` stays."""
    return replace(planned, physical=build_physical(planned.logical, kept))


def _reason(path: PathGuarantee) -> str:
    text = f"{path.source} -> {path.output}: {path.reached.label}"
    for number, cap in enumerate(path.deciding):
        text += f"{'; and' if number else ','} because of {cap.part}: {cap.reason}"
    for lift in path.lifts:
        text += f"; {lift}"
    return text
