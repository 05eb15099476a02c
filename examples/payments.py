"""Which payments are to be settled, and for what fee? Each exactly once, in the order of its account.

One topic in, one topic out, one Kafka transaction per epoch, no state and no windows. A thousand kills tested this job
(docs/PROVE.md).

    lockgate prove examples/payments.py --kills 12     kill it yourself
    python examples/payments.py                        a run over two thousand made-up payments
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream
from lockgate.lab.demo import terminal
from lockgate.lab.demo.example import in_topics, run_main

PAYMENT = "id BIGINT, account STRING, cents BIGINT, currency STRING, at TIMESTAMP"


def job(servers: str = "localhost:9092", payments: str = "payments", settlements: str = "settlements") -> Job:
    """Every payment in euro with its fee of a quarter of a percent; without refunds, which have no fee."""
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
    began = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for number in range(count):
        yield {
            "id": number,
            "account": f"account-{rng.randrange(20):02}",
            "cents": rng.randrange(-20_000, 200_000),
            "currency": rng.choice(["EUR", "EUR", "CHF"]),
            "at": (began + number * timedelta(minutes=5) / count + timedelta(seconds=rng.uniform(0, 5))).isoformat(),
        }


def main(servers: str | None = None) -> None:
    """Send payments, run the job, show what the accounts pay."""
    with in_topics("payments", "settlements", servers=servers) as tryout:
        tryout.send("payments", make_payments(count=2000, seed=7))
        tryout.run(job(**tryout.places))
        rows = tryout.rows("settlements")
    fees: Counter[str] = Counter()
    for row in rows:
        fees[row["account"]] += row["fee_cents"]
    print(f"{len(rows):,} payments settled; the accounts with the highest fees, in cents")
    print(terminal.bars(dict(sorted(fees.items(), key=lambda item: (-item[1], item[0]))[:8])))


if __name__ == "__main__":
    run_main(main)
