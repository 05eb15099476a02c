"""The payments of a show: each payment is a function of its number and a seed.

So the expected records are known without reading what was sent or processed. The arithmetic is written twice on
purpose, for columns in the sender and for one number in the verifier: a mistake in one of them shows as a loss.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

LIMIT_CENTS = 50_000
"""Payments above this limit are large; about half of all are."""

SCHEMA = "id BIGINT, account STRING, cents INT, currency STRING, at TIMESTAMP"

_ACCOUNTS = 10_000
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Payments:
    """The payments 0 .. count - 1 of a seed."""

    count: int
    seed: int

    def cents(self, id: int) -> int:
        """The amount of a payment."""
        return (id * 7919 + self.seed * 104_729) % 100_000

    def is_large(self, id: int) -> bool:
        """Must the job write this payment?"""
        return self.cents(id) > LIMIT_CENTS

    def expected(self) -> Iterator[int]:
        """The numbers of all payments that must arrive."""
        return (id for id in range(self.count) if self.is_large(id))

    def written(self, id: int) -> bytes:
        """A large payment as the job must write it."""
        at = (_BEGAN + timedelta(milliseconds=id)).replace(tzinfo=None).isoformat(timespec="microseconds")
        account = id * 31 % _ACCOUNTS
        return b'{"id":%d,"account":"account-%04d","cents":%d,"at":"%sZ"}' % (id, account, self.cents(id), at.encode())

    def recognise(self, value: bytes) -> int | None:
        """The number of the payment in this record, if it is complete and must be written; otherwise None."""
        try:
            row = json.loads(value)
        except ValueError:
            return None
        id = row.get("id") if isinstance(row, dict) else None
        if type(id) is not int or not 0 <= id < self.count or not self.is_large(id):
            return None
        return id if row == json.loads(self.written(id)) else None

    def sent(self, first: int, last: int, step: int = 1) -> tuple[pa.Array, pa.Array]:
        """The keys and values of the payments first, first + step, ... before last, as they are sent."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        id = np.arange(first, last, step, dtype=np.int64)
        accounts = pa.array([f"account-{number:04}" for number in range(_ACCOUNTS)])
        account = accounts.take(pa.array(id * 31 % _ACCOUNTS))
        cents = (id * 7919 + self.seed * 104_729) % 100_000
        at = np.datetime64(_BEGAN.replace(tzinfo=None), "ms") + id
        texts = ('{"id":', id, ',"account":"', account, '","cents":', cents, ',"currency":"EUR","at":"', at, 'Z"}')
        parts = [part if isinstance(part, str) else pc.cast(pa.array(part), pa.string()) for part in texts]
        # Arrow writes a time as 2026-01-01 00:00:00.000, and JSON needs a T between date and time.
        parts[-2] = pc.replace_substring(parts[-2], pattern=" ", replacement="T")
        return account.cast(pa.binary()), pc.binary_join_element_wise(*parts, "").cast(pa.binary())
