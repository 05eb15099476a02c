"""The same job with some of its parts replaced: other endpoints, another name, another guarantee.

Only the requested parts are replaced. Steps, functions and schemas stay those of the user, and a step that two branches
share stays one step with one state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from lockgate.dataflow.deadletters import DeadLetters
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Step, Write
from lockgate.dataflow.stream import Output
from lockgate.guarantees import Guarantee, Mode

StepT = TypeVar("StepT", bound=Step)


def all_steps(job: Job) -> Sequence[Step]:
    """Every step of a job once, outputs first."""
    found: dict[int, Step] = {}

    def walk(step: Step) -> None:
        if id(step) not in found:
            found[id(step)] = step
            for before in step.inputs:
                walk(before)

    for output in job.outputs:
        walk(output.step)
    return list(found.values())


def rebuild(
    job: Job,
    *,
    name: str,
    exchange: Callable[[Step], Step],
    letters: Callable[[Sink], Sink],
    guarantee: Guarantee | None = None,
    mode: Mode | None = None,
    keeps_tracking: bool = True,
) -> Job:
    """The job under another name, with other steps in place of some of its own.

    Args:
        exchange: gives the replacement of a step, which may be the step itself; its inputs are replaced before.
        letters: gives the sink of dead letters.
        guarantee: the job's, if it changes.
        mode: the job's, if it changes.
        keeps_tracking: does it track events as the user declares, and not by checkpoint alone?
    """
    made: dict[int, Step] = {}

    def remade(step: StepT) -> StepT:
        # By identity: a step that two branches share stays one step.
        if id(step) not in made:
            inputs = tuple(remade(before) for before in step.inputs)
            made[id(step)] = replace(exchange(step), inputs=inputs)
        found = made[id(step)]
        assert isinstance(found, type(step))
        return found

    outputs: list[Output] = []
    for output in job.outputs:
        write: Write = remade(output.step)
        outputs.append(Output(step=write))
    told = job.dead_letters
    return Job(
        name,
        *outputs,
        guarantee=job.guarantee if guarantee is None else guarantee,
        epoch=job.epoch,
        mode=job.mode if mode is None else mode,
        tracking=job.tracking if keeps_tracking else None,
        dead_letters=None if told is None else DeadLetters(letters(told.sink), told.stop_after),
    )
