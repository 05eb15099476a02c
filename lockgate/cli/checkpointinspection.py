"""The commands that only inspect a checkpoint: list, show, verify, diff.

They take a job's file, or the place of any Spark checkpoint, on local disk or on a Hadoop file system. They do not
disturb a running job. If the job is named, they read its ledger, too.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from lockgate.cli.ledgeraccess import CheckpointTarget, find_checkpoint, offer_ledger
from lockgate.columns import AFTER_FIRST, columns
from lockgate.commit.repair import short
from lockgate.connectors.files.size import as_size

if TYPE_CHECKING:
    from lockgate.checkpoints.differences import Difference, Side
    from lockgate.checkpoints.facts import CheckpointFacts, EpochFacts
    from lockgate.checkpoints.logs import Offset
    from lockgate.commit.ledger import Entry


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this file."""
    listed = commands.add_parser(
        "list",
        help="the epochs of a checkpoint",
        description="The epochs of a checkpoint, the newest last: when each was planned, whether it is committed, how"
        " many events it read from each source, the watermark that it acted on, the size of its state (of the files"
        " from which it is loaded), and the bytes of its own files.",
    )
    offer_ledger(listed, is_needed=False)
    listed.add_argument("--json", action="store_true", help="print facts for programs: offsets by partition, too")
    listed.set_defaults(run=run_list)

    show = commands.add_parser(
        "show",
        help="one epoch of a checkpoint in full",
        description="One epoch in full: what it read from each partition, the watermark, its settings, the files of its"
        " state by operator and partition, and, if a job is named, the ledger's entry.",
    )
    offer_ledger(show, is_needed=False)
    show.add_argument("--epoch", type=int, metavar="N", help="default: the newest")
    show.add_argument("--json", action="store_true", help="print facts for programs")
    show.set_defaults(run=run_show)

    verify = commands.add_parser(
        "verify",
        help="is a checkpoint whole?",
        description="Read every file of a checkpoint; say what is damaged or missing, what that means, and what to do:"
        " checksums, logs, snapshots and changes of the state, and, if a job is named, whether the ledger fits. Exit"
        " status 0: whole, 1: damaged, 2: there is no checkpoint. The job may run: what changes in the meantime is"
        " read again.",
    )
    offer_ledger(verify, is_needed=False)
    verify.add_argument("--json", action="store_true", help="print facts for programs")
    verify.set_defaults(run=run_verify)

    diff = commands.add_parser(
        "diff",
        help="how two checkpoints differ",
        description="Two checkpoints side by side, each after its last committed epoch: epochs, offsets by partition,"
        " watermark, state, settings, and whether one continues the other. Exit status 0, whether they differ or"
        " not.",
    )
    for name in ("first", "second"):
        diff.add_argument(name, metavar=name.upper(), help="the place of a checkpoint, or a job's file")
    diff.add_argument(
        "-p", dest="parameters", action="append", default=[], metavar="NAME=VALUE", help="a parameter of a job's file"
    )
    diff.add_argument("--json", action="store_true", help="print facts for programs")
    diff.set_defaults(run=run_diff)


