"""Moments as operators have them, microseconds since 1970, and as people do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_datetime(at_us: int) -> datetime:
    """The moment, in UTC."""
    return EPOCH + timedelta(microseconds=at_us)
