"""List a job's dead letters, and send them back into the job after it is fixed.

A dead letter that is sent back becomes a file in the checkpoint, under its id. The job reads these files as one more
source, so the running query or the next one reads each once. A dead letter has one file, however often it is sent. An
output or state that has the event already would get it twice. If the plan finds one, a job that is declared
exactly-once does not send the dead letter, and a job that is declared at-least-once says so.

    waiting            not sent yet
    sent               its file exists
    unfinished         its epoch is not over, and the job may compute it again, perhaps with a fixed function
    of another life    the job was reset since (--new-life), and has read its sources again
    unknown            there is no checkpoint, or it cannot be read from here
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

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.connectors.files.filesystem import LocalSystem
from lockgate.connectors.returned import FOLDER, as_line
from lockgate.dataflow.deadletters import NAME, DeadLetters
from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Read
from lockgate.errors import Failed, Refused
from lockgate.guarantees import Guarantee
from lockgate.planner.physical import is_exact
from lockgate.planner.plan import Plan, plan
from lockgate.planner.replaysafety import find_hindrances
from lockgate.runtime.deadletterrows import read_rows
from lockgate.runtime.options import default_checkpoint
from lockgate.untrusted import Unreadable, as_list, as_object, as_type, excerpt, read_json, take

log = logging.getLogger(__name__)

_ID = re.compile("[0-9a-f]{1,64}")  # it names a file


@dataclass(frozen=True)
class Letter:
    """An event that a job could not process, with the columns of `LETTER`."""

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
        """The place of the event in its source."""
        if self.source is None:
            return "unknown"
        return f"{self.source}: {self.part} at {self.at}" + ("" if self.child is None else f", child {self.child}")


class Standing(Enum):
    """The status of a dead letter."""

    WAITING = "waiting"
    SENT = "sent"
    UNFINISHED = "unfinished"
    BEFORE_RESET = "of another life"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Sending:
    """The result of sending a dead letter back: why it was not sent, or a note about it."""

    letter: Letter
    is_sent: bool
    told: str | None = None


class DeadLetterStore:
    """The dead letters of a job, and its checkpoint as of the first look."""

    def __init__(self, job: Job, *, checkpoint: str | None = None) -> None:
        self.job = job
        self.where = f"job {job.name!r}, declared at {job.origin}"
        self._letters = _declared(job, self.where)
        place = Checkpoint(root=checkpoint or str(default_checkpoint(job.name)))
        self.checkpoint = place if place.local is None else Checkpoint(root=str(place.local.resolve()))

    def letters(self) -> list[Letter]:
        """All committed dead letters, in the order of their epochs; each once, even if an epoch wrote it twice."""
        exact = is_exact(self._plan.logical, self._plan.logical.node(NAME))
        found: dict[str, Letter] = {}
        foreign = []
        for row in read_rows(self._letters.sink, self.job.name, is_exact=exact, where=self.where):
            try:
                letter = as_letter(row)
            except Unreadable as error:  # other programs may write there, and their records must not hide ours
                foreign.append(str(error))
            else:
                found[letter.id] = letter
        if foreign:
            message = "job %s: %d records are not dead letters and are skipped, e.g.: %s"
            log.warning(message, self.job.name, len(foreign), foreign[0])
        return sorted(found.values(), key=lambda letter: (letter.epoch, letter.id))

    def find(self, ids: Iterable[str]) -> list[Letter]:
        """The dead letters with these ids."""
        known = {letter.id: letter for letter in self.letters()}
        wanted = list(dict.fromkeys(ids))
        unknown = [id for id in wanted if id not in known]
        if unknown:
            raise Refused(
                f"job {self.job.name!r} has no dead letter {', '.join(unknown)} among its {len(known)}",
                where=self.where,
                fix="lockgate dead-letters list shows the ids",
            )
        return [known[id] for id in wanted]

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that dead letters come from."""
        graph = self._plan.logical
        return graph.node(graph.node(NAME).inputs[0]).inputs

    def standing(self, letter: Letter) -> Standing:
        """The status of a dead letter, as far as the checkpoint shows it."""
        if self._life is None:
            return Standing.UNKNOWN
        if letter.life != self._life:
            return Standing.BEFORE_RESET
        if self.checkpoint.read(_file_of(letter)) is not None:
            return Standing.SENT
        return Standing.WAITING if letter.epoch <= self._finished else Standing.UNFINISHED

    def send(self, letters: Iterable[Letter]) -> list[Sending]:
        """Send dead letters back into the job, each once until the next reset."""
        self._refuse_to_send()
        return [self._send(letter) for letter in letters]

    def _send(self, letter: Letter) -> Sending:
        hindrance = self._hindrance(letter)
        if hindrance is not None:
            return Sending(letter, False, hindrance)
        now = find_hindrances(
            self._plan.logical, step=letter.step, source=str(letter.source), is_child=letter.child is not None
        )
        # The job may have changed since, but what had the event then still has it.
        twice = tuple(dict.fromkeys([*([] if letter.hindered is None else [letter.hindered]), *now]))
        if twice and self.job.guarantee > Guarantee.AT_LEAST_ONCE:
            return Sending(
                letter,
                False,
                f"{'; '.join(twice)}. The job is declared {self.job.guarantee.label}: for later dead letters, put step"
                f" {letter.step!r} before what has the event already; correct this one manually",
            )
        root = self.checkpoint.local
        assert root is not None  # _refuse_to_send
        try:
            is_first = LocalSystem(root).publish(_file_of(letter), _as_line(letter))
        except OSError as error:
            raise Failed(
                f"dead letter {letter.id} cannot be stored in the checkpoint: {error}",
                where=f"checkpoint {root}",
                fix="check that the checkpoint is writable and that the disk has space, and send the dead letter again",
            ) from error
        if not is_first:
            return Sending(letter, False, "it was sent before")
        return Sending(letter, True, f"{'; '.join(twice)}, and gets it twice" if twice else None)

    def _hindrance(self, letter: Letter) -> str | None:
        """Why a dead letter cannot be sent under any guarantee; None if it can."""
        standing = self.standing(letter)
        if standing is Standing.SENT:
            return "it was sent before"
        if standing is Standing.BEFORE_RESET:
            return "it is from before a reset of the job, which has read its sources again since"
        if standing is Standing.UNFINISHED:
            return f"epoch {letter.epoch} is not over, and the job may compute it again: run the job first"
        if letter.source is None:
            return "the event's place was lost before the step, in an aggregate, a join or a transform"
        if letter.value is None and letter.timestamp is None:
            return "it lacks the original event: a transform lost it before the step, or it was too large"
        sources = [node.name for node in self._plan.logical.nodes if isinstance(node.step, Read)]
        if letter.source not in sources:
            return f"the job has no source {letter.source!r} any more, only {', '.join(sources)}"
        return None

    def _refuse_to_send(self) -> None:
        if self.job.guarantee is Guarantee.AT_MOST_ONCE:
            raise Refused(
                "an at-most-once job keeps no checkpoint, so nothing can be sent back to it",
                where=self.where,
                fix="declare a stronger guarantee, or send the events to the job's source again",
            )
        where = f"checkpoint {self.checkpoint.root}"
        if self.checkpoint.local is None:
            raise Refused(
                f"{self.checkpoint.root} is not on this machine's disk, and dead letters are sent back without Spark",
                where=where,
                fix="send the events to the job's source again, or keep the checkpoint on a local or mounted disk",
            )
        if self._life is None:
            raise Refused(
                "there is no checkpoint of the job, so no run would read the dead letters",
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
    """A dead letter from a row of its sink; null columns may be missing. Unreadable if the row is no dead letter."""

    def text(name: str) -> str | None:
        value = row.get(name)
        return None if value is None else as_type(value, str, name)

    if not _ID.fullmatch(id := take(row, "id", str)):
        raise Unreadable(f"{excerpt(id)} is not the id of a dead letter")
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
    except (ValueError, OverflowError) as error:  # from base64, or from a time
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
            f"job {job.name!r} has no dead letters: an event that it cannot process stops it",
            where=where,
            fix='Job(..., dead_letters=KafkaSink(topic="dead-letters", servers=...))',
        )
    return job.dead_letters


def _file_of(letter: Letter) -> str:
    if not _ID.fullmatch(letter.id):
        raise Refused(
            f"{excerpt(letter.id)} is not the id of a dead letter", where="dead letters", fix="name one that is listed"
        )
    return f"{FOLDER}/letter-{letter.id}.json"


def _as_bytes(value: object) -> bytes | None:
    if isinstance(value, str):
        return base64.b64decode(value)
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        return None if value is None else bytes(value)
    raise Unreadable(f"{excerpt(value)} is not bytes")


def _as_base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _as_time(value: object) -> datetime | None:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise Unreadable(f"{excerpt(value)} is not a time")
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