def run_list(arguments: argparse.Namespace) -> int:
    """Print one line for each epoch."""
    from lockgate.checkpoints.subject import look_at_place

    target = find_checkpoint(arguments)
    facts = look_at_place(target.place)[-1]
    if arguments.json:
        epochs = [facts.epoch_as_facts(epoch) for epoch in facts.epochs]
        print(json.dumps({**facts.as_facts(), "epochs": epochs}, indent=2))
        return 0
    _print_head(facts)
    rows = [("epoch", "planned", "", "events", "watermark", "state", "files")]
    for epoch in facts.epochs:
        state = facts.state_of(epoch.number)
        offsets = () if epoch.planned is None else epoch.planned.offsets
        events = " + ".join(_count(facts, epoch.number, offset) for offset in offsets)
        rows.append(
            (
                str(epoch.number),
                _time(epoch.at),
                "committed" if epoch.is_committed else "pending",
                events or "-",
                _time(epoch.watermark),
                "-" if state is None else as_size(state.bytes),
                as_size(epoch.bytes),
            )
        )
    print("", *columns(rows, right=(0, 3, 5, 6)), sep="\n")
    for epoch in facts.epochs:
        if epoch.problem is not None:
            print(f"epoch {epoch.number}: {epoch.problem}")
    if not facts.epochs:
        print("no epoch is planned yet")
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Print one epoch in full."""
    from lockgate.checkpoints.jobledgers import read_entry
    from lockgate.checkpoints.subject import look_at_place

    target = find_checkpoint(arguments)
    facts = look_at_place(target.place)[-1]
    epoch = facts.chosen(arguments.epoch)
    entry, trouble = (None, None) if target.ledger is None else read_entry(target.ledger)
    if arguments.json:
        told = {**facts.as_facts(), "epoch": facts.epoch_as_facts(epoch, is_full=True)}
        if target.ledger is not None:
            told["ledger"] = {"entry": None if entry is None else entry.as_facts(), "problem": trouble}
        print(json.dumps(told, indent=2))
        return 0
    _print_head(facts)
    print()
    print(f"epoch       {epoch.number}, {'committed' if epoch.is_committed else 'planned and not committed'}")
    print(f"planned     {_time(epoch.at)}")
    print(f"watermark   {_time(epoch.watermark)}")
    print(f"digest      {epoch.digest or 'not known: its offsets are gone'}")
    if epoch.problem is not None:
        print(f"problem     {epoch.problem}")
    _print_offsets(facts, epoch)
    _print_state(facts, epoch)
    if epoch.planned is not None:
        print("settings")
        for name, value in sorted(epoch.planned.conf.items()):
            print(f"  {name} = {value}")
    if target.ledger is not None:
        print(f"ledger      {trouble or short(entry)}{_beside(entry, epoch)}")
    elif target.job is not None:
        print(f"ledger      job {target.job!r} has none: no output is written in transactions")
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """Print what is wrong; returns 1 if anything is."""
    from lockgate.checkpoints.subject import look_at_place
    from lockgate.checkpoints.verifying import verify_checkpoint

    target = find_checkpoint(arguments)
    checkpoint, tree, facts = look_at_place(target.place)
    ledger = target.ledger
    findings = verify_checkpoint(checkpoint, tree, ledger, time.sleep)
    notes = _notes(facts, target)
    if arguments.json:
        told = {
            **facts.as_facts(),
            "is_whole": not findings,
            "findings": [asdict(one) for one in findings],
            "is_ledger_looked_at": ledger is not None,
            "notes": notes,
        }
        print(json.dumps(told, indent=2))
        return 1 if findings else 0
    _print_head(facts)
    for note in notes:
        print(f"note        {note}")
    for one in findings:
        print()
        print(one.what)
        print(f"  where: {one.where}")
        print(f"  fix:   {one.fix}")
    print()
    if findings:
        fatal = sum(one.is_fatal for one in findings)
        can = "a run can continue nevertheless" if not fatal else "no run can continue before this is repaired"
        print(f"damaged: {len(findings)} found; {can}")
        return 1
    print(f"whole: {len(facts.entries):,} files, {as_size(facts.bytes)}" + ("; the ledger fits" if ledger else ""))
    return 0


def run_diff(arguments: argparse.Namespace) -> int:
    """Print two checkpoints side by side."""
    from lockgate.checkpoints.differences import compare
    from lockgate.checkpoints.subject import look_at_place

    sides = []
    for one in (arguments.first, arguments.second):
        is_job = one.endswith(".py")
        named = argparse.Namespace(
            job=one if is_job else None,
            checkpoint=None if is_job else one,
            parameters=arguments.parameters,
            servers=None,
            client=[],
            postgres=None,
            files=None,
            sqlite=None,
        )
        sides.append(look_at_place(find_checkpoint(named).place)[-1])
    found = compare(*sides)
    if arguments.json:
        print(json.dumps(found.as_facts(), indent=2))
    else:
        _print_difference(found)
    return 0


def _notes(facts: CheckpointFacts, target: CheckpointTarget) -> list[str]:
    """What was not checked, and why."""
    notes = []
    if target.job is None:
        notes.append("the ledger was not read: name the job's file for that")
    elif target.ledger is None:
        notes.append(f"job {target.job!r} has no ledger: no output is written in transactions")
    job = None if facts.marker is None else facts.marker.job
    if job is not None and target.job is not None and job != target.job:
        notes.append(f"the marker says that it belongs to job {job!r}, and job {target.job!r} was named")
    if (others := facts.parts.get("others", 0)) > 0:
        notes.append(f"{as_size(others)} are of files that are no part of a checkpoint; these were not checked")
    return notes


def _beside(entry: Entry | None, epoch: EpochFacts) -> str:
    """What the ledger's entry means for an epoch."""
    if entry is None or entry.epoch is None:
        return ""
    if entry.epoch == epoch.number:
        return ": this one" if entry.digest == epoch.digest else ": this number, but with OTHER offsets"
    return ": this one is committed, too" if entry.epoch > epoch.number else ": this one is not committed"


