"""The commands about a job's ledger: show and set.

`show` changes nothing and fences nobody. `set` is for the day on which ledger and checkpoint do not fit: a person says
which epoch is the last one that is out. What that doubles or loses is said first, and nothing is written without --yes.

    the ledger says   you set   then
    9                 7         epochs 8 to 9 are written again: their rows are doubled
    5                 7         epochs 6 to 7 are never written again: their rows are lost if they are not out
    nothing known     7         both may be: up to 7 nothing is written again, from 8 on everything is
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lockgate.cli.ledgers import LedgerTarget, find_ledger, offer_ledger
from lockgate.commit.mending import MendableLedger
from lockgate.errors import Failed, InvariantBroken, LedgerMismatch, LockgateError, Refused

if TYPE_CHECKING:
    from lockgate.commit.ledger import Entry
    from lockgate.runtime.checkpoints import Checkpoint, NextEpoch, SourceRange


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    group = subparsers.add_parser(
        "ledger",
        help="what a job has committed, and how to mend that",
        description="The ledger of an exactly-once job: the last epoch that is out.",
    )
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    show = commands.add_parser(
        "show",
        help="what is out, and whether the checkpoint fits",
        description="Show the last epoch that is out, and whether the checkpoint goes on from there. Changes nothing. "
        "Exit status 1 where the ledger is gone.",
    )
    offer_ledger(show)
    show.add_argument("--json", action="store_true", help="print facts for programs")
    show.set_defaults(run=run_show)

    set_ = commands.add_parser(
        "set",
        help="say which epoch is the last one that is out",
        description="Write into the ledger that an epoch of the checkpoint is the last one that is out, or that none "
        "is. Says first what may be doubled or lost, and writes only with --yes. Makes the ledger anew where it is "
        "gone. A driver that runs stops at its next epoch.",
    )
    offer_ledger(set_)
    set_.add_argument("--epoch", required=True, metavar="N|none", help="the last epoch that is out")
    set_.add_argument("--yes", action="store_true", help="write it; without this it is only said what would happen")
    set_.add_argument("--json", action="store_true", help="print facts for programs")
    set_.set_defaults(run=run_set)


def run_show(arguments: argparse.Namespace) -> int:
    """Tell what the ledger says."""
    from lockgate.runtime.checkpoints import next_epoch

    target = find_ledger(arguments)
    with target.opened() as ledger:
        if not ledger.exists:
            raise gone(ledger, target.job)
        entry, waiting = ledger.peek(), ledger.waiting()
    followers, clusters = look_at_followers(target, entry), look_at_clusters(target)
    checkpoint = target.checkpoint if target.checkpoint.local is not None else None
    upcoming = None if checkpoint is None else next_epoch(checkpoint)
    fit = None if upcoming is None else judge(entry, upcoming, job=target.job, where=ledger.where)
    facts = {
        "job": target.job,
        **ledger.facts,
        "entry": None if entry is None else entry.as_facts(),
        "waiting": list(waiting),
        "followers": [asdict(one) for one in followers],
        "clusters": {servers: None if other is None else other.as_facts() for servers, other in clusters.items()},
        "checkpoint": None if upcoming is None else target.place,
        "next_epoch": None if upcoming is None else upcoming.epoch.number,
        "fits": None if fit is None else fit.is_fit,
        "says": None if fit is None else fit.says,
    }
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return 0
    print(f"job         {target.job}")
    print(f"ledger      {ledger.name}")
    for line in (*describe(entry), *describe_waiting(waiting)):
        print(line)
    for one in followers:
        print(f"follower    {one.name}: {one.says}")
    for servers, other in clusters.items():
        print(f"cluster     {servers}: {short(other)}; see --servers {servers}")
    if fit is None:
        print(f"checkpoint  none at {target.place}; another place: --checkpoint PLACE")
    else:
        print(f"checkpoint  {target.place}")
        print(f"{'fits' if fit.is_fit else 'DOES NOT FIT':<11} {fit.says}")
        if fit.fix:
            print(f"            fix: {fit.fix}")
    return 0


def run_set(arguments: argparse.Namespace) -> int:
    """Say what setting the ledger would do; do it where that is wanted."""
    from lockgate.runtime.checkpoints import next_epoch

    target = find_ledger(arguments)
    checkpoint = target.checkpoint
    now = datetime.now(UTC)
    entry = entry_for(checkpoint, read_epoch(arguments.epoch), now=now, run=f"ledger-set-{secrets.token_hex(4)}")
    upcoming = next_epoch(checkpoint)
    follows = None if upcoming is None else refuse_useless(entry, upcoming, job=target.job, root=checkpoint.root)
    with target.opened() as ledger:
        before, trouble = look(ledger)
        entry = keep_staged(before, entry)
        change = weigh(before, entry)
        followers = look_at_followers(target, entry)
        says = [*([trouble] if trouble else []), *change.says, *warn_of(followers, target.job, arguments.epoch)]
        says += [
            f"The ledger of cluster {servers} is another one ({short(other)}): set it too, with --servers {servers}."
            for servers, other in look_at_clusters(target).items()
            if other is None or other.epoch != entry.epoch
        ]
        ranges = [
            (name, epochs, _ranges(checkpoint, epochs))
            for name, epochs in (("again", change.again), ("never", change.never))
            if epochs is not None
        ]
        if not arguments.json:
            print(f"ledger      {ledger.name}")
            print(f"now         {short(before) if before is not None else 'not known'}")
            print(f"to be set   {short(entry)}")
            print(f"checkpoint  {target.place}")
            print()
            for line in says:
                print(line)
            for _, epochs, found in ranges:
                print(f"source offsets of epochs {_span(epochs)}:")
                for line in describe_ranges(found):
                    print(f"  {line}")
            if follows is not None:
                print(f"After this {follows}.")
            print(f"A driver of job {target.job!r} that runs now stops at its next epoch, because the run id changes.")
        if arguments.yes:
            ledger.replace(before, entry)
    if arguments.json:
        facts = {
            "job": target.job,
            **ledger.facts,
            "before": None if before is None else before.as_facts(),
            "after": entry.as_facts(),
            "written_again": _ends(change.again),
            "never_written": _ends(change.never),
            "source_offsets": {name: [asdict(one) for one in found] for name, _, found in ranges},
            "says": says,
            "then": follows,
            "written": arguments.yes,
        }
        print(json.dumps(facts, indent=2))
    else:
        print()
        print("written" if arguments.yes else "nothing was written; add --yes")
    return 0


@dataclass(frozen=True)
class Fit:
    """Does a checkpoint go on where the ledger stands?"""

    is_fit: bool
    says: str
    fix: str | None = None


def judge(entry: Entry | None, upcoming: NextEpoch, *, job: str, where: str) -> Fit:
    """How a ledger fits the epoch that the checkpoint goes on with."""
    from lockgate.commit import protocol

    epoch = upcoming.epoch
    try:
        protocol.check_claim(entry, epoch, is_adopting=False, where=where, job=job)
    except LedgerMismatch as mismatch:
        return Fit(is_fit=False, says=mismatch.what, fix=mismatch.fix)
    if entry is not None and entry.epoch == epoch.number:
        says = f"epoch {epoch.number} is out and will be skipped: computed for its state, and not written"
    elif upcoming.is_planned:
        says = f"the checkpoint's next epoch is {epoch.number}, planned and not out: it will be written"
    else:
        says = f"the checkpoint's next epoch is {epoch.number}: it will be written"
    return Fit(is_fit=True, says=says)


def refuse_useless(entry: Entry, upcoming: NextEpoch, *, job: str, root: str) -> str:
    """What the next run does once the ledger says this; Refused where it could only stop."""
    where = f"checkpoint {root}"
    fit = judge(entry, upcoming, job=job, where=where)
    if fit.is_fit:
        return fit.says
    number = upcoming.epoch.number
    choices = [f"--epoch {number - 1 if number else 'none'} (epoch {number} is not out, and will be written)"]
    if upcoming.is_planned:
        choices.append(f"--epoch {number} (epoch {number} is out, and will not be written again)")
    raise Refused(
        f"this checkpoint goes on with epoch {number}, so a run of it would stop at a ledger with {short(entry)}",
        where=where,
        fix=f"{', or '.join(choices)}; or name the checkpoint that the job is to go on with; --new-life of `lockgate"
        " run` begins again from the start",
    )


@dataclass(frozen=True)
class Change:
    """What becomes of the rows when the ledger is set."""

    again: range | None  # epochs that are out and will be written again
    never: range | None  # epochs that will not be written, out or not
    says: tuple[str, ...]


def weigh(before: Entry | None, after: Entry) -> Change:
    """What may be doubled or lost, in numbers of epochs."""
    new = -1 if after.epoch is None else after.epoch
    told = "that nothing is out" if after.epoch is None else str(after.epoch)
    if before is None or (before.epoch is not None and before.query is not None and before.query != after.query):
        what = (
            "Nobody can tell what is out."
            if before is None
            else f"The ledger's epoch {before.epoch} belongs to another checkpoint (query {before.query}), whose epochs"
            f" have other rows than this one's (query {after.query}): their numbers cannot be compared."
        )
        never = range(new + 1) if new >= 0 else None
        lines = [what]
        if never is not None:
            lines.append(f"{_epochs(never)} will never be written again; rows of them that are not out are LOST.")
        lines.append(f"Epoch {new + 1} and all after it will be written; rows of them that are out are DOUBLED.")
        return Change(again=None, never=never, says=tuple(lines))
    old = -1 if before.epoch is None else before.epoch
    stands = "The ledger says that nothing is out" if before.epoch is None else f"The ledger is at {old}"
    if new < old:
        again = range(new + 1, old + 1)
        says = f"{stands}, you set {told}: {_epochs(again)} will be written again, and readers see their rows TWICE."
        return Change(again=again, never=None, says=(says,))
    if new > old:
        never = range(old + 1, new + 1)
        says = (
            f"{stands}, you set {told}: {_epochs(never)} will never be written again by this job; their rows are LOST"
            " if they are not out."
        )
        return Change(again=None, never=never, says=(says,))
    if before.digest != after.digest:
        says = (
            f"Epoch {old} is out with other offsets than this checkpoint has for it: rows between the two ends are"
            " DOUBLED or LOST."
        )
        return Change(again=None, never=None, says=(says,))
    return Change(again=None, never=None, says=("The ledger says so already: nothing is doubled, nothing is lost.",))


def read_epoch(text: str) -> int | None:
    """The epoch that was asked for, None for none."""
    if text.lower() == "none":
        return None
    if not text.isascii() or not text.isdigit():
        raise Refused(f"--epoch {text!r} is not an epoch", where="command line", fix="use a number, or none")
    return int(text)


def entry_for(checkpoint: Checkpoint, epoch: int | None, *, now: datetime, run: str) -> Entry:
    """The entry which says that an epoch of this checkpoint is the last one that is out."""
    from lockgate.commit.ledger import Entry

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
            f"the checkpoint has no offsets for epoch {epoch}, so nobody could tell later what is out",
            where=f"checkpoint {checkpoint.root}",
            fix=f"choose an epoch that it has{' (the last ones)' if len(planned) > 20 else ''}: {listed}",
        )
    at = now.isoformat(timespec="milliseconds")
    return Entry(run=run, query=query, epoch=epoch, digest=digest, at=at, gaps=checkpoint.gaps())


def keep_staged(before: Entry | None, entry: Entry) -> Entry:
    """The entry with what followers have still to publish of its epoch: nobody else remembers the names."""
    if before is None or (before.epoch, before.digest) != (entry.epoch, entry.digest):
        return entry
    return replace(entry, staged=before.staged)


@dataclass(frozen=True)
class FollowerView:
    """A system that follows, as seen from the deciding ledger."""

    name: str
    epoch: int | None
    standing: str  # even, new, behind, elsewhere; or unknown
    says: str
    option: str | None  # how a command is told where its ledger lies


def look_at_followers(target: LedgerTarget, decided: Entry | None) -> list[FollowerView]:
    """Where the systems stand that follow this ledger; unknown where one cannot be looked at."""
    from lockgate.commit.followers import stand

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
    """What the ledgers of the job's other clusters say."""
    found = {}
    for servers, open_ledger in target.clusters.items():
        with closing(open_ledger()) as ledger:
            found[servers] = ledger.peek() if ledger.exists else None
    return found


