"""Send payments at an even rate, each stamped with the time at which it is sent, until told to stop.

They leave every five milliseconds, together: so does a producer of Kafka 4 that is left as it is (`linger.ms`).

    python -m lockgate.demo.fraud.sender --servers localhost:9092 --topic payments --rate 1000

A process of its own: what else the show does must not hold a payment back. Where it cannot keep the rate, it says so.
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

from lockgate.demo.fraud.transactions import make_transactions

_PATIENCE_SECONDS = 60.0
_BEHIND_SECONDS = 1.0  # so late is worth a word
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
