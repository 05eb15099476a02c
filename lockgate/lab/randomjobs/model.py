"""What a job may claim, written from docs/GUARANTEES.md alone: the planner is compared with it.

A path leads from a source to an output. What it is worth is in the table of "How a guarantee is derived"; an output is
worth what its weakest path is worth. If the page leaves a case open, the model takes the weaker reading:

    a fan-out behind state                    as any function that is not deterministic below state
    an aggregate in SQL, a stateful function,
    an `.apply`, a condition of `until` that
    is not deterministic                      above state: it makes the state
    a `transform` that is not deterministic   the same, because it may hold state
    `deleted=` that is not deterministic      as a function below all others
    a pattern, a window by count or `until`   state of the kind `sum`, whatever they compute
    `.late` and `.timed_out`                  a path through the state of their step; one pass with the results of the
                                              step if it runs in Python (docs/TIME.md), a second one if Spark runs it
    dead letters                              an output of its own, with a path from each source, step and sink; they
                                              promise at-least-once if the job does not promise end-to-end

One thing that no plan can know is judged separately: a `transform` that is declared deterministic counts as that in a
plan, and is refused when the job starts (`is_refused_at_start`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import count

from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.columns import calls_of, is_corrected
from lockgate.lab.randomjobs.spec import (
    Call,
    Detect,
    EventTime,
    FanOut,
    FlatMap,
    Join,
    Made,
    Map,
    Output,
    Part,
    Process,
    ProcessingTime,
    Rolling,
    Select,
    Sink,
    Source,
    Spec,
    Split,
    Step,
    Transform,
    Where,
    WindowAggregate,
    WindowApply,
    inputs_of,
    used,
)

DEAD_LETTERS = "dead-letters"
"""What their output is called."""


class Worth(IntEnum):
    """The guarantees, in their order; the names are those of `Guarantee`."""

    AT_MOST_ONCE = 1
    AT_LEAST_ONCE = 2
    EXACTLY_ONCE = 3
    END_TO_END_EXACTLY_ONCE = 4


@dataclass(frozen=True)
class Judgement:
    """What a job may claim."""

    outputs: dict[str, Worth]
    reached: Worth
    declared: dict[str, Worth]
    repeated: tuple[str, ...]  # steps whose chance would be drawn several times
    promised: Worth  # by the job

    @property
    def is_refused(self) -> bool:
        """Does the plan have to refuse it?"""
        is_less = any(self.outputs[name] < worth for name, worth in self.declared.items())
        return bool(self.repeated) or is_less or self.reached < self.promised


_Node = tuple[Source | Step, str]
"""A step, and the part or side output of it that the path takes."""


def judge(spec: Spec) -> Judgement:
    """What each output and the job may claim, and what it has to be refused for."""
    declared = {output.name: Worth[output.guarantee or spec.guarantee] for output in spec.outputs}
    outputs = {output.name: min(_worths(spec, output)) for output in spec.outputs}
    deciding = {output.name for output in spec.outputs if output.guarantee is None}
    if spec.dead_letters is not None:
        outputs[DEAD_LETTERS] = min(_letters(spec, spec.dead_letters))
        declared[DEAD_LETTERS] = Worth[spec.guarantee]
        if declared[DEAD_LETTERS] is Worth.EXACTLY_ONCE:
            declared[DEAD_LETTERS] = Worth.AT_LEAST_ONCE
        else:
            deciding.add(DEAD_LETTERS)
    reached = min(worth for name, worth in outputs.items() if not deciding or name in deciding)
    return Judgement(outputs, reached, declared, tuple(_repeated(spec)), Worth[spec.guarantee])


def is_refused_at_start(spec: Spec) -> bool:
    """Does Spark's own plan show what the user did not declare: a transform that is not deterministic?"""
    return any(isinstance(step, Transform) and step.deterministic and _has_chance(step.made) for step in used(spec))


# The table of paths


def _worths(spec: Spec, output: Output) -> Iterator[Worth]:
    for path in _paths(spec, output.input):
        # Opaque: state where state is a danger, none where it is a merit.
        yield _worth(spec, output, path, is_transform_state=False)
        if any(isinstance(step, Transform) for step, _ in path):
            yield _worth(spec, output, path, is_transform_state=True)


def _letters(spec: Spec, system: str) -> Iterator[Worth]:
    """What dead letters are worth: they come from any step, and from a sink that refuses what all steps made."""
    output = _letters_output(spec, system)
    for one in spec.outputs:
        for path in _paths(spec, one.input):
            for number in range(len(path)):
                yield _worth(spec, output, path[: number + 1], is_transform_state=True)


def _letters_output(spec: Spec, system: str) -> Output:
    return Output(DEAD_LETTERS, "", Sink(system, cluster=spec.letters_cluster))


def _paths(spec: Spec, reference: str) -> Iterator[tuple[_Node, ...]]:
    """All ways from a source to a reference."""
    step, side = spec.step(reference), reference.partition(".")[2]
    if isinstance(step, Source):
        yield ((step, side),)
        return
    for one in inputs_of(step):
        for path in _paths(spec, one):
            yield (*path, (step, side))


