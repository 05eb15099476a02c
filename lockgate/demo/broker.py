"""A Kafka for as long as something is shown: the one that runs, or one that is stopped again afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from lockgate.services.stack import Stack


@contextlib.contextmanager
def borrow_kafka(stack: Stack, tell: Callable[[str], None]) -> Iterator[bool]:
    """Kafka, for as long as it is needed; whether it goes on running afterwards."""
    before = stack.status()
    was_anything_running = before.postgres.running or any(broker.running for broker in before.kafka.brokers)
    is_left_running = not stack.up(postgres=False, progress=tell) or was_anything_running
    try:
        yield is_left_running
    finally:
        if not is_left_running:
            stack.down(progress=tell)
