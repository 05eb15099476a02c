"""Is this card payment a fraud, in Python? Three functions score it in parallel; a slow one is cut off after 20 ms.

`.fan_out` starts all functions at once and joins their scores. A score that is not there at the deadline is missing:
the payment continues without it, and is marked. Python runs in micro-batches, so the 20 ms count from the moment when a
task gives the payment to its functions. The run also prints how long a payment took from end to end. Answers within
20 ms from end to end need SQL and real-time mode: fraud_detection/.

    lockgate plan examples/fraud_in_python.py     which form runs, and why
    python examples/fraud_in_python.py            a run over two thousand payments, with a slow register
"""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from fraud_detection.fraud.reading import IS_PAID, PAYMENT
from fraud_detection.fraud.transactions import BLACKLIST, make_transactions
from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream
from lockgate.lab.demo import terminal
from lockgate.lab.demo.example import in_topics, run_main

LOOKS = ("amount_score", "place_score", "register_score")
SLOW = "merchant-10"  # merchants whose names start so are slow to find in the register


def by_amount(row: Any) -> float:
    """1 for ten times the average of the earlier payments of the card, or more; 0 if there are fewer than three."""
    before = row.payments - 1
    return 0.0 if before < 3 else min(1.0, row.amount * before / max(0.01, row.total - row.amount) / 10)


def by_place(row: Any) -> float:
    """High abroad, and higher at night."""
    return (0.0 if row.country == row.home else 0.8) + (0.1 if row.at.hour < 5 else 0.0)


def by_register(row: Any) -> float:
    """Simulate a request to a register of merchants, which is slow at times."""
    time.sleep(0.5 if row.merchant.startswith(SLOW) else 0.001)
    return 1.0 if row.merchant in BLACKLIST else 0.0


def job(
    servers: str = "localhost:9092", payments: str = "payments", scores: str = "scores", letters: str = "letters"
) -> Job:
    """Payments with the earlier total of their card and three scores, without those that lack a card or an amount."""
    read = stream("payments", KafkaSource(topic=payments, servers=servers, value=PAYMENT))
    known = read.where(IS_PAID).key_by("card").rolling(payments="count(*)", total="sum(amount)")
    scored = known.fan_out(
        deadline="20 ms",
        schema=", ".join(f"{look} DOUBLE" for look in LOOKS),
        amount_score=by_amount,
        place_score=by_place,
        register_score=by_register,
    ).select("id", "at", *LOOKS, "is_partial", "missing", score=f"greatest({', '.join(LOOKS)})")
    return Job(
        "fraud-in-python",
        scored.to("scores", KafkaSink(topic=scores, servers=servers, key="id")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
        dead_letters=KafkaSink(topic=letters, servers=servers),
    )


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The scores without Spark and without a deadline, so that none is missing."""
    paid, rows = defaultdict[str, list[float]](list), []
    for one in events["payments"]:
        if one["card"] is not None and one["amount"] is not None and 0 <= one["amount"] <= 1e9:
            amounts = paid[one["card"]]
            amounts.append(one["amount"])
            known = SimpleNamespace(**one, payments=len(amounts), total=sum(amounts))
            looked = {"amount_score": by_amount(known), "place_score": by_place(known)}
            looked["register_score"] = 1.0 if one["merchant"] in BLACKLIST else 0.0
            marks = {"is_partial": False, "missing": [], "score": max(looked.values())}
            rows.append({"id": one["id"], "at": one["at"], **looked, **marks})
    return {"scores": rows}


def main(servers: str | None = None) -> None:
    """Send payments, score them, show which scores were missing and which were high."""
    with in_topics("payments", "scores", "letters", servers=servers) as tryout:
        tryout.send("payments", make_transactions(2000, seed=7, cards=50))
        tryout.run(job(**tryout.places))
        rows = tryout.rows("scores")
    partial, missing = sum(row["is_partial"] for row in rows), Counter(look for row in rows for look in row["missing"])
    print(f"{len(rows):,} payments scored; for {partial:,} of them a score was not there in time")
    print(terminal.bars({look: missing[look] for look in LOOKS}))
    high = Counter(look for row in rows for look in LOOKS if (row[look] or 0) > 0.7)
    print("\nscores above 0.7")
    print(terminal.bars({look: high[look] for look in LOOKS}))


if __name__ == "__main__":
    run_main(main)
