"""The planner's verdict on a random job, beside that of the model.

agreed      both accept it, or both refuse it
stricter    the planner refuses a job that the model accepts, or claims less for an output: no failure, but listed
violation   the planner claims more for an output or a job, or accepts what has to be refused: a hole
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee
from lockgate.lab.randomjobs.build import build
from lockgate.lab.randomjobs.model import Judgement, judge
from lockgate.lab.randomjobs.spec import Spec, used
from lockgate.planner.plan import plan


@dataclass(frozen=True)
class Planned:
    """What the planner says of a job; the outputs are empty if it refuses the description itself."""

    is_refused: bool
    refusal: str
    reached: int
    outputs: Mapping[str, int]


@dataclass(frozen=True)
class Comparison:
    """The two verdicts on one job."""

    planned: Planned
    judged: Judgement
    violations: tuple[str, ...]
    stricter: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """violation, stricter, refused or accepted."""
        if self.violations:
            return "violation"
        return "stricter" if self.stricter else "refused" if self.planned.is_refused else "accepted"


def plan_of(spec: Spec) -> Planned:
    """What the planner says."""
    try:
        planned = plan(build(spec))
    except BadJob as error:
        return Planned(True, str(error), 0, {})
    outputs: dict[str, int] = {}
    for path in planned.paths:
        outputs[path.output] = min(int(path.reached), outputs.get(path.output, int(path.reached)))
    refusal = planned.refusal()
    return Planned(refusal is not None, "" if refusal is None else str(refusal), int(planned.reached), outputs)


def compare(spec: Spec) -> Comparison:
    """The planner beside the model."""
    planned, judged = plan_of(spec), judge(spec)
    violations, stricter = [], []
    if judged.is_refused and not planned.is_refused:
        why = f"; drawn several times: {', '.join(judged.repeated)}" if judged.repeated else ""
        violations.append(f"the plan accepts what has to be refused{why}")
    if planned.is_refused and not judged.is_refused:
        stricter.append(f"refused: {planned.refusal.splitlines()[0]}")
    # What a job that is refused anyway is said to reach harms less, but it is wrong all the same.
    subjects = [(f"output {name}", reached, judged.outputs[name]) for name, reached in planned.outputs.items()]
    subjects += [("the job", planned.reached, judged.reached)] if planned.outputs else []
    for subject, claimed, worth in subjects:
        if claimed > worth:
            violations.append(f"{subject}: the plan claims {_name(claimed)}, the model {_name(worth)}")
        elif claimed < worth:
            stricter.append(f"{subject}: the plan claims {_name(claimed)}, the model {_name(worth)}")
    return Comparison(planned, judged, tuple(violations), tuple(stricter))


def kinds_of(spec: Spec) -> tuple[str, ...]:
    """The kinds of the steps that lead to an output."""
    return tuple(sorted({type(step).__name__ for step in used(spec)}))


def _name(worth: int) -> str:
    return Guarantee(worth).name
