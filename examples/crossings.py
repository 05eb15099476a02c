"""How busy are the crossings? Vehicles of the last five minutes, every minute, for each crossing.

lockgate plan examples/crossings.py      the graphs and the guarantee
python examples/crossings.py             a run over three thousand made-up vehicles; needs no broker
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

VEHICLE = "crossing STRING, kind STRING, speed INT, at TIMESTAMP"


def job(vehicles: str = "vehicles", counts: str = "counts") -> Job:
    """All vehicles, the lorries among them and the highest speed; a vehicle is in five windows."""
    counted = (
        stream("vehicles", FileSource(path=vehicles, value=VEHICLE))
        .event_time("at", lateness=timedelta(seconds=10))
        .key_by("crossing")
        .window(windows.sliding(timedelta(minutes=5), every=timedelta(minutes=1)))
        .aggregate(vehicles="count(*)", lorries="count_if(kind = 'lorry')", fastest="max(speed)")
    )
    return Job("crossings", counted.to("counts", FileSink(path=counts)), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`, which marks events that are late for their windows as `_late`."""
    minute = timedelta(minutes=1)
    watermark = max(vehicle["at"] for vehicle in events["vehicles"]) - timedelta(seconds=10)
    groups: dict[tuple[str, datetime], list[dict[str, Any]]] = defaultdict(list)
    for vehicle in events["vehicles"]:
        last = vehicle["at"].replace(second=0, microsecond=0)
        for start in (last - number * minute for number in range(5)):
            if not vehicle["_late"] and start + 5 * minute <= watermark:
                groups[vehicle["crossing"], start].append(vehicle)
    rows = [
        {
            "crossing": crossing,
            "window_start": start,
            "window_end": start + 5 * minute,
            "vehicles": len(some),
            "lorries": sum(vehicle["kind"] == "lorry" for vehicle in some),
            "fastest": max(vehicle["speed"] for vehicle in some),
        }
        for (crossing, start), some in groups.items()
    ]
    return {"counts": rows}


def make_vehicles(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Vehicles of twenty minutes, a little out of order; one crossing is by far the busiest."""
    rng = random.Random(seed)
    began = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for number in range(count):
        at = began + number * timedelta(minutes=20) / count + timedelta(seconds=rng.uniform(0, 5))
        yield {
            "crossing": rng.choices(["Mill Road", "Station", "Old Bridge"], weights=[6, 3, 1])[0],
            "kind": rng.choices(["car", "lorry", "bicycle"], weights=[7, 1, 2])[0],
            "speed": rng.randrange(8, 75),
            "at": at.isoformat(),
        }


def main(directory: Path | None = None) -> None:
    """Write vehicles, run the job over them, show the traffic of each crossing and its busiest five minutes."""
    with in_directories("vehicles", "counts", directory=directory) as tryout:
        tryout.send("vehicles", make_vehicles(count=3000, seed=7))
        tryout.run(job(**tryout.places))
        rows = sorted(tryout.rows("counts"), key=lambda row: row["window_start"])
    told = []
    for crossing in ("Mill Road", "Station", "Old Bridge"):
        own = [row for row in rows if row["crossing"] == crossing]
        busiest = max(own, key=lambda row: row["vehicles"])
        course = terminal.sparkline([row["vehicles"] for row in own], floor=0)
        facts = {name: busiest[name] for name in ("vehicles", "lorries", "fastest")}
        told.append({"crossing": crossing, "each minute": course, "busiest from": busiest["window_start"], **facts})
    print(terminal.table(told))
    print("\neach curve goes from none to its own busiest; the first four windows began before the first vehicle")


if __name__ == "__main__":
    run_main(main)
