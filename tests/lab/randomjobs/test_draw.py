"""Drawing random jobs: every feature is reached, a seed gives the same job, and the text of a job is a job file."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import lockgate
from lockgate.cli.jobfile import load_job
from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs import spec as nodes
from lockgate.lab.randomjobs.check import plan_of
from lockgate.lab.randomjobs.columns import calls_of, columns_of, is_sound
from lockgate.lab.randomjobs.draw import draw
from lockgate.lab.randomjobs.jobfile import SINKS, SOURCES, job_text
from lockgate.lab.randomjobs.model import is_refused_at_start, judge
from lockgate.lab.randomjobs.spec import Spec, from_json, to_json


@cache
def drawn() -> tuple[Spec, ...]:
    return tuple(draw(Random(seed)) for seed in range(800))


def parts(value: Any) -> Iterator[Any]:
    """A node, and all that is in it."""
    yield value
    if dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            yield from parts(getattr(value, one.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from parts(item)


def test_a_seed_gives_the_same_job_each_time() -> None:
    assert draw(Random(7)) == draw(Random(7)) != draw(Random(8))


def test_every_spec_comes_back_from_its_json() -> None:
    assert [from_json(to_json(spec)) for spec in drawn()] == [*drawn()]


def test_every_kind_of_step_is_drawn() -> None:
    counts = Counter(type(step) for spec in drawn() for step in spec.steps)
    assert set(counts) == set(nodes.Step.__args__)


def test_every_entry_of_the_catalogue_is_drawn() -> None:
    named = {part.entry for spec in drawn() for part in parts(spec) if isinstance(part, nodes.Call)}
    tables = (
        *(catalogue.SQL, catalogue.CONDITIONS, catalogue.PYTHON, catalogue.PYTHON_CONDITIONS, catalogue.LISTS),
        *(catalogue.NATIVE_AGGREGATES, catalogue.OVER_ROWS, catalogue.FUNCTIONS, catalogue.PATTERNS),
    )
    assert {name for table in tables for name in table} - named == set()


def test_every_option_is_drawn() -> None:
    found = [part for spec in drawn() for part in parts(spec) if dataclasses.is_dataclass(part)]

    def values(kind: type, field: str) -> set[Any]:
        return {getattr(part, field) for part in found if isinstance(part, kind)}

    kinds = {"tumbling", "sliding", "session", "tumbling_count", "sliding_count", "until"}
    levels = {"AT_MOST_ONCE", "AT_LEAST_ONCE", "EXACTLY_ONCE", "END_TO_END_EXACTLY_ONCE"}
    assert values(nodes.Window, "kind") == kinds
    assert values(nodes.EventTime, "late") == {"DROP", "LOG", "TO_SIDE_OUTPUT", "CORRECT"}
    assert values(nodes.Join, "how") == {"inner", "left", "right", "full"}
    assert values(nodes.Source, "system") == set(SOURCES)
    assert values(nodes.Sink, "system") == set(SINKS)
    assert {bool(sink.key) for sink in found if isinstance(sink, nodes.Sink) and sink.system == "postgres"} == {
        True,
        False,
    }
    assert any(values(nodes.Sink, "deleted") - {None})
    assert values(nodes.Sink, "is_counter") == {True, False}
    assert values(nodes.Sink, "route") == {None, "k"}
    assert values(nodes.Window, "trigger") == {None, "every=2", "every='5 seconds'", "on_late=True"}
    assert values(nodes.TableJoin, "how") == {"inner", "left"}
    assert values(nodes.EventTime, "idle_seconds") == {None, 60}
    assert values(nodes.EventTime, "max_ahead_ms") == {None, 30_500, 3_600_000}
    assert values(Spec, "guarantee") == levels
    assert values(Spec, "mode") == {"MICRO_BATCH", "REAL_TIME"}
    assert values(Spec, "dead_letters") == {None, "kafka", "file", "memory"}
    assert len(values(nodes.Output, "guarantee")) > 2
    assert {output.input.partition(".")[2] for output in found if isinstance(output, nodes.Output)} > {
        *("", "late", "timed_out")
    }
    assert {step.deterministic for step in found if isinstance(step, nodes.Transform)} == {True, False}
    assert any(map(is_refused_at_start, drawn()))


def test_every_source_and_sink_of_the_product_can_be_drawn() -> None:
    bases = {"CommittingSink"}
    assert {name for name in lockgate.__all__ if name.endswith("Source")} == set(SOURCES.values())
    assert {name for name in lockgate.__all__ if name.endswith("Sink")} - bases == set(SINKS.values())


def test_events_come_out_of_order_and_twice_and_with_nulls() -> None:
    at_fault: Counter[str] = Counter()
    for spec in drawn()[:50]:
        for source in spec.sources:
            times = [event.values[3] for event in source.events if event.values and event.values[3] is not None]
            at_fault["disorder"] += times != sorted(times)
            at_fault["twice"] += len({event.values for event in source.events}) < len(source.events)
            at_fault["null"] += any(None in event.values for event in source.events)
            assert [event.epoch for event in source.events] == sorted(event.epoch for event in source.events)
    assert min(at_fault[one] for one in ("disorder", "twice", "null")) > 5


def test_events_that_cannot_be_used_are_drawn_mostly_for_jobs_with_dead_letters() -> None:
    counts: Counter[tuple[str, bool]] = Counter()
    for spec in drawn():
        events = [event for source in nodes.read(spec) for event in source.events]
        has_letters = spec.dead_letters is not None
        counts["text", has_letters] += any(event.text is not None for event in events)
        counts["time", has_letters] += any(event.text is None and event.values[3] is None for event in events)
        counts["function", has_letters] += any(
            catalogue.entry(call.entry).can_raise for step in nodes.used(spec) for call in calls_of(step)
        )
        hows = {change.how for change in nodes.changes(spec).values()}
        for system, known in nodes.CHANGES.items():
            counts[f"change of {system}", False] += bool(hows & {*known})
    assert min(counts[f"change of {system}", False] for system in nodes.CHANGES) > 5
    for kind in ("text", "time", "function"):
        assert counts[kind, True] > 8
        assert counts[kind, True] > counts[kind, False]
    assert counts["text", False] > 0


def test_every_job_names_only_what_exists() -> None:
    assert [spec for spec in drawn() if not is_sound(spec)] == []


def test_most_jobs_are_accepted_and_some_declare_more_than_they_reach() -> None:
    refused = [judge(spec).is_refused for spec in drawn()]
    assert 0.05 < sum(refused) / len(refused) < 0.5


@pytest.mark.parametrize("seed", range(12))
def test_the_text_of_a_job_is_a_job_file_with_the_same_verdict(seed: int, tmp_path: Path) -> None:
    spec = next(spec for spec in drawn()[seed * 20 :] if plan_of(spec).outputs)
    file = tmp_path / "job.py"
    file.write_text(job_text(spec), encoding="utf-8")
    job = load_job(str(file))
    assert {output.step.name for output in job.outputs} == {output.name for output in spec.outputs}
    assert job.guarantee.name == spec.guarantee


def test_columns_of_a_window_are_its_keys_its_span_and_its_aggregates() -> None:
    at = nodes.EventTime("t", "s", "at", 5)
    columns = (nodes.Column("k", "STRING"), nodes.Column("at", "TIMESTAMP"))
    window = nodes.WindowAggregate(
        "w", "t", ("k",), nodes.Window("tumbling", 10), (nodes.Made("n", nodes.Call("count")),)
    )
    spec = Spec("job", (nodes.Source("s", "kafka", columns),), (at, window), (), "AT_LEAST_ONCE")
    assert list(columns_of(spec, "w")) == ["k", "window_start", "window_end", "n"]
    assert list(columns_of(spec, "w.late")) == ["k", "at", "window_start", "window_end"]
