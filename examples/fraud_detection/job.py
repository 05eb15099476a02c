"""Is this card payment a fraud? Four analysers score it at the same time; the answer has a deadline of 20 ms.

amount, velocity    compared with earlier payments of the card: they keep state, and may come after the answer
place, blacklist    rules that read the payment alone
results             payments with all their scores in a table of PostgreSQL, each once

lockgate plan examples/fraud_detection/job.py -p part=amount      each part is a job: its guarantee, and why
python examples/fraud_detection/job.py                            all and a presenter; one part is stopped and killed
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from fraud.reading import MAX_AHEAD, PAYMENT, SCORE, as_rows, only_payments
from fraud.transactions import BLACKLIST, make_transactions  # noqa: F401 - tests make some, too
from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Mode, PostgresSink, Stream, stream, windows
from lockgate.lab.demo.example import run_main

RULES = {
    "place": "IF(country <> home, 0.8, 0.0) + IF(hour(at) < 5, 0.1, 0.0)",
    "blacklist": f"IF(merchant IN {BLACKLIST}, 1.0, 0.0)",
}
KNOWN = {"payments": "count(*)", "total": "sum(amount)"}
BEFORE = "greatest(0.01, total - newest.amount)"  # at least a cent, because some payments are of 0
HISTORIES = {  # the window of a card, and the score of its newest payment compared with the others
    "amount": ("1 hour", f"IF(payments < 4, 0, least(1, newest.amount * (payments - 1) / {BEFORE} / 10))"),
    "velocity": ("1 minute", "least(1, (payments - 1) / 5)"),
}
ANALYSERS = (*HISTORIES, *RULES)
TABLE = {"card": "STRING", "amount": "DOUBLE", **{f"{analyser}_score": "DOUBLE" for analyser in ANALYSERS}}
SCORES = [*TABLE][2:]
RISK, IS_PARTIAL = f"greatest({', '.join(SCORES)})", " OR ".join(f"{one} IS NULL" for one in SCORES)
RESULTS_TIME = {"lateness": "2 minutes", "idle": "20 seconds", "max_ahead": MAX_AHEAD}
Part = Literal["amount", "velocity", "place", "blacklist", "results"]


def job(part: Part = "results", servers: str = "localhost:9092", dsn: str = "postgresql:///", prefix: str = "") -> Job:
    """One part. Analysers are real-time queries, each with its own topic; the results are exactly-once."""
    name, exactly_once = f"{prefix}fraud-{part}", Guarantee.END_TO_END_EXACTLY_ONCE

    def read(topic: str, value: str, format: str = "json") -> Stream:
        return stream(topic, KafkaSource(topic=f"{prefix}{topic}", servers=servers, value=value, format=format))

    def table(label: str, key: str | None = None) -> PostgresSink:
        return PostgresSink(table=f"{prefix}{label}".replace("-", "_"), dsn=dsn, key=key, create=True)

    if part == "results":
        # All rows carry the time of the payment, so one window of its id has the payment and all its scores. Of five
        # watermarks the slowest counts: an analyser that is down delays the table, and no row is lost.
        paid = as_rows(TABLE, read("payments", PAYMENT), card="card", amount="amount")
        scored = (as_rows(TABLE, read(f"scores-{one}", SCORE), **{f"{one}_score": "score"}) for one in ANALYSERS)
        timed = [one.event_time("at", **RESULTS_TIME) for one in (paid, *scored)]
        windowed = timed[0].merge(*timed[1:]).key_by("id").window(windows.tumbling("1 second"))
        joined = windowed.aggregate(**{one: f"max({one})" for one in TABLE})
        rows = joined.select("id", "window_start", "window_end", *TABLE, risk=RISK, is_partial=IS_PARTIAL)
        output = rows.to("table", table("results", key="id"))
        return Job(name, output, guarantee=exactly_once, dead_letters=table("letters"), epoch="15 seconds")
    sink = KafkaSink(topic=f"{prefix}scores-{part}", servers=servers, key="id")
    payments = only_payments(read("payments", "bytes BINARY", "bytes"))  # real-time mode has no dead letters
    if part in HISTORIES:
        length, score = HISTORIES[part]
        of_card = payments.event_time("at", lateness="1 minute").key_by("card").parallel(1)
        known = of_card.window(windows.tumbling(length)).aggregate(**KNOWN, newest="last(struct(id, at, amount))")
        scores = known.select(id="newest.id", at="newest.at", score=f"CAST({score} AS DOUBLE)")
    else:
        scores = payments.select("id", "at", score=f"CAST({RULES[part]} AS DOUBLE)")
    return Job(name, scores.to("scores", sink), guarantee=Guarantee.AT_LEAST_ONCE, mode=Mode.REAL_TIME)


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The table without Spark: what arrived for a payment until the slowest topic is two minutes further."""
    ended = min(max(event["at"] for event in some) for some in events.values()) - timedelta(minutes=2)
    rows: dict[str, dict[str, Any]] = {}
    for topic, some in events.items():
        name = f"{topic.removeprefix('scores-')}_score"
        for event in some:
            start, end = (event["at"].replace(microsecond=0) + timedelta(seconds=one) for one in (0, 1))
            if not event["_late"] and end <= ended:
                span = {"id": event["id"], "window_start": start, "window_end": end}
                row = rows.setdefault(event["id"], {**span, **dict.fromkeys(TABLE)})
                paid = {one: event[one] for one in ("card", "amount") if topic == "payments"}
                row |= paid or {name: event["score"]}
    for row in rows.values():
        there = [row[one] for one in SCORES if row[one] is not None]
        row |= {"risk": max(there, default=None), "is_partial": len(there) < len(SCORES)}
    return {"table": [*rows.values()]}


def main() -> None:
    """Run all parts, stop one, kill one, and print what was measured."""
    from fraud.show import main_show  # what starts services is not needed to plan or run a part

    main_show(Path(__file__))


if __name__ == "__main__":
    run_main(main)
