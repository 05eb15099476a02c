"""Identify the topics of a checkpoint by the ids that Kafka gives them, and note these in the checkpoint.

Kafka numbers the records of every topic from 0. A topic that was deleted and re-created under its old name restarts at
0, and so does a topic of that name in another cluster. A job that continued from the offsets in its checkpoint would
silently skip what the new topic has before them. A re-created output lacks what the job wrote before. Every topic and
every cluster has its own id, so:

    before the first epoch      note the ids of all topics that the job reads or writes
    at a later start            compare, if the checkpoint has a position in a topic; refuse if it is another topic
    while running               compare again when an epoch is planned, before any of it is written; the job ends
    in real-time mode           compare every few seconds instead, because rows leave before an epoch ends; the job ends

Several sources (or outputs) can use one name, in one cluster or in two. Each has its own note, numbered in the order in
which Spark keeps the offsets of sources, and in the order of the outputs.

Three kinds of topics are not compared: topics that a column of the rows names (route=), topics at brokers to which only
Java's client can connect, and topics without ids (before Kafka 2.8).
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from lockgate.checkpoints.checkpoint import Checkpoint, initial_offsets
from lockgate.checkpoints.tree import open_tree
from lockgate.connectors.kafka.rights import Operation
from lockgate.connectors.kafka.settings import ClientSettings, is_java_only, read_settings
from lockgate.connectors.kafka.topics import asked
from lockgate.connectors.kafka.transaction import GONE_SECONDS
from lockgate.connectors.kafka.wire import TopicShape, connect
from lockgate.dataflow.endpoints import Sink, Source
from lockgate.dataflow.locations import Topic
from lockgate.errors import EpochFailed, Refused, TopicGone, Unreachable
from lockgate.untrusted import as_list, as_object, as_type

_FILE = "described/topics.json"
_NO_IDS = ("", "None", str(UUID(int=0)))
_WATCH_SECONDS = 5.0
log = logging.getLogger(__name__)

Ids = dict[str, str]  # by "read NAME N" or "write NAME N": "CLUSTER/TOPIC"
Noted = dict[str, str | list[str]]
"""Ids in a checkpoint. Earlier versions noted "read NAME": all ids of that name, in no order."""


class Asked(Protocol):
    """What is asked of a connection to brokers."""

    def shapes(
        self, topics: Iterable[str], *, is_fresh: bool = ..., needs: Operation = ...
    ) -> dict[str, TopicShape]: ...

    def cluster_id(self) -> str: ...


class Connect(Protocol):
    """Connects to brokers."""

    def __call__(self, settings: ClientSettings, *, where: str) -> Asked: ...


@dataclass(frozen=True)
class UsedTopic:
    """A topic that a job reads or writes; `number` distinguishes those of one name."""

    name: str
    servers: str
    client: Mapping[str, str]
    is_read: bool
    number: int = 0

    @property
    def old_key(self) -> str:
        """The key of its ids in notes of earlier versions."""
        return f"{'read' if self.is_read else 'write'} {self.name}"

    @property
    def key(self) -> str:
        """The key of its id in notes."""
        return f"{self.old_key} {self.number}"

    def noted_in(self, noted: Noted) -> list[str] | None:
        """The ids that it may have; None if they are unknown."""
        found = noted.get(self.key, noted.get(self.old_key))
        return [found] if isinstance(found, str) else found


def used_topics(endpoints: Iterable[Source | Sink]) -> Iterator[UsedTopic]:
    """The topics of these sources and sinks, in their order."""
    for one in endpoints:
        topic = one.location
        if isinstance(topic, Topic) and topic.name is not None:
            yield UsedTopic(topic.name, topic.servers, topic.client, isinstance(one, Source))


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
    """The ids of a job's topics."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        used: Iterable[UsedTopic],
        *,
        where: str,
        accept: str,
        reset: str = "lockgate run --new-life",
        connect: Connect = connect,
    ) -> None:
        """Read the settings; this does not connect yet.

        Args:
            used: the sources in the order of their offsets, twice if they are read twice; then the outputs in order.
            accept: how the operator accepts re-created outputs.
            reset: how the operator resets the job.
            connect: a simulation answers for its brokers.
        """
        self._connect = connect
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
        """Refuse to continue if a topic is not the same as before."""
        noted = self._noted()
        has_written = bool(self._checkpoint.epochs("offsets"))
        compared = [one for one in self._used if (one.is_read or has_written) and one.noted_in(noted) is not None]
        deadline = time.monotonic() + GONE_SECONDS  # a new broker may not know all of its topics yet
        now = self._look_up()
        while any(used.key not in now for used in compared) and time.monotonic() < deadline:
            time.sleep(0.2)
            now = self._look_up()
        for used in compared:
            change = describe_change(used.name, used.noted_in(noted), now.get(used.key))
            if change is not None and not (accepts_outputs and not used.is_read):
                raise Refused(change, where=f"{self._where}; servers {used.servers}", fix=self._fix(used))
        self._known = now

    def keep(self) -> None:
        """Note the ids, when all topics exist."""
        # Outputs may be new. Ids that are known already stay, because a topic may have been replaced since.
        self._known = {**self._look_up(), **self._known}
        noted = self._noted()
        if {**noted, **self._known} != noted:
            content = json.dumps({**noted, **self._known}, indent=1, sort_keys=True).encode()
            open_tree(self._checkpoint.root, self._checkpoint.spark).write(_FILE, content)

    def look(self) -> None:
        """Fail if a topic was replaced since `keep`; a topic that is missing now is no failure."""
        now = self._look_up()
        for used in self._used:
            before = used.noted_in({**self._known})
            change = describe_change(used.name, before, now[used.key]) if used.key in now else None
            if change is not None:
                raise TopicGone(change, where=f"{self._where}; servers {used.servers}", fix=self._fix(used))

    def watch(self) -> None:
        """Look, if the last look is some seconds ago; if brokers do not answer, try again later."""
        if time.monotonic() - self._looked_at < _WATCH_SECONDS:
            return
        try:
            self.look()
        except (EpochFailed, Unreachable) as error:
            log.info("%s: the topics cannot be compared now: %s", self._where, error)
        self._looked_at = time.monotonic()

    def _noted(self) -> Noted:
        """The noted ids, if the checkpoint has a position in a topic: an epoch, or a start after the first record."""
        has_place = self._checkpoint.epochs("offsets") or any(initial_offsets(self._checkpoint).values())
        return (self._checkpoint.read_note(_FILE, _read_noted) if has_place else None) or {}

    def _look_up(self) -> Ids:
        found: Ids = {}
        for settings, there in self._at.items():
            connection = self._connect(settings, where=self._where)
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
                "restore the topic as it was, with its offsets, or point the source at the cluster that it was read"
                f" from; or start from the beginning, with all that the new topic has: {self._reset}"
            )
        return (
            f"it lacks what the job wrote to it before: continue after that with {self._accept}, or write everything"
            f" again: {self._reset}"
        )


def describe_change(topic: str, before: Sequence[str] | None, now: str | None) -> str | None:
    """Describe the change; None if nothing changed, or if the earlier ids are unknown.

    >>> describe_change("t", ["c/1"], "c/2")
    "topic 't' was deleted and created again since the job used it"
    >>> describe_change("t", ["c/1"], None)
    "topic 't' is gone since the job used it"
    >>> describe_change("t", ["c/1"], "d/1")
    "topic 't' is in another Kafka cluster (d) than that of the job (c)"
    >>> describe_change("t", None, "c/1"), describe_change("t", ["c/1"], "c/1")
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
