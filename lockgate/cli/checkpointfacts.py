"""The commands that only look at a checkpoint: list, show, verify, diff.

They take a job's file, or the place of any checkpoint of Spark's, on local disk or on a Hadoop file system. A job that
runs is not disturbed. The ledger is looked at where the job is named.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lockgate.cli.checkpointsubject import open_spark
from lockgate.cli.ledger import short
from lockgate.cli.ledgers import CheckpointTarget, find_checkpoint, offer_ledger
from lockgate.errors import InvariantBroken, Refused
from lockgate.files.size import as_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockgate.commit.ledger import Entry
    from lockgate.runtime.lifecycle.differences import Difference, Side
    from lockgate.runtime.lifecycle.facts import CheckpointFacts, EpochFacts
    from lockgate.runtime.lifecycle.logs import Offset
    from lockgate.runtime.lifecycle.stores import Store
    from lockgate.runtime.lifecycle.tree import Tree
    from lockgate.runtime.lifecycle.verifying import Finding


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this file."""
    listed = commands.add_parser(
        "list",
        help="the epochs of a checkpoint",
        description="The epochs that a checkpoint has, the newest last: when each was planned, whether it is committed,"
        " how many events it read of each source, the watermark that it acted on, how large its state is (the files"
        " that it is loaded from), and the bytes of its own files.",
    )
    offer_ledger(listed, is_needed=False)
    listed.add_argument("--json", action="store_true", help="print facts for programs: offsets by partition, too")
    listed.set_defaults(run=run_list)

    show = commands.add_parser(
        "show",
        help="one epoch of a checkpoint in full",
        description="One epoch in full: what it read of each partition, the watermark, the settings that it holds, the"
        " files of its state by operator and partition, and the ledger's entry where a job is named.",
    )
    offer_ledger(show, is_needed=False)
    show.add_argument("--epoch", type=int, metavar="N", help="default: the newest")
    show.add_argument("--json", action="store_true", help="print facts for programs")
    show.set_defaults(run=run_show)

    verify = commands.add_parser(
        "verify",
        help="is a checkpoint whole?",
        description="Read every file of a checkpoint; say what is damaged or missing, what that means, and what to do:"
        " checksums, logs, snapshots and changes of the state, and whether the ledger fits where a job is named. Exit"
        " status 0: whole, 1: damaged, 2: there is no checkpoint. The job may run: what changes meanwhile is looked at"
        " again.",
    )
    offer_ledger(verify, is_needed=False)
    verify.add_argument("--json", action="store_true", help="print facts for programs")
    verify.set_defaults(run=run_verify)

    diff = commands.add_parser(
        "diff",
        help="how two checkpoints differ",
        description="Two checkpoints side by side, each behind its last committed epoch: epochs, offsets by partition,"
        " watermark, state, settings, and whether one goes on from the other. Exit status 0, whether they differ or"
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
    """Print the epochs, a line each."""
    target = find_checkpoint(arguments)
    facts = _look_at(_open(target.place)[0])
    if arguments.json:
        epochs = [_epoch_facts(facts, epoch) for epoch in facts.epochs]
        print(json.dumps({**_checkpoint_facts(facts), "epochs": epochs}, indent=2))
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
    print()
    _print_table(rows, right=(0, 3, 5, 6))
    for epoch in facts.epochs:
        if epoch.problem is not None:
            print(f"epoch {epoch.number}: {epoch.problem}")
    if not facts.epochs:
        print("no epoch is planned yet")
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Print one epoch in full."""
    target = find_checkpoint(arguments)
    facts = _look_at(_open(target.place)[0])
    epoch = _choose(facts, arguments.epoch)
    has_ledger, entry, trouble = _read_entry(target)
    if arguments.json:
        told = {**_checkpoint_facts(facts), "epoch": _epoch_facts(facts, epoch, is_full=True)}
        if has_ledger:
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
    if has_ledger:
        print(f"ledger      {trouble or short(entry)}{_beside(entry, epoch)}")
    elif target.job is not None:
        print(f"ledger      job {target.job!r} has none: no output is written in transactions")
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """Print what is wrong; 1 where anything is."""
    from lockgate.runtime.checkpoints import Checkpoint
    from lockgate.runtime.lifecycle.verifying import check_ledger, look_for_damage, verify

    target = find_checkpoint(arguments)
    tree, spark = _open(target.place)
    facts = _look_at(tree)
    ledger = target.ledger

    def look_at_ledger() -> list[Finding]:
        if ledger is None:
            return []
        with closing(ledger.open()) as opened:
            checkpoint = Checkpoint(root=target.place, spark=spark)
            read = lambda: opened.peek() if opened.exists else None  # noqa: E731 - read behind the checkpoint
            return check_ledger(checkpoint, read, job=ledger.job, where=opened.where)

    # What a damaged file costs changes with every epoch of a driver that runs; what a ledger says is wrong does not.
    findings = verify(lambda: look_for_damage(tree), time.sleep, alike=lambda one: one.where)
    findings += verify(look_at_ledger, time.sleep, alike=lambda one: one.what)
    notes = _notes(facts, target)
    if arguments.json:
        told = {
            **_checkpoint_facts(facts),
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
        can = "a run can go on nevertheless" if not fatal else "no run can go on before that is mended"
        print(f"damaged: {len(findings)} found; {can}")
        return 1
    print(f"whole: {len(facts.entries):,} files, {as_size(facts.bytes)}" + ("; the ledger fits" if ledger else ""))
    return 0


def run_diff(arguments: argparse.Namespace) -> int:
    """Print two checkpoints side by side."""
    from lockgate.runtime.lifecycle.differences import compare

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
        sides.append(_look_at(_open(find_checkpoint(named).place)[0]))
    found = compare(*sides)
    if arguments.json:
        told = {
            "left": _side_facts(found.left),
            "right": _side_facts(found.right),
            "lineage": found.lineage.name.lower(),
            "forked_at": found.forked_at,
            "offsets": [{**asdict(one), "records": one.records} for one in found.places],
            "conf": {name: list(values) for name, values in found.conf.items()},
        }
        print(json.dumps(told, indent=2))
    else:
        _print_difference(found)
    return 0


def _open(place: str) -> tuple[Tree, SparkSession | None]:
    """The files at a place; a JVM is started only where they lie elsewhere than on this machine's disk."""
    from lockgate.files.system import local_path
    from lockgate.runtime.lifecycle.tree import open_tree

    spark = open_spark() if local_path(place) is None else None
    try:
        return open_tree(place, spark), spark
    except OSError as error:
        raise _unreadable(place, error) from error


def _look_at(tree: Tree) -> CheckpointFacts:
    from lockgate.runtime.lifecycle.facts import look_at

    try:
        return look_at(tree)
    except OSError as error:
        raise _unreadable(tree.root, error) from error


def _unreadable(place: str, error: OSError) -> Refused:
    return Refused(
        f"{place} cannot be read: {error}",
        where=f"checkpoint {place}",
        fix="check the address of its file system, and whether you may read there",
    )


def _choose(facts: CheckpointFacts, number: int | None) -> EpochFacts:
    where = f"checkpoint {facts.root}"
    if not facts.epochs:
        raise Refused("no epoch is planned yet", where=where, fix="let the job run first")
    epoch = facts.epochs[-1] if number is None else facts.by_number.get(number)
    if epoch is None:
        first, last = facts.epochs[0].number, facts.epochs[-1].number
        raise Refused(f"the checkpoint has no epoch {number}", where=where, fix=f"it has the epochs {first} to {last}")
    return epoch


def _read_entry(target: CheckpointTarget) -> tuple[bool, Entry | None, str | None]:
    """Is there a ledger to look at, what it says, and what is wrong with it."""
    if target.ledger is None:
        return False, None, None
    with closing(target.ledger.open()) as ledger:
        if not ledger.exists:
            return True, None, f"none: {ledger.missing}"
        try:
            return True, ledger.peek(), None
        except InvariantBroken as broken:
            return True, None, broken.what


def _beside(entry: Entry | None, epoch: EpochFacts) -> str:
    """What the ledger's entry means for an epoch."""
    if entry is None or entry.epoch is None:
        return ""
    if entry.epoch == epoch.number:
        return ": this one" if entry.digest == epoch.digest else ": this number, but with OTHER offsets"
    return ": this one is out, too" if entry.epoch > epoch.number else ": this one is not out"


def _notes(facts: CheckpointFacts, target: CheckpointTarget) -> list[str]:
    """What a person should know about what was not looked at, and why."""
    notes = []
    if target.job is None:
        notes.append("the ledger was not looked at: name the job's file for that")
    elif target.ledger is None:
        notes.append(f"job {target.job!r} has no ledger: no output is written in transactions")
    job = None if facts.marker is None else facts.marker.job
    if job is not None and target.job is not None and job != target.job:
        notes.append(f"the marker says that it belongs to job {job!r}, and job {target.job!r} was named")
    if (others := facts.parts.get("others", 0)) > 0:
        notes.append(f"{as_size(others)} are of files that are no part of a checkpoint; these were not looked at")
    return notes


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
    from lockgate.runtime.lifecycle.facts import name_of

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
        told = _store_facts(facts, store, epoch.number + 1)
        name = str(store.operator) if store.name == "default" else f"{store.operator} {store.name}"
        snapshot = "-" if told["snapshot"] is None else str(told["snapshot"])
        changes = told["changes"]
        span = "-" if not changes else f"{changes[0]} to {changes[-1]}"
        gone = f", {len(told['missing'])} missing" if told["missing"] else ""
        rows_of_table.append((name, str(store.partition), snapshot, span + gone, as_size(told["bytes"])))
    _print_table(rows_of_table, right=(1, 2, 4), indent="  ")


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
    _print_table(rows)
    fork = "" if found.forked_at is None else f"; epoch {found.forked_at} is the first"
    print(f"lineage     {found.lineage.value}{fork}")
    if found.places:
        print()
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
        _print_table(offsets, right=(1, 2, 3, 4))
    for name, (here, there) in found.conf.items():
        print(f"{name}: {here or 'not set'} / {there or 'not set'}")


def _checkpoint_facts(facts: CheckpointFacts) -> dict[str, Any]:
    return {
        "checkpoint": facts.root,
        "marker": None if facts.marker is None else asdict(facts.marker),
        "query": facts.query,
        "operators": [asdict(operator) for operator in facts.operators],
        "bytes": facts.bytes,
        "files": len(facts.entries),
        "bytes_by_part": facts.parts,
    }


def _epoch_facts(facts: CheckpointFacts, epoch: EpochFacts, *, is_full: bool = False) -> dict[str, Any]:
    state = facts.state_of(epoch.number)
    told: dict[str, Any] = {
        "epoch": epoch.number,
        "planned_at": _iso(epoch.at),
        "is_committed": epoch.is_committed,
        "watermark": _iso(epoch.watermark),
        "digest": epoch.digest,
        "problem": epoch.problem,
        "partitions": epoch.partitions,
        "state_bytes": None if state is None else state.bytes,
        "state_rows": None if state is None else state.rows,
        "bytes": epoch.bytes,
        "sources": [
            _offset_facts(facts, epoch.number, offset)
            for offset in (() if epoch.planned is None else epoch.planned.offsets)
        ],
    }
    if is_full:
        told["conf"] = {} if epoch.planned is None else dict(epoch.planned.conf)
        told["state"] = [_store_facts(facts, store, epoch.number + 1) for store in facts.needed(epoch.number)]
    return told


def _offset_facts(facts: CheckpointFacts, number: int, offset: Offset) -> dict[str, Any]:
    from lockgate.runtime.lifecycle.facts import name_of

    return {
        "source": offset.source,
        "name": name_of(offset),
        "offset": offset.told,
        "events": facts.events(number, offset),
        "partitions": [asdict(one) for one in facts.reaches(number, offset)],
    }


def _store_facts(facts: CheckpointFacts, store: Store, version: int) -> dict[str, Any]:
    chain = store.chain(version, facts.ids(store))
    listed = [snapshot for file in chain.files if (snapshot := facts.snapshot(file)) is not None]
    named = {name: count for snapshot in listed for name, count in snapshot.files.items()}
    return {
        "operator": store.operator,
        "partition": store.partition,
        "store": store.name,
        "version": version,
        "snapshot": chain.base or None,
        "changes": sorted({file.version for file in chain.files if not file.is_snapshot}),
        "missing": list(chain.missing),
        "bytes": sum(file.bytes for file in chain.files) + sum(named.values()),
        "files": [file.name for file in chain.files],
        "snapshot_files": sorted(named),
    }


def _side_facts(side: Side) -> dict[str, Any]:
    return {**asdict(side), "watermark": _iso(side.watermark)}


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


def _iso(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat(timespec="milliseconds")


def _print_table(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = (), indent: str = "") -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print(f"{indent}{'  '.join(cells)}".rstrip())
