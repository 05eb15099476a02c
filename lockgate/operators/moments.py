"""Moments as operators have them, microseconds since 1970, and as people do."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def as_datetime(at_us: int) -> datetime:
    """The moment, in UTC."""
    return EPOCH + timedelta(microseconds=at_us)
