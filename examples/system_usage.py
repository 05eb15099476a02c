"""How much does each customer use? API events become transactions; the job counts those of each customer as they come.

One event in fifty is malformed: it becomes a dead letter and does not delay the others. The same job in three modes:

    acks           at-least-once; an event that fails is retried alone, twice, before it becomes a dead letter
    checkpoints    at-least-once; an event that fails becomes a dead letter at once, the state counts each event once
    exactly-once   the same, and each row and each dead letter is committed once

lockgate plan examples/system_usage.py -p mode=acks      the graphs and the guarantee; needs no broker
python examples/system_usage.py                          a run of each over two thousand made-up events
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, StatefulFunction, acks, stream, value
from lockgate.lab.demo import terminal
from lockgate.lab.demo.example import in_topics, kafka_at, run_main

TRANSACTION = "id BIGINT, customer STRING, object STRING, writes BOOLEAN"
Promise = Literal["acks", "checkpoints", "exactly-once"]
MODES: dict[Promise, dict[str, Any]] = {
    "acks": {"guarantee": Guarantee.AT_LEAST_ONCE, "tracking": acks(max_attempts=3, backoff="200 milliseconds")},
    "checkpoints": {"guarantee": Guarantee.AT_LEAST_ONCE},
    "exactly-once": {"guarantee": Guarantee.END_TO_END_EXACTLY_ONCE},
}


def as_transaction(row: Any) -> tuple[Any, ...]:
    """The transaction of an API event, whose call looks like `POST /orders`; raises if it does not."""
    method, path = row.call.split(" ")
    return row.id, row.customer, path.removeprefix("/"), method != "GET"


class Usage(StatefulFunction):
    """Counts the transactions of a customer, and emits the count with each of them."""

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
    mode: Promise = "exactly-once",
    name: str = "system-usage",
) -> Job:
    """The transactions of each customer; two modes that run at the same time need two names."""
    source = KafkaSource(topic=events, servers=servers, value="id BIGINT, customer STRING, call STRING")
    transactions = stream("events", source).map(as_transaction, schema=TRANSACTION)
    counted = transactions.key_by("customer").process(Usage(), name="analyser")
    written = counted.to("writer", KafkaSink(topic=usage, servers=servers, key="customer"))
    return Job(name, written, dead_letters=KafkaSink(topic=letters, servers=servers), **MODES[mode])


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`; a malformed event has a dead letter instead of a row."""
    rows, counts = [], Counter[str]()
    for event in events["events"]:
        if event["call"].count(" ") == 1:
            counts[event["customer"]] += 1
            rows.append({"customer": event["customer"], "id": event["id"], "transactions": counts[event["customer"]]})
    return {"writer": rows}


def make_calls(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Calls of eight customers; one in fifty has lost its path."""
    rng = random.Random(seed)
    for number in range(count):
        path = "" if rng.random() < 0.02 else f" /{rng.choice(('orders', 'invoices', 'parcels'))}"
        verb, customer = rng.choice(("GET", "POST", "DELETE")), f"customer-{rng.randrange(8)}"
        yield {"id": number, "customer": customer, "call": verb + path}


def main(servers: str | None = None) -> None:
    """Send events, count them in each mode, show the greatest count of each customer."""
    told = []
    with kafka_at(servers) as servers:
        for mode in MODES:
            with in_topics("events", "usage", "letters", servers=servers) as tryout:
                tryout.send("events", make_calls(count=2000, seed=7))
                tryout.run(job(**tryout.places, mode=mode, name=f"system-usage-{mode}"))
                rows, letters = tryout.rows("usage"), tryout.rows("letters")
            counts = {row["customer"]: row["transactions"] for row in sorted(rows, key=lambda row: row["transactions"])}
            facts = {"mode": mode, "transactions counted": sum(counts.values()), "dead letters": len(letters)}
            told.append({**facts, "attempts at each": max(letter["attempts"] for letter in letters)})
    print(f"{terminal.table(told)}\n\ntransactions by customer, {mode}\n" + terminal.bars(dict(sorted(counts.items()))))


if __name__ == "__main__":
    run_main(main)