def _worth(spec: Spec, output: Output, path: tuple[_Node, ...], *, is_transform_state: bool) -> Worth:
    table = _row(spec, output, path, is_transform_state)
    # An at-most-once job keeps no checkpoint: nothing in it can be worth more.
    return min(table, Worth.AT_MOST_ONCE) if spec.guarantee == "AT_MOST_ONCE" else table


def _row(spec: Spec, output: Output, path: tuple[_Node, ...], is_transform_state: bool) -> Worth:
    """The row of the table."""
    source = path[0][0]
    assert isinstance(source, Source)
    if source.system == "socket":
        return Worth.AT_MOST_ONCE
    if source.system == "mqtt":
        return Worth.AT_LEAST_ONCE
    kinds = [_state(step) or ("sum" if is_transform_state and isinstance(step, Transform) else "") for step, _ in path]
    stateful = [number for number, kind in enumerate(kinds) if kind]
    chances = [number for number, node in enumerate(path) if _is_chance(node)]
    makes_state = any(_makes_state_by_chance(step) for step, _ in path)
    is_above = makes_state or (bool(stateful) and any(number < stateful[-1] for number in chances))
    is_deleted_by_chance = output.sink.deleted is not None and _is_call_by_chance(output.sink.deleted)
    chance = "above" if is_above else "below" if chances or is_deleted_by_chance else ""
    state = "" if not stateful else "max" if all(kinds[number] == "max" for number in stateful) else "sum"
    sink = _delivery(spec, output)
    if (chance or any(_adds_fractions(spec, node) for node in path)) and _is_in_second_cluster(spec, output):
        sink = "plain"  # the first cluster may have committed other rows than those that a replay gives this one
    is_real_time = spec.mode == "REAL_TIME"
    full, state_only, repeated = Worth.END_TO_END_EXACTLY_ONCE, Worth.EXACTLY_ONCE, Worth.AT_LEAST_ONCE
    if not state:
        if sink == "transactional":
            return repeated if is_real_time else full
        is_lifted = not chance or _only_scores_differ(spec, output, path, chances)
        return full if sink == "idempotent" and is_lifted else repeated
    if chance == "above":
        return repeated
    if state == "sum" and is_real_time:
        return repeated
    if sink == "transactional":
        return state_only if is_real_time else full
    if sink == "idempotent":
        return full if not chance or _only_scores_differ(spec, output, path, chances) else state_only
    return state_only


def _state(step: Source | Step) -> str:
    """`sum`, `max` or nothing."""
    match step:
        case WindowAggregate() | Rolling():
            is_by_time = isinstance(step, Rolling) or step.window.kind in ("tumbling", "sliding", "session")
            keeps_extremes = all(one.call.entry in catalogue.IDEMPOTENT_AGGREGATES for one in step.made)
            return "max" if is_by_time and keeps_extremes else "sum"
        case WindowApply() | Process() | Detect() | Join():
            return "sum"
    return ""


def _runs_python(spec: Spec, step: Step) -> bool:
    match step:
        case Where():
            return step.condition.entry in catalogue.PYTHON_CONDITIONS
        case WindowAggregate():
            return step.window.kind in ("tumbling_count", "sliding_count", "until") or is_corrected(spec, step)
        case Map() | FlatMap() | FanOut() | WindowApply() | Rolling() | Process() | Detect():
            return True
    return False


def _delivery(spec: Spec, output: Output) -> str:
    """What the sink does with an epoch that comes twice."""
    sink = output.sink
    if sink.system == "monitor":
        return "idempotent" if sink.latest is not None and not sink.is_counter else "plain"
    if sink.system in ("console", "memory"):
        return "plain"
    # An upsert is committed with the ledger of its table, whatever its output declares: an old driver has to be fenced.
    is_upsert = sink.system in ("postgres", "sqlite") and bool(sink.key) and spec.guarantee != "AT_MOST_ONCE"
    is_exact = is_upsert or (output.guarantee or spec.guarantee) == "END_TO_END_EXACTLY_ONCE"
    return "transactional" if is_exact else "plain"


def _is_in_second_cluster(spec: Spec, output: Output) -> bool:
    """Does an output commit after a topic in another cluster?"""
    letters = [] if spec.dead_letters is None else [_letters_output(spec, spec.dead_letters)]
    topics = (one for one in (*spec.outputs, *letters) if one.sink.system == "kafka" and spec.mode != "REAL_TIME")
    first = next((one for one in topics if _delivery(spec, one) == "transactional"), None)
    is_topic = output.sink.system == "kafka" and _delivery(spec, output) == "transactional"
    return is_topic and first is not None and first.sink.cluster != output.sink.cluster


# Chance


def _has_chance(made: tuple[Made, ...]) -> bool:
    return any(_is_call_by_chance(one.call) for one in made)


