"""How does a promotion sell? Orders and amounts per promotion and minute, and a running total with every order.

One job has two outputs: both get the same orders in the same epochs, and one Kafka transaction commits both.

    lockgate plan examples/order_volume.py      the graphs and the guarantee; needs no broker
    python examples/order_volume.py             a run over three thousand made-up orders; --live shows a live page
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream, windows
from lockgate.dashboard.figure import Figure
from lockgate.lab.demo import terminal
from lockgate.lab.demo.example import in_topics, run_main

ORDER = "order_id BIGINT, product STRING, amount DECIMAL(10,2), promotion STRING, at TIMESTAMP"
MINUTE = timedelta(minutes=1)


def job(
    servers: str = "localhost:9092", orders: str = "orders", volume: str = "order-volume", totals: str = "order-totals"
) -> Job:
    """The volume of each promotion in each minute, and every order with its promotion's totals as of it."""
    promoted = (
        stream("orders", KafkaSource(topic=orders, servers=servers, value=ORDER))
        .where("promotion IS NOT NULL")
        .event_time("at", lateness=timedelta(seconds=10))
        .key_by("promotion")
    )
    per_minute = promoted.window(windows.tumbling(MINUTE)).aggregate(orders="count(*)", amount="sum(amount)")
    as_of_each_order = promoted.rolling(total_orders="count(*)", total_amount="sum(amount)")
    return Job(
        "order-volume",
        per_minute.to("volume", KafkaSink(topic=volume, servers=servers, key="promotion")),
        as_of_each_order.to("totals", KafkaSink(topic=totals, servers=servers, key="promotion")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`; late events (`_late`) count in the totals only."""
    orders = [order for order in events["orders"] if order["promotion"] is not None]
    watermark = max(order["at"] for order in orders) - timedelta(seconds=10)
    minutes: dict[tuple[str, datetime], list[Any]] = defaultdict(list)
    amounts: dict[str, list[Any]] = defaultdict(list)
    totals = []
    for order in orders:
        promotion, start = order["promotion"], order["at"].replace(second=0, microsecond=0)
        if not order["_late"] and start + MINUTE <= watermark:
            minutes[promotion, start].append(order["amount"])
        amounts[promotion].append(order["amount"])
        row = {name: order[name] for name in ("order_id", "product", "amount", "promotion", "at")}
        totals.append({**row, "total_orders": len(amounts[promotion]), "total_amount": sum(amounts[promotion])})
    volume = []
    for (promotion, start), some in minutes.items():
        window = {"window_start": start, "window_end": start + MINUTE}
        volume.append({"promotion": promotion, **window, "orders": len(some), "amount": sum(some)})
    return {"volume": volume, "totals": totals}


def make_orders(count: int, seed: int, minutes: int = 5) -> Iterator[dict[str, object]]:
    """Orders of some minutes, a little out of order; the second of two promotions becomes more popular."""
    rng = random.Random(seed)
    began = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for number in range(count):
        at = began + number * minutes * MINUTE / count + timedelta(seconds=rng.uniform(0, 5))
        yield {
            "order_id": number,
            "product": rng.choice(["tea", "coffee", "mug", "kettle"]),
            "amount": rng.randrange(199, 9999) / 100,
            "promotion": rng.choices(["winter-sale", "two-for-one", None], weights=[4, 1 + 6 * number / count, 4])[0],
            "at": at.isoformat(),
        }


def main(servers: str | None = None, live: bool = False) -> None:
    """Send orders, run the job, show the volume of the promotions: at the end, or live on a page."""
    with in_topics("orders", "volume", "totals", servers=servers) as tryout:
        described = job(**tryout.places)
        if live:
            with Figure("Order volume by minute", x="window_start", y="amount", series="promotion").serve() as figure:
                print(f"open {figure.url} in a browser: an hour of orders passes in five minutes", flush=True)
                orders = make_orders(count=60_000, seed=7, minutes=60)
                figure.follow(tryout.live(described, "orders", orders, per_second=200, output="volume"))
            return
        tryout.send("orders", make_orders(count=3000, seed=7))
        tryout.run(described)
        volume = sorted(tryout.rows("volume"), key=lambda row: (row["promotion"], row["window_start"]))
        totals = sorted(tryout.rows("totals"), key=lambda row: (row["promotion"], row["total_orders"]))
    print(terminal.bars({f"{row['promotion']} {row['window_start']:%H:%M}": row["amount"] for row in volume}))
    print("\ntotals with the open minute\n" + terminal.bars({row["promotion"]: row["total_amount"] for row in totals}))


if __name__ == "__main__":
    run_main(main)
