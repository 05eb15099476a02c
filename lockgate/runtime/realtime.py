"""What a real-time query has read, where Spark's reports alone would tell it wrongly.

what waits              Spark says how far each source had got when the epoch began, and rows leave until it ends:
                        what is behind that would be negative. Its Kafka source looks again when the epoch ends
an epoch that was       its rows are out, but Spark never reports it. The checkpoint says where it began, and Kafka
stopped before its end  how far it can have come
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lockgate.errors import LockgateError
from lockgate.kafka.reading import read_extents
from lockgate.kafka.settings import read_settings
from lockgate.runtime.checkpoints import Checkpoint, offsets_done
from lockgate.runtime.progress import parse_offset
from lockgate.sources.kafka import KafkaSource

_PATIENCE_SECONDS = 5.0  # whoever stops a job waits for it


def with_waiting(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report of a real-time query, with what waits in each source when the epoch has ended; None if unknown.

    >>> waits = {"avgOffsetsBehindLatest": "1.5", "maxOffsetsBehindLatest": "3"}
    >>> source = {"endOffset": '{"in": {"0": 9, "1": 7}}', "latestOffset": '{"in": {"0": 2, "1": 2}}', "metrics": waits}
    >>> with_waiting({"sources": [source]})["sources"][0]["waiting"]
    3
    """
    return {**report, "sources": [{**source, "waiting": _waiting(source)} for source in report["sources"]]}


def _waiting(source: Mapping[str, Any]) -> int | None:
    mean, latest = (source.get("metrics") or {}).get("avgOffsetsBehindLatest"), parse_offset(source.get("latestOffset"))
    if mean is None or not isinstance(latest, dict):
        return None
    return round(float(mean) * sum(map(len, latest.values())))


def unended_records(checkpoint: Checkpoint, sources: Iterable[KafkaSource], *, where: str) -> int | None:
    """How many records, at most, have gone through since the newest epoch ended; None if it is unknown."""
    done, found = offsets_done(checkpoint), 0
    if not done:
        return None
    try:
        for source in sources:
            settings = read_settings(source.servers, source.client, where=where, is_lookup=True)
            own = {place: offset for place, offset in done.items() if place[0] == source.topic}
            extents = read_extents(settings, own, where=where, seconds=_PATIENCE_SECONDS)
            found += sum(max(extent[1] - own[place], 0) for place, extent in extents.items() if extent is not None)
    except LockgateError:
        return None
    return found
