"""The very topics that a checkpoint belongs to, noted in it by the ids that Kafka gives them.

Kafka numbers the records of every topic from 0. A topic that was deleted and created again under its old name begins
there again, and so does the topic of that name in another cluster. A job that went on from the offsets in its
checkpoint would skip what the new topic has before them, in silence. An output that was created again lacks what the
job has written before. Every topic and every cluster has an id of its own, so:

    before the first epoch      note the ids of all topics that the job reads or writes
    at a later start            compare, if the checkpoint has a place in a topic; refused where a topic is another one
    while running               compare again when an epoch is planned, before any of it is written; the job ends
    in real-time mode           compare every few seconds instead, because rows leave before an epoch ends; the job ends

Several sources (or outputs) can use one name, in one cluster or in two. Each has a note of its own, numbered in the
order in which Spark keeps the offsets of sources, and in the order of the outputs.

Not compared are topics that a column of the rows names (route=), and those at brokers that only Java's client can
connect to, or that give topics no ids (before Kafka 2.8).
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from lockgate.errors import EpochFailed, Refused, TopicGone, Unreachable
from lockgate.kafka.rights import Operation
from lockgate.kafka.settings import ClientSettings, is_java_only, read_settings
from lockgate.kafka.topics import asked
from lockgate.kafka.transaction import GONE_SECONDS
from lockgate.kafka.wire import TopicShape, connect
from lockgate.runtime.checkpoints import Checkpoint, initial_offsets
from lockgate.runtime.lifecycle.tree import open_tree
from lockgate.sinks.kafka import KafkaSink
from lockgate.sources.kafka import KafkaSource
from lockgate.untrusted import as_list, as_object, as_type

_FILE = "described/topics.json"
_NO_IDS = ("", "None", str(UUID(int=0)))
_WATCH_SECONDS = 5.0
log = logging.getLogger(__name__)

Ids = dict[str, str]  # by "read NAME N" or "write NAME N": "CLUSTER/TOPIC"
Noted = dict[str, str | list[str]]
"""Ids as a checkpoint has them. Earlier versions noted "read NAME": all ids of that name, in no order."""


@dataclass(frozen=True)
class UsedTopic:
    """A topic that a job reads or writes; `number` counts those of the same name."""

    name: str
    servers: str
    client: Mapping[str, str]
    is_read: bool
    number: int = 0

    @property
    def old_key(self) -> str:
        """What earlier versions noted its ids under."""
        return f"{'read' if self.is_read else 'write'} {self.name}"

    @property
    def key(self) -> str:
        """What its id is noted under."""
        return f"{self.old_key} {self.number}"

    def noted_in(self, noted: Noted) -> list[str] | None:
        """The ids that it may have; None if nothing is known."""
        found = noted.get(self.key, noted.get(self.old_key))
        return [found] if isinstance(found, str) else found


def used_topics(endpoints: Iterable[object]) -> Iterator[UsedTopic]:
    """The topics of these sources and sinks, in their order."""
    for one in endpoints:
        if isinstance(one, KafkaSource | KafkaSink) and one.topic is not None:
            yield UsedTopic(one.topic, one.servers, one.client, isinstance(one, KafkaSource))


def _numbered(used: Iterable[UsedTopic]) -> Iterator[UsedTopic]:
    times: Counter[str] = Counter()
    for one in used:
        yield replace(one, number=times[one.old_key])
        times[one.old_key] += 1


def _read_noted(noted: Any) -> Noted:
    def read(key: str, ids: Any) -> str | list[str]:
        return ids if isinstance(ids, str) else [as_type(one, str, key) for one in as_list(ids)]

    return {key: read(key, ids) for key, ids in as_object(noted).items()}


class TopicIds:
    """Those of a job."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        used: Iterable[UsedTopic],
        *,
        where: str,
        accept: str,
        reset: str = "lockgate run --new-life",
    ) -> None:
        """Look at nothing yet.

        Args:
            used: the sources in the order of their offsets, a source that is read twice twice; the outputs in theirs.
            accept: how the operator says that outputs may be other ones.
            reset: how the operator begins again.
        """
        self._checkpoint = checkpoint
        self._where = where
        self._accept = accept
        self._reset = reset
        self._used = [one for one in _numbered(used) if not is_java_only(one.client)]
        self._at: dict[ClientSettings, list[UsedTopic]] = {}
        for one in self._used:
            settings = read_settings(one.servers, one.client, where=where, is_lookup=True)
            self._at.setdefault(settings, []).append(one)
        self._known: Ids = {}
        self._clusters: dict[ClientSettings, str] = {}
        self._looked_at = time.monotonic()

    def check(self, *, accepts_outputs: bool) -> None:
        """Refuse to go on where a topic is not the one that it was."""
        noted = self._noted()
        has_written = bool(self._checkpoint.epochs("offsets"))
        compared = [one for one in self._used if (one.is_read or has_written) and one.noted_in(noted) is not None]
        deadline = time.monotonic() + GONE_SECONDS  # a broker that has just started may not know all of its topics yet
        now = self._look_up()
        while any(used.key not in now for used in compared) and time.monotonic() < deadline:
            time.sleep(0.2)
            now = self._look_up()
        for used in compared:
            change = tell_change(used.name, used.noted_in(noted), now.get(used.key))
            if change is not None and not (accepts_outputs and not used.is_read):
                raise Refused(change, where=f"{self._where}; servers {used.servers}", fix=self._fix(used))
        self._known = now

    def keep(self) -> None:
        """Note what the job uses, when all of it is there."""
        # Outputs may be new. What was looked at before stays known: it may have been replaced since.
        self._known = {**self._look_up(), **self._known}
        noted = self._noted()
        if {**noted, **self._known} != noted:
            content = json.dumps({**noted, **self._known}, indent=1, sort_keys=True).encode()
            open_tree(self._checkpoint.root, self._checkpoint.spark).write(_FILE, content)

    def look(self) -> None:
        """Fail where a topic was replaced since `keep`; nothing where it is not there at this moment."""
        now = self._look_up()
        for used in self._used:
            before = used.noted_in({**self._known})
            change = tell_change(used.name, before, now[used.key]) if used.key in now else None
            if change is not None:
                raise TopicGone(change, where=f"{self._where}; servers {used.servers}", fix=self._fix(used))

    def watch(self) -> None:
        """Look, unless that was done a moment ago; brokers that do not answer are asked again later."""
        if time.monotonic() - self._looked_at < _WATCH_SECONDS:
            return
        try:
            self.look()
        except (EpochFailed, Unreachable) as error:
            log.info("%s: the topics cannot be compared now: %s", self._where, error)
        self._looked_at = time.monotonic()

    def _noted(self) -> Noted:
        """What the checkpoint notes, if it has a place in a topic: an epoch, or a beginning behind the first record."""
        has_place = self._checkpoint.epochs("offsets") or any(initial_offsets(self._checkpoint).values())
        return (self._checkpoint.read_note(_FILE, _read_noted) if has_place else None) or {}

    def _look_up(self) -> Ids:
        found: Ids = {}
        for settings, there in self._at.items():
            connection = connect(settings, where=self._where)
            shapes: dict[str, TopicShape] = {}
            for is_read, needs in ((True, Operation.READ), (False, Operation.WRITE)):
                names = sorted({used.name for used in there if used.is_read is is_read})
                shapes |= asked(partial(connection.shapes, names, is_fresh=True, needs=needs), self._where)
            if settings not in self._clusters:
                self._clusters[settings] = asked(connection.cluster_id, self._where)
            for used in there:
                if used.name in shapes and shapes[used.name].id not in _NO_IDS:
                    found[used.key] = f"{self._clusters[settings]}/{shapes[used.name].id}"
        return found

    def _fix(self, used: UsedTopic) -> str:
        if used.is_read:
            return (
                "bring the topic back as it was, with its offsets, or point the source at the cluster that it was read"
                f" from; or begin again, with all that the new topic has: {self._reset}"
            )
        return (
            f"what was written to it before is not in it: go on behind that with {self._accept}, or write everything"
            f" again: {self._reset}"
        )


def tell_change(topic: str, before: Sequence[str] | None, now: str | None) -> str | None:
    """Say what has changed; None if nothing has, or if the earlier ids are unknown.

    >>> tell_change("t", ["c/1"], "c/2")
    "topic 't' was deleted and created again since the job used it"
    >>> tell_change("t", ["c/1"], None)
    "topic 't' is gone since the job used it"
    >>> tell_change("t", ["c/1"], "d/1")
    "topic 't' is in another Kafka cluster (d) than that of the job (c)"
    >>> tell_change("t", None, "c/1"), tell_change("t", ["c/1"], "c/1")
    (None, None)
    """
    if before is None or now in before:
        return None
    if now is None:
        return f"topic {topic!r} is gone since the job used it"
    cluster, clusters = now.split("/")[0], sorted({id.split("/")[0] for id in before})
    if cluster not in clusters:
        return f"topic {topic!r} is in another Kafka cluster ({cluster}) than that of the job ({', '.join(clusters)})"
    return f"topic {topic!r} was deleted and created again since the job used it"
