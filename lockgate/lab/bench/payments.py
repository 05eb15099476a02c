"""The events, and how they are sent.

They are a function of the seed, so the expected rows are known before anything runs. The product's own encoder writes
them to the partitions that Java's partitioner would choose. They are counted before the measurement: an incomplete
input would look like a loss of the side that reads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lockgate.connectors.kafka.topics import describe_outputs, transaction_timeout_ms
from lockgate.connectors.kafka.transaction import Transactions
from lockgate.lab.bench.settings import LIMIT_CENTS, WHERE, Settings
from lockgate.lab.bench.site import Site

if TYPE_CHECKING:
    import pyarrow as pa

    from lockgate.connectors.kafka.encode import Records

_CARDS = 10_000
_BEGAN_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
_CHUNK = 200_000


class Payments:
    """The events: JSON of about 90 bytes, keyed by card; a function of the seed."""

    def __init__(self, settings: Settings) -> None:
        import numpy as np

        rng = np.random.default_rng(settings.seed)
        self.count = settings.events
        self._cards = rng.integers(0, _CARDS, size=self.count)
        self._cents = rng.integers(0, 100_000, size=self.count)
        self._partitions = settings.partitions

    def expected_count(self, settings: Settings) -> int:
        """How many records the job must write."""
        return self.count if settings.job == "pass" else int((self._cents >= LIMIT_CENTS).sum())

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Records]]:
        """Some of the events as the records of each partition, where Java's partitioner would put them."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        from lockgate.connectors.kafka.encode import Records

        rows = self.rows(start, stop)
        keys = rows["card"].combine_chunks()
        id, cents, at = (rows[name].cast(pa.string()).combine_chunks() for name in ("id", "cents", "at"))
        parts = [
            *('{"id":', id, ',"card":"', keys, '","cents":', cents),
            *(',"at":', at, ',"shop":"', rows["shop"].combine_chunks(), '"}'),
        ]
        values = pc.binary_join_element_wise(*parts, "").cast(pa.binary())
        partitions = self._partition_of[self._cards[start:stop]]
        for partition in np.unique(partitions).tolist():
            own = pa.array(np.flatnonzero(partitions == partition))
            yield partition, Records(keys=keys.cast(pa.binary()).take(own), values=values.take(own))

    def rows(self, start: int, stop: int) -> pa.Table:
        """Some of the events as columns: id, card, cents, at, shop."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        def name(kind: str, numbers: Any) -> Any:
            shown = pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), width=4, padding="0")
            return pc.binary_join_element_wise(f"{kind}-", shown, "")

        cards, numbers = self._cards[start:stop], np.arange(start, stop)
        return pa.table(
            {
                "id": numbers,
                "card": name("card", cards),
                "cents": self._cents[start:stop].astype(np.int32),
                "at": _BEGAN_MS + numbers,
                "shop": name("shop", cards * 31 % 997),
            }
        )

    @cached_property
    def _partition_of(self) -> Any:
        import numpy as np
        from kafka.partitioner.default import murmur2

        hashes = [murmur2(f"card-{card:04}".encode()) & 0x7FFFFFFF for card in range(_CARDS)]
        return np.array(hashes, dtype=np.int64) % self._partitions


def send(payments: Payments, topic: str, site: Site) -> int:
    """Make a topic and send the events with the product's own encoder; returns their average size."""
    from lockgate.connectors.kafka.writer import Writer

    settings = site.settings
    site.make(topic, settings.partitions)
    limit = describe_outputs(site.connection, [topic], where=WHERE)[topic].max_message_bytes
    timeout_ms = transaction_timeout_ms(site.connection, where=WHERE)
    transactions = Transactions(site.connection, f"{site.name}-fill", timeout_ms=timeout_ms, where=WHERE)
    places = [(topic, number) for number in range(settings.partitions)]
    began, size = time.monotonic(), 0
    for start in range(0, settings.events, _CHUNK):
        site.go_on()
        stop = min(settings.events, start + _CHUNK)
        producer = transactions.begin()
        transactions.add(producer, places)
        writer = Writer(site.connection, transactional_id=transactions.id, producer=producer, where=WHERE)
        for partition, records in payments.records(start, stop):
            size += records.values.nbytes - 4 * len(records)  # without Arrow's own offsets
            now_ms = int(time.time() * 1000)
            writer.write((topic, partition), records, max_message_bytes=limit, now_ms=now_ms)
        writer.finish()
        transactions.end(producer, is_commit=True)
        site.tell(f"sent {stop:,} of {settings.events:,} events")
    transactions.wait_until_complete()
    site.tell(f"sent in {time.monotonic() - began:.1f} s")
    site.require(topic, settings.events)
    return round(size / settings.events)
