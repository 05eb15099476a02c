"""What a real-time query has read, in cases in which Spark's reports alone are wrong.

what waits              Spark reports the end of each source as of the begin of the epoch, but rows leave until the
                        epoch ends: the lag would be negative. Spark's Kafka source looks again at the end
an epoch that was       its rows are visible, but Spark never reports it. The checkpoint says where it began, and
stopped before its end  Kafka how far it can have come
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lockgate.checkpoints.checkpoint import Checkpoint, offsets_done
from lockgate.connectors.kafka.reading import read_extents
from lockgate.connectors.kafka.settings import read_settings
from lockgate.dataflow.endpoints import Source
from lockgate.dataflow.locations import topics_among
from lockgate.errors import LockgateError
from lockgate.runtime.progress import parse_offset

_PATIENCE_SECONDS = 5.0  # the stop of a job waits for it


def with_waiting(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report of a real-time query, with `waiting` for each source: the records at the end of the epoch, or None.

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


def unended_records(checkpoint: Checkpoint, sources: Iterable[Source], *, where: str) -> int | None:
    """How many records, at most, the query processed since the newest epoch ended; None if that is unknown."""
    done, found = offsets_done(checkpoint), 0
    if not done:
        return None
    try:
        for topic in topics_among(sources):
            settings = read_settings(topic.servers, topic.client, where=where, is_lookup=True)
            own = {place: offset for place, offset in done.items() if place[0] == topic.name}
            extents = read_extents(settings, own, where=where, seconds=_PATIENCE_SECONDS)
            found += sum(max(extent[1] - own[place], 0) for place, extent in extents.items() if extent is not None)
    except LockgateError:
        return None
    return found
