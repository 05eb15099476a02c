"""Reports of a query in which every record of a source counts once.

Spark adds up the records of all scans of a source. A step that reads a stream twice (late events beside their window,
a stream joined with itself) scans it twice, and the same records count twice. Spark runs all scans of a query: our
sessions keep branches that no event enters, such as `where("false")` (spark/session.py). Only `limit(0)` inside a
transform removes a scan. Then the count is too low.

Topics with one name in two clusters look the same in Spark's reports, so this module adds their servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SOURCE_OF = {"StreamingExecutionRelation": "source", "StreamingDataSourceV2ScanRelation": "stream"}


@dataclass(frozen=True)
class Scans:
    """How often a query scans a source in an epoch, and the servers of a Kafka source."""

    times: int
    servers: str | None = None


def scans_of(query: Any) -> list[Scans]:
    """The scans of each source, in the order of a query's reports.

    Args:
        query: the query's object in the JVM.
    """
    leaves = query.streamingQuery().logicalPlan().collectLeaves()
    found: dict[int, Scans] = {}
    for leaf in map(leaves.apply, range(leaves.size())):
        accessor = _SOURCE_OF.get(str(leaf.getClass().getSimpleName()))
        if accessor is not None:
            number = getattr(leaf, accessor)().hashCode()  # a source equals no other source
            servers = leaf.relation().options().get("kafka.bootstrap.servers") if accessor == "stream" else None
            before = found.get(number, Scans(0, servers))
            found[number] = replace(before, times=before.times + 1)
    return list(found.values())


def source_logs(frame: DataFrame) -> list[tuple[int, str | None]]:
    """The number of each source's log, and the path of a source of files, in the order of offsets.

    Each scan of a source has a line in the offsets. Scans of the same frame share a source and its log.
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


def count_once(report: Mapping[str, Any], scans: Sequence[Scans]) -> dict[str, Any]:
    """A report that counts the records of each source once, however often Spark scanned them.

    >>> report = {"sources": [{"description": "a", "numInputRows": 1200}, {"description": "b", "numInputRows": 7}]}
    >>> for source in count_once(report, [Scans(2), Scans(1, "host:9092")])["sources"]:
    ...     print(source)
    {'description': 'a', 'numInputRows': 600}
    {'description': 'b at host:9092', 'numInputRows': 7}
    """
    sources = report["sources"]
    if len(sources) != len(scans):
        return dict(report)
    return {**report, "sources": [_counted_once(source, one) for source, one in zip(sources, scans, strict=True)]}


def _counted_once(source: Mapping[str, Any], scans: Scans) -> dict[str, Any]:
    place = "" if scans.servers is None else f" at {scans.servers}"
    description = f"{source.get('description')}{place}"
    return {**source, "description": description, "numInputRows": source["numInputRows"] // scans.times}
