"""The ledgers of a job beside its checkpoint: what each says, whether they fit, and what it means to set one.

One ledger decides; the others follow it, or belong to further clusters. A job may continue only if the deciding ledger
fits the checkpoint. To set a ledger is a statement about rows, so it is weighed first:

    the ledger says   you set   then
    9                 7         epochs 8 to 9 are written again: their rows are duplicated
    5                 7         epochs 6 to 7 are never written again: rows of them that are not committed are lost
    nothing known     7         both may happen: up to 7 nothing is written again, from 8 on everything is
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from lockgate.checkpoints.checkpoint import Checkpoint, NextEpoch
from lockgate.commit import protocol
from lockgate.commit.followers import stand
from lockgate.commit.ledger import Entry
from lockgate.commit.repair import MendableLedger, short
from lockgate.errors import InvariantBroken, LedgerMismatch, LockgateError, Refused

Open = Callable[[], MendableLedger]


@dataclass(frozen=True)
class LedgerTarget:
    """A job, for a command about its ledger."""

    job: str
    place: str  # of its checkpoint
    open: Open
    others: tuple[str, ...] = ()  # outputs with a lower guarantee, which are not part of the decision
    followers: Mapping[str, Open] = field(default_factory=dict)  # by the names that the deciding ledger knows
    may_follow: bool = False  # it is unknown whether this system decides
    is_second: bool = False  # another cluster of the job commits before this one
    clusters: Mapping[str, Open] = field(default_factory=dict)  # the job's other clusters, by their servers

    @property
    def checkpoint(self) -> Checkpoint:
        """Its checkpoint, which may not exist."""
        return Checkpoint(root=self.place)

    @contextmanager
    def opened(self) -> Iterator[MendableLedger]:
        """The ledger, closed afterwards."""
        with closing(self.open()) as ledger:
            yield ledger


def read_entry(target: LedgerTarget) -> tuple[Entry | None, str | None]:
    """The ledger's entry, and what is wrong with it."""
    with target.opened() as ledger:
        if not ledger.exists:
            return None, f"none: {ledger.missing}"
        try:
            return ledger.peek(), None
        except InvariantBroken as broken:
            return None, broken.what


@dataclass(frozen=True)
class FollowerView:
    """A system that follows, as seen from the deciding ledger."""

    name: str
    epoch: int | None
    standing: str  # even, new, behind, elsewhere; or unknown
    says: str
    option: str | None  # the option of a command that names its ledger


def look_at_followers(target: LedgerTarget, decided: Entry | None) -> list[FollowerView]:
    """The epochs of the systems that follow this ledger; unknown if one cannot be read."""
    if decided is None:
        return []
    views = []
    for name, open_ledger in target.followers.items():
        try:
            with closing(open_ledger()) as ledger:
                seen, option = ledger.peek(), ledger.option
        except LockgateError as error:
            views.append(FollowerView(name, epoch=None, standing="unknown", says=error.what, option=None))
            continue
        standing = stand(name, seen, decided)
        views.append(
            FollowerView(
                name,
                epoch=None if seen is None else seen.epoch,
                standing=standing.name.lower(),
                says=f"{short(seen)}; it {standing.value}",
                option=option,
            )
        )
    return views


def look_at_clusters(target: LedgerTarget) -> dict[str, Entry | None]:
    """The entries of the job's other clusters."""
    found = {}
    for servers, open_ledger in target.clusters.items():
        with closing(open_ledger()) as ledger:
            found[servers] = ledger.peek() if ledger.exists else None
    return found


def set_others(ledger: LedgerTarget, entry: Entry, *, only_later: bool) -> None:
    """Set the ledgers that follow, and those of further clusters, to the same entry.

    Args:
        only_later: skip those that are at an earlier epoch, or have none.
    """
    for open_ledger in (*ledger.clusters.values(), *ledger.followers.values()):
        with closing(open_ledger()) as other:
            seen = other.peek() if other.exists else None
            if seen is not None and (seen.epoch, seen.digest) == (entry.epoch, entry.digest):
                continue
            is_later = seen is not None and seen.epoch is not None and seen.epoch > (entry.epoch or 0)
            if is_later or not only_later:
                other.replace(seen, entry)


def entry_for(checkpoint: Checkpoint, epoch: int | None, *, now: datetime, run: str) -> Entry:
    """The entry that makes an epoch of this checkpoint the last committed one."""
    query = checkpoint.query()
    planned = checkpoint.epochs("offsets")
    if epoch is not None and query is None:
        raise Refused(
            "there is no checkpoint",
            where=f"checkpoint {checkpoint.root}",
            fix="name the place of the job's checkpoint",
        )
    digest = None if epoch is None else checkpoint.digest(epoch)
    if epoch is not None and digest is None:
        listed = ", ".join(map(str, planned[-20:])) or "none at all"
        raise Refused(
            f"the checkpoint has no offsets for epoch {epoch}, so it would be unknown later what is committed",
            where=f"checkpoint {checkpoint.root}",
            fix=f"choose an epoch that it has{' (the last ones)' if len(planned) > 20 else ''}: {listed}",
        )
    at = now.isoformat(timespec="milliseconds")
    return Entry(run=run, query=query, epoch=epoch, digest=digest, at=at, gaps=checkpoint.gaps())


