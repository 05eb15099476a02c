"""Send payments at an even rate until stopped, each with the time of its sending.

They are sent together every five milliseconds, as by a Kafka 4 producer with default settings (`linger.ms`).

    python -m fraud.sender --servers localhost:9092 --topic payments --rate 1000

It is a process of its own, so that the show does not delay a payment. If it cannot keep the rate, it reports that.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from types import FrameType

from fraud.transactions import make_transactions

_PATIENCE_SECONDS = 60.0
_BEHIND_SECONDS = 1.0  # report a delay of this length
_STEP_SECONDS = 0.005


def main() -> int:
    """Send until SIGTERM."""
    from confluent_kafka import Producer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=int, required=True, help="payments a second")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    is_over = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        is_over.set()

    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, stop)
    refused: list[str] = []

    def note(error: object, message: object) -> None:
        if error is not None:
            refused.append(str(error))

    producer = Producer({"bootstrap.servers": arguments.servers, "linger.ms": 1, "enable.idempotence": True})
    payments = make_transactions(sys.maxsize, arguments.seed, per_second=arguments.rate)
    began, worst, number = time.monotonic(), 0.0, 0
    for step in itertools.count():
        wait = began + step * _STEP_SECONDS - time.monotonic()
        worst = max(worst, -wait)
        if wait > 0:
            is_over.wait(wait)
        if is_over.is_set() or refused:
            break
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        while number < arguments.rate * _STEP_SECONDS * (step + 1):
            payment = {**next(payments), "at": at}
            producer.produce(arguments.topic, json.dumps(payment).encode(), payment["card"].encode(), on_delivery=note)
            number += 1
        producer.poll(0)
    left = producer.flush(_PATIENCE_SECONDS)
    if refused or left:
        print(f"payments could not be sent: {refused[0] if refused else f'{left} are left'}", file=sys.stderr)
        return 1
    if worst > _BEHIND_SECONDS:
        print(f"the sender was {worst:.1f} s behind its rate at worst", file=sys.stderr)
    print(json.dumps({"sent": number, "behind_seconds": round(worst, 3)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
