"""How warm is it? The average temperature of each sensor and minute, from a directory of readings into another.

lockgate plan examples/sensor_averages.py      the graphs and the guarantee
python examples/sensor_averages.py             a run over three thousand made-up readings; needs no broker
"""

import json
import os
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lockgate import FileSink, FileSource, Guarantee, Job, read_files, run, stream, windows

READING = "sensor STRING, temperature DOUBLE, at TIMESTAMP"


def job(readings: str = "readings", averages: str = "averages") -> Job:
    """One row for every sensor and minute; readings may arrive ten seconds out of order."""
    averaged = (
        stream("readings", FileSource(path=readings, value=READING))
        .event_time("at", lateness=timedelta(seconds=10))
        .key_by("sensor")
        .window(windows.tumbling(timedelta(minutes=1)))
        .aggregate(temperature="avg(temperature)", readings="count(*)")
    )
    return Job(
        "sensor-averages",
        averaged.to("averages", FileSink(path=averages)),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`."""
    minute = timedelta(minutes=1)
    watermark = max(reading["at"] for reading in events["readings"]) - timedelta(seconds=10)
    groups: dict[tuple[str, datetime], list[float]] = defaultdict(list)
    for reading in events["readings"]:
        start = reading["at"].replace(second=0, microsecond=0)
        if not reading["_late"] and start + minute <= watermark:
            groups[reading["sensor"], start].append(reading["temperature"])
    rows = [
        {
            "sensor": sensor,
            "window_start": start,
            "window_end": start + minute,
            "temperature": sum(some) / len(some),
            "readings": len(some),
        }
        for (sensor, start), some in groups.items()
    ]
    return {"averages": rows}


def make_readings(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Readings of ten minutes, a little out of order; each sensor hangs in a place of its own."""
    rng = random.Random(seed)
    began = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    for number in range(count):
        sensor = rng.randrange(6)
        at = began + number * timedelta(minutes=10) / count + timedelta(seconds=rng.uniform(0, 5))
        yield {
            "sensor": f"sensor-{sensor}",
            "temperature": round(rng.gauss(15 + 3 * sensor, 2), 2),
            "at": at.isoformat(),
        }


def write_files(events: Iterable[dict[str, object]], directory: Path, per_file: int) -> None:
    """The events as they arrive, in one file after the other; Spark reads the oldest file first."""
    directory.mkdir()
    lines = [json.dumps(event) for event in events]
    for number in range(0, len(lines), per_file):
        path = directory / f"{number:06}.json"
        path.write_text("\n".join(lines[number : number + per_file]))
        os.utime(path, (number, number))


def main(directory: Path) -> None:
    """Write readings, run the job over them, one file an epoch, and show the averages."""
    readings, averages = directory / "readings", directory / "averages"
    write_files(make_readings(count=3000, seed=7), readings, per_file=1000)
    described = job(str(readings), str(averages))
    done = run(described, checkpoint=str(directory / "checkpoint"), until_caught_up=True, rows_per_epoch=1)
    print(f"declared {done.plan.declared.label}, reached {done.plan.reached.label}; the first minutes:")
    read_files(SparkSession.active(), str(averages)).orderBy("window_start", "sensor").show(12, truncate=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