def warn_of(followers: Sequence[FollowerView], job: str, epoch: str) -> list[str]:
    """What has to be set, too, so that the job goes on."""
    return [
        f"The next run will stop at the ledger of {one.name} ({one.says}). Set it, too: lockgate ledger set"
        f" {job} --epoch {epoch} --checkpoint PLACE {one.option}"
        for one in followers
        if one.standing == "elsewhere"
    ]


def look(ledger: MendableLedger) -> tuple[Entry | None, str | None]:
    """What the ledger says, and what is wrong with it."""
    if not ledger.exists:
        return None, f"the ledger is gone ({ledger.missing}); it is made anew"
    try:
        entry = ledger.peek()
    except InvariantBroken as broken:
        return None, broken.what
    return entry, "the ledger is empty" if entry is None else None


def gone(ledger: MendableLedger, job: str) -> Failed:
    """The job has no ledger where it was looked for."""
    return Failed(
        f"job {job!r} has no ledger: {ledger.missing}",
        where=ledger.where,
        fix="check the job's name and the place; the first exactly-once run makes it. If it was deleted:"
        f" lockgate ledger set {job} --epoch N --checkpoint PLACE {ledger.option}",
    )


def short(entry: Entry | None) -> str:
    """An entry in a few words."""
    if entry is None:
        return "nothing at all"
    return "nothing is out" if entry.epoch is None else f"epoch {entry.epoch} is out, digest {str(entry.digest)[:12]}"


