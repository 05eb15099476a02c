"""How does a promotion sell? Orders and amounts per promotion and minute, and a running total with every order.

Two outputs, one job: both are fed by the same orders in the same epochs. No order is counted twice although processes
fail, so the job declares exactly-once (state); a reader may still see a row twice after a failure.

    lockgate plan examples/order_volume.py      the graphs and the guarantee; needs no broker
    python examples/order_volume.py             a run over three thousand made-up orders
"""

import json
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from kafka import KafkaProducer
from pyspark.sql import SparkSession

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, run, stream, windows
from lockgate.services.stack import Stack, default_root

ORDER = "order_id BIGINT, product STRING, amount DECIMAL(10,2), promotion STRING, at TIMESTAMP"


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
    per_minute = promoted.window(windows.tumbling(timedelta(minutes=1))).aggregate(
        orders="count(*)", amount="sum(amount)"
    )
    as_of_each_order = promoted.rolling(total_orders="count(*)", total_amount="sum(amount)")
    return Job(
        "order-volume",
        per_minute.to("volume", KafkaSink(topic=volume, servers=servers, key="promotion")),
        as_of_each_order.to("totals", KafkaSink(topic=totals, servers=servers, key="promotion")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`; a late order has no minute any more, and counts in the totals."""
    orders = [order for order in events["orders"] if order["promotion"] is not None]
    watermark = max(order["at"] for order in orders) - timedelta(seconds=10)
    minutes: dict[tuple[str, datetime], list[Decimal]] = defaultdict(list)
    amounts: dict[str, list[Decimal]] = defaultdict(list)
    totals = []
    for order in orders:
        promotion, start = order["promotion"], order["at"].replace(second=0, microsecond=0)
        if not order["_late"] and start + timedelta(minutes=1) <= watermark:
            minutes[promotion, start].append(order["amount"])
        so_far = amounts[promotion]
        so_far.append(order["amount"])
        row = {name: order[name] for name in ("order_id", "product", "amount", "promotion", "at")}
        totals.append({**row, "total_orders": len(so_far), "total_amount": sum(so_far)})
    volume = [
        {
            "promotion": promotion,
            "window_start": start,
            "window_end": start + timedelta(minutes=1),
            "orders": len(some),
            "amount": sum(some),
        }
        for (promotion, start), some in minutes.items()
    ]
    return {"volume": volume, "totals": totals}


def make_orders(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Orders of five minutes, a little out of order, most of them in one of two promotions."""
    rng = random.Random(seed)
    began = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    for number in range(count):
        yield {
            "order_id": number,
            "product": rng.choice(["tea", "coffee", "mug", "kettle"]),
            "amount": rng.randrange(199, 9999) / 100,
            "promotion": rng.choice(["winter-sale", "two-for-one", None]),
            "at": (began + number * timedelta(minutes=5) / count + timedelta(seconds=rng.uniform(0, 5))).isoformat(),
        }


def main() -> None:
    """Send orders into topics of their own, run the job, show what the promotions brought."""
    servers = sys.argv[1] if len(sys.argv) > 1 else Stack(default_root()).status().kafka.servers
    if servers is None:
        sys.exit("No Kafka runs here: start one with `lockgate up`, or name its servers: order_volume.py HOST:PORT")
    name = f"{datetime.now():%Y%m%d-%H%M%S}"
    orders, volume, totals = f"orders-{name}", f"order-volume-{name}", f"order-totals-{name}"

    producer = KafkaProducer(bootstrap_servers=servers)
    for order in make_orders(count=3000, seed=7):
        producer.send(orders, json.dumps(order).encode())
    producer.close()

    with tempfile.TemporaryDirectory() as checkpoint:
        described = job(servers, orders=orders, volume=volume, totals=totals)
        done = run(described, checkpoint=checkpoint, until_caught_up=True, new_life=True)
    print(f"declared {done.plan.declared.label}, reached {done.plan.reached.label}; the volume of each closed minute:")
    reader = (
        SparkSession.active()
        .read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
    )
    reader.option("subscribe", volume).load().selectExpr(
        "inline(array(from_json(string(value), "
        "'promotion STRING, window_start STRING, orders BIGINT, amount DECIMAL(20,2)')))"
    ).orderBy("window_start", "promotion").show(truncate=False)
    print("and the totals as of the last order:")
    reader.option("subscribe", totals).load().selectExpr(
        "inline(array(from_json(string(value), "
        "'promotion STRING, order_id BIGINT, total_orders BIGINT, total_amount DECIMAL(20,2)')))"
    ).groupBy("promotion").agg({"total_orders": "max", "total_amount": "max"}).show(truncate=False)


if __name__ == "__main__":
    main()
