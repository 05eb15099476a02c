"""Two of the analysers as Python functions of a payment that knows what its card has done before."""

from __future__ import annotations

from typing import Any


def by_amount(row: Any) -> float:
    """Ten times the average of the card's payments before, or more, is 1; none without three of them."""
    before = row.payments - 1
    return 0.0 if before < 3 else min(1.0, row.amount * before / max(0.01, row.total - row.amount) / 10)


def by_place(row: Any) -> float:
    """Abroad, and in the small hours."""
    return (0.0 if row.country == row.home else 0.8) + (0.1 if row.at.hour < 5 else 0.0)
