"""How long things took: a histogram whose size does not grow with what it counts.

Buckets are powers of 1.02, so the error of a quantile is at most 1 %, from a microsecond up to hours, with about a
thousand numbers. Histograms can be added up, which quantiles cannot.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

_STEP = math.log(1.02)
_LEAST_SECONDS = 1e-6


@dataclass
class Latencies:
    """Seconds, counted by their logarithm. A time below zero, if two clocks differ, counts as the least."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float) -> None:
        """Count one time."""
        self.counts[round(math.log(max(seconds, _LEAST_SECONDS) / _LEAST_SECONDS) / _STEP)] += 1

    @property
    def count(self) -> int:
        """How many were counted."""
        return self.counts.total()

    def quantile(self, share: float) -> float | None:
        """The least number of seconds that this share of all did not exceed; None if there are none.

        >>> some = Latencies()
        >>> for milliseconds in range(1, 101):
        ...     some.add(milliseconds / 1000)
        >>> round(some.quantile(0.5), 3)
        0.05
        """
        counts = dict(self.counts)  # another thread may be counting
        rank, seen = max(1, math.ceil(share * sum(counts.values()))), 0
        for bucket in sorted(counts):
            seen += counts[bucket]
            if seen >= rank:
                return _LEAST_SECONDS * math.exp(bucket * _STEP)
        return None

    def facts(self) -> dict[str, float | int | None]:
        """As plain data: how many, and p50, p99 and p99.9 in milliseconds."""
        quantiles = {name: self.quantile(share) for name, share in QUANTILES.items()}
        told = {
            f"ms_{name}": None if seconds is None else round(seconds * 1000, 3) for name, seconds in quantiles.items()
        }
        return {"count": self.count, **told}


QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
