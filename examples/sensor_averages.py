"""How warm is it? The average temperature of each sensor and minute, from a directory of readings into another.

lockgate plan examples/sensor_averages.py      the graphs and the guarantee
python examples/sensor_averages.py             a run over three thousand made-up readings; needs no broker
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lockgate import FileSink, FileSource, Guarantee, Job, stream, windows
from lockgate.lab.demo import terminal
from lockgate.lab.demo.example import in_directories, run_main

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
    """The same without Spark, for `lockgate prove`, which marks events that are late for their windows as `_late`."""
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
    """Readings of ten minutes, a little out of order; each sensor has a place of its own."""
    rng = random.Random(seed)
    began = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for number in range(count):
        sensor = rng.randrange(6)
        at = began + number * timedelta(minutes=10) / count + timedelta(seconds=rng.uniform(0, 5))
        yield {
            "sensor": f"sensor-{sensor}",
            "temperature": round(rng.gauss(15 + 3 * sensor, 2), 2),
            "at": at.isoformat(),
        }


def main(directory: Path | None = None) -> None:
    """Write readings, run the job over them, show the course of each sensor."""
    with in_directories("readings", "averages", directory=directory) as tryout:
        tryout.send("readings", make_readings(count=3000, seed=7))
        tryout.run(job(**tryout.places))
        courses: dict[str, list[float]] = defaultdict(list)
        for row in sorted(tryout.rows("averages"), key=lambda row: row["window_start"]):
            courses[row["sensor"]].append(row["temperature"])
    print(
        terminal.table(
            {"sensor": sensor, "by minute": terminal.sparkline(course), "coldest": min(course), "warmest": max(course)}
            for sensor, course in sorted(courses.items())
        )
    )
    print("\neach curve goes from the coldest minute of its own sensor to the warmest")


if __name__ == "__main__":
    run_main(main)
