"""Does a campaign sell? Clicks on its advert, joined with purchases of the same user within a day; and visits.

The first click of a visit names the advert that led to it, or "no advert". A purchase counts for every such click of
its user in the day before. Clicks of a user with at most half an hour between them are one visit.

    lockgate plan examples/app_tracking.py      the graphs and the guarantee
    python examples/app_tracking.py             a run over three made-up days; needs no broker
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lockgate import FileSink, FileSource, Guarantee, Job, stream, windows
from lockgate.lab.demo import terminal
from lockgate.lab.demo.example import in_directories, run_main

CLICK = "user STRING, page STRING, campaign STRING, at TIMESTAMP"
PURCHASE = "user STRING, cents BIGINT, bought TIMESTAMP"
CHANCES = {"no advert": 0.03, "banner": 0.06, "newsletter": 0.24}  # to buy within 30 hours, in the made-up events
DAY, HOUR, GAP = timedelta(days=1), timedelta(hours=1), timedelta(minutes=30)


def job(clicks: str = "clicks", purchases: str = "purchases", sales: str = "sales", visits: str = "visits") -> Job:
    """Purchases with the clicks that led to them, and visits; events may arrive an hour out of order."""
    clicked = stream("clicks", FileSource(path=clicks, value=CLICK)).event_time("at", lateness=HOUR)
    bought = stream("purchases", FileSource(path=purchases, value=PURCHASE)).event_time("bought", lateness=HOUR)
    arrived = clicked.where("campaign IS NOT NULL")
    sold = arrived.join(bought, on="user", within=DAY, name="effect").where("bought >= at")
    visited = clicked.key_by("user").window(windows.session(gap=GAP)).aggregate(clicks="count(*)")
    return Job(
        "app-tracking",
        sold.to("sales", FileSink(path=sales)),
        visited.to("visits", FileSink(path=visits)),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`, which marks late events as `_late`."""
    clicks, purchases = ([one for one in events[name] if not one["_late"]] for name in ("clicks", "purchases"))
    sales = [
        {name: one for name, one in {**click, **purchase}.items() if name != "_late"}
        for click in clicks
        for purchase in purchases
        if click["user"] == purchase["user"] and click["campaign"] is not None
        if click["at"] <= purchase["bought"] <= click["at"] + DAY
    ]
    latest = min(max(one["at"] for one in events["clicks"]), max(one["bought"] for one in events["purchases"]))
    seen: dict[str, list[list[datetime]]] = defaultdict(list)
    for click in sorted(clicks, key=lambda click: click["at"]):
        own = seen[click["user"]]
        if not own or click["at"] - own[-1][-1] > GAP:
            own.append([])
        own[-1].append(click["at"])
    visits = [
        {"user": user, "window_start": some[0], "window_end": some[-1] + GAP, "clicks": len(some)}
        for user, own in seen.items()
        for some in own
        if some[-1] + GAP <= latest - HOUR
    ]
    return {"sales": sales, "visits": visits}


def make_activity(count: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Visits of three days, mostly of new users, and their purchases; up to half an hour out of order."""
    rng, made = random.Random(seed), []
    for number in range(count):
        user, campaign = f"user-{rng.randrange(3 * count)}", rng.choice(list(CHANCES))
        at = datetime(2026, 1, 1, tzinfo=UTC) + number * 3 * DAY / count
        for page in ("home", "search", "item")[: rng.randint(1, 3)]:
            at += timedelta(minutes=rng.uniform(1, 9))
            led_by = campaign if page == "home" else None
            made.append((at, "clicks", {"user": user, "page": page, "campaign": led_by, "at": at.isoformat()}))
        if rng.random() < CHANCES[campaign]:
            at += HOUR * rng.uniform(0, 30)
            made.append((at, "purchases", {"user": user, "cents": rng.randrange(9999), "bought": at.isoformat()}))
    yield from (one[1:] for one in sorted(made, key=lambda one: one[0] + rng.uniform(0, 0.5) * HOUR))


def main(directory: Path | None = None) -> None:
    """Write clicks and purchases, run the job over them, show what each campaign brings."""
    activity = list(make_activity(count=1500, seed=7))
    with in_directories("clicks", "purchases", "sales", "visits", directory=directory) as tryout:
        for name in ("clicks", "purchases"):
            tryout.send(name, [event for into, event in activity if into == name])
        tryout.run(job(**tryout.places))
        sales, visits = tryout.rows("sales"), tryout.rows("visits")
    clicked, sold = Counter(event.get("campaign") for _, event in activity), Counter(row["campaign"] for row in sales)
    rates = {f"{one:10} {clicked[one]} clicks, {sold[one]:3} bought": 100 * sold[one] / clicked[one] for one in CHANCES}
    print("purchases within a day of the click that began a visit, per hundred such clicks\n" + terminal.bars(rates))
    print(f"\n{len(visits):,} visits; the longest had {max(row['clicks'] for row in visits)} clicks")


if __name__ == "__main__":
    run_main(main)
