"""Reports of a query in which every record of a source counts once.

Spark adds up what all scans of a source have read. A step that takes a stream twice (late events beside their window, a
stream joined with itself) makes two scans of it, and the same records count twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def source_logs(frame: DataFrame) -> list[tuple[int, str | None]]:
    """The number of the log that Spark keeps for each source, and its path if it reads files, in the order of offsets.

    Each scan of a source has a line in the offsets. Scans of one and the same frame share a source, and its log.
    """
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    streaming = [leaf for leaf in map(leaves.apply, range(leaves.size())) if leaf.isStreaming()]
    distinct: list[Any] = []
    for leaf in streaming:
        if not any(one.equals(leaf) for one in distinct):
            distinct.append(leaf)
    numbers = [next(number for number, one in enumerate(distinct) if one.equals(leaf)) for leaf in streaming]
    return [(number, _path_of(leaf)) for number, leaf in zip(numbers, streaming, strict=True)]


def _path_of(leaf: Any) -> str | None:
    if leaf.getClass().getSimpleName() != "StreamingRelation":
        return None
    path = leaf.dataSource().options().get("path")
    return str(path.get()) if path.isDefined() else None


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