def _is_call_by_chance(call: Call) -> bool:
    return not catalogue.entry(call.entry).is_deterministic


def _is_chance(node: _Node) -> bool:
    """May a step give other rows for the same rows? As far as a plan can know."""
    step, side = node
    match step:
        case FanOut():
            return True
        case Where():
            return _is_call_by_chance(step.condition)
        case Select():
            return _has_chance(step.made)
        case Map() | FlatMap() | Transform() | WindowApply() | Process():
            return not step.deterministic
        case Split():
            return _is_call_by_chance(_part(step, side).condition)
        case WindowAggregate() | Rolling():
            return _has_chance(step.made)
    return False


def _part(step: Split, name: str) -> Part:
    return next(part for part in step.parts if part.name == name)


def _makes_state_by_chance(step: Source | Step) -> bool:
    """Is what a step with state keeps not deterministic?"""
    match step:
        case WindowAggregate() | WindowApply() if step.window.condition is not None and _is_call_by_chance(
            step.window.condition
        ):
            return True
        case WindowAggregate() | Rolling():
            return _has_chance(step.made)
        case WindowApply() | Process() | Transform():
            return not step.deterministic
    return False


def _adds_fractions(spec: Spec, node: _Node) -> bool:
    """Does Spark compute a window whose results depend on the order of addition? Late events are none of its results.

    The plan must know the type of what is added. Behind a transform it may doubt, and be stricter.
    """
    step, side = node
    if not isinstance(step, WindowAggregate) or _runs_python(spec, step) or side:
        return False
    return step.window.trigger is None and any(one.call.entry in catalogue.OF_FRACTIONS for one in step.made)


def _only_scores_differ(spec: Spec, output: Output, path: tuple[_Node, ...], chances: list[int]) -> bool:
    """Is a fan-out the only chance, and does the key come through it untouched, with nothing but a select between?"""
    if output.sink.deleted is not None and _is_call_by_chance(output.sink.deleted):
        return False
    first = chances[0]
    if not all(isinstance(path[number][0], FanOut) for number in chances):
        return False
    made: set[str | None] = {"is_partial", "missing", "why_missing"}
    for step, _ in path[first:]:
        if isinstance(step, FanOut | Select):
            made |= {one.column for one in step.made}
        else:
            return False
    # The row that a gauge shows is the one that `latest` decides on. One without labels has a single key, for all rows.
    return not made & {*output.sink.key, output.sink.latest}


# Chance that would be drawn several times


_Way = tuple[tuple[str, str], ...]
"""The names of what a path takes behind some step, up to the output; sides of a Python step are one."""


def _repeated(spec: Spec) -> Iterator[str]:
    """The steps that may give each branch other rows, whose rows go several ways, and that nothing computes once.

    One pass does, over outputs that differ by little; so does an epoch that keeps the rows, if neither state, time nor
    a transform is behind them.
    """
    ways = [(path, output.name) for output in spec.outputs for path in _paths(spec, output.input)]
    nodes = {
        node
        for path, _ in ways
        for node in path
        if _is_chance(node) or _makes_state_by_chance(node[0]) or _adds_fractions(spec, node)
    }
    for node in sorted(nodes, key=lambda one: (one[0].name, one[1])):
        behind = {
            (*(_passed(spec, one) for one in path[path.index(node) :]), (output, ""))
            for path, output in ways
            if node in path
        }
        if len(behind) == 1:
            continue
        common = next(length for length in count(1) if len({way[: length + 1] for way in behind}) > 1)
        if all(_is_one_pass(spec, way[common:]) for way in behind):
            continue
        shared = {name for name, _ in next(iter(behind))[1:common]}
        if shared & {step.name for step, _ in nodes}:
            continue  # the rows of that one are kept for all ways, so this one is computed once
        steps = [spec.step(name) for way in behind for name, _ in way[1:-1]]
        if spec.mode == "REAL_TIME" or any(map(_cannot_be_kept_for, steps)):
            yield node[0].name


def _cannot_be_kept_for(step: Source | Step) -> bool:
    """Rows that an epoch has kept cannot feed state, time of any kind, or a transform, whose content no plan sees."""
    is_timed = not isinstance(step, Source) and any(catalogue.entry(call.entry).is_of_epoch for call in calls_of(step))
    return bool(_state(step)) or is_timed or isinstance(step, EventTime | ProcessingTime | Transform)


def _passed(spec: Spec, node: _Node) -> tuple[str, str]:
    step, side = node
    is_side_in_hand = not isinstance(step, Source | Split) and _runs_python(spec, step)
    return (step.name, "" if is_side_in_hand else side)


def _is_one_pass(spec: Spec, way: _Way) -> bool:
    """Only `split`, `where` and one `select` in SQL, and then an output."""
    steps = [spec.step(name) for name, _ in way[:-1]]  # the last is the output
    selects = sum(isinstance(step, Select) for step in steps)
    return selects <= 1 and all(
        isinstance(step, Split | Select) or (isinstance(step, Where) and not _runs_python(spec, step)) for step in steps
    )
