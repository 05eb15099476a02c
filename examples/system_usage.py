"""How much does each customer use? API events become transactions, which are counted per customer as they come.

One event in fifty is malformed: it becomes a dead letter and holds nobody up. The same job under three promises:

    acks           at-least-once; an event that fails is tried again alone, three times, before it is a letter
    checkpoints    at-least-once; an event that fails is a letter at once, the state counts each transaction once
    exactly-once   the same, and each row and each letter is out once

lockgate plan examples/system_usage.py -p mode=acks      the graphs and the guarantee; needs no broker
python examples/system_usage.py                          a run of each over two thousand made-up events
"""

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from kafka import KafkaProducer
from pyspark.sql import SparkSession

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, StatefulFunction, acks, run, stream, value
from lockgate.services.stack import Stack, default_root

TRANSACTION = "id BIGINT, customer STRING, object STRING, writes BOOLEAN"
MODES: dict[str, dict[str, Any]] = {
    "acks": {"guarantee": Guarantee.AT_LEAST_ONCE, "tracking": acks(max_attempts=3, backoff="200 milliseconds")},
    "checkpoints": {"guarantee": Guarantee.AT_LEAST_ONCE},
    "exactly-once": {"guarantee": Guarantee.END_TO_END_EXACTLY_ONCE},
}


def as_transaction(row: Any) -> tuple[Any, ...]:
    """The transaction of an API event, whose call looks like `POST /orders`; fails where it does not."""
    method, path = row.call.split(" ")
    return row.id, row.customer, path.removeprefix("/"), method != "GET"


class Usage(StatefulFunction):
    """Counts the transactions of a customer, and tells the count with each of them."""

    schema = "customer STRING, id BIGINT, transactions BIGINT"
    transactions = value("BIGINT")

    def process(self, row: Any, context: Any) -> Any:
        self.transactions.set((self.transactions.get() or 0) + 1)
        yield row.customer, row.id, self.transactions.get()


def job(
    servers: str = "localhost:9092",
    events: str = "api-events",
    usage: str = "usage",
    letters: str = "usage-letters",
    mode: str = "exactly-once",
    name: str = "system-usage",
) -> Job:
    """The transactions of each customer; a job that runs under two modes at once needs two names."""
    source = KafkaSource(topic=events, servers=servers, value="id BIGINT, customer STRING, call STRING")
    transactions = stream("events", source).map(as_transaction, schema=TRANSACTION)
    counted = transactions.key_by("customer").process(Usage(), name="analyser")
    written = counted.to("writer", KafkaSink(topic=usage, servers=servers, key="customer"))
    return Job(name, written, dead_letters=KafkaSink(topic=letters, servers=servers), **MODES[mode])


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`; of a malformed event there is a dead letter instead of a row."""
    counts: Counter[str] = Counter()
    rows = []
    for event in events["events"]:
        if event["call"].count(" ") == 1:
            counts[event["customer"]] += 1
            row = {"customer": event["customer"], "id": event["id"]}
            rows.append({**row, "transactions": counts[event["customer"]]})
    return {"writer": rows}


def make_calls(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Calls of eight customers; one in fifty has lost its path."""
    rng = random.Random(seed)
    for number in range(count):
        path = "" if rng.random() < 0.02 else f" /{rng.choice(('orders', 'invoices', 'parcels'))}"
        call = rng.choice(("GET", "POST", "DELETE")) + path
        yield {"id": number, "customer": f"customer-{rng.randrange(8)}", "call": call}


def main() -> None:
    """Send events into a topic, count them under each promise, and show what came out."""
    servers = sys.argv[1] if len(sys.argv) > 1 else Stack(default_root()).status().kafka.servers
    if servers is None:
        sys.exit("No Kafka runs here: start one with `lockgate up`, or name its servers: system_usage.py HOST:PORT")
    events = f"api-events-{datetime.now():%Y%m%d-%H%M%S}"
    with KafkaProducer(bootstrap_servers=servers) as producer:
        for call in make_calls(count=2000, seed=7):
            producer.send(events, json.dumps(call).encode())
    for mode in MODES:
        topics = {"usage": f"{events}-{mode}", "letters": f"{events}-{mode}-letters"}
        with tempfile.TemporaryDirectory() as checkpoint:
            described = job(servers, events, mode=mode, name=f"system-usage-{mode}", **topics)
            done = run(described, checkpoint=checkpoint, until_caught_up=True, rows_per_epoch=1000, new_life=True)
        reader = SparkSession.active().read.format("kafka").option("kafka.bootstrap.servers", servers)
        records = reader.option("kafka.isolation.level", "read_committed")
        rows, letters = (records.option("subscribe", topic).load().count() for topic in topics.values())
        print(f"{mode}: reached {done.plan.reached.label}; {rows} transactions counted, {letters} dead letters")


if __name__ == "__main__":
    main()
