"""How often does each address ask? Requests counted per address and minute, and late ones in a topic of their own.

lockgate plan examples/requests_per_ip.py      the graphs and the guarantee; needs no broker
python examples/requests_per_ip.py             a run over five thousand made-up requests, one address is greedy
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Late, stream, windows
from lockgate.lab.demo import terminal
from lockgate.lab.demo.example import in_topics, run_main


def job(
    servers: str = "localhost:9092", requests: str = "requests", counts: str = "counts", late: str = "late-requests"
) -> Job:
    """Requests by address and minute, up to ten seconds out of order; a request for a closed minute is late."""
    asked = stream(
        "requests", KafkaSource(topic=requests, servers=servers, value="ip STRING, url STRING, at TIMESTAMP")
    )
    counted = (
        asked.event_time("at", lateness=timedelta(seconds=10), late=Late.TO_SIDE_OUTPUT)
        .key_by("ip")
        .window(windows.tumbling(timedelta(minutes=1)))
        .aggregate(requests="count(*)")
    )
    return Job(
        "requests-per-ip",
        counted.to("counts", KafkaSink(topic=counts, servers=servers, key="ip")),
        counted.late.to("late", KafkaSink(topic=late, servers=servers, key="ip")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`, which marks events of a closed minute as `_late`."""
    minute = timedelta(minutes=1)
    watermark = max(request["at"] for request in events["requests"]) - timedelta(seconds=10)
    counts: Counter[tuple[str, datetime]] = Counter()
    late = []
    for request in events["requests"]:
        start = request["at"].replace(second=0, microsecond=0)
        if request["_late"]:
            row = {name: request[name] for name in ("ip", "url", "at")}
            late.append({**row, "window_start": start, "window_end": start + minute})
        elif start + minute <= watermark:
            counts[request["ip"], start] += 1
    counted = [
        {"ip": ip, "window_start": start, "window_end": start + minute, "requests": count}
        for (ip, start), count in counts.items()
    ]
    return {"counts": counted, "late": late}


def make_requests(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Requests of five minutes, a little out of order; in the third minute one address sends half of all requests.

    One request in a hundred was delayed on its way and is three minutes old.
    """
    rng = random.Random(seed)
    began = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for number in range(count):
        after = number * timedelta(minutes=5) / count + timedelta(seconds=rng.uniform(0, 5))
        is_greedy = timedelta(minutes=2) <= after < timedelta(minutes=3) and rng.random() < 0.5
        delay = timedelta(minutes=3 if rng.random() < 0.01 else 0)
        ip = "203.0.113.66" if is_greedy else f"198.51.100.{rng.randrange(1, 40)}"
        yield {"ip": ip, "url": f"/item/{rng.randrange(1000)}", "at": (began + after - delay).isoformat()}


def main(servers: str | None = None) -> None:
    """Send requests, count them, show the busiest addresses."""
    with in_topics("requests", "counts", "late", servers=servers, epochs=5) as tryout:
        tryout.send("requests", make_requests(count=5000, seed=7))
        tryout.run(job(**tryout.places))
        rows, late = tryout.rows("counts"), tryout.rows("late")
    print("requests of the busiest addresses, each in one minute")
    busiest = sorted(rows, key=lambda row: (-row["requests"], row["ip"], row["window_start"]))[:8]
    print(terminal.bars({f"{row['ip']:13} {terminal.clock(row['window_start'])}": row["requests"] for row in busiest}))
    print(f"\n{len(late)} requests were too late for their minute, and are in a topic of their own")


if __name__ == "__main__":
    run_main(main)
