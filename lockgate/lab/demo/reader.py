"""Verify independently of the job: a separate process reads every committed record and counts.

It reads while the job runs and its processes are killed, as a customer's program would. The end of its standard input
tells it that the job is done. Then it reads to the end of the topic, and prints its counts.

    lost          a payment that must arrive and did not
    duplicated    a copy beyond the first
    foreign       a record that no payment explains: damaged, or one that the job had to omit

It shares nothing with the writers: it reads with the client library's own consumer, without Spark and our encoder, and
computes itself what must arrive.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from lockgate.errors import LockgateError
from lockgate.lab.demo.payments import Payments
from lockgate.lab.rig.readers.topics import read_records

_EXAMPLES = 5
_PREFIX = b'{"id":'


@dataclass(frozen=True)
class Tally:
    """The expected records, compared with the delivered ones."""

    expected_count: int
    delivered_count: int
    lost_count: int
    duplicated_count: int
    foreign_count: int
    expected_cents: int
    delivered_cents: int  # of every copy: the sum that a reader of the topic would book
    examples: tuple[str, ...]  # the first few wrong records

    @property
    def is_exact(self) -> bool:
        """Is every expected payment there once, and nothing else?"""
        return not (self.lost_count or self.duplicated_count or self.foreign_count)


def count_delivered(values: Iterable[bytes], payments: Payments) -> Tally:
    """Compare delivered records with those that the payments require."""
    seen = bytearray(payments.count)
    delivered = duplicated = foreign = delivered_cents = 0
    examples: list[str] = []

    def note(example: str) -> None:
        if len(examples) < _EXAMPLES:
            examples.append(example)

    for value in values:
        delivered += 1
        id = _recognise(value, payments)
        if id is None:
            foreign += 1
            note(f"foreign: {value[:200]!r}")
            continue
        delivered_cents += payments.cents(id)
        if seen[id]:
            duplicated += 1
            note(f"duplicated: {value.decode()}")
        seen[id] = 1
    expected = lost = expected_cents = 0
    for id in payments.expected():
        expected += 1
        expected_cents += payments.cents(id)
        if not seen[id]:
            lost += 1
            note(f"lost: {payments.written(id).decode()}")
    return Tally(
        expected_count=expected,
        delivered_count=delivered,
        lost_count=lost,
        duplicated_count=duplicated,
        foreign_count=foreign,
        expected_cents=expected_cents,
        delivered_cents=delivered_cents,
        examples=tuple(examples),
    )


def _recognise(value: bytes, payments: Payments) -> int | None:
    # Nearly every record has exactly the expected bytes, and comparing bytes is five times as fast as JSON.
    if value.startswith(_PREFIX):
        digits = value[len(_PREFIX) : value.find(b",")]
        id = int(digits) if digits.isdigit() and len(digits) < 19 else payments.count
        if id < payments.count and payments.is_large(id) and value == payments.written(id):
            return id
    return payments.recognise(value)


def _main(servers: str, topic: str, count: str, seed: str) -> int:
    """Print the tally of a topic as JSON after standard input has ended."""
    is_complete = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        is_complete.set()

    threading.Thread(target=wait, name="lockgate-demo-end", daemon=True).start()
    records = read_records(servers, [topic], is_over=is_complete.is_set)
    try:
        tally = count_delivered((record.value for record in records), Payments(count=int(count), seed=int(seed)))
    except LockgateError as failure:
        print(failure, file=sys.stderr)
        return 1
    print(json.dumps(asdict(tally)))
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
