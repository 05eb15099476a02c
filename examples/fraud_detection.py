"""Is this card payment a fraud? Four analysers score it side by side, and whoever asks is answered within 20 ms.

amount, velocity    beside what the card has done before: they keep state, and may come after the answer
place, blacklist    rules over the payment alone
results             payments with all their scores in a table of PostgreSQL, each once
python              Python functions instead: in micro-batches, cut off 20 ms after a task holds the payment

lockgate plan examples/fraud_detection.py -p part=amount      each part is a job: what it promises, and why
python examples/fraud_detection.py                            all of them and a presenter; one is stopped and killed
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Mode, PostgresSink, Stream, stream, windows
from lockgate.demo.example import run_main
from lockgate.demo.fraud.looks import by_amount, by_place
from lockgate.demo.fraud.reading import MAX_AHEAD, PAYMENT, SCORE, only_payments
from lockgate.demo.fraud.show import main_show
from lockgate.demo.fraud.transactions import BLACKLIST, make_transactions  # noqa: F401 - tests make some, too

RULES = {
    "place": "IF(country <> home, 0.8, 0.0) + IF(hour(at) < 5, 0.1, 0.0)",
    "blacklist": f"IF(merchant IN {BLACKLIST}, 1.0, 0.0)",
}
KNOWN = {"payments": "count(*)", "total": "sum(amount)"}
BEFORE = "greatest(0.01, total - newest.amount)"  # a cent at least: there are payments of nothing
HISTORIES = {  # how long a card is remembered, and what its newest payment is worth beside the others
    "amount": ("1 hour", f"IF(payments < 4, 0, least(1, newest.amount * (payments - 1) / {BEFORE} / 10))"),
    "velocity": ("1 minute", "least(1, (payments - 1) / 5)"),
}
NAMES = ("card", "amount", *(f"{analyser}_score" for analyser in (*HISTORIES, *RULES)))
Part = Literal["amount", "velocity", "place", "blacklist", "results", "python"]


def job(part: Part = "results", servers: str = "localhost:9092", dsn: str = "postgresql:///", prefix: str = "") -> Job:
    """One part. Analysers are real-time queries, each with a topic of its own; the results are exactly-once."""
    name, exactly_once = f"{prefix}fraud-{part}", Guarantee.END_TO_END_EXACTLY_ONCE

    def read(topic: str, value: str, format: str = "json") -> Stream:
        return stream(topic, KafkaSource(topic=f"{prefix}{topic}", servers=servers, value=value, format=format))

    def table(label: str, key: str | None = None) -> PostgresSink:
        return PostgresSink(table=f"{prefix}{label}".replace("-", "_"), dsn=dsn, key=key, create=True)

    if part == "results":
        # All carry the time of the payment: one window of its id has the payment and every score that it gets.
        nothing = {**dict.fromkeys(NAMES, "CAST(NULL AS DOUBLE)"), "card": "CAST(NULL AS STRING)"}
        payments = read("payments", PAYMENT).select("id", "at", **{**nothing, "card": "card", "amount": "amount"})
        scores = {f"{analyser}_score": read(f"scores-{analyser}", SCORE) for analyser in (*HISTORIES, *RULES)}
        merged = payments.merge(*(one.select("id", "at", **{**nothing, to: "score"}) for to, one in scores.items()))
        timed = merged.event_time("at", lateness="2 minutes", idle="20 seconds", max_ahead=MAX_AHEAD).key_by("id")
        joined = timed.window(windows.tumbling("1 second")).aggregate(**{one: f"max({one})" for one in NAMES})
        rows = joined.to("table", table("results", key="id"))
        return Job(name, rows, guarantee=exactly_once, dead_letters=table("letters"), epoch="5 seconds")
    sink = KafkaSink(topic=f"{prefix}scores-{part}", servers=servers, key="id")
    if part == "python":
        known = read("payments", PAYMENT).key_by("card").rolling(**KNOWN)
        schema = "amount_score DOUBLE, place_score DOUBLE"
        scored = known.fan_out(deadline="20 ms", schema=schema, amount_score=by_amount, place_score=by_place)
        letters = KafkaSink(topic=f"{prefix}letters", servers=servers)
        return Job(name, scored.to("scores", sink), guarantee=exactly_once, dead_letters=letters)
    payments = only_payments(read("payments", "bytes BINARY", "bytes"))  # real-time mode has no dead letters
    if part in HISTORIES:
        length, score = HISTORIES[part]
        timed = payments.event_time("at", lateness="1 minute").key_by("card").parallel(1)
        known = timed.window(windows.tumbling(length)).aggregate(**KNOWN, newest="last(struct(id, at, amount))")
        scored = known.select(id="newest.id", at="newest.at", score=f"CAST({score} AS DOUBLE)")
    else:
        scored = payments.select("id", "at", score=f"CAST({RULES[part]} AS DOUBLE)")
    return Job(name, scored.to("scores", sink), guarantee=Guarantee.AT_LEAST_ONCE, mode=Mode.REAL_TIME)


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The results without Spark: what has come for a payment two minutes before the last event, late ones left out."""
    ended = max(event["at"] for some in events.values() for event in some) - timedelta(minutes=2)
    rows: dict[str, dict[str, Any]] = {}
    for topic, some in events.items():
        name = f"{topic.removeprefix('scores-')}_score"
        for event in some:
            start, end = (event["at"].replace(microsecond=0) + timedelta(seconds=one) for one in (0, 1))
            if not event["_late"] and end <= ended:
                span = {"id": event["id"], "window_start": start, "window_end": end}
                row = rows.setdefault(event["id"], {**span, **dict.fromkeys(NAMES)})
                row |= {one: event[one] for one in NAMES[:2]} if topic == "payments" else {name: event["score"]}
    return {"table": [*rows.values()]}


def main() -> None:
    """Run all parts, stop one, kill one, and print what was measured."""
    main_show(Path(__file__))


if __name__ == "__main__":
    run_main(main)