def describe(entry: Entry | None) -> list[str]:
    """An entry in lines."""
    if entry is None:
        return ["epoch       the ledger is empty: no run has claimed it yet"]
    staged = ", ".join(f"{name}: {text}" for name, text in entry.staged.items())
    return [
        f"epoch       {'none: nothing is out' if entry.epoch is None else entry.epoch}",
        f"digest      {entry.digest or 'none'}",
        f"run         {entry.run}",
        f"query       {entry.query or 'any'}",
        f"staged      {staged or 'nothing'}",
        f"written     {entry.at}",
        *(f"gap         {gap}, skipped behind epoch {gap.epoch}, accepted at {gap.at}" for gap in entry.gaps),
    ]


def describe_waiting(waiting: Sequence[str]) -> list[str]:
    """What is staged and not published, in lines where there is any."""
    if not waiting:
        return []
    shown = ", ".join([*waiting[:3], *(["..."] if len(waiting) > 3 else [])])
    fate = "the next run publishes what the deciding ledger names, and removes the rest"
    return [f"waiting     {len(waiting)} staged and not published: {shown}", f"            {fate}"]


def describe_ranges(ranges: Sequence[SourceRange]) -> list[str]:
    """What was read, in lines: a partition each, and the sum where it is known."""
    if not ranges:
        return ["not known: the checkpoint has no Kafka offsets for them"]
    lines = [
        f"{one.topic}-{one.partition}: " + (f"up to {one.end}" if one.start is None else f"{one.start} to {one.end}")
        for one in ranges
    ]
    count = count_records(ranges)
    return lines if count is None else [*lines, f"{count:,} offsets in all, and at most as many records"]


def count_records(ranges: Sequence[SourceRange]) -> int | None:
    """How many records were read, at most: offsets count the ends of transactions too."""
    if any(one.start is None for one in ranges):
        return None
    return sum(one.end - (one.start or 0) for one in ranges)


def _ranges(checkpoint: Checkpoint, epochs: range) -> tuple[SourceRange, ...]:
    from lockgate.runtime.checkpoints import source_ranges

    return source_ranges(checkpoint, epochs[0], epochs[-1])


def _epochs(epochs: range) -> str:
    return f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {_span(epochs)}"


def _span(epochs: range) -> str:
    return str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]}..{epochs[-1]}"


def _ends(epochs: range | None) -> list[int] | None:
    return None if epochs is None else [epochs[0], epochs[-1]]
