"""Which team earns the bonus? 500 bubbles within a minute of event time, although a player was in a tunnel.

The phone of a player in a tunnel sends bubbles minutes later. They count for the minute in which they were popped.
`lateness` says how long every result waits for them. The alternative: wait for seconds only, and correct results while
`allowed` lasts. Results then carry `revision`, and the highest revision of a window is valid.

    lockgate plan examples/bubbles.py -p lateness="10 seconds" -p allowed="10 minutes"      the alternative, as a plan
    python examples/bubbles.py      a run over 3,600 made-up events, and one without waiting; needs no broker
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lockgate import FileSink, FileSource, Guarantee, Job, Late, stream, windows
from lockgate.lab.demo import terminal
from lockgate.lab.demo.example import in_directories, run_main

POPPED = "team STRING, player STRING, bubbles INT, at TIMESTAMP"
BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(
    popped: str = "popped",
    bonuses: str = "bonuses",
    lateness: timedelta = timedelta(minutes=5),
    allowed: timedelta | None = None,
    least: int = 500,
    name: str = "bubbles",
) -> Job:
    """The minutes in which a team popped at least `least` bubbles; a minute begins every ten seconds."""
    earned = (
        stream("popped", FileSource(path=popped, value=POPPED))
        .event_time("at", lateness=lateness, late=Late.DROP if allowed is None else Late.CORRECT, allowed=allowed)
        .key_by("team")
        .window(windows.sliding(timedelta(minutes=1), every=timedelta(seconds=10)))
        .aggregate(bubbles="sum(bubbles)")
        .where(f"bubbles >= {least}")
    )
    return Job(name, earned.to("bonuses", FileSink(path=bonuses)), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)


def answer(
    events: Mapping[str, Sequence[dict[str, Any]]], lateness: timedelta, allowed: timedelta | None, least: int
) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`, which marks events that are late for their windows as `_late`."""
    if allowed is not None:
        return {}  # the revisions depend on where epochs end
    watermark = max(one["at"] for one in events["popped"]) - lateness
    totals: dict[tuple[str, datetime], int] = defaultdict(int)
    for one in events["popped"]:
        last = one["at"].replace(second=one["at"].second // 10 * 10, microsecond=0)
        for start in (last - slide * timedelta(seconds=10) for slide in range(6)):
            if not one["_late"] and start + timedelta(minutes=1) <= watermark:
                totals[one["team"], start] += one["bubbles"]
    rows = [
        {"team": team, "window_start": start, "window_end": start + timedelta(minutes=1), "bubbles": total}
        for (team, start), total in totals.items()
        if total >= least
    ]
    return {"bonuses": rows}


def make_bubbles(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Twelve minutes in the order of arrival: in the sixth the otters are fast, and one of them is in a tunnel."""
    rng = random.Random(seed)
    arriving = []
    for number in range(count):
        after = number * timedelta(minutes=12) / count
        team, player = rng.choice(["otters", "foxes", "owls"]), rng.randrange(4)
        is_quick = team == "otters" and timedelta(minutes=5) <= after < timedelta(minutes=6)
        bubbles = rng.randint(4, 7) if is_quick else rng.randint(1, 6)
        is_in_tunnel = (team, player) == ("otters", 2) and timedelta(minutes=5) <= after < timedelta(minutes=6.5)
        arrives = timedelta(minutes=9.5) if is_in_tunnel else after + timedelta(seconds=rng.uniform(0, 5))
        event = {"team": team, "player": f"{team}-{player}", "bubbles": bubbles, "at": (BEGAN + after).isoformat()}
        arriving.append((arrives, number, event))
    yield from (event for _, _, event in sorted(arriving, key=lambda one: one[:2]))


def main(directory: Path | None = None, **times: Any) -> None:
    """Run the job over made-up events, then without waiting and for every minute; `times` are for the first run."""
    with in_directories("popped", "bonuses", "hasty", directory=directory, epochs=8) as tryout:
        popped, bonuses, hasty = tryout.places.values()
        tryout.send("popped", make_bubbles(count=3600, seed=7))
        tryout.run(job(popped, bonuses, **times))
        tryout.run(job(popped, hasty, lateness=timedelta(seconds=10), least=0, name="bubbles-without-waiting"))
        early = {(row["team"], row["window_start"]): row["bubbles"] for row in tryout.rows("hasty")}
        told = []
        for row in sorted(tryout.rows("bonuses"), key=lambda row: (row["window_start"], row["team"])):
            bonus = {"team": row["team"], "minute from": f"{row['window_start']:%H:%M:%S}", "bubbles": row["bubbles"]}
            told.append({**bonus, "without waiting": early[row["team"], row["window_start"]]})
    print("the minutes that earn a bonus\n" + terminal.table(told))


if __name__ == "__main__":
    run_main(main)
