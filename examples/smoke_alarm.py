"""Is there a fire? A high temperature, then smoke in the same room within ten minutes.

Readings arrive out of order; the job looks for the pattern in the order of event time. A room that was hot and had no
smoke for ten minutes gives no alarm, but a row of its own, so that the heating can be checked.

    lockgate plan examples/smoke_alarm.py      the graphs and the guarantee
    python examples/smoke_alarm.py             a run over two thousand made-up readings; needs no broker
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lockgate import FileSink, FileSource, Guarantee, Job, pattern, stream
from lockgate.lab.demo import terminal
from lockgate.lab.demo.example import in_directories, run_main

READING = "room STRING, temperature DOUBLE, smoke BOOLEAN, at TIMESTAMP"
BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)


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
    """The same without Spark, for `lockgate prove`, which marks events that are late for the pattern as `_late`."""
    bound = timedelta(minutes=10)
    until = max(reading["at"] for reading in events["readings"]) - timedelta(minutes=1)
    waiting: dict[str, list[dict[str, Any]]] = defaultdict(list)
    alarms, hot = [], []

    def give_up(room: str, at: datetime) -> None:
        """Report hot readings of a room that are too old for any smoke from now on."""
        while waiting[room] and waiting[room][0]["at"] + bound < at:
            first = waiting[room].pop(0)
            ends = {"match_start": first["at"], "match_end": first["at"]}
            hot.append({"room": room, **ends, "hot": first, "smoke": None, "reached": "hot"})

    for one in sorted(events["readings"], key=lambda one: one["at"]):
        if one["_late"] or one["at"] > until:
            continue
        room, reading = one["room"], {name: one[name] for name in ("room", "temperature", "smoke", "at")}
        give_up(room, reading["at"])
        if reading["smoke"] and waiting[room]:
            ends = {"match_start": waiting[room][0]["at"], "match_end": reading["at"]}
            alarms.append({"room": room, **ends, "hot": waiting[room][0], "smoke": reading})
            waiting[room].clear()
        elif reading["temperature"] > 60:
            waiting[room].append(reading)
    for room in waiting:
        give_up(room, until + timedelta.resolution)
    return {"alarms": alarms, "hot": hot}


def make_readings(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Readings of two hours in ten rooms, up to a minute out of order; few are hot, few have smoke."""
    rng = random.Random(seed)
    for number in range(count):
        at = BEGAN + number * timedelta(hours=2) / count + timedelta(seconds=rng.uniform(0, 60))
        yield {
            "room": f"room-{rng.randrange(10)}",
            "temperature": round(rng.uniform(61, 90) if rng.random() < 0.02 else rng.gauss(21, 2), 1),
            "smoke": rng.random() < 0.02,
            "at": at.isoformat(),
        }


def main(directory: Path | None = None) -> None:
    """Write readings, run the job over them, show a time line of each room: hot readings and alarms."""
    with in_directories("readings", "alarms", "hot", directory=directory) as tryout:
        tryout.send("readings", make_readings(count=2000, seed=7))
        tryout.run(job(**tryout.places))
        alarms, hot = tryout.rows("alarms"), tryout.rows("hot")
    lanes: dict[str, list[terminal.Span]] = {f"room-{number}": [] for number in range(10)}
    for row in [*hot, *alarms]:
        lanes[row["room"]].append((row["match_start"], row["match_end"], "h" if row in hot else "█"))
    print(terminal.timeline(lanes, begin=BEGAN, end=BEGAN + timedelta(hours=2), step=timedelta(minutes=2)))
    print(f"\n█ alarm, from heat to smoke: {len(alarms)}   h hot, and no smoke in ten minutes: {len(hot)}")


if __name__ == "__main__":
    run_main(main)
