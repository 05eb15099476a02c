"""Make transactions from a seed, and plant frauds of four kinds among them, one kind for each analyser."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

BLACKLIST = tuple(f"merchant-{number}" for number in range(0, 1000, 97))
"""Merchants that are known for fraud."""

_BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)
_COUNTRIES = ("AT", "DE", "FR", "IT", "NL", "PL")
_FRAUDS = ("amount", "velocity", "place", "blacklist")
_BURST = 6  # consecutive transactions of a card that is used too fast


def make_transactions(
    count: int,
    seed: int,
    *,
    per_second: int = 100,
    began: datetime = _BEGAN,
    cards: int = 500,
    fraud_share: float = 0.005,
) -> Iterator[dict[str, Any]]:
    """Transactions in the order of time; `fraud` names what was planted, and is null for the others.

    Cards have a usual amount and a country. This share of the transactions begins a fraud.
    """
    rng = random.Random(seed)
    usual = [rng.uniform(10, 80) for _ in range(cards)]
    home = [rng.choice(_COUNTRIES) for _ in range(cards)]
    burst: list[int] = []
    for number in range(count):
        fraud = rng.choice(_FRAUDS) if rng.random() < fraud_share else None
        card = burst.pop() if burst else rng.randrange(cards)
        if burst:
            fraud = "velocity"
        elif fraud == "velocity":
            burst = [card] * _BURST
        merchant = rng.choice(BLACKLIST) if fraud == "blacklist" else f"merchant-{1000 + rng.randrange(9000)}"
        yield {
            "id": f"{seed}-{number}",
            "card": f"card-{card}",
            "amount": round(usual[card] * (rng.uniform(15, 30) if fraud == "amount" else rng.uniform(0.5, 1.5)), 2),
            "merchant": merchant,
            "country": "XX" if fraud == "place" else home[card],
            "home": home[card],
            "at": (began + timedelta(seconds=number / per_second)).isoformat(timespec="milliseconds"),
            "fraud": fraud,
        }
