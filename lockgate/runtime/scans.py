"""Reports of a query in which every record of a source counts once.

Spark adds up what all scans of a source have read. A step that takes a stream twice (late events beside their window, a
stream joined with itself) makes two scans of it, and the same records count twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_SOURCE_OF = {"StreamingExecutionRelation": "source", "StreamingDataSourceV2ScanRelation": "stream"}


def scans_of(query: Any) -> list[int]:
    """How often a query scans each source in an epoch, in the order of its reports.

    Args:
        query: Spark's own object of the query, as Java sees it.
    """
    leaves = query.streamingQuery().logicalPlan().collectLeaves()
    counts: Counter[int] = Counter()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        accessor = _SOURCE_OF.get(str(leaf.getClass().getSimpleName()))
        if accessor is not None:
            counts[getattr(leaf, accessor)().hashCode()] += 1  # no source says that it equals another one
    return list(counts.values())


def count_once(report: Mapping[str, Any], scans: Sequence[int]) -> dict[str, Any]:
    """A report with the records of each source, however often they were scanned.

    >>> count_once({"sources": [{"numInputRows": 1200}, {"numInputRows": 7}]}, [2, 1])
    {'sources': [{'numInputRows': 600}, {'numInputRows': 7}]}
    """
    sources = report["sources"]
    if len(sources) != len(scans):
        return dict(report)
    rows = [source["numInputRows"] // times for source, times in zip(sources, scans, strict=True)]
    return {**report, "sources": [{**source, "numInputRows": n} for source, n in zip(sources, rows, strict=True)]}