def _print_head(facts: CheckpointFacts) -> None:
    marker = facts.marker
    print(f"checkpoint  {facts.root}")
    owner = "no marker of Lockgate's" if marker is None else f"{marker.job}, since {marker.made}"
    print(f"job         {owner}")
    print(f"query       {facts.query or 'not known'}")
    for operator in facts.operators:
        steps = ", ".join(operator.steps)
        stores = [store for store in facts.stores if store.operator == operator.id]
        count = len({store.partition for store in stores})
        name = operator.name or "not known"
        print(f"state       {operator.id}: {steps + ' (' + name + ')' if steps else name}, {count} partitions")
    parts = ", ".join(f"{name} {as_size(count)}" for name, count in sorted(facts.parts.items()))
    print(f"bytes       {as_size(facts.bytes)} in {len(facts.entries):,} files: {parts}")


def _print_offsets(facts: CheckpointFacts, epoch: EpochFacts) -> None:
    from lockgate.checkpoints.facts import name_of

    for offset in () if epoch.planned is None else epoch.planned.offsets:
        reaches = facts.reaches(epoch.number, offset)
        count = facts.events(epoch.number, offset)
        told = "" if count is None else f", {count:,} {'offsets' if reaches[0].topic else 'events'}"
        print(f"read        {name_of(offset)}{told}")
        if not reaches:
            print(f"  {json.dumps(offset.told)}")
        for one in reaches:
            name = f"{one.topic}-{one.partition}: " if one.topic else ""
            first = "up to" if one.first is None else f"{one.first:,} to"
            print(f"  {name}{first} {one.end:,}")


def _print_state(facts: CheckpointFacts, epoch: EpochFacts) -> None:
    state = facts.state_of(epoch.number)
    if not facts.stores:
        print("state       none")
        return
    if not epoch.is_committed:
        print("state       not complete before the epoch is committed")
    elif state is None:
        print("state       cannot be loaded any more: it is cleaned up, or damaged (lockgate checkpoints verify)")
    else:
        rows = "" if state.rows is None else f", {state.rows:,} rows"
        print(f"state       {as_size(state.bytes)}{rows}, version {epoch.number + 1}")
    rows_of_table = [("operator", "partition", "snapshot", "changes", "bytes")]
    for store in facts.needed(epoch.number):
        told = facts.store_as_facts(store, epoch.number + 1)
        name = str(store.operator) if store.name == "default" else f"{store.operator} {store.name}"
        snapshot = "-" if told["snapshot"] is None else str(told["snapshot"])
        changes = told["changes"]
        span = "-" if not changes else f"{changes[0]} to {changes[-1]}"
        gone = f", {len(told['missing'])} missing" if told["missing"] else ""
        rows_of_table.append((name, str(store.partition), snapshot, span + gone, as_size(told["bytes"])))
    print(*columns(rows_of_table, right=(1, 2, 4), indent=2), sep="\n")


def _print_difference(found: Difference) -> None:
    left, right = found.left, found.right
    rows = [
        ("", "first", "second"),
        ("checkpoint", left.root, right.root),
        ("job", left.job or "no marker", right.job or "no marker"),
        ("query", left.query or "not known", right.query or "not known"),
        ("epochs", _span(left), _span(right)),
        ("committed", _number(left.committed), _number(right.committed)),
        ("watermark", _time(left.watermark), _time(right.watermark)),
        ("partitions", _number(left.partitions), _number(right.partitions)),
        ("state", _size(left.state_bytes), _size(right.state_bytes)),
        ("bytes", as_size(left.bytes), as_size(right.bytes)),
    ]
    print(*columns(rows), sep="\n")
    fork = "" if found.forked_at is None else f"; epoch {found.forked_at} is the first"
    print(f"lineage     {found.lineage.value}{fork}")
    if found.places:
        offsets = [("source", "partition", "first", "second", "difference")]
        offsets += [
            (
                one.topic or f"source {one.source}",
                str(one.partition),
                _number(one.left),
                _number(one.right),
                "-" if one.records is None else f"{one.records:+,}" if one.records else "0",
            )
            for one in found.places
        ]
        print("", *columns(offsets, right=AFTER_FIRST), sep="\n")
    for name, (here, there) in found.conf.items():
        print(f"{name}: {here or 'not set'} / {there or 'not set'}")


def _span(side: Side) -> str:
    return "none" if side.first is None else f"{side.first} to {side.last}"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _size(value: int | None) -> str:
    return "-" if value is None else as_size(value)


def _count(facts: CheckpointFacts, number: int, offset: Offset) -> str:
    count = facts.events(number, offset)
    return f"{count:,}" if count is not None else "-" if offset.places is None else "?"


def _time(value: datetime | None) -> str:
    return "-" if value is None else f"{value:%Y-%m-%d %H:%M:%S}"