@dataclass(frozen=True)
class Fit:
    """Does a checkpoint continue from the ledger's epoch?"""

    is_fit: bool
    says: str
    fix: str | None = None


def judge(entry: Entry | None, upcoming: NextEpoch, *, job: str, where: str) -> Fit:
    """Compare a ledger with the epoch that the checkpoint continues with."""
    epoch = upcoming.epoch
    try:
        protocol.check_claim(entry, epoch, is_adopting=False, where=where, job=job)
    except LedgerMismatch as mismatch:
        return Fit(is_fit=False, says=mismatch.what, fix=mismatch.fix)
    if entry is not None and entry.epoch == epoch.number:
        says = f"epoch {epoch.number} is committed and will be skipped: computed for its state, and not written"
    elif upcoming.is_planned:
        says = f"the checkpoint's next epoch is {epoch.number}, planned and not committed: it will be written"
    else:
        says = f"the checkpoint's next epoch is {epoch.number}: it will be written"
    return Fit(is_fit=True, says=says)


def refuse_useless(entry: Entry, upcoming: NextEpoch, *, job: str, root: str) -> str:
    """What the next run does with this entry in the ledger; Refused if it could only stop."""
    where = f"checkpoint {root}"
    fit = judge(entry, upcoming, job=job, where=where)
    if fit.is_fit:
        return fit.says
    number = upcoming.epoch.number
    choices = [f"--epoch {number - 1 if number else 'none'} (epoch {number} is not committed, and will be written)"]
    if upcoming.is_planned:
        choices.append(f"--epoch {number} (epoch {number} is committed, and will not be written again)")
    raise Refused(
        f"this checkpoint continues with epoch {number}, so a run of it would stop at a ledger with {short(entry)}",
        where=where,
        fix=f"{', or '.join(choices)}; or name the checkpoint that the job has to continue from; --new-life of"
        " `lockgate run` resets the job to its start",
    )


@dataclass(frozen=True)
class Change:
    """What happens to rows when the ledger is set."""

    again: range | None  # epochs that are committed and will be written again
    never: range | None  # epochs that will not be written, committed or not
    says: tuple[str, ...]


def weigh(before: Entry | None, after: Entry) -> Change:
    """What may be duplicated or lost, in numbers of epochs."""
    new = -1 if after.epoch is None else after.epoch
    told = "that no epoch is committed" if after.epoch is None else str(after.epoch)
    if before is None or (before.epoch is not None and before.query is not None and before.query != after.query):
        what = (
            "It is unknown which epochs are committed."
            if before is None
            else f"The ledger's epoch {before.epoch} belongs to another checkpoint (query {before.query}), whose epochs"
            f" have other rows than this one's (query {after.query}): their numbers cannot be compared."
        )
        never = range(new + 1) if new >= 0 else None
        lines = [what]
        if never is not None:
            lines.append(f"{_epochs(never)} will never be written again; rows of them that are not committed are LOST.")
        lines.append(f"Epoch {new + 1} and all after it will be written; rows of them that are committed are DOUBLED.")
        return Change(again=None, never=never, says=tuple(lines))
    old = -1 if before.epoch is None else before.epoch
    stands = "The ledger says that no epoch is committed" if before.epoch is None else f"The ledger is at {old}"
    if new < old:
        again = range(new + 1, old + 1)
        says = f"{stands}, you set {told}: {_epochs(again)} will be written again, and readers see their rows TWICE."
        return Change(again=again, never=None, says=(says,))
    if new > old:
        never = range(old + 1, new + 1)
        says = (
            f"{stands}, you set {told}: {_epochs(never)} will never be written again by this job; their rows are LOST"
            " if they are not committed."
        )
        return Change(again=None, never=never, says=(says,))
    if before.digest != after.digest:
        says = (
            f"Epoch {old} is committed with other offsets than this checkpoint has for it: rows between the two ends"
            " are DOUBLED or LOST."
        )
        return Change(again=None, never=None, says=(says,))
    return Change(again=None, never=None, says=("The ledger says so already: nothing is doubled, nothing is lost.",))


def warn_of(followers: Sequence[FollowerView], job: str, epoch: str) -> list[str]:
    """The ledgers that have to be set, too, before the job can continue."""
    return [
        f"The next run will stop at the ledger of {one.name} ({one.says}). Set it, too: lockgate ledger set"
        f" {job} --epoch {epoch} --checkpoint PLACE {one.option}"
        for one in followers
        if one.standing == "elsewhere"
    ]


def _epochs(epochs: range) -> str:
    return f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {_span(epochs)}"


def _span(epochs: range) -> str:
    return str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]}..{epochs[-1]}"
