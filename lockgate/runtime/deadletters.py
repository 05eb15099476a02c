"""The desk where a job's letters are looked at, and sent back into the job once it is mended.

A letter that is sent back becomes a file beside the checkpoint, under the letter's id. The job has these files as one
more source, so the running query or the next one reads each once; and there is one file for a letter, however often it
is sent. What has the event already would get it twice: where the plan finds such an output or state, a job that is
declared exactly-once does not send the letter, and one that is declared at-least-once says so.

    waiting            not sent yet
    sent               its file is there
    unfinished         its epoch is not over for the job, which may compute it again, with a mended function perhaps
    of another life    the job began anew since (--new-life), and has read its sources anew
    unknown            there is no checkpoint, or it cannot be looked at from here
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property
from typing import Any

from lockgate.dataflow.deadletters import NAME, DeadLetters
from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Read
from lockgate.errors import Failed, Refused
from lockgate.files.system import LocalSystem
from lockgate.guarantees import Guarantee
from lockgate.planner.again import find_hindrances
from lockgate.planner.physical import is_exact
from lockgate.planner.plan import Plan, plan
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.runtime.letterrows import read_rows
from lockgate.runtime.run import default_checkpoint
from lockgate.sources.returned import FOLDER, as_line
from lockgate.untrusted import Unreadable, as_list, as_object, as_type, excerpt, read_json, take

log = logging.getLogger(__name__)

_ID = re.compile("[0-9a-f]{1,64}")  # it names a file


@dataclass(frozen=True)
class Letter:
    """An event that a job could not use, with the columns of `LETTER`."""

    id: str
    job: str
    life: str
    epoch: int
    step: str
    reason: str
    attempts: int
    hindered: str | None
    source: str | None
    part: str | None
    at: int | None
    child: str | None
    shown: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: datetime | None

    @property
    def place(self) -> str:
        """Where the event was in its source."""
        if self.source is None:
            return "unknown"
        return f"{self.source}: {self.part} at {self.at}" + ("" if self.child is None else f", child {self.child}")


class Standing(Enum):
    """What has become of a letter."""

    WAITING = "waiting"
    SENT = "sent"
    UNFINISHED = "unfinished"
    OTHER_LIFE = "of another life"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Sending:
    """What came of sending a letter back: why it was not sent, or what is to be known of it."""

    letter: Letter
    is_sent: bool
    told: str | None = None


class LetterDesk:
    """The letters of a job, and its checkpoint as it is when it is first looked at."""

    def __init__(self, job: Job, *, checkpoint: str | None = None) -> None:
        self.job = job
        self.where = f"job {job.name!r}, declared at {job.origin}"
        self._letters = _declared(job, self.where)
        place = Checkpoint(root=checkpoint or str(default_checkpoint(job.name)))
        self.checkpoint = place if place.local is None else Checkpoint(root=str(place.local.resolve()))

    def letters(self) -> list[Letter]:
        """All that are committed, in the order of their epochs; what a repeated epoch wrote twice is one letter."""
        exact = is_exact(self._plan.logical, self._plan.logical.node(NAME))
        found: dict[str, Letter] = {}
        foreign = []
        for row in read_rows(self._letters.sink, self.job.name, is_exact=exact, where=self.where):
            try:
                letter = as_letter(row)
            except Unreadable as error:  # others may write where letters are, and theirs hide none
                foreign.append(str(error))
            else:
                found[letter.id] = letter
        if foreign:
            message = "job %s: %d records are no letters and are passed over, e.g.: %s"
            log.warning(message, self.job.name, len(foreign), foreign[0])
        return sorted(found.values(), key=lambda letter: (letter.epoch, letter.id))

    def find(self, ids: Iterable[str]) -> list[Letter]:
        """The letters of these ids."""
        known = {letter.id: letter for letter in self.letters()}
        wanted = list(dict.fromkeys(ids))
        unknown = [id for id in wanted if id not in known]
        if unknown:
            raise Refused(
                f"job {self.job.name!r} has no letter {', '.join(unknown)} among its {len(known)}",
                where=self.where,
                fix="lockgate dead-letters list shows the ids",
            )
        return [known[id] for id in wanted]

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that letters come from."""
        graph = self._plan.logical
        return graph.node(graph.node(NAME).inputs[0]).inputs

    def standing(self, letter: Letter) -> Standing:
        """What has become of a letter, as far as the checkpoint tells."""
        if self._life is None:
            return Standing.UNKNOWN
        if letter.life != self._life:
            return Standing.OTHER_LIFE
        if self.checkpoint.read(_file_of(letter)) is not None:
            return Standing.SENT
        return Standing.WAITING if letter.epoch <= self._finished else Standing.UNFINISHED

    def send(self, letters: Iterable[Letter]) -> list[Sending]:
        """Send letters back into the job, each once in the life of its checkpoint."""
        self._refuse_to_send()
        return [self._send(letter) for letter in letters]

    def _send(self, letter: Letter) -> Sending:
        hindrance = self._hindrance(letter)
        if hindrance is not None:
            return Sending(letter, False, hindrance)
        now = find_hindrances(
            self._plan.logical, step=letter.step, source=str(letter.source), is_child=letter.child is not None
        )
        # The job may have been changed since, and what had the event then has it still.
        twice = tuple(dict.fromkeys([*([] if letter.hindered is None else [letter.hindered]), *now]))
        if twice and self.job.guarantee > Guarantee.AT_LEAST_ONCE:
            return Sending(
                letter,
                False,
                f"{'; '.join(twice)}. The job is declared {self.job.guarantee.label}: put step {letter.step!r} before"
                " what has the event already, for the letters to come, and correct this one by hand",
            )
        root = self.checkpoint.local
        assert root is not None  # _refuse_to_send
        try:
            is_first = LocalSystem(root).publish(_file_of(letter), _as_line(letter))
        except OSError as error:
            raise Failed(
                f"letter {letter.id} cannot be put beside the checkpoint: {error}",
                where=f"checkpoint {root}",
                fix="see that it may be written and that the disk has room, and send the letter again",
            ) from error
        if not is_first:
            return Sending(letter, False, "it was sent before")
        return Sending(letter, True, f"{'; '.join(twice)}, and gets it twice" if twice else None)

    def _hindrance(self, letter: Letter) -> str | None:
        """Why a letter cannot be sent, whatever is declared."""
        standing = self.standing(letter)
        if standing is Standing.SENT:
            return "it was sent before"
        if standing is Standing.OTHER_LIFE:
            return "it is of another life of the job, which has read its sources anew since"
        if standing is Standing.UNFINISHED:
            return f"epoch {letter.epoch} is not over for the job, which may compute it again: run the job first"
        if letter.source is None:
            return "the event's place was lost before the step, behind an aggregate, a join or a transform"
        if letter.value is None and letter.timestamp is None:
            return "what the source gave was lost before the step, in a transform"
        sources = [node.name for node in self._plan.logical.nodes if isinstance(node.step, Read)]
        if letter.source not in sources:
            return f"the job has no source {letter.source!r} any more, only {', '.join(sources)}"
        return None

    def _refuse_to_send(self) -> None:
        if self.job.guarantee is Guarantee.AT_MOST_ONCE:
            raise Refused(
                "an at-most-once job keeps no checkpoint, and nothing can be sent back to it",
                where=self.where,
                fix="declare a stronger guarantee, or send the events to the job's source again",
            )
        where = f"checkpoint {self.checkpoint.root}"
        if self.checkpoint.local is None:
            raise Refused(
                f"{self.checkpoint.root} does not lie on this machine's disk, and letters are sent back without Spark",
                where=where,
                fix="send the events to the job's source again, or keep the checkpoint on a local or mounted disk",
            )
        if self._life is None:
            raise Refused(
                "there is no checkpoint of the job, so no run would read what is sent back",
                where=where,
                fix="name it with --checkpoint, as in `lockgate run`",
            )

    @cached_property
    def _plan(self) -> Plan:
        return plan(self.job)

    @cached_property
    def _life(self) -> str | None:
        is_kept = self.job.guarantee is not Guarantee.AT_MOST_ONCE and self.checkpoint.local is not None
        return self.checkpoint.query() if is_kept else None

    @cached_property
    def _finished(self) -> int:
        return max(self.checkpoint.epochs("commits"), default=-1)


