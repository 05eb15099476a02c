"""The answer: what each output of a spec holds in the end, when every event takes effect exactly once.

The end is when all input was read and time has gone on until every window and every pattern is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.columns import calls_of
from lockgate.lab.randomjobs.interpreter.evaluate import Evaluation
from lockgate.lab.randomjobs.interpreter.rows import Flow, Letter, Undetermined
from lockgate.lab.randomjobs.spec import CHANGES, EventTime, Join, Output, Process, Spec, changes, used


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
    """What a job has to give.

    `outputs` by their names. `letters` are the events that are dead letters; None if that cannot be said. `stops` says
    why the job has to stop, and `may_stop` whether it may.
    """

    outputs: dict[str, OutputAnswer]
    letters: tuple[Letter, ...] | None = ()
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)  # of an event of a topic, by source and number
    stops: str | None = None
    may_stop: bool = False


def expected(spec: Spec) -> Answer:
    """The right answer to a spec, by docs/ and the catalogue alone."""
    exact, loose = Evaluation(spec), Evaluation(spec, everything=True)
    flows = {output.name: _flow(exact, output.input) for output in spec.outputs}
    stops: str | None = None
    if changed := changes(spec):
        name = min(changed)
        what = "a file of" if changed[name].how in CHANGES["file"] else "the topic of"
        stops = f"{what} {name} changed after it was read"
    elif exact.letters and not exact.has_unknown_letters and spec.dead_letters is None:
        stops = f"an event cannot be used by {exact.letters[0].step}"
    elif any(_refuses(output, flows[output.name]) for output in spec.outputs):
        stops = "a gauge takes no row without the column that decides which one is the last"
    outputs: dict[str, OutputAnswer] = {}
    for output in spec.outputs:
        flow, possible = flows[output.name], _flow(loose, output.input)
        if stops is not None:
            flow = f"the job has to stop: {stops}"
        outputs[output.name] = OutputAnswer(
            output,
            flow if isinstance(flow, Flow) else None,
            possible if isinstance(possible, Flow) else None,
            flow if isinstance(flow, str) else None,
        )
    # A step whose rows are unknown may have dead letters as well, of events that could make some.
    is_known = not exact.has_unknown_letters and not any(isinstance(flow, str) for flow in flows.values())
    may_stop = spec.dead_letters is None and (bool(exact.letters) or (not is_known and _can_fail(spec)))
    may_stop = may_stop or any(output.sink.latest and isinstance(flows[output.name], str) for output in spec.outputs)
    letters = tuple(exact.letters) if is_known else None
    return Answer(outputs, letters, _offsets(spec), stops, stops is not None or may_stop)


def _offsets(spec: Spec) -> dict[tuple[str, int], int]:
    offsets: dict[tuple[str, int], int] = {}
    for source in spec.sources:
        if source.system == "kafka":
            for number, event in enumerate(source.events):
                before = source.events[:number]
                offsets[source.name, number] = sum(other.partition == event.partition for other in before)
    return offsets


def _refuses(output: Output, flow: Flow | str) -> bool:
    """Does a gauge get a row of which it cannot say whether it is the last one?"""
    latest = output.sink.latest
    return latest is not None and isinstance(flow, Flow) and any(row.values[latest] is None for row in flow.rows)


def _can_fail(spec: Spec) -> bool:
    """May there be an event that a step cannot use?"""
    events = [event for source in spec.sources for event in source.events]
    if any(event.text is not None or None in event.values for event in events):
        return True
    return any(
        (isinstance(step, Join) and step.how != "inner")  # the other side has no time
        or (isinstance(step, EventTime) and step.max_ahead_ms is not None)
        or (isinstance(step, Process) and catalogue.FUNCTIONS[step.function.entry].can_raise)
        or any(catalogue.entry(call.entry).can_raise for call in calls_of(step))
        for step in used(spec)
    )


def _flow(evaluation: Evaluation, reference: str) -> Flow | str:
    try:
        return evaluation.flow(reference)
    except Undetermined as reason:
        return str(reason)
