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
from lockgate.demo.fraud.show import main_show
from lockgate.demo.fraud.transactions import BLACKLIST, make_transactions  # noqa: F401 - tests make some, too

PAYMENT = "id STRING, card STRING, amount DOUBLE, merchant STRING, country STRING, home STRING, at TIMESTAMP"
SCORE = "id STRING, at TIMESTAMP, score DOUBLE"
RULES = {
    "place": "IF(country <> home, 0.8, 0.0) + IF(hour(at) < 5, 0.1, 0.0)",
    "blacklist": f"IF(merchant IN {BLACKLIST}, 1.0, 0.0)",
}
HISTORIES = {  # how long a card is remembered, and what its newest payment is worth beside the others
    "amount": (
        "1 hour",
        "IF(payments < 4, 0, least(1, newest.amount * (payments - 1) / (total - newest.amount) / 10))",
    ),
    "velocity": ("1 minute", "least(1, (payments - 1) / 5)"),
}
NAMES = ("card", "amount", *(f"{analyser}_score" for analyser in (*HISTORIES, *RULES)))
Part = Literal["amount", "velocity", "place", "blacklist", "results", "python"]


def job(part: Part = "results", servers: str = "localhost:9092", dsn: str = "postgresql:///", prefix: str = "") -> Job:
    """One part. Analysers are real-time queries, each with a topic of its own; the results are exactly-once."""

    def read(topic: str, value: str) -> Stream:
        return stream(topic, KafkaSource(topic=f"{prefix}{topic}", servers=servers, value=value))

    payments, exactly_once = read("payments", PAYMENT), {"guarantee": Guarantee.END_TO_END_EXACTLY_ONCE}
    if part == "results":
        # All carry the time of the payment: one window of its id has the payment and every score that it gets.
        sides = [payments.select("id", "at", *NAMES[:2], **dict.fromkeys(NAMES[2:], "CAST(NULL AS DOUBLE)"))]
        for analyser in (*HISTORIES, *RULES):
            nothing = {**dict.fromkeys(NAMES, "CAST(NULL AS DOUBLE)"), "card": "CAST(NULL AS STRING)"}
            scores = read(f"scores-{analyser}", SCORE)
            sides.append(scores.select("id", "at", **{**nothing, f"{analyser}_score": "score"}))
        timed = sides[0].merge(*sides[1:]).event_time("at", lateness="2 minutes", idle="20 seconds").key_by("id")
        joined = timed.window(windows.tumbling("1 second")).aggregate(**{name: f"max({name})" for name in NAMES})
        table = PostgresSink(table=f"{prefix}results".replace("-", "_"), dsn=dsn, key="id", create=True)
        return Job(f"{prefix}fraud-results", joined.to("table", table), epoch=timedelta(seconds=5), **exactly_once)
    sink = KafkaSink(topic=f"{prefix}scores-{part}", servers=servers, key="id")
    if part == "python":
        known = payments.key_by("card").rolling(payments="count(*)", total="sum(amount)")
        looks = {"amount_score": by_amount, "place_score": by_place}
        scored = known.fan_out(deadline="20 ms", schema="amount_score DOUBLE, place_score DOUBLE", **looks)
        return Job(f"{prefix}fraud-python", scored.to("scores", sink), **exactly_once)
    if part in HISTORIES:
        length, score = HISTORIES[part]
        cards = (
            payments.event_time("at", lateness="1 minute").key_by("card").parallel(1).window(windows.tumbling(length))
        )
        known = cards.aggregate(payments="count(*)", total="sum(amount)", newest="last(struct(id, at, amount))")
        scored = known.select(id="newest.id", at="newest.at", score=f"CAST({score} AS DOUBLE)")
    else:
        scored = payments.select("id", "at", score=f"CAST({RULES[part]} AS DOUBLE)")
    guarantee, mode = Guarantee.AT_LEAST_ONCE, Mode.REAL_TIME
    return Job(f"{prefix}fraud-{part}", scored.to("scores", sink), guarantee=guarantee, mode=mode)


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
