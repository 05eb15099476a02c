"""The answer: what each output of a spec holds in the end, when every event takes effect exactly once.

The end is when all input was read and time has gone on until every window and every pattern is over.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.lab.randomjobs.interpreter.evaluate import Evaluation
from lockgate.lab.randomjobs.interpreter.rows import Flow, Undetermined
from lockgate.lab.randomjobs.spec import Output, Spec


@dataclass(frozen=True)
class OutputAnswer:
    """What one output holds.

    `flow` has the rows. A value that the job does not determine is an atom or a term (`symbols`), and a row that may be
    there or not has guards. `possible` has the rows that could be there if the watermark had been lost. `unknown` says
    why there is no answer; then `flow` is None.
    """

    output: Output
    flow: Flow | None
    possible: Flow | None
    unknown: str | None = None


@dataclass(frozen=True)
class Answer:
    """What a job has to give, by the names of its outputs; `letters` is the number of events that are dead letters."""

    outputs: dict[str, OutputAnswer]
    letters: int = 0


def expected(spec: Spec) -> Answer:
    """The right answer to a spec, by docs/ and the catalogue alone."""
    exact, loose = Evaluation(spec), Evaluation(spec, everything=True)
    flows = {output.name: _flow(exact, output.input) for output in spec.outputs}
    outputs: dict[str, OutputAnswer] = {}
    for output in spec.outputs:
        flow, possible = flows[output.name], _flow(loose, output.input)
        if exact.letters and spec.dead_letters is None:
            flow = "an event without a time stops the job"
        outputs[output.name] = OutputAnswer(
            output,
            flow if isinstance(flow, Flow) else None,
            possible if isinstance(possible, Flow) else None,
            flow if isinstance(flow, str) else None,
        )
    return Answer(outputs, len(exact.letters))


def _flow(evaluation: Evaluation, reference: str) -> Flow | str:
    try:
        return evaluation.flow(reference)
    except Undetermined as reason:
        return str(reason)
