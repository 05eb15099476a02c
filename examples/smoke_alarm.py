"""Is there a fire? A high temperature, then smoke in the same room within ten minutes.

Readings arrive out of order; the pattern is looked for in the order of their event time. A room that was hot and had
no smoke for ten minutes gives no alarm, but a row of its own: somebody may want to look at the heating.

    lockgate plan examples/smoke_alarm.py      the graphs and the guarantee
    python examples/smoke_alarm.py             a run over two thousand made-up readings; needs no broker
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

from lockgate import FileSink, FileSource, Guarantee, Job, pattern, read_files, run, stream

READING = "room STRING, temperature DOUBLE, smoke BOOLEAN, at TIMESTAMP"


def job(readings: str = "readings", alarms: str = "alarms", hot: str = "hot") -> Job:
    """Alarms, and rooms that were hot without smoke; readings may arrive a minute out of order."""
    fire = pattern.begin("hot", "temperature > 60").then("smoke", "smoke = true").within(timedelta(minutes=10))
    found = (
        stream("readings", FileSource(path=readings, value=READING))
        .event_time("at", lateness=timedelta(minutes=1))
        .key_by("room")
        .detect(fire)
    )
    return Job(
        "smoke-alarm",
        found.to("alarms", FileSink(path=alarms)),
        found.timed_out.to("hot", FileSink(path=hot)),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`."""
    bound = timedelta(minutes=10)
    until = max(reading["at"] for reading in events["readings"]) - timedelta(minutes=1)
    waiting: dict[str, list[dict[str, Any]]] = defaultdict(list)
    alarms, hot = [], []

    def give_up(room: str, at: datetime) -> None:
        """Tell of what was hot in a room so long before that no smoke from now on could be its own."""
        while waiting[room] and waiting[room][0]["at"] + bound < at:
            first = waiting[room].pop(0)
            ends = {"match_start": first["at"], "match_end": first["at"]}
            hot.append({"room": room, **ends, "hot": first, "smoke": None, "reached": "hot"})

    for reading in sorted(events["readings"], key=lambda reading: reading["at"]):
        room, is_late = reading["room"], reading["_late"]
        reading = {name: reading[name] for name in ("room", "temperature", "smoke", "at")}
        if is_late or reading["at"] > until:
            continue
        give_up(room, reading["at"])
        if reading["smoke"] and waiting[room]:
            first = waiting[room][0]
            ends = {"match_start": first["at"], "match_end": reading["at"]}
            alarms.append({"room": room, **ends, "hot": first, "smoke": reading})
            waiting[room].clear()
        elif reading["temperature"] > 60:
            waiting[room].append(reading)
    for room in waiting:
        give_up(room, until + timedelta.resolution)
    return {"alarms": alarms, "hot": hot}


def make_readings(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Readings of two hours in ten rooms, up to a minute out of order; few are hot, few have smoke."""
    rng = random.Random(seed)
    began = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    for number in range(count):
        at = began + number * timedelta(hours=2) / count + timedelta(seconds=rng.uniform(0, 60))
        yield {
            "room": f"room-{rng.randrange(10)}",
            "temperature": round(rng.uniform(61, 90) if rng.random() < 0.02 else rng.gauss(21, 2), 1),
            "smoke": rng.random() < 0.02,
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
    """Write readings, run the job over them, one file an epoch, and show the alarms."""
    readings, alarms, hot = directory / "readings", directory / "alarms", directory / "hot"
    write_files(make_readings(count=2000, seed=7), readings, per_file=700)
    described = job(str(readings), str(alarms), str(hot))
    run(described, checkpoint=str(directory / "checkpoint"), until_caught_up=True, rows_per_epoch=1)
    for title, place in (("alarms", alarms), ("hot for ten minutes, and no smoke", hot)):
        print(title)
        rows = read_files(SparkSession.active(), str(place)).orderBy("match_start")
        rows.select("room", "match_start", "match_end", "hot.temperature").show(50, truncate=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
