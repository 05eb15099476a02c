"""The ledger: what is committed, by which run (run id), for which offsets (digest).

The ledger of a job is one value, replaced by each transaction that the job commits. Its bytes are JSON, because people
read them, and they are a contract between versions of Lockgate:

    format   1
    run      the run that wrote it; another run id than mine means that another driver took over
    query    Spark's id of the query, kept in its checkpoint: another id means another checkpoint
    epoch    the last committed epoch, or null if there is none
    digest   SHA-256 of the file offsets/<epoch> of the checkpoint: the same number with other offsets is another epoch
    staged   what other sinks had staged for that epoch, by the names under which they publish it
    at       when it was written
    gaps     records that were removed from sources before the job read them, and that an operator gave up; only if
             there are any
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from lockgate.errors import InvariantBroken
from lockgate.untrusted import Unreadable, as_object, as_type, excerpt, read_object, take, take_nullable

FORMAT = 1

REPAIR = "another program wrote to it; look with `lockgate ledger show`, repair with `lockgate ledger set`"
"""How to fix an entry that cannot be read."""

_NAME_MAX = 1000
StrOrNone = TypeVar("StrOrNone", str, str | None)


@dataclass(frozen=True)
class Gap:
    """Records that were removed from a source before the job read them, and that an operator gave up."""

    topic: str
    partition: int
    start: int
    end: int  # behind the last of them
    epoch: int  # the last epoch before them
    at: str  # when they were given up

    @property
    def count(self) -> int:
        """How many records these are at most: offsets count the ends of transactions too."""
        return self.end - self.start

    def __str__(self) -> str:
        place = f"topic {self.topic!r}, partition {self.partition}"
        return f"{place}: offsets [{self.start}, {self.end}), at most {self.count:,} records"

    def as_facts(self) -> dict[str, Any]:
        """The gap as plain data."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "from": self.start,
            "to": self.end,
            "behind_epoch": self.epoch,
            "at": self.at,
        }


def gap_of(facts: Mapping[str, Any]) -> Gap:
    """What `as_facts` wrote; Unreadable if it wrote something else."""
    return Gap(
        topic=take(facts, "topic", str),
        partition=take(facts, "partition", int),
        start=take(facts, "from", int),
        end=take(facts, "to", int),
        epoch=take(facts, "behind_epoch", int),
        at=take(facts, "at", str),
    )


@dataclass(frozen=True)
class Entry:
    """What a ledger says."""

    run: str
    query: str | None
    epoch: int | None
    digest: str | None
    at: str
    staged: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()

    def claimed(self, run: str, query: str, now: datetime) -> Entry:
        """The same commit, owned by another run."""
        return replace(self, run=run, query=query, at=now.isoformat(timespec="milliseconds"))

    def as_facts(self) -> dict[str, Any]:
        """The entry as plain data, most important first."""
        return {
            "format": FORMAT,
            "epoch": self.epoch,
            "digest": self.digest,
            "run": self.run,
            "query": self.query,
            "staged": dict(self.staged),
            "at": self.at,
            **({"gaps": [gap.as_facts() for gap in self.gaps]} if self.gaps else {}),
        }

    def to_bytes(self) -> bytes:
        """The entry as it is written."""
        return json.dumps(self.as_facts()).encode()


def reset_entry(now: datetime) -> Entry:
    """The entry of a job that was reset: nothing is committed, and any run may claim it."""
    return Entry(run="new-life", query=None, epoch=None, digest=None, at=now.isoformat(timespec="milliseconds"))


def entry_of(value: object, where: str) -> Entry:
    """Read an entry from bytes or text; InvariantBroken if another program wrote them."""
    try:
        if not isinstance(value, bytes | str):
            raise Unreadable("it is not text")
        return entry_from(read_object(value), where)
    except ValueError as error:
        raise InvariantBroken(
            f"the ledger's last entry cannot be read ({error}): {excerpt(value)}",
            where=where,
            fix=REPAIR,
        ) from None


def entry_from(facts: Mapping[str, Any], where: str) -> Entry:
    """Read an entry from plain data; Unreadable if it is not one."""
    if "format" not in facts:
        raise Unreadable("'format' is missing")
    if (kind := facts["format"]) != FORMAT or isinstance(kind, bool):
        raise InvariantBroken(
            f"the ledger has format {excerpt(kind)}; this version of Lockgate knows {FORMAT}",
            where=where,
            fix="run the version of Lockgate that wrote it, or a newer one",
        )
    epoch = take_nullable(facts, "epoch", int)
    if epoch is not None and epoch < 0:
        raise Unreadable(f"'epoch' is {epoch}")
    return Entry(
        run=_short(take(facts, "run", str), "run"),
        query=_short(take_nullable(facts, "query", str), "query"),
        epoch=epoch,
        digest=_short(take_nullable(facts, "digest", str), "digest"),
        at=_short(take(facts, "at", str), "at"),
        staged={name: as_type(text, str, "staged") for name, text in take(facts, "staged", dict).items()},
        gaps=tuple(gap_of(as_object(one)) for one in as_type(facts.get("gaps", []), list, "gaps")),
    )


def _short(text: StrOrNone, name: str) -> StrOrNone:
    if text is not None and len(text) > _NAME_MAX:
        raise Unreadable(f"{name!r} has {len(text):,} characters")
    return text
