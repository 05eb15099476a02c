"""The logs of a checkpoint, line by line: the offsets of an epoch, and its commit.

    offsets/N      v1, then {"batchWatermarkMs", "batchTimestampMs", "conf"}, then a line for each source
    commits/N      v1, then {"nextBatchWatermarkMs"}, and the ids of the state files if they have ids
    sources/S/N    v1, then lines of JSON: the source's own notes

A Kafka source writes {topic: {partition: offset}}, a source that counts rows {"row": ...}. Others are free.
Every function here raises ValueError if a file does not have its format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockgate.untrusted import Unreadable, as_list, as_object, as_type, read_json, read_object

_NONE = "-"  # a source without an offset yet

Places = Mapping[tuple[str, int], int]
"""The position of a source, by topic and partition; a source that counts rows has topic "" and partition 0."""


@dataclass(frozen=True)
class Offset:
    """The position of one source after an epoch."""

    source: str  # its number in the query
    told: Any  # as the source writes it

    @property
    def places(self) -> Places | None:
        """The position as numbers that can be subtracted; None if the source does not count."""
        if not isinstance(self.told, dict) or not self.told:
            return None
        row = self.told.get("row")
        if isinstance(row, int):
            return {("", 0): row}
        found: dict[tuple[str, int], int] = {}
        for topic, partitions in self.told.items():
            if not isinstance(partitions, dict):
                return None
            for partition, offset in partitions.items():
                if not str(partition).isdecimal() or not isinstance(offset, int):
                    return None
                found[str(topic), int(partition)] = offset
        return found


@dataclass(frozen=True)
class Planned:
    """A file in the log of offsets."""

    watermark_ms: int
    at_ms: int | None
    conf: Mapping[str, str]
    offsets: tuple[Offset, ...]


@dataclass(frozen=True)
class Ended:
    """A file in the log of commits."""

    watermark_ms: int  # the watermark of the next epoch, as far as it is known then
    ids: Mapping[int, tuple[frozenset[str], ...]] = field(default_factory=dict)  # of state, by operator and partition


def read_offsets(content: bytes) -> Planned:
    """The plan of an epoch."""
    version, lines = _lines(content)
    if not lines:
        raise ValueError("it ends after its first line")
    told = _object(lines[0]) if lines[0].strip() else {}
    offsets = []
    for number, line in enumerate(lines[1:]):
        source, text = line.split(":", 1) if version != "v1" else (str(number), line)
        offsets.append(Offset(source, _parsed(text)))
    if not offsets:
        raise ValueError("it has no line for any source")
    at = told.get("batchTimestampMs")
    return Planned(
        watermark_ms=as_type(told.get("batchWatermarkMs", 0), int, "batchWatermarkMs"),
        at_ms=None if at is None else as_type(at, int, "batchTimestampMs"),
        conf={name: str(value) for name, value in as_object(told.get("conf") or {}).items()},
        offsets=tuple(offsets),
    )


def read_commit(content: bytes) -> Ended:
    """The note about the commit of an epoch."""
    _, lines = _lines(content)
    told = _object(lines[0]) if lines else {}
    ids = {
        int(operator): tuple(frozenset(str(one) for one in as_list(stores)) for stores in as_list(partitions))
        for operator, partitions in as_object(told.get("stateUniqueIds") or {}).items()
    }
    return Ended(watermark_ms=as_type(told.get("nextBatchWatermarkMs", 0), int, "nextBatchWatermarkMs"), ids=ids)


def read_source_log(content: bytes) -> list[Any]:
    """The notes of a source."""
    # Kafka's connector writes a zero byte first, for readers of a very old version of Spark.
    _, lines = _lines(content.removeprefix(b"\0"))
    return [read_json(line) for line in lines]


def _parsed(text: str) -> Any:
    """An offset: JSON usually, but another source may write any text."""
    try:
        return None if text == _NONE else read_json(text)
    except ValueError:
        if text.startswith(("{", "[")) or not text:
            raise
        return text


def _lines(content: bytes) -> tuple[str, list[str]]:
    first, *lines = content.decode().split("\n") if content else [""]
    if not (first.startswith("v") and first[1:].isdecimal()):
        raise ValueError(f"it begins with {first[:20]!r}, not with a version" if content else "it is empty")
    while lines and not lines[-1]:
        lines.pop()
    return first, lines


def _object(line: str) -> dict[str, Any]:
    try:
        return read_object(line)
    except Unreadable as error:
        raise Unreadable(f"its second line is not a JSON object: {error}") from None
