"""Do the sources of a job have the events that the offsets of a checkpoint name?

Offsets have a meaning only in their own topics, and paths of files only on a machine that has the same files. If a
broker answers, its topics are checked. If it does not answer, the command says that they are not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlparse

from lockgate.connectors.kafka.reading import read_extents
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.returned import FOLDER
from lockgate.dataflow.endpoints import Source
from lockgate.dataflow.locations import topics_among
from lockgate.errors import Failed, Refused, Unreachable

Offsets = Mapping[tuple[str, int], int]


def refuse_lost(sources: Iterable[Source]) -> None:
    """Refuse to read again from sources that cannot replay."""
    for source in sources:
        if not source.ability.is_replayable:
            raise Refused(
                f"{type(source).__name__} cannot replay events: {source.ability.reason}",
                where="the job's sources",
                fix="read from a log that can be replayed (KafkaSource, FileSource)",
            )


def check_topics(sources: Iterable[Source], offsets: Offsets, *, where: str) -> list[str]:
    """Refuse topics that lack these offsets. Returns lines that say what was checked, and what was not."""
    kafka = {str(one.name): one for one in topics_among(sources)}
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
            said.append(f"Topic {topic!r} could not be reached: {error.what}. Its offsets are NOT checked.")
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
            fix="it is another topic of the same name, or was re-created: name the Kafka that has the events",
        )
    if offset < start:
        raise Refused(
            f"partition {partition} of topic {topic!r} begins at {start}: events from {offset} on have expired",
            where=where,
            fix="they are lost for this job; continue from a later epoch, or start from the beginning: lockgate run"
            " --new-life",
        )


def refuse_other_files(sources: Iterable[Source], paths: Iterable[str], *, where: str) -> None:
    """Refuse files of another directory: the job would read them again under their new names."""
    directories = [_plain(files.path) for source in sources if (files := source.watched_files) is not None]
    for path in paths:
        plain = _plain(path)
        if f"/{FOLDER}/" not in plain and not any(plain.startswith(f"{one.rstrip('/')}/") for one in directories):
            raise Refused(
                f"the checkpoint says that {path} is read, and no source of the job reads that directory",
                where=where,
                fix="sources of files remember absolute paths: put the files back into their old directory, and let"
                " the job read that one; otherwise it would read all of them again",
            )


def _plain(path: str) -> str:
    """A path in one form, of the several that mean the same file."""
    parsed = urlparse(path)
    if parsed.scheme == "file":
        return unquote(parsed.path)
    return path if parsed.scheme else str(Path(path).resolve())
