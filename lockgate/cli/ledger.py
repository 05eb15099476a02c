"""The commands about a job's ledger: show and set.

`show` changes nothing and fences no writer. `set` is for a ledger and a checkpoint that do not fit: the operator says
which epoch is the last committed one. The command first says what that duplicates or loses (checkpoints/jobledgers.py),
and writes only with --yes.
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lockgate.cli.ledgeraccess import find_ledger, offer_ledger
from lockgate.commit.repair import gone, keep_staged, look, short
from lockgate.errors import Refused
from lockgate.escaping import escape

if TYPE_CHECKING:
    from lockgate.checkpoints.checkpoint import SourceRange
    from lockgate.commit.ledger import Entry


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    group = subparsers.add_parser(
        "ledger",
        help="what a job has committed, and how to repair that",
        description="The ledger of an exactly-once job: the last committed epoch.",
    )
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    show = commands.add_parser(
        "show",
        help="what is committed, and whether the checkpoint fits",
        description="Show the last committed epoch, and whether the checkpoint continues from there. Changes nothing. "
        "Exit status 1 if the ledger is gone.",
    )
    offer_ledger(show)
    show.add_argument("--json", action="store_true", help="print facts for programs")
    show.set_defaults(run=run_show)

    set_ = commands.add_parser(
        "set",
        help="say which epoch is the last committed one",
        description="Write into the ledger that an epoch of the checkpoint is the last committed one, or that none "
        "is. The command first says what may be duplicated or lost, and writes only with --yes. It re-creates a ledger "
        "that is gone. A driver that runs stops at its next epoch.",
    )
    offer_ledger(set_)
    set_.add_argument("--epoch", required=True, metavar="N|none", help="the last committed epoch")
    set_.add_argument("--yes", action="store_true", help="write it; without this, only say what would happen")
    set_.add_argument("--json", action="store_true", help="print facts for programs")
    set_.set_defaults(run=run_set)


def run_show(arguments: argparse.Namespace) -> int:
    """Print the ledger's entry."""
    from lockgate.checkpoints.checkpoint import next_epoch
    from lockgate.checkpoints.jobledgers import judge, look_at_clusters, look_at_followers

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
    """Say what setting the ledger would do; do it with --yes."""
    from lockgate.checkpoints.checkpoint import next_epoch, source_ranges
    from lockgate.checkpoints.jobledgers import (
        entry_for,
        look_at_clusters,
        look_at_followers,
        refuse_useless,
        warn_of,
        weigh,
    )

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
            (name, epochs, source_ranges(checkpoint, epochs[0], epochs[-1]))
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


def read_epoch(text: str) -> int | None:
    """The epoch that is asked for; None for none."""
    if text.lower() == "none":
        return None
    if not text.isascii() or not text.isdigit():
        raise Refused(f"--epoch {text!r} is not an epoch", where="command line", fix="use a number, or none")
    return int(text)


def describe(entry: Entry | None) -> list[str]:
    """An entry in lines; other programs may write to a ledger, so no field makes a line of its own."""
    if entry is None:
        return ["epoch       the ledger is empty: no run has claimed it yet"]
    staged = ", ".join(f"{name}: {text}" for name, text in entry.staged.items())
    lines = [
        f"epoch       {'none is committed' if entry.epoch is None else entry.epoch}",
        f"digest      {entry.digest or 'none'}",
        f"run         {entry.run}",
        f"query       {entry.query or 'any'}",
        f"staged      {staged or 'nothing'}",
        f"written     {entry.at}",
        *(f"gap         {gap}, skipped after epoch {gap.epoch}, accepted at {gap.at}" for gap in entry.gaps),
    ]
    return [escape(line) for line in lines]


def describe_waiting(waiting: Sequence[str]) -> list[str]:
    """What is staged and not published, in lines if there is any."""
    if not waiting:
        return []
    shown = ", ".join([*waiting[:3], *(["..."] if len(waiting) > 3 else [])])
    fate = "the next run publishes what the deciding ledger names, and removes the rest"
    return [f"waiting     {len(waiting)} staged and not published: {escape(shown)}", f"            {fate}"]


def describe_ranges(ranges: Sequence[SourceRange]) -> list[str]:
    """What was read, in lines: one for each partition, and the sum if it is known."""
    if not ranges:
        return ["not known: the checkpoint has no Kafka offsets for them"]
    lines = [
        f"{escape(one.topic)}-{one.partition}: "
        + (f"up to {one.end}" if one.start is None else f"{one.start} to {one.end}")
        for one in ranges
    ]
    count = count_records(ranges)
    return lines if count is None else [*lines, f"{count:,} offsets in all, and at most as many records"]


def count_records(ranges: Sequence[SourceRange]) -> int | None:
    """How many records were read, at most: offsets count the ends of transactions too."""
    if any(one.start is None for one in ranges):
        return None
    return sum(one.end - (one.start or 0) for one in ranges)


def _span(epochs: range) -> str:
    return str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]}..{epochs[-1]}"


def _ends(epochs: range | None) -> list[int] | None:
    return None if epochs is None else [epochs[0], epochs[-1]]
