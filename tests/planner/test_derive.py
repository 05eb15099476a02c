"""The derivation: the table of the docs, row by row, and any graph against a reference that walks every path."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.connectors.kafka.sink import KafkaSink
from lockgate.connectors.monitor.sink import MonitorSink
from lockgate.connectors.postgres.sink import PostgresSink
from lockgate.connectors.sqlite.sink import SqliteSink
from lockgate.dataflow import windows
from lockgate.dataflow.endpoints import POSITION, Reading, Sink, SinkAbility, Source, SourceAbility
from lockgate.dataflow.job import Job
from lockgate.dataflow.origin import Origin
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.dataflow.steps import Join, Map, Merge, Read, Rolling, Select, Step, Transform, WindowAggregate, Write
from lockgate.dataflow.stream import Stream, stream
from lockgate.dataflow.tracking import acks
from lockgate.guarantees import Delivery, Guarantee, Mode
from lockgate.planner.derive import PathGuarantee, derive, needs_same_rows
from lockgate.planner.flow import Flow
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.physical import is_exact
from lockgate.planner.plan import Plan, plan

DOCS = Path(__file__).parents[2] / "docs" / "GUARANTEES.md"


@dataclass(frozen=True)
class AnySource(Source):
    """A source that is as able as the test says."""

    kind: str = "replayable"

    @property
    def ability(self) -> SourceAbility:
        return SourceAbility(
            is_replayable=self.kind == "replayable",
            is_acknowledged=self.kind == "acknowledged",
            reason="the test says so",
        )

    @property
    def tasks(self) -> str:
        return "1"

    @property
    def is_fit_for_real_time(self) -> bool:
        return True

    def columns(self, where: str) -> Schema:
        return parse_ddl("k STRING, x DOUBLE, at TIMESTAMP", where)

    def hidden_columns(self) -> Sequence[str]:
        return (POSITION,)

    def read(self, spark: Any, reading: Reading) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class AnySink(Sink):
    """A sink that is as able as the test says."""

    delivery: Delivery = Delivery.PLAIN
    otherwise: Delivery = Delivery.PLAIN
    is_fenced: bool = True

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(
            delivery=self.delivery,
            reason="the test says so",
            cure="take another",
            otherwise=self.otherwise,
            is_fenced=self.is_fenced,
        )

    @property
    def is_fit_for_real_time(self) -> bool:
        return True

    def columns_needed(self) -> Sequence[str]:
        return ()

    def write(self, rows: Any, epoch: int) -> None:
        raise NotImplementedError


def events(name: str = "events", *, kind: str = "replayable") -> Stream:
    return stream(name, AnySource(kind)).event_time("at", lateness="1 second")


def planned(result: Stream, sink: Sink, *, mode: Mode = Mode.MICRO_BATCH) -> Plan:
    return plan(Job("job", result.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, mode=mode))


# The table of the docs


class Case(NamedTuple):
    """One combination of facts, and what the docs say about it."""

    source: str
    state: str
    functions: str
    sink: str
    mode: str
    reached: str
    weakest: str


SOURCES = ("replayable", "acknowledged", "not replayable")  # from the strongest to the weakest
FUNCTIONS = {
    "none": ("deterministic", "not deterministic"),
    "sum": ("deterministic", "not deterministic above state", "not deterministic below state"),
    "max": ("deterministic", "not deterministic above state", "not deterministic below state"),
}
SINKS = {"plain": Delivery.PLAIN, "idempotent": Delivery.IDEMPOTENT, "transactional": Delivery.TRANSACTIONAL}
MODES = {mode.value: mode for mode in Mode}


def documented() -> list[Case]:
    """All cases of the table in the docs, with its shorthands (`any`, lists) written out."""
    section = DOCS.read_text(encoding="utf-8").split("## How a guarantee is derived\n")[1].split("\n##")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert rows[0] == ["source", "state", "functions", "sink", "mode", "reached", "weakest part"]
    return [case for row in rows[2:] for case in written_out(row)]


def written_out(row: list[str]) -> Iterator[Case]:
    source, state, functions, sink, mode, reached, weakest = row
    for one_state in choices(state, tuple(FUNCTIONS)):
        possible = (
            choices(source, SOURCES),
            [one_state],
            choices(functions, FUNCTIONS[one_state]),
            choices(sink, tuple(SINKS)),
            choices(mode, tuple(MODES)),
        )
        for facts in itertools.product(*possible):
            yield Case(*facts, reached, weakest)


def choices(cell: str, possible: tuple[str, ...]) -> list[str]:
    chosen = list(possible) if cell == "any" else cell.split(", ")
    assert set(chosen) <= set(possible), f"the docs speak of {cell!r}, which is none of {possible}"
    return chosen


CASES = documented()


def test_every_possible_path_is_in_exactly_one_row_of_the_docs() -> None:
    told = [case[:5] for case in CASES]
    possible = [
        (source, state, function, sink, mode)
        for state, functions in FUNCTIONS.items()
        for source, function, sink, mode in itertools.product(SOURCES, functions, SINKS, MODES)
    ]
    assert sorted(told) == sorted(possible)


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(case[:5]))
def test_a_path_is_worth_what_the_docs_say(case: Case) -> None:
    wild = "x * rand()"
    result = events(kind=case.source)
    if case.functions in ("not deterministic", "not deterministic above state"):
        result = result.select("k", "at", x=wild)
    if case.state != "none":
        result = result.key_by("k").window(windows.tumbling("1 minute")).aggregate(x=f"{case.state}(x)")
    if case.functions == "not deterministic below state":
        result = result.select("k", x=wild)
    found = planned(result, AnySink(SINKS[case.sink]), mode=MODES[case.mode])
    (path,) = found.paths
    assert path.reached.label == case.reached
    assert found.reached is path.reached
    part = {"source": "source 'events'", "sink": "sink 'out'", "function": "select 'select'", "mode": "real-time mode"}
    if case.weakest == "-":
        assert path.caps == ()
    else:
        weakest = path.caps[0]
        assert (weakest.guarantee, weakest.part) == (path.reached, part[case.weakest])
        assert "declared at test_derive.py:" in weakest.where
        assert weakest.reason
        assert weakest.cure


# Facts about single parts


@pytest.mark.parametrize(
    "wild",
    [
        events().map(lambda row: row, "k STRING, x DOUBLE, at TIMESTAMP", deterministic=False),
        events().flat_map(lambda row: [row], "k STRING, x DOUBLE, at TIMESTAMP", deterministic=False),
        events().where(lambda row: True, deterministic=False),
        events().where("rand() < 0.5"),
        events().transform(lambda frame: frame, deterministic=False),
        events().split(some="rand() < 0.5")["some"],
        events().select("k", "x", "at", id="uuid()"),
        events().select("k", "x", "at", all="struct(*, rand())"),
    ],
)
def test_every_way_to_be_not_deterministic_above_state_counts(wild: Stream) -> None:
    (path,) = planned(wild.key_by("k").rolling(total="sum(x)"), AnySink(Delivery.TRANSACTIONAL)).paths
    assert path.reached is Guarantee.AT_LEAST_ONCE
    assert "not deterministic" in path.caps[0].reason
    assert "test_derive.py:" in path.caps[0].where


@pytest.mark.parametrize("tame", ["x > 1", "at < current_timestamp()", "hash(x) > 0"])
def test_what_is_replayed_as_it_was_does_not_count(tame: str) -> None:
    (path,) = planned(events().where(tame).key_by("k").rolling(n="sum(x)"), AnySink(Delivery.TRANSACTIONAL)).paths
    assert path.reached is Guarantee.END_TO_END_EXACTLY_ONCE
    assert path.caps == ()


UPSERTS = (
    AnySink(Delivery.TRANSACTIONAL, otherwise=Delivery.IDEMPOTENT),
    PostgresSink(table="t", dsn="postgresql://host/db", key="k"),
    SqliteSink(table="t", path="t.db", key="k"),
)


@pytest.mark.parametrize("declared", [Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE])
@pytest.mark.parametrize("table", UPSERTS, ids=lambda sink: type(sink).__name__)
def test_an_upsert_that_declares_less_is_committed_with_the_ledger_all_the_same(
    table: Sink, declared: Guarantee
) -> None:
    for rows in (events(), events().select("k", x="rand()")):  # in a transaction, a random value does no harm
        found = plan(Job("job", rows.to("out", table), guarantee=declared))
        assert is_exact(found.logical, found.logical.node("out"))
        (path,) = found.paths
        assert (path.reached, path.caps) == (Guarantee.END_TO_END_EXACTLY_ONCE, ())
        assert "cannot write older rows over newer ones" in path.lifts[0]


@pytest.mark.parametrize("table", UPSERTS, ids=lambda sink: type(sink).__name__)
def test_an_upsert_without_a_ledger_is_not_lifted(table: Sink) -> None:
    rows = events()
    letters = AnySink(Delivery.TRANSACTIONAL)
    acked = Job("j", rows.to("out", table), guarantee=Guarantee.AT_LEAST_ONCE, tracking=acks(), dead_letters=letters)
    forgotten = Job("j", rows.to("out", table), guarantee=Guarantee.AT_MOST_ONCE)
    for job in (acked, forgotten):
        found = plan(job)
        assert not is_exact(found.logical, found.logical.node("out"))
        path = next(path for path in found.paths if path.output == "out")
        assert path.reached is job.guarantee
        (cap,) = (cap for cap in path.caps if cap.part == "sink 'out'")
        assert "can replace a newer row of a key by an older one" in cap.reason
        assert path.lifts == ()


def test_a_sink_that_only_upserts_is_worth_what_a_plain_one_is() -> None:
    counted = events().key_by("k").rolling(n="count(*)")
    for rows, reached in ((events(), Guarantee.AT_LEAST_ONCE), (counted, Guarantee.EXACTLY_ONCE)):
        (path,) = planned(rows, AnySink(Delivery.IDEMPOTENT, is_fenced=False)).paths
        assert (path.reached, path.caps[0].part, path.lifts) == (reached, "sink 'out'", ())
        assert "it is idempotent by key, but not fenced: a driver that slept" in path.caps[0].reason
        assert "can replace a newer row of a key by an older one" in path.caps[0].reason
        assert "CommittingSink" in path.caps[0].cure
        assert "test_derive.py:" in path.caps[0].where


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("otherwise", [Delivery.PLAIN, Delivery.IDEMPOTENT])
def test_an_at_most_once_job_never_reaches_more(kind: str, delivery: Delivery, otherwise: Delivery) -> None:
    sink, rows = AnySink(delivery, otherwise=otherwise), events(kind=kind)
    for result in (rows, rows.key_by("k").rolling(n="max(x)"), rows.key_by("k").rolling(n="sum(x)")):
        for letters in (None, sink):
            job = Job("job", result.to("out", sink), guarantee=Guarantee.AT_MOST_ONCE, dead_letters=letters)
            found = plan(job)
            assert {path.reached for path in found.paths} == {found.reached} == {Guarantee.AT_MOST_ONCE}
            assert not any(is_exact(found.logical, node) for node in found.logical.nodes)


def test_a_table_without_a_key_is_plain_where_less_is_declared() -> None:
    (path,) = plan(
        Job("job", events().to("out", AnySink(Delivery.TRANSACTIONAL)), guarantee=Guarantee.AT_LEAST_ONCE)
    ).paths
    assert (path.reached, path.caps[0].part) == (Guarantee.AT_LEAST_ONCE, "sink 'out'")
    assert "older" not in path.caps[0].reason


def test_an_aggregate_over_a_random_value_is_not_deterministic_itself() -> None:
    (path,) = planned(events().key_by("k").rolling(n="sum(x * rand())"), AnySink(Delivery.TRANSACTIONAL)).paths
    assert (path.reached, path.caps[0].part) == (Guarantee.AT_LEAST_ONCE, "rolling 'rolling'")


def test_a_transform_is_no_merit_and_may_be_a_danger() -> None:
    opaque = events().transform(lambda frame: frame)
    assert planned(opaque, AnySink(Delivery.PLAIN)).reached is Guarantee.AT_LEAST_ONCE
    assert planned(opaque, AnySink(Delivery.IDEMPOTENT)).reached is Guarantee.END_TO_END_EXACTLY_ONCE
    assert planned(opaque, AnySink(Delivery.IDEMPOTENT), mode=Mode.REAL_TIME).reached is Guarantee.AT_LEAST_ONCE
    wild_above = events().where("rand() < 0.5").transform(lambda frame: frame)
    assert planned(wild_above, AnySink(Delivery.TRANSACTIONAL)).reached is Guarantee.AT_LEAST_ONCE


@pytest.mark.parametrize(("first", "second"), [("sum", "max"), ("max", "sum")])
def test_a_max_lifts_nothing_where_a_sum_is_kept_beside_it(first: str, second: str) -> None:
    minutes = events().key_by("k").window(windows.tumbling("1 minute")).aggregate(a=f"{first}(x)", b=f"{second}(x)")
    found = planned(minutes, AnySink(Delivery.IDEMPOTENT), mode=Mode.REAL_TIME)
    assert found.reached is Guarantee.AT_LEAST_ONCE


@pytest.mark.parametrize(
    ("window", "aggregate", "key", "lifts"),
    [
        (windows.tumbling("1 minute"), "max", "k", 1),
        (windows.tumbling("1 minute"), "sum", "k", 0),
        (windows.tumbling("1 minute"), "max", None, 0),
        (windows.tumbling_count(3), "max", "k", 0),  # the second copy is one of the three
        (windows.until("x > 1"), "max", "k", 0),
    ],
)
def test_what_comes_twice_from_a_job_before_is_reported_to_change_nothing(
    window: windows.Window, aggregate: str, key: str | None, lifts: int
) -> None:
    minutes = events().key_by("k").window(window).aggregate(x=f"{aggregate}(x)")
    found = planned(minutes, PostgresSink(table="t", dsn="postgresql://host/db", key=key))
    assert found.reached is Guarantee.END_TO_END_EXACTLY_ONCE
    assert len(found.paths[0].lifts) == lifts
    assert all("keeps a max or min, and sink" in lift for lift in found.paths[0].lifts)


def test_what_idempotence_lifts_is_shown() -> None:
    result = events().key_by("k").window(windows.tumbling("1 minute")).aggregate(x="max(x)")
    found = planned(result, AnySink(Delivery.IDEMPOTENT), mode=Mode.REAL_TIME)
    assert found.reached is Guarantee.END_TO_END_EXACTLY_ONCE
    assert found.paths[0].lifts == (
        "window 'window' keeps a max or min: an event that comes twice changes nothing",
        "sink 'out' is idempotent by key: a row that comes twice replaces itself",
    )
    assert all(lift in found.reasons[0] for lift in found.paths[0].lifts)


def test_tracking_by_acknowledgement_caps_state_and_idempotent_sinks() -> None:
    for delivery in (Delivery.PLAIN, Delivery.IDEMPOTENT):
        counted = events().key_by("k").rolling(n="count(*)").to("out", AnySink(delivery))
        letters = AnySink(Delivery.IDEMPOTENT)
        by_checkpoint = Job("j", counted, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=letters)
        by_acks = Job("j", counted, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=letters, tracking=acks())
        assert plan(by_checkpoint).paths[0].reached >= Guarantee.EXACTLY_ONCE
        (path, *_) = plan(by_acks).paths
        assert (path.reached, path.caps[0].part) == (Guarantee.AT_LEAST_ONCE, "tracking by acknowledgement")


def test_dead_letters_are_no_state_and_do_not_hold_a_job_back_that_is_exactly_once_in_its_state() -> None:
    counted = events().key_by("k").rolling(n="count(*)").to("out", AnySink(Delivery.PLAIN))
    for delivery in Delivery:
        job = Job("j", counted, guarantee=Guarantee.EXACTLY_ONCE, dead_letters=AnySink(delivery))
        assert plan(job).refusal() is None


@pytest.mark.parametrize("is_joined", [True, False], ids=["above a join", "above a transform"])
def test_dead_letters_of_events_that_a_replay_fails_on_cannot_be_skipped_by_a_ledger(is_joined: bool) -> None:
    """In the replay the state lacks the event, and the ledger says that its letter is written: it would be lost."""
    chance = events("left").select("k", "at", x="if(rand() < 0.5, raise_error('no'), x)")
    right = stream("right", AnySource("replayable")).select("k", y="x", then="at").event_time("then", lateness="1s")
    rows = chance.join(right, on="k", within="1m") if is_joined else chance.transform(lambda frame: frame)
    found = plan(
        Job(
            "job",
            rows.to("out", AnySink(Delivery.TRANSACTIONAL), guarantee=Guarantee.AT_LEAST_ONCE),
            guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
            dead_letters=AnySink(Delivery.TRANSACTIONAL),
        )
    )
    refusal = found.refusal()
    assert refusal is not None
    assert "for output" not in refusal.what  # the letters declare what the job declares
    assert "select 'select', declared at" in str(refusal.where)
    assert "test_derive.py:" in str(refusal.where)


TRIED: dict[str, Callable[[Stream], Stream]] = {
    "map": lambda rows: rows.map(lambda row: {"k": row.k}, "k STRING"),
    "flat_map": lambda rows: rows.flat_map(lambda row: [{"k": row.k}], "k STRING"),
    "where": lambda rows: rows.where(lambda row: row.k != "c"),
    "map behind a map": lambda rows: rows.map(lambda row: {"k": row.k}, "k STRING").map(lambda row: row, "k STRING"),
}


@pytest.mark.parametrize("tried", TRIED)
def test_dead_letters_in_another_cluster_need_the_same_events_to_kill_their_worker_again(tried: str) -> None:
    """Which event kills the worker of a function depends on what a step above it drew."""

    def job(chance: str) -> Job:
        return Job(
            "job",
            TRIED[tried](events().select("k", "x", r=chance)).to("out", KafkaSink(topic="topic", servers="one:9092")),
            guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
            dead_letters=KafkaSink(topic="letters", servers="two:9092"),
        )

    refusal = plan(job("rand()")).refusal()
    assert refusal is not None
    assert "'dead-letters' commits after sink 'out', in another cluster" in refusal.what
    assert "select 'select', declared at" in str(refusal.where)
    assert "test_derive.py:" in str(refusal.where)
    assert plan(job("x / 2")).refusal() is None


@pytest.mark.parametrize("is_letter", [False, True], ids=["an output", "dead letters"])
def test_a_second_cluster_needs_sums_that_a_replay_rounds_alike(is_letter: bool) -> None:
    """The first cluster has one side of a limit, and the replay could find a row on the other side."""

    def job(aggregate: str) -> Job:
        timed = stream("in", AnySource("replayable")).event_time("at", lateness="1s").key_by("k")
        sums = timed.window(windows.tumbling("1m")).aggregate(total=aggregate)
        low = sums.where("total < 5").to("low", KafkaSink(topic="low", servers="one:9092"))
        there = KafkaSink(topic="high", servers="two:9092")
        high = [] if is_letter else [sums.where("total >= 5").to("high", there)]
        letters = there if is_letter else None
        return Job("job", low, *high, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, dead_letters=letters)

    refusal = plan(job("sum(x / 2)")).refusal()
    assert refusal is not None
    assert "it adds fractions" in refusal.what
    assert "test_derive.py:" in str(refusal.where)
    assert "DECIMAL" in refusal.fix
    assert plan(job("sum(CAST(x AS DECIMAL(18, 2)))")).refusal() is None


def test_dead_letters_in_another_cluster_need_sql_that_fails_on_the_same_rows_again() -> None:
    def job(chance: str) -> Job:
        tried = events().select("k", "x", r=chance).select("k", y="if(r < 0.5, raise_error('no'), x)")
        return Job(
            "job",
            tried.to("out", KafkaSink(topic="topic", servers="one:9092")),
            guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
            dead_letters=KafkaSink(topic="letters", servers="two:9092"),
        )

    refusal = plan(job("rand()")).refusal()
    assert refusal is not None
    assert "'dead-letters' commits after sink 'out', in another cluster" in refusal.what
    assert plan(job("x / 2")).refusal() is None


# Whole jobs


def test_a_job_is_worth_what_its_weakest_path_is_worth() -> None:
    merged = events("log").merge(events("socket", kind="not replayable"))
    found = planned(merged, AnySink(Delivery.TRANSACTIONAL))
    assert {path.source: path.reached for path in found.paths} == {
        "log": Guarantee.END_TO_END_EXACTLY_ONCE,
        "socket": Guarantee.AT_MOST_ONCE,
    }
    assert found.reached is Guarantee.AT_MOST_ONCE


def test_the_weaker_of_two_ways_between_the_same_ends_decides() -> None:
    source = events()
    ways = source.where("rand() < 0.5").merge(source.where("x > 1"))
    (path,) = planned(ways, AnySink(Delivery.IDEMPOTENT)).paths
    assert path.reached is Guarantee.AT_LEAST_ONCE


def test_an_output_that_is_declared_lower_counts_for_itself_only() -> None:
    rows = events()
    found = plan(
        Job(
            "job",
            rows.to("topic", AnySink(Delivery.TRANSACTIONAL)),
            rows.to("screen", AnySink(Delivery.PLAIN), guarantee=Guarantee.AT_LEAST_ONCE),
            guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
        )
    )
    assert found.reached is Guarantee.END_TO_END_EXACTLY_ONCE
    assert {path.output: path.declared for path in found.paths} == {
        "topic": Guarantee.END_TO_END_EXACTLY_ONCE,
        "screen": Guarantee.AT_LEAST_ONCE,
    }
    assert found.refusal() is None


def test_a_job_is_refused_if_every_output_declares_less_than_it_does() -> None:
    """Its plan would say that end-to-end exactly-once is declared, and nothing in it would be."""
    least, exactly = Guarantee.AT_LEAST_ONCE, Guarantee.END_TO_END_EXACTLY_ONCE
    screen = events().to("screen", AnySink(Delivery.PLAIN), guarantee=least)
    refusal = plan(Job("job", screen, guarantee=exactly)).refusal()
    assert refusal is not None
    assert "every output of it declares less, and it reaches at-least-once" in refusal.what
    assert "sink 'screen', declared at test_derive.py:" in str(refusal.where)
    assert refusal.fix == "declare Guarantee.AT_LEAST_ONCE for the job"
    gauge = events().to("gauge", AnySink(Delivery.IDEMPOTENT), guarantee=least)
    assert plan(Job("job", gauge, guarantee=exactly)).refusal() is None  # it is worth what the job declares


@pytest.mark.parametrize("delivery", Delivery)
def test_a_job_reaches_no_more_than_it_is_run_with(delivery: Delivery) -> None:
    """A keyed maximum into an upsert would be exactly-once, if the run did not forget its state after a failure."""
    largest = events().key_by("k").rolling(largest="max(x)").to("out", AnySink(delivery))
    found = plan(Job("job", largest, guarantee=Guarantee.AT_MOST_ONCE))
    assert found.reached is Guarantee.AT_MOST_ONCE
    assert found.refusal() is None


def test_an_over_claim_is_planned_and_its_refusal_names_part_line_and_fix() -> None:
    source = events(kind="not replayable")
    found = plan(Job("job", source.to("out", AnySink()), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE))
    refusal = found.refusal()
    assert refusal is not None
    assert refusal.what == ("Job 'job' declares end-to-end exactly-once but reaches at-most-once: the test says so.")
    assert refusal.where.startswith("source 'events', declared at test_derive.py:")
    assert refusal.fix.endswith("or declare Guarantee.AT_MOST_ONCE")


def test_an_over_claim_over_an_acknowledged_source_is_fixed_by_a_log_in_front_of_it() -> None:
    table = AnySink(Delivery.IDEMPOTENT)
    refusal = plan(Job("job", events(kind="acknowledged").to("out", table), guarantee=Guarantee.EXACTLY_ONCE)).refusal()
    assert refusal is not None
    assert "declares exactly-once (state) but reaches at-least-once: the test says so." in refusal.what
    assert refusal.fix.startswith("put a log in front of it: an at-least-once job from this source into a topic")
    assert refusal.fix.endswith("or declare Guarantee.AT_LEAST_ONCE")


def test_a_refusal_names_the_output_where_it_declares_for_itself() -> None:
    output = events(kind="not replayable").to("screen", AnySink(), guarantee=Guarantee.AT_LEAST_ONCE)
    refusal = plan(Job("job", output, guarantee=Guarantee.EXACTLY_ONCE)).refusal()
    assert refusal is not None
    assert "declares at-least-once for output 'screen' but reaches at-most-once" in refusal.what


def test_a_plan_with_many_ways_reads_the_same_every_time() -> None:
    def reasons() -> tuple[str, ...]:
        source = events()
        ways = [source.where("rand() < 0.5") for _ in range(8)]
        return planned(ways[0].merge(*ways[1:]), AnySink(Delivery.IDEMPOTENT)).reasons

    assert len({reasons() for _ in range(20)}) == 1
    assert "where 'where'" in reasons()[0]


def test_a_ladder_with_more_paths_than_atoms_is_derived_at_once() -> None:
    rung = stream("events", AnySource())
    for number in range(60):
        left, right = rung.where("x > 1"), rung.where("x < 9")
        rung = left.merge(right).key_by("k").rolling(**{f"n{number}": "max(x)"}).select("k", "x", "at")
    last = rung.where("rand() < 0.5").key_by("k").rolling(n="max(x)")
    assert planned(last, AnySink(Delivery.TRANSACTIONAL)).reached is Guarantee.AT_LEAST_ONCE


# Any graph, against a reference


class Kind(NamedTuple):
    """What the reference knows of a step; nothing of it is asked of the planner."""

    inputs: int
    keeps_state: bool = False
    may_keep_state: bool = False
    is_nondeterministic: bool = False
    is_idempotent: bool = False


KINDS = {
    "select": Kind(inputs=1),
    "wild select": Kind(inputs=1, is_nondeterministic=True),
    "map": Kind(inputs=1),
    "wild map": Kind(inputs=1, is_nondeterministic=True),
    "transform": Kind(inputs=1, may_keep_state=True),
    "wild transform": Kind(inputs=1, may_keep_state=True, is_nondeterministic=True),
    "sum": Kind(inputs=1, keeps_state=True, may_keep_state=True),
    "wild sum": Kind(inputs=1, keeps_state=True, may_keep_state=True, is_nondeterministic=True),
    "max": Kind(inputs=1, keeps_state=True, may_keep_state=True, is_idempotent=True),
    "join": Kind(inputs=2, keeps_state=True, may_keep_state=True),
    "merge": Kind(inputs=2),
}
WEAKER = {"select": "wild select", "map": "wild map", "transform": "wild transform", "sum": "wild sum", "max": "sum"}


@dataclass(frozen=True)
class Drawing:
    """A random job: the kind of each source, each step's kind and inputs, each sink's delivery and input."""

    sources: tuple[str, ...]
    steps: tuple[tuple[str, tuple[int, ...]], ...]
    sinks: tuple[tuple[Delivery, int], ...]
    mode: Mode


@st.composite
def drawings(draw: st.DrawFn) -> Drawing:
    sources = draw(st.lists(st.sampled_from(SOURCES), min_size=1, max_size=3))
    steps: list[tuple[str, tuple[int, ...]]] = []
    for number in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(sorted(KINDS)))
        before = st.integers(0, len(sources) + number - 1)
        steps.append((kind, tuple(draw(before) for _ in range(KINDS[kind].inputs))))
    ends = st.tuples(st.sampled_from(Delivery), st.integers(0, len(sources) + len(steps) - 1))
    sinks = draw(st.lists(ends, min_size=1, max_size=3))
    return Drawing(tuple(sources), tuple(steps), tuple(sinks), draw(st.sampled_from(Mode)))


def walk(drawing: Drawing, end: int) -> Iterator[tuple[int, list[str]]]:
    """Every path to a step, one by one: its source, and the kinds of the steps on it."""
    if end < len(drawing.sources):
        yield end, []
        return
    kind, inputs = drawing.steps[end - len(drawing.sources)]
    for before in inputs:
        for source, kinds in walk(drawing, before):
            yield source, [*kinds, kind]


def worth(drawing: Drawing, source: int, kinds: list[str], delivery: Delivery) -> Guarantee:
    """What one path is worth: the least of what its parts allow, except where idempotence lifts."""
    parts = [KINDS[kind] for kind in kinds]
    allowed = [Guarantee.END_TO_END_EXACTLY_ONCE]
    if drawing.sources[source] == "not replayable":
        allowed.append(Guarantee.AT_MOST_ONCE)
    if drawing.sources[source] == "acknowledged":
        allowed.append(Guarantee.AT_LEAST_ONCE)
    for index, part in enumerate(parts):
        if part.may_keep_state and any(above.is_nondeterministic for above in parts[: index + 1]):
            allowed.append(Guarantee.AT_LEAST_ONCE)
        if part.may_keep_state and drawing.mode is Mode.REAL_TIME and not part.is_idempotent:
            allowed.append(Guarantee.AT_LEAST_ONCE)
    appears_once = {
        Delivery.PLAIN: False,
        Delivery.IDEMPOTENT: not any(part.is_nondeterministic for part in parts),
        Delivery.TRANSACTIONAL: drawing.mode is Mode.MICRO_BATCH,
    }
    if not appears_once[delivery]:
        keeps_state = any(part.keeps_state for part in parts)
        allowed.append(Guarantee.EXACTLY_ONCE if keeps_state else Guarantee.AT_LEAST_ONCE)
    return min(allowed)


def reference(drawing: Drawing) -> dict[tuple[str, str], Guarantee]:
    """The least worth of all paths between each source and each sink that is fed by it."""
    found: dict[tuple[str, str], Guarantee] = {}
    for number, (delivery, end) in enumerate(drawing.sinks):
        for source, kinds in walk(drawing, end):
            key, value = (f"source-{source}", f"sink-{number}"), worth(drawing, source, kinds, delivery)
            found[key] = min(value, found.get(key, value))
    return found


def derived(drawing: Drawing) -> dict[tuple[str, str], PathGuarantee]:
    """The same by the planner, straight from a graph, so that no other rule limits what is tried."""
    names = [f"source-{number}" for number in range(len(drawing.sources))]
    steps: list[Step] = [
        Read(inputs=(), origin=ORIGIN, name=name, source=AnySource(kind))
        for name, kind in zip(names, drawing.sources, strict=True)
    ]
    nodes = [as_node(step, name, ()) for step, name in zip(steps, names, strict=True)]
    for number, (kind, inputs) in enumerate(drawing.steps):
        names.append(f"step-{number}")
        steps.append(as_step(kind, tuple(steps[index] for index in inputs)))
        nodes.append(as_node(steps[-1], names[-1], tuple(names[index] for index in inputs)))
    for number, (delivery, end) in enumerate(drawing.sinks):
        name = f"sink-{number}"
        write = Write(inputs=(steps[end],), origin=ORIGIN, name=name, sink=AnySink(delivery), guarantee=None)
        nodes.append(as_node(write, name, (names[end],)))
    job = Job("job", guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, mode=drawing.mode)
    return {(path.source, path.output): path for path in derive(LogicalGraph(job=job, nodes=tuple(nodes)))}


ORIGIN = Origin(file="job.py", line=1)


def as_node(step: Step, name: str, inputs: tuple[str, ...]) -> Node:
    return Node(name=name, kind=type(step).__name__, step=step, inputs=inputs, flow=Flow(None, (), None))


def as_step(kind: str, inputs: tuple[Step, ...]) -> Step:
    given: dict[str, Any] = {"inputs": inputs, "origin": ORIGIN}
    is_tame = not KINDS[kind].is_nondeterministic
    if kind.endswith("select"):
        return Select(**given, columns=("k",), expressions={"x": "x + 1" if is_tame else "x + rand()"})
    if kind.endswith("map"):
        return Map(**given, function=len, schema="x INT", is_deterministic=is_tame)
    if kind.endswith("transform"):
        return Transform(**given, function=len, is_deterministic=is_tame)
    if kind.endswith("sum"):
        return Rolling(
            **given, keys=("k",), aggregates={"n": "sum(x)" if is_tame else "sum(x * rand())", "m": "max(x)"}
        )
    if kind == "max":
        window = windows.tumbling("1 minute")
        return WindowAggregate(**given, keys=("k",), window=window, aggregates={"m": "max(x)", "n": "min(x)"})
    if kind == "join":
        return Join(**given, on=("k",), within=None, how="inner")
    return Merge(**given)


@settings(max_examples=300)
@given(drawings())
def test_any_graph_is_worth_what_a_walk_over_every_path_finds(drawing: Drawing) -> None:
    found = derived(drawing)
    assert {ends: path.reached for ends, path in found.items()} == reference(drawing)


@settings(max_examples=300)
@given(drawings())
def test_no_path_is_worth_more_than_its_weakest_part_that_idempotence_does_not_lift(drawing: Drawing) -> None:
    for path in derived(drawing).values():
        assert path.reached is min([cap.guarantee for cap in path.caps] or [Guarantee.END_TO_END_EXACTLY_ONCE])
        assert list(path.caps) == sorted(path.caps, key=lambda cap: cap.guarantee)


def weakened(drawing: Drawing) -> Iterator[Drawing]:
    """The same job with one part made weaker, in every possible way."""
    for index, source in enumerate(drawing.sources):
        for weaker in SOURCES[SOURCES.index(source) + 1 :]:
            yield replace(drawing, sources=put(drawing.sources, index, weaker))
    for index, (kind, inputs) in enumerate(drawing.steps):
        if kind in WEAKER:
            yield replace(drawing, steps=put(drawing.steps, index, (WEAKER[kind], inputs)))
    for index, (delivery, end) in enumerate(drawing.sinks):
        if delivery is not Delivery.PLAIN:
            yield replace(drawing, sinks=put(drawing.sinks, index, (Delivery.PLAIN, end)))
    if drawing.mode is Mode.MICRO_BATCH:
        yield replace(drawing, mode=Mode.REAL_TIME)


def put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


@settings(max_examples=300)
@given(drawings())
def test_a_weaker_part_never_makes_a_stronger_job(drawing: Drawing) -> None:
    before = derived(drawing)
    for weaker in weakened(drawing):
        after = derived(weaker)
        assert all(after[ends].reached <= path.reached for ends, path in before.items()), weaker


def kafka_outputs(*servers: str, guarantee: Guarantee, **computed: str) -> Plan:
    rows = events().select("k", **computed)
    outputs = [
        rows.to(f"out-{number}", KafkaSink(topic=f"topic-{number}", servers=one)) for number, one in enumerate(servers)
    ]
    return plan(Job("job", *outputs, guarantee=guarantee))


def test_a_kafka_sink_that_is_declared_less_is_worth_less_and_the_plan_says_why() -> None:
    found = kafka_outputs("one:9092", guarantee=Guarantee.AT_LEAST_ONCE)
    assert found.refusal() is None
    assert found.reached is Guarantee.AT_LEAST_ONCE
    assert "no more is declared for it" in found.paths[0].caps[0].reason


def test_all_kafka_outputs_of_one_cluster_are_decided_together() -> None:
    same = kafka_outputs("one:9092,two:9092", "two:9092", guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    assert same.refusal() is None
    assert same.reached is Guarantee.END_TO_END_EXACTLY_ONCE


def test_a_second_kafka_cluster_follows_by_deterministic_steps_and_the_plan_says_so() -> None:
    found = kafka_outputs("one:9092", "two:9092", guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, twice="x * 2")
    assert found.refusal() is None
    assert found.reached is Guarantee.END_TO_END_EXACTLY_ONCE
    assert not found.paths[0].lifts
    assert "commits after sink 'out-0', in another cluster" in found.paths[1].lifts[0]


def test_a_second_kafka_cluster_is_refused_where_a_replay_could_give_it_other_rows() -> None:
    one = kafka_outputs("one:9092", "one:9092", guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, chance="rand()")
    assert one.refusal() is None
    refusal = kafka_outputs(
        "one:9092", "two:9092", guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, chance="rand()"
    ).refusal()
    assert refusal is not None
    assert "not deterministic" in refusal.what
    assert "'out-1' commits after sink 'out-0', in another cluster" in refusal.what


def test_a_table_before_two_kafka_clusters_does_not_hide_that_they_are_two() -> None:
    rows = events().select("k", chance="rand()")
    refusal = plan(
        Job(
            "job",
            rows.to("table", PostgresSink(table="t", dsn="postgresql://host/db")),
            rows.to("out-0", KafkaSink(topic="topic", servers="one:9092")),
            rows.to("out-1", KafkaSink(topic="topic", servers="two:9092")),
            guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
        )
    ).refusal()
    assert refusal is not None
    assert "'out-1' commits after sink 'out-0', in another cluster" in refusal.what


def test_rows_that_another_order_would_change_fit_one_transaction_only() -> None:
    """A transform may keep rows by their order, if nothing compares them with those of a replay."""
    kept = events().transform(lambda frame: frame.limit(3))
    to = [KafkaSink(topic="topic", servers=f"{name}:9092") for name in ("one", "two")]
    gauge = MonitorSink(metric="m", value="x", labels="k", latest="x")
    exactly = Guarantee.END_TO_END_EXACTLY_ONCE
    cases: list[tuple[Job, bool]] = [
        (Job("job", kept.to("a", to[0]), guarantee=exactly), False),
        (Job("job", events("other").to("a", to[0]), kept.to("b", to[1]), guarantee=exactly), True),
        (Job("job", kept.to("a", to[0]), guarantee=exactly, dead_letters=to[1]), True),
        (Job("job", kept.to("a", gauge), guarantee=exactly), True),
        (Job("job", kept.to("a", gauge), guarantee=Guarantee.AT_LEAST_ONCE), False),
    ]
    for job, expected in cases:
        graph = plan(job).logical
        assert needs_same_rows(graph, graph.node("transform")) is expected, job.outputs