def as_letter(row: Mapping[str, Any]) -> Letter:
    """A letter out of what a sink has of it; columns that are null may be missing. Unreadable if it is none."""

    def text(name: str) -> str | None:
        value = row.get(name)
        return None if value is None else as_type(value, str, name)

    if not _ID.fullmatch(id := take(row, "id", str)):
        raise Unreadable(f"{excerpt(id)} is no id of a letter")
    at = row.get("at")
    headers = [as_object(one) for one in as_list(read_json(text("headers") or "[]"))]
    try:
        return Letter(
            id=id,
            job=take(row, "job", str),
            life=take(row, "life", str),
            epoch=take(row, "epoch", int),
            step=take(row, "step", str),
            reason=text("reason") or "",
            attempts=take(row, "attempts", int),
            hindered=text("hindered"),
            source=text("source"),
            part=text("part"),
            at=None if at is None else as_type(at, int, "at"),
            child=text("child"),
            shown=text("shown") or "",
            key=_as_bytes(row.get("key")),
            value=_as_bytes(row.get("value")),
            headers=tuple((take(one, "key", str), _as_bytes(one.get("value"))) for one in headers),
            timestamp=_as_time(row.get("timestamp")),
        )
    except (ValueError, OverflowError) as error:  # of base64, or of a time
        raise Unreadable(str(error)) from None


def _as_line(letter: Letter) -> bytes:
    place = {"source": letter.source, "part": letter.part, "at": letter.at}
    original = {
        "key": _as_base64(letter.key),
        "value": _as_base64(letter.value),
        "headers": [{"key": key, "value": _as_base64(value)} for key, value in letter.headers] or None,
        "timestamp": None if letter.timestamp is None else letter.timestamp.isoformat(),
    }
    return as_line(place, original, attempts=letter.attempts)


def _declared(job: Job, where: str) -> DeadLetters:
    if job.dead_letters is None:
        raise Refused(
            f"job {job.name!r} has no dead letters: an event that it cannot use stops it",
            where=where,
            fix='Job(..., dead_letters=KafkaSink(topic="letters", servers=...))',
        )
    return job.dead_letters


def _file_of(letter: Letter) -> str:
    if not _ID.fullmatch(letter.id):
        raise Refused(f"{excerpt(letter.id)} is no id of a letter", where="dead letters", fix="name one that is listed")
    return f"{FOLDER}/letter-{letter.id}.json"


def _as_bytes(value: object) -> bytes | None:
    if isinstance(value, str):
        return base64.b64decode(value)
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        return None if value is None else bytes(value)
    raise Unreadable(f"{excerpt(value)} are no bytes")


def _as_base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _as_time(value: object) -> datetime | None:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise Unreadable(f"{excerpt(value)} is no time")
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
