"""Find records that were removed from a source before the job read them; report them, or skip them if accepted.

Retention, or a command that deletes records, can overtake a job that is behind or stopped. Spark would notice in the
middle of an epoch, and advise to skip silently. So the job compares the start of each partition with its position: at
every start, and when an epoch is planned, before any of it is written. If records are missing, the job stops.

An operator can accept exactly this gap (`--accept-gap`). The epoch before the gap keeps its number, and its offsets
move to the first record that is left. Ledgers identify the epoch by the digest of its planned offsets, so the
checkpoint keeps that digest. The move of the offsets is the one decision:

    0  claim the ledgers      fences older drivers; refused if the planned epoch is committed in one of them
    1  note the gap           with both digests; it has no effect until the offsets move
    2  drop the plan          of the epoch after the gap, with the state that its tasks may have stored
    3  move the offsets       replaces one file as a whole: from here on the gap is accepted. An earlier note of the
                              same epoch has no effect any more, so the new note has its gaps, too
    4  claim the ledgers      again, now with the gap; every later claim and commit carries it, too

A process that dies before 3 leaves the old position, and the job stops at the gap again. A process that dies after 3
leaves the new position. Both fit the ledgers.

The job does not compare brokers to which only Java's client can connect, or topics of one name in two clusters. There
Spark finds the gap, and it cannot be accepted. A real-time query compares only at its start: while an epoch runs, its
position is unknown.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from lockgate.checkpoints.checkpoint import ACCEPTED, Accepted, Checkpoint, as_offsets, initial_offsets, next_epoch
from lockgate.checkpoints.cleaning import remove_all
from lockgate.checkpoints.history import look_at
from lockgate.checkpoints.laterepochs import later_files, refuse_lost_files
from lockgate.checkpoints.tree import open_tree
from lockgate.commit.ledger import Gap
from lockgate.commit.permits import Place
from lockgate.connectors.kafka.reading import read_starts
from lockgate.connectors.kafka.settings import ClientSettings, is_java_only, read_settings
from lockgate.connectors.kafka.wire import connect
from lockgate.dataflow.endpoints import Source
from lockgate.dataflow.locations import Topic
from lockgate.errors import LockgateError, RecordsGone
from lockgate.failures import GAP_CHOICES, NO_GAP_CHOICES
from lockgate.runtime.commits import Commits

log = logging.getLogger(__name__)

_SHOWN = 8
_BEGIN_AGAIN = "restore the records with their offsets, from a copy of the topic, and raise its retention; or start"
_NEW_LIFE = " over with all that the source still has: lockgate run FILE --new-life"


class Gaps:
    """The gaps of a job."""

    def __init__(self, checkpoint: Checkpoint, sources: Iterable[tuple[str, Source]], *, where: str) -> None:
        """Read the settings; this does not connect yet.

        Args:
            sources: each with its step and the user's line; those without a topic have no gaps.
        """
        self._checkpoint = checkpoint
        self._where = where
        self._steps: dict[str, str] = {}
        at: dict[str, set[ClientSettings]] = {}
        for step, source in sources:
            read = source.location
            if not isinstance(read, Topic) or read.name is None:
                continue
            self._steps.setdefault(read.name, step)
            # Only Java's client connects with such settings.
            known = at.setdefault(read.name, set())
            if not is_java_only(read.client):
                known.add(read_settings(read.servers, read.client, where=where, is_lookup=True))
        self._at: dict[ClientSettings, list[str]] = {}
        for topic, settings in at.items():
            if len(settings) == 1:
                self._at.setdefault(settings.pop(), []).append(topic)

    def check(self, *, is_accepting: bool) -> tuple[Gap, ...]:
        """Compare with the position of the next epoch. Returns the gaps if they may be accepted, raises otherwise."""
        self._forget_pending()
        last = self._last()
        gaps = self._find(last)
        if gaps and not (is_accepting and last >= 0):
            raise self._error(gaps, "" if last >= 0 else "No epoch is done, so no position can be moved")
        return gaps

    def look(self, epoch: int) -> None:
        """Fail if a planned epoch begins before the first record that is left."""
        gaps = self._find(epoch - 1, planned=epoch)
        if gaps:
            raise self._error(gaps, "")

    def explain(self, found: RecordsGone, epoch: int) -> RecordsGone:
        """The exact error for what an epoch could not read: a gap, or a loss that cannot be accepted."""
        try:
            self.look(epoch)
        except RecordsGone as exact:
            return exact
        except LockgateError:  # nothing more is known: the brokers do not answer
            return found
        is_compared = self._steps.keys() <= {topic for topics in self._at.values() for topic in topics}
        fix = NO_GAP_CHOICES if is_compared or found.fix == NO_GAP_CHOICES else _BEGIN_AGAIN + _NEW_LIFE
        return RecordsGone(found.what, where=found.where, fix=fix)

    def accept(self, gaps: Sequence[Gap], commits: Commits) -> None:
        """Continue after these gaps."""
        checkpoint, last = self._checkpoint, self._last()
        upcoming = next_epoch(checkpoint)
        assert upcoming is not None
        tree = open_tree(checkpoint.root, checkpoint.spark)
        if upcoming.is_planned:
            refuse_lost_files(look_at(tree), last)
        # 0. After the fence no older driver can commit the epoch any more.
        entries = commits.claim(upcoming.epoch, query_run="before the gap")
        if any(entry.epoch == upcoming.epoch.number for entry in entries):
            number = upcoming.epoch.number
            raise self._error(gaps, f"Epoch {number} is committed, and its state cannot be computed without them")
        content = checkpoint.read(f"offsets/{last}") or b""
        moved = move_offsets(content, {(gap.topic, gap.partition): gap.end for gap in gaps})
        digest = checkpoint.digest(last)
        assert digest is not None
        # 1.
        noted = checkpoint.accepted()
        earlier = [gap for one in noted if one.epoch == last and not checkpoint.is_pending(one) for gap in one.gaps]
        accepted = Accepted(last, digest, moved=hashlib.sha256(moved).hexdigest(), gaps=(*earlier, *gaps))
        tree.write(ACCEPTED, _as_json([*noted, accepted]))
        # 2. Tasks of the planned epoch may have stored state, from other events than the epoch will have.
        if upcoming.is_planned:
            remove_all(tree, later_files(look_at(tree), last, keeps_next=False))
        # 3.
        tree.replace(f"offsets/{last}", moved)
        self._forget_pending()  # when Spark removes the file of offsets, the earlier note would have an effect again
        # 4.
        upcoming = next_epoch(checkpoint)
        assert upcoming is not None
        commits.claim(upcoming.epoch, query_run="behind the gap")
        for gap in gaps:
            log.warning("%s: records are skipped, as accepted: %s", self._where, gap, extra={"epoch": gap.epoch})

    def _last(self) -> int:
        """The last epoch that is done; -1 if none is."""
        upcoming = next_epoch(self._checkpoint)
        return -1 if upcoming is None else upcoming.epoch.number - 1

    def _forget_pending(self) -> None:
        """Drop notes without effect: of a process that died, of an epoch that was rolled back, or repeated later."""
        accepted, newest = self._checkpoint.accepted(), max(self._checkpoint.epochs("offsets"), default=-1)
        kept = [one for one in accepted if one.epoch <= newest and not self._checkpoint.is_pending(one)]
        if kept != accepted:
            open_tree(self._checkpoint.root, self._checkpoint.spark).write(ACCEPTED, _as_json(kept))

    def _find(self, last: int, planned: int | None = None) -> tuple[Gap, ...]:
        if not self._at:
            return ()
        positions = self._checkpoint.kafka_offsets(last) if last >= 0 else initial_offsets(self._checkpoint)
        starts: dict[Place, int] = {}
        for settings, topics in self._at.items():
            starts.update(read_starts(connect(settings, where=self._where), topics, where=self._where))
        if planned is not None:  # the epoch does not read a partition that is newer than the plan
            known = self._checkpoint.kafka_offsets(planned)
            starts = {place: start for place, start in starts.items() if place in known}
        return find_gaps(positions, starts, epoch=last, at=datetime.now(UTC).isoformat(timespec="milliseconds"))

    def _error(self, gaps: Sequence[Gap], hindrance: str) -> RecordsGone:
        steps = dict.fromkeys(self._steps[gap.topic] for gap in gaps)
        what = f"Records were removed before the job read them: {describe(gaps)}"
        return RecordsGone(
            f"{what}. {hindrance}" if hindrance else what,
            where=f"{'; '.join(steps)}; {self._where}",
            fix=_BEGIN_AGAIN + _NEW_LIFE if hindrance else GAP_CHOICES,
        )


def find_gaps(positions: Mapping[Place, int], starts: Mapping[Place, int], *, epoch: int, at: str) -> tuple[Gap, ...]:
    """The gaps between the position in each partition and its first record; new partitions are read from 0.

    >>> [str(gap) for gap in find_gaps({("t", 0): 5, ("t", 1): 5}, {("t", 0): 8, ("t", 1): 5}, epoch=3, at="")]
    ["topic 't', partition 0: offsets [5, 8), at most 3 records"]
    >>> [gap.start for gap in find_gaps({("t", 0): 5}, {("t", 0): 5, ("t", 1): 2, ("other", 0): 9}, epoch=3, at="")]
    [0]
    """
    topics = {topic for topic, _ in positions}
    return tuple(
        Gap(place[0], place[1], start=positions.get(place, 0), end=start, epoch=epoch, at=at)
        for place, start in sorted(starts.items())
        if place[0] in topics and positions.get(place, 0) < start
    )


def move_offsets(content: bytes, starts: Mapping[Place, int]) -> bytes:
    """A file of offsets in which no position is before these.

    >>> move_offsets(b'v1\\n{"batchWatermarkMs":0}\\n{"t":{"0":5,"1":9}}\\n-', {("t", 0): 8, ("t", 1): 7, ("t", 2): 2})
    b'v1\\n{"batchWatermarkMs":0}\\n{"t":{"0":8,"1":9,"2":2}}\\n-'
    """
    lines = content.decode().split("\n")
    for index, line in enumerate(lines[2:], start=2):
        offsets = {topic: dict(partitions) for topic, partitions in as_offsets(line).items()}
        for (topic, partition), start in starts.items():
            if topic in offsets:
                offsets[topic][str(partition)] = max(offsets[topic].get(str(partition), 0), start)
        if offsets:
            lines[index] = json.dumps(offsets, separators=(",", ":"))
    return "\n".join(lines).encode()


def describe(gaps: Sequence[Gap]) -> str:
    """The gaps as one line."""
    more = f", and {len(gaps) - _SHOWN} more partitions" if len(gaps) > _SHOWN else ""
    total = f"; {sum(gap.count for gap in gaps):,} offsets in all" if len(gaps) > 1 else ""
    return "; ".join(map(str, gaps[:_SHOWN])) + more + total


def _as_json(accepted: Sequence[Accepted]) -> bytes:
    return json.dumps([one.as_facts() for one in accepted], indent=1).encode()
