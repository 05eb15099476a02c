"""Do the sources of a job have what the offsets of a checkpoint speak of?

Offsets mean something only in the topics that they were taken in, and paths of files only on a machine that has the
same ones. Where a broker answers it is checked; where none does, that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlparse

from lockgate.dataflow.endpoints import Source
from lockgate.errors import Failed, Refused, Unreachable
from lockgate.kafka.reading import read_extents
from lockgate.kafka.settings import read_settings
from lockgate.sources.files import FileSource
from lockgate.sources.kafka import KafkaSource
from lockgate.sources.returned import FOLDER

Offsets = Mapping[tuple[str, int], int]


def refuse_lost(sources: Iterable[Source]) -> None:
    """Refuse to read again from sources that give nothing twice."""
    for source in sources:
        if not source.ability.is_replayable:
            raise Refused(
                f"{type(source).__name__} gives nothing twice: {source.ability.reason}",
                where="the job's sources",
                fix="read from a log that can be replayed (KafkaSource, FileSource)",
            )


def check_topics(sources: Iterable[Source], offsets: Offsets, *, where: str) -> list[str]:
    """Refuse topics that do not have these offsets any more, or never had; what was checked, and what not, in lines."""
    kafka = {source.topic: source for source in sources if isinstance(source, KafkaSource)}
    said = []
    for topic in sorted({topic for topic, _ in offsets}):
        if topic not in kafka:
            raise Refused(
                f"the checkpoint holds offsets of topic {topic!r}, which no source of the job reads",
                where=where,
                fix=f"offsets count only in their own topic; the job reads {', '.join(sorted(kafka)) or 'none'}:"
                " correct the topic, with -p perhaps",
            )
        source = kafka[topic]
        places = {place: offset for place, offset in offsets.items() if place[0] == topic}
        try:
            settings = read_settings(source.servers, source.client, where=where, is_lookup=True)
            found = read_extents(settings, places, where=where)
        except (Failed, Unreachable) as error:
            said.append(f"Topic {topic!r} could not be looked at: {error.what}. Its offsets are NOT checked.")
            continue
        for (_, partition), offset in sorted(places.items()):
            _refuse_offset(topic, partition, offset, found[topic, partition], f"{source.servers}, {where}")
        said.append(f"Topic {topic!r} at {source.servers} has the offsets of all {len(places)} partitions.")
    return said


def _refuse_offset(topic: str, partition: int, offset: int, extent: tuple[int, int] | None, where: str) -> None:
    if extent is None:
        raise Refused(
            f"there is no partition {partition} of topic {topic!r}",
            where=where,
            fix="offsets count only in their own topic: name the Kafka that has it, with -p perhaps",
        )
    start, end = extent
    if offset > end:
        raise Refused(
            f"partition {partition} of topic {topic!r} ends at {end}, before the checkpoint's offset {offset}",
            where=where,
            fix="it is another topic of the same name, or was made anew: name the Kafka that has the events",
        )
    if offset < start:
        raise Refused(
            f"partition {partition} of topic {topic!r} begins at {start}: events from {offset} on have expired",
            where=where,
            fix="they are lost for this job; go on from a later epoch, or begin again: lockgate run --new-life",
        )


def refuse_other_files(sources: Iterable[Source], paths: Iterable[str], *, where: str) -> None:
    """Refuse files of another directory: under their new names they would be read again."""
    directories = [_plain(source.path) for source in sources if isinstance(source, FileSource)]
    for path in paths:
        plain = _plain(path)
        if f"/{FOLDER}/" not in plain and not any(plain.startswith(f"{one.rstrip('/')}/") for one in directories):
            raise Refused(
                f"the checkpoint remembers that {path} is read, and no source of the job reads that directory",
                where=where,
                fix="sources of files remember whole paths: put the files where they were, and let the job read them"
                " there; else all of them would be read again",
            )


def _plain(path: str) -> str:
    """A path without what may be written in several ways."""
    parsed = urlparse(path)
    if parsed.scheme == "file":
        return unquote(parsed.path)
    return path if parsed.scheme else str(Path(path).resolve())
