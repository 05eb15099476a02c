"""Which payments are to be settled, and for what fee? Each exactly once, and those of an account in their order.

No state and no windows: one topic in, one topic out, one transaction of Kafka for every epoch. It is the job with which
a thousand processes were killed (docs/PROVE.md).

    lockgate prove examples/payments.py --kills 12     kill it yourself
    python examples/payments.py                        a run over two thousand made-up payments
"""

import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from kafka import KafkaProducer
from pyspark.sql import SparkSession

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, run, stream
from lockgate.services.stack import Stack, default_root

PAYMENT = "id BIGINT, account STRING, cents BIGINT, currency STRING, at TIMESTAMP"


def job(servers: str = "localhost:9092", payments: str = "payments", settlements: str = "settlements") -> Job:
    """Every payment in euro with its fee, a quarter of a percent of it; refunds have none and are not settled here."""
    due = (
        stream("payments", KafkaSource(topic=payments, servers=servers, value=PAYMENT))
        .where("currency = 'EUR' AND cents > 0")
        .select("id", "account", "cents", "at", fee_cents="cents DIV 400")
    )
    return Job(
        "payments",
        due.to("settlements", KafkaSink(topic=settlements, servers=servers, key="account")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`."""
    due = [one for one in events["payments"] if one["currency"] == "EUR" and (one["cents"] or 0) > 0]
    kept = ("id", "account", "cents", "at")
    rows = [{**{name: one[name] for name in kept}, "fee_cents": one["cents"] // 400} for one in due]
    return {"settlements": rows}


def make_payments(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Payments of five minutes, a little out of order: some are refunds, some in another currency."""
    rng = random.Random(seed)
    began = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    for number in range(count):
        yield {
            "id": number,
            "account": f"account-{rng.randrange(20):02}",
            "cents": rng.randrange(-20_000, 200_000),
            "currency": rng.choice(["EUR", "EUR", "CHF"]),
            "at": (began + number * timedelta(minutes=5) / count + timedelta(seconds=rng.uniform(0, 5))).isoformat(),
        }


def main() -> None:
    """Send payments into topics of their own, run the job, show what each account pays."""
    servers = sys.argv[1] if len(sys.argv) > 1 else Stack(default_root()).status().kafka.servers
    if servers is None:
        sys.exit("No Kafka runs here: start one with `lockgate up`, or name its servers: payments.py HOST:PORT")
    name = f"{datetime.now():%Y%m%d-%H%M%S}"
    payments, settlements = f"payments-{name}", f"settlements-{name}"

    producer = KafkaProducer(bootstrap_servers=servers)
    for payment in make_payments(count=2000, seed=7):
        producer.send(payments, json.dumps(payment).encode())
    producer.close()

    with tempfile.TemporaryDirectory() as checkpoint:
        described = job(servers, payments=payments, settlements=settlements)
        done = run(described, checkpoint=checkpoint, until_caught_up=True, new_life=True)
    print(f"declared {done.plan.declared.label}, reached {done.plan.reached.label}; what each account pays:")
    settled = (
        SparkSession.active()
        .read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", settlements)
    )
    settled.load().selectExpr(
        "inline(array(from_json(string(value), 'account STRING, cents BIGINT, fee_cents BIGINT')))"
    ).groupBy("account").agg({"cents": "sum", "fee_cents": "sum"}).orderBy("account").show(truncate=False)


if __name__ == "__main__":
    main()
