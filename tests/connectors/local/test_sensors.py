"""Made-up readings: the same for the same seed, with disorder and gaps to order."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lockgate import Guarantee, Job, MemorySink, SensorSource, stream
from lockgate.errors import BadJob
from support.runs import run_to_the_end

ARROW = pa.schema(
    [
        ("sensor", pa.string()),
        ("temperature", pa.float64()),
        ("smoke", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("__number", pa.int64()),
    ]
)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def readings(source: SensorSource, first: int, last: int) -> list[dict[str, object]]:
    return source.make_readings(first, last, ARROW).to_pylist()


def test_the_same_seed_gives_the_same_readings_however_they_are_cut() -> None:
    source = SensorSource(sensors=7, seed=3, disorder="10 seconds", gaps=0.2)
    whole = readings(source, 0, 5000)
    assert whole == readings(source, 0, 123) + readings(source, 123, 4000) + readings(source, 4000, 5000)
    assert whole == readings(SensorSource(sensors=7, seed=3, disorder="10 seconds", gaps=0.2), 0, 5000)
    assert whole != readings(SensorSource(sensors=7, seed=4, disorder="10 seconds", gaps=0.2), 0, 5000)


def test_disorder_is_bounded_and_real() -> None:
    times = [row["at"] for row in readings(SensorSource(sensors=1, disorder="10 seconds"), 0, 1000)]
    behind = [BEGIN + timedelta(seconds=tick) - at for tick, at in enumerate(times)]  # type: ignore[operator]
    assert min(behind) >= timedelta(0)
    assert max(behind) <= timedelta(seconds=10)
    assert times != sorted(times)  # type: ignore[type-var]


def test_without_disorder_and_gaps_every_sensor_speaks_every_second() -> None:
    rows = readings(SensorSource(sensors=3), 0, 9)
    assert [row["sensor"] for row in rows] == ["sensor-0", "sensor-1", "sensor-2"] * 3
    assert [row["at"] for row in rows] == [BEGIN + timedelta(seconds=second) for second in (0, 0, 0, 1, 1, 1, 2, 2, 2)]


def test_gaps_silence_sensors_for_about_the_share_of_time_that_was_ordered() -> None:
    kept = len(readings(SensorSource(sensors=50, gaps=0.3), 0, 100_000))
    assert 0.66 < kept / 100_000 < 0.74


def test_a_fire_is_hot_first_and_smokes_then() -> None:
    rows = readings(SensorSource(sensors=20), 0, 200_000)
    smoking = [row for row in rows if row["smoke"]]
    assert smoking
    assert all(row["temperature"] > 60 for row in smoking)  # type: ignore[operator]


@pytest.mark.parametrize("wrong", [{"sensors": 0}, {"gaps": 1.0}, {"events": -1}, {"every": "0 seconds"}])
def test_a_source_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadJob, match=r"test_sensors\.py"):
        SensorSource(**wrong)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_job_reads_the_same_readings_in_small_epochs_as_in_one(tmp_path: Path) -> None:
    source = SensorSource(sensors=3, seed=5, disorder="5 seconds", gaps=0.1, events=1000)
    sink = MemorySink()
    job = Job("sensors", stream("sensors", source).to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    run_to_the_end(job, tmp_path, rows_per_epoch=400)
    assert max(sink.epochs) == 2
    expected = sorted(tuple(row.values())[:4] for row in readings(source, 0, 1000))
    assert sorted(tuple(row) for row in sink.rows) == expected
