"""The figures of a measurement add up, and what it reads back is counted as a reader of committed records would."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kafka.partitioner.default import murmur2
from pyspark.sql import SparkSession

from lockgate.connectors.files.source import BYTES_PER_ROW
from lockgate.connectors.kafka.codecs import Codec
from lockgate.connectors.kafka.encode import encode
from lockgate.connectors.kafka.wire import Fetched
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.job import Job
from lockgate.errors import Refused
from lockgate.guarantees import Guarantee
from lockgate.lab.bench import acknowledgement, backlogjob, plain, state, table, windows
from lockgate.lab.bench.backlog import Epoch, at_share, summarise
from lockgate.lab.bench.contest import VALUE, Arena, Cards, Mark, Side, StopwatchSink, cpu_seconds, lap_of, write_cards
from lockgate.lab.bench.counting import count_records
from lockgate.lab.bench.lateness import EVENTS, disordered
from lockgate.lab.bench.payments import Payments
from lockgate.lab.bench.ratios import Contest, Lap, Measured, Throughput, Timing, median_of, quotient
from lockgate.lab.bench.report import Lateness, LatenessAhead, LatenessPoint, Machine, MemoryAt, Report, Spread, is_flat
from lockgate.lab.bench.settings import LIMIT_CENTS, SIDES, Settings, job
from lockgate.lab.bench.table import write_files
from lockgate.lab.services.postgres import Postgres
from lockgate.planner.plan import plan


def timing(side: Measured, repeat: int, speed: int, delivered: int = 90) -> Timing:
    return Timing(
        side=side.name,
        repeat=repeat,
        seconds=1.0,
        events_per_second=speed,
        epoch_events_per_second=2 * speed,
        epoch_count=4,
        delivered_count=delivered,
    )


def measured(*, exactly: list[int], at_least: list[int], delivered: int = 90) -> Throughput:
    timings = [timing(SIDES[0], repeat, speed) for repeat, speed in enumerate(at_least)]
    timings += [timing(SIDES[1], repeat, speed, delivered) for repeat, speed in enumerate(exactly)]
    return Throughput(expected_count=90, client={side.name: {} for side in SIDES}, timings=tuple(timings))


def test_the_ratio_is_the_quotient_of_the_medians_that_are_shown() -> None:
    found = measured(at_least=[1, 100, 90, 110], exactly=[999, 120, 150, 60])
    assert found.as_json()["events_per_second_median"] == {SIDES[0].name: 100, SIDES[1].name: 120}
    assert found.ratio == 1.2
    assert found.ratio_epoch == 1.2
    assert "ratio of the medians: 1.20" in "\n".join(found.lines())


def test_the_warm_up_is_shown_and_does_not_count() -> None:
    found = measured(at_least=[7, 100], exactly=[8, 100])
    assert found.ratio == 1.0
    assert "warm-up" in found.lines()[0]
    assert found.lines()[1].split() == ["at-least-once", "7", "100", "100"]


def test_a_run_that_lost_or_doubled_is_reported() -> None:
    assert measured(at_least=[1, 1], exactly=[1, 1]).holds
    found = measured(at_least=[1, 1], exactly=[1, 1], delivered=91)
    assert not found.holds
    assert "WRONG: 90 records were expected" in found.lines()[-1]
    assert "END_TO_END_EXACTLY_ONCE repeat 1: 91" in found.lines()[-1]


def test_medians_are_as_they_are_shown() -> None:
    assert median_of([5]) == 5
    assert median_of([10, 1, 3]) == 3
    assert median_of([10, 20]) == 15
    assert quotient(3, 2) == 1.5
    assert quotient(3, 0) == 0.0


def test_a_spread_is_the_middle_and_the_worst() -> None:
    assert str(Spread.of([0.001, 0.0505, 0.002])) == "2.0 / 50.5"


@pytest.mark.parametrize("wrong", [{"events": 0}, {"repeats": 0}, {"partitions": -1}, {"rows_per_epoch": 0}])
def test_too_few_of_anything_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Refused, match="too few"):
        Settings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [Settings(job="pass"), Settings(is_keyed=False)])
def test_an_exchange_needs_a_key_in_the_value(wrong: Settings) -> None:
    with pytest.raises(Refused, match="exchange"):
        Settings(job=wrong.job, is_keyed=wrong.is_keyed, is_exchanged=True)


def test_the_command_says_everything() -> None:
    told = Settings(events=5, codec="lz4", job="pass", is_keyed=False, parts=("memory",)).command
    assert told == (
        "lockgate bench --events 5 --partitions 4 --rows-per-epoch 500000 --codec lz4 --repeats 3 --job pass --no-key"
        " --seed 7 --part memory"
    )


def test_epochs_of_sixteen_times_the_size_are_compared_however_few_events_there_are() -> None:
    assert Settings().epoch_sizes() == (50_000, 200_000, 800_000)
    assert Settings(events=16_000).epoch_sizes() == (1_000, 4_000, 16_000)


# -- far behind --------------------------------------------------------------------------------------------------------


def look(share: float, mib: int) -> MemoryAt:
    return MemoryAt(share=share, driver_bytes=mib << 20, jvm_bytes=0, workers_bytes=0)


EPOCHS = [Epoch(at=100.0, events_total=100, epoch_ms=900), Epoch(at=102.0, events_total=1000, epoch_ms=1200)]


def test_memory_is_flat_where_the_last_half_takes_no_more_than_the_first_but_for_a_little() -> None:
    assert is_flat(1000, 1100, 0.1)
    assert is_flat(1000, 400, 0.1)
    assert not is_flat(1000, 1101, 0.1)
    assert not is_flat(0, 1, 0.1)


@pytest.mark.parametrize(("last", "told"), [(540, "flat: at most 500 MiB"), (560, "NOT FLAT: at most 500 MiB")])
def test_a_backlog_is_judged_by_its_halves(last: int, told: str) -> None:
    looks = [look(0.0, 100), look(0.2, 500), look(0.5, 450), look(0.6, last), look(1.0, 400)]
    found = summarise(looks, EPOCHS, events=1000, delivered=1000)
    assert found.holds
    assert (found.at[0].share, found.at[1].share, found.at[2].share) == (0.2, 0.5, 1.0)
    assert found.peak == look(0.6, last)
    assert (found.events_per_second, found.epoch_ms_max, found.epoch_ms_target) == (450, 1200, 1000)
    assert any(line.startswith(told) for line in found.lines())
    assert any("longest 1,200 ms, 1,200 ms without the first two; epoch=1,000 ms" in line for line in found.lines())
    assert found.as_json()["is_flat"] is told.startswith("flat")


def test_a_backlog_that_lost_or_doubled_is_reported_however_flat_it_is() -> None:
    found = summarise([look(1.0, 1)], EPOCHS, events=1000, delivered=1001)
    assert not found.holds
    assert found.lines()[-1] == "WRONG: 1,000 records were expected, 1,001 are committed"
    machine = Machine(cores=2, memory_bytes=2**30, load_before=0.0, python="3", spark="4", java="17")
    assert not Report(settings=Settings(), machine=machine, backlog=found).holds


def test_no_reader_looked_so_late() -> None:
    assert at_share([look(0.1, 1), look(0.9, 2)], 1.0) == look(0.9, 2)


def test_the_job_that_is_behind_is_a_job_file_whose_state_is_exact() -> None:
    planned = plan(backlogjob.job(servers="broker:9092", payments="in", out="out", name="behind"))
    assert planned.refusal() is None
    assert planned.declared is Guarantee.END_TO_END_EXACTLY_ONCE


# -- the input ---------------------------------------------------------------------------------------------------------


def test_events_are_json_of_about_ninety_bytes_where_java_would_put_them() -> None:
    settings = Settings(events=3000)
    payments = Payments(settings)
    rows = []
    for partition, records in payments.records(1000, 3000):
        for key, value in zip(records.keys.to_pylist(), records.values.to_pylist(), strict=True):
            row = json.loads(value)
            rows.append(row)
            assert row["card"].encode() == key
            assert (murmur2(key) & 0x7FFFFFFF) % settings.partitions == partition
            assert 75 <= len(value) <= 95
    assert sorted(row["id"] for row in rows) == list(range(1000, 3000))


def test_what_must_come_out_is_known_beforehand() -> None:
    settings = Settings(events=3000)
    payments = Payments(settings)
    values = [value for _, records in payments.records(0, 3000) for value in records.values.to_pylist()]
    large = sum(json.loads(value)["cents"] >= LIMIT_CENTS for value in values)
    assert payments.expected_count(settings) == large
    assert 2500 < large < 2900
    assert payments.expected_count(Settings(events=3000, job="pass")) == 3000


def test_the_same_seed_gives_the_same_events() -> None:
    def values(seed: int) -> list[bytes]:
        payments = Payments(Settings(events=100, seed=seed))
        return [value for _, records in payments.records(0, 100) for value in records.values.to_pylist()]

    assert values(1) == values(1) != values(2)


@pytest.mark.parametrize("side", [*SIDES, Guarantee.AT_MOST_ONCE])
@pytest.mark.parametrize(
    "settings", [Settings(), Settings(is_keyed=False), Settings(is_exchanged=True), Settings(job="pass", codec="lz4")]
)
def test_both_sides_reach_what_they_declare(settings: Settings, side: Guarantee) -> None:
    planned = plan(job(settings, side, servers="localhost:9092", payments="in", out="out", name="bench"))
    assert planned.refusal() is None
    assert planned.reached is side or planned.declared is Guarantee.AT_MOST_ONCE  # whatever runs is worth as much


def test_spark_writes_with_the_same_settings_whichever_step_uses_it() -> None:
    settings = Settings(codec="lz4")
    assert settings.client(Guarantee.AT_MOST_ONCE) == settings.client(Guarantee.AT_LEAST_ONCE)
    assert "linger.ms" in settings.client(Guarantee.AT_MOST_ONCE)
    assert "linger.ms" not in settings.client(Guarantee.END_TO_END_EXACTLY_ONCE)


def test_at_most_once_is_compared_with_the_plain_pipeline_and_with_what_promises_more() -> None:
    sides = plain.SIDES
    speeds = {"PLAIN": (1, 100, 110), "AT_MOST_ONCE": (1, 100, 210), "AT_LEAST_ONCE": (1, 50, 50)}
    timings = [timing(side, *one) for side in sides for one in enumerate(speeds.get(side.name, (1, 20, 22)))]
    found = Throughput(expected_count=90, client={side.name: {} for side in sides}, timings=(*timings,), sides=sides)
    assert found.ratio == round(155 / 105, 3)
    medians = {"PLAIN": 105, "AT_MOST_ONCE": 155, "AT_LEAST_ONCE": 50, "END_TO_END_EXACTLY_ONCE": 21}
    facts = found.as_json()
    assert facts["events_per_second_median"] == medians
    names = list(medians)
    assert facts["ratios"] == {
        side: {other: round(medians[side] / medians[other], 3) for other in names[:index]}
        for index, side in enumerate(names)
        if index
    }
    table = [line.split() for line in found.lines()]
    assert ["at-most-once", "1.48"] in table
    assert ["at-least-once", "0.48", "0.32"] in table
    assert ["end-to-end", "exactly-once", "0.20", "0.14", "0.42"] in table
    assert facts["ratios_cpu"] is None
    spent = replace(found, timings=tuple(replace(one, cpu_us_per_event=1e3 / one.events_per_second) for one in timings))
    assert spent.as_json()["cpu_us_per_event_median"]["AT_LEAST_ONCE"] == 20.0
    assert spent.as_json()["ratios_cpu"]["END_TO_END_EXACTLY_ONCE"]["AT_LEAST_ONCE"] == round(20 / 47.7, 3)
    told = next(line for line in spent.lines() if line.startswith("at-least-once, us of processor an event"))
    assert told.split()[6:] == ["1000.0", "20.0", "20.0", "20.0"]
    machine = Machine(cores=2, memory_bytes=2**30, load_before=0.0, python="3", spark="4", java="17")
    report = Report(settings=Settings(), machine=machine, at_most_once=found)
    assert report.holds
    assert "plain pipeline" in "\n".join(report.lines())
    assert report.as_json()["at_most_once"]["ratio"] == found.ratio
    lost = Throughput(expected_count=91, client=found.client, timings=found.timings, sides=sides)
    assert not Report(settings=Settings(), machine=machine, at_most_once=lost).holds


@pytest.mark.parametrize("is_keyed", [True, False])
def test_acks_are_compared_with_the_same_job_by_checkpoint(is_keyed: bool) -> None:
    settings = Settings(is_keyed=is_keyed)
    sides = (acknowledgement.CHECKPOINTS, acknowledgement.ACKS)
    jobs = [
        acknowledgement.job(settings, side, servers="localhost:9092", payments="in", out="o", letters="l", name="bench")
        for side in sides
    ]
    planned = [plan(one) for one in jobs]
    assert [one.refusal() for one in planned] == [None, None]
    assert [one.guarantee for one in jobs] == [Guarantee.AT_LEAST_ONCE] * 2
    assert [one.tracking is not None for one in jobs] == [False, True]
    timings = tuple(
        timing(side, repeat, speed) for side, speed in zip(sides, (100, 80), strict=True) for repeat in (0, 1)
    )
    found = Throughput(expected_count=90, client={side.name: {} for side in sides}, timings=timings, sides=sides)
    machine = Machine(cores=2, memory_bytes=2**30, load_before=0.0, python="3", spark="4", java="17")
    report = Report(settings=settings, machine=machine, acks=found)
    assert report.holds
    assert "by acknowledgement" in "\n".join(report.lines())
    assert report.as_json()["acks"]["ratio"] == 0.8
    lost = Throughput(expected_count=91, client=found.client, timings=timings, sides=sides)
    assert not Report(settings=settings, machine=machine, acks=lost).holds


def test_files_are_of_a_size_that_gives_epochs_as_many_rows_as_asked_for(tmp_path: Path) -> None:
    settings = Settings(events=10_500, rows_per_epoch=4_000)
    limit = write_files(Payments(settings), settings, tmp_path / "files") * BYTES_PER_ROW
    files = sorted((tmp_path / "files").iterdir())
    assert len(files) == 11
    sizes = [file.stat().st_size for file in files]
    assert sum(sizes[:4]) <= limit < sum(sizes[:5])
    assert sum(sizes[4:8]) <= limit < sum(sizes[4:9])
    ids = [id for file in files for id in pq.read_table(file)["id"].to_pylist()]
    assert ids == list(range(10_500))


@pytest.mark.parametrize("side", SIDES)
def test_both_sides_of_a_table_reach_what_they_declare_and_hide_the_password(side: Guarantee, tmp_path: Path) -> None:
    server = Postgres(directory=tmp_path, port=5432, password="s3cret")
    declared = table.job(side, files=tmp_path, table="out", server=server)
    planned = plan(declared)
    assert planned.refusal() is None
    assert planned.reached is side
    assert "s3cret" not in f"{declared!r} {planned!r}"


def test_a_table_beside_the_topics_counts_for_the_whole() -> None:
    right, wrong = (measured(at_least=[1, 1], exactly=[1, 1], delivered=count) for count in (90, 89))
    machine = Machine(cores=2, memory_bytes=2**30, load_before=0.0, python="3", spark="4", java="17", postgres="18")
    report = Report(settings=Settings(), machine=machine, throughput=right, table=wrong)
    assert not report.holds
    assert Report(settings=Settings(), machine=machine, throughput=right, table=right).holds
    assert "PostgreSQL 18" in machine.line()
    assert "Kafka" not in machine.line()
    assert report.as_json()["table"]["holds"] is False
    assert "WRONG" in report.lines()[-1]


# -- reading back ------------------------------------------------------------------------------------------------------


def batch(base: int, records: int, *, producer: int = 1) -> bytes:
    [(_, made)] = Payments(Settings(events=records, partitions=1)).records(0, records)
    data = encode(made, codec=Codec.NONE, producer_id=producer, producer_epoch=0, base_sequence=0, now_ms=0)
    return struct.pack(">q", base) + data[8:]


def control(base: int, *, producer: int = 1) -> bytes:
    data = bytearray(batch(base, 1, producer=producer))
    data[22] |= 0x20
    return bytes(data)


def fetched(*parts: bytes, aborted: tuple[tuple[int, int], ...] = ()) -> Fetched:
    return Fetched(code=0, high_watermark=0, last_stable_offset=0, records=b"".join(parts), aborted=aborted)


def test_control_records_are_not_counted() -> None:
    assert count_records(fetched(batch(0, 10), batch(10, 5), control(15))) == (15, 16)


def test_aborted_records_are_not_counted_and_later_ones_are() -> None:
    parts = (batch(0, 10), batch(10, 3, producer=2), control(13), batch(14, 7))
    assert count_records(fetched(*parts, aborted=((1, 0),))) == (10, 21)


def test_half_a_batch_at_the_end_is_read_the_next_time() -> None:
    assert count_records(fetched(batch(0, 10), batch(10, 5)[:-1])) == (10, 10)
    assert count_records(fetched()) == (0, 0)


# Lateness


def test_the_disorder_of_events_is_a_function_of_the_seed() -> None:
    events = disordered(7)
    assert events == disordered(7) != disordered(8)
    assert len({event.at for event in events}) == len(events) == EVENTS
    assert events == sorted(events, key=lambda event: event.came)
    assert all(event.came >= event.at for event in events)


def test_lateness_is_reported_as_shares() -> None:
    found = Lateness(
        points=(LatenessPoint(lateness_s=5, late_count=3, event_count=60, wait_s_p50=7.25),),
        aheads=(LatenessAhead(ahead_s=30, lateness_s=35, late_count=0, event_count=30),),
    )
    lines = found.lines()
    assert lines[1].split() == ["5", "s", "3", "5.0%", "7.2", "s"]
    assert lines[-1].split() == ["30", "s", "35", "s", "0", "0.0%"]


# Contests


def lap(side: str, repeat: int, speed: int, cpu: float, digest: int = 1) -> Lap:
    return Lap(
        side=side,
        repeat=repeat,
        seconds=1.0,
        cpu_seconds=1.0,
        events_per_second=speed,
        cpu_us_per_event=cpu,
        rows_count=5,
        digest=digest,
    )


def contest(*, is_alike: bool = True, digests: tuple[int, int] = (1, 1)) -> Contest:
    laps = [lap("hand", repeat, 100, 20.0, digests[0]) for repeat in range(3)]
    laps += [lap("own", repeat, speed, 10.0, digests[1]) for repeat, speed in enumerate((1, 150, 250))]
    return Contest(name="process", sides=("hand", "own"), laps=tuple(laps), is_alike=is_alike)


def test_a_contest_is_the_quotient_of_the_medians_that_are_shown() -> None:
    found = contest()
    assert (found.ratio, found.ratio_cpu, found.holds) == (2.0, 2.0, True)
    assert found.lines()[2].split() == ["own,", "events/s", "1", "150", "250", "200"]
    assert "ratio of the medians: 2.00 (time), 2.00 (processor time)" in found.lines()
    assert found.as_json()["events_per_second_median"] == {"hand": 100, "own": 200}


def test_sides_that_give_other_rows_are_not_compared() -> None:
    assert not contest(digests=(1, 2)).holds
    assert "WRONG" in contest(digests=(1, 2)).lines()[-1]
    assert contest(digests=(1, 2), is_alike=False).holds  # they had other rows to begin with
    machine = Machine(cores=2, memory_bytes=2**30, load_before=0.0, python="3", spark="4", java="17")
    report = Report(settings=Settings(), machine=machine, state=(contest(), contest(digests=(1, 2))))
    assert not report.holds
    assert report.as_json()["state"][0]["ratio"] == 2.0
    assert "WRONG" in "\n".join(report.lines())


def test_every_card_has_paid_once_before_the_clock_starts(tmp_path: Path) -> None:
    settings = Settings(events=2_500, rows_per_epoch=1_000)
    cards = write_cards(settings, 1_500, tmp_path / "cards")
    files = sorted(cards.path.iterdir())
    assert [file.stat().st_mtime for file in files] == list(range(len(files)))  # in this order they are read
    assert (cards.fill_epochs, len(files)) == (2, 18)
    sizes = [file.stat().st_size for file in files]
    limit = cards.limit * BYTES_PER_ROW
    assert sum(sizes[:4]) <= limit < sum(sizes[:5])
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert [row["number"] for row in rows] == list(range(4_500))
    assert len({row["card"] for row in rows[:2_000]}) == 1_500
    assert list(rows[0]) == [column.split()[0] for column in VALUE.split(", ")]


def test_the_clock_starts_when_the_state_is_filled() -> None:
    side = Side("own", Cards(path=Path(), keys=1, events=1_000, fill_epochs=2, limit=1))
    marks = [Mark(1.0, 1.0, 1, 1), Mark(10.0, 5.0, 1, 2), Mark(11.0, 6.0, 1, 4), Mark(12.0, 9.0, 1, 8)]
    found = lap_of(side, 1, marks)
    assert (found.seconds, found.events_per_second, found.cpu_us_per_event) == (2.0, 500, 4000.0)
    assert (found.rows_count, found.digest) == (4, 15)


def test_processor_time_is_that_of_all_processes_below_too() -> None:
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert cpu_seconds() > before


@pytest.mark.parametrize("make", [windows.job, *map(state.job_of, (state.totals, state.tens, state.large))])
def test_jobs_to_compare_reach_what_they_declare(make: Callable[[Cards, Sink], Job], tmp_path: Path) -> None:
    planned = plan(make(Cards(tmp_path, keys=1, events=1, fill_epochs=1, limit=1), StopwatchSink()))
    assert planned.refusal() is None


@pytest.mark.spark
@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (Settings(), '{"key":"Y1","value":{"id":1,"card":"Y1","cents":10000,"at":5,"shop":"s"}}'),
        (Settings(is_keyed=False), '{"value":{"id":1,"card":"Y1","cents":10000,"at":5,"shop":"s"}}'),
        (Settings(is_exchanged=True), '{"key":"c1","value":{"id":1,"card":"c1","cents":10000,"at":5,"shop":"s"}}'),
    ],
    ids=["keyed", "without a key", "exchanged"],
)
def test_the_plain_pipeline_parses_filters_and_writes(spark: SparkSession, settings: Settings, wanted: str) -> None:
    def value(cents: int) -> bytes:
        return b'{"id":1,"card":"c1","cents":%d,"at":5,"shop":"s"}' % cents

    frame = spark.createDataFrame([(b"Y1", value(10_000)), (b"Y2", value(9_999))], "key BINARY, value BINARY")
    [row] = plain.pipeline(frame, settings).collect()
    found = row.asDict()
    assert {**found, "value": json.loads(found["value"])} == json.loads(wanted)


@pytest.mark.spark
@pytest.mark.parametrize("is_keyed", [True, False])
def test_the_plain_pipeline_passes_bytes_as_they_are(spark: SparkSession, is_keyed: bool) -> None:
    frame = spark.createDataFrame([(b"k", b"\xff\x00")], "key BINARY, value BINARY")
    [row] = plain.pipeline(frame, Settings(job="pass", is_keyed=is_keyed)).collect()
    assert row.asDict() == {**({"key": "k"} if is_keyed else {}), "value": b"\xff\x00"}


@pytest.mark.prove
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_hand_written_query_gives_the_rows_of_the_job(tmp_path: Path) -> None:
    arena = Arena(Settings(events=3_000, rows_per_epoch=2_000, repeats=1), tmp_path, tell=print, go_on=lambda: None)
    cards = arena.cards(20)
    sides = (Side("hand", cards, query=state.large_by_hand), Side("own", cards, job=state.job_of(state.large)))
    found = arena.hold("pattern", sides)
    assert found.holds
    assert found.laps[0].rows_count > 10
