"""Is a checkpoint complete: can a run continue from it, and could the job go back to each of its epochs?

    bytes      every file that a reader may need can be read, and has the bytes that were written (by Hadoop's
               checksums on local disk; elsewhere the file system checks); logs, notes and snapshots parse
    logs       offsets and commits have no gap, at most one epoch is planned and not committed
    state      each committed epoch has a version in every partition: a snapshot with everything that it lists, and
               all changes since
    ledger     the last committed epoch is the one before the next, with the same offsets

A driver may run at the same time. Files come and go while the files are read one by one, so a single look may see a
state that never existed. Real damage stays. So only a finding that several looks share, with pauses between them, is
reported.

State of the oldest epochs may be gone before their offsets: Spark cleans up both, each at its own time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from lockgate.checkpoints.checkpoint import Checkpoint, next_epoch
from lockgate.checkpoints.checksums import checksum_of, is_whole
from lockgate.checkpoints.facts import (
    CheckpointFacts,
    is_unfinished,
    look_at,
    read_query,
)
from lockgate.checkpoints.jobledgers import LedgerTarget
from lockgate.checkpoints.logs import read_commit, read_offsets, read_source_log
from lockgate.checkpoints.marker import FILE as MARKER
from lockgate.checkpoints.marker import parse_marker
from lockgate.checkpoints.operators import Operator, operator_file, parse_operator
from lockgate.checkpoints.stores import StateFile, Store, check_compressed, read_snapshot
from lockgate.checkpoints.tree import Tree
from lockgate.commit import protocol
from lockgate.commit.ledger import Entry as LedgerEntry
from lockgate.errors import InvariantBroken, LedgerMismatch, LockgateError
from lockgate.untrusted import read_object

_PAUSES_SECONDS = (0.3, 1.0, 2.0)

_COPY = "restore it from a copy of the checkpoint, and check its disk"
_KEPT = re.compile(r"(native|described|waiting|returns)/|state/\d+/(_stateSchema/|\d+/(.+/)?_metadata/)")
_FEWEST_BEHIND = 3  # this many of the oldest epochs may lack their state, or a tenth of all if that is more


@dataclass(frozen=True)
class Finding:
    """Something that is wrong."""

    what: str
    where: str  # the file, below the checkpoint's root
    fix: str
    is_fatal: bool  # no run can continue; otherwise only an older epoch is lost, or something beside the epochs


Look = Callable[[], list[Finding]]


def verify(look: Look, pause: Callable[[float], None], *, alike: Callable[[Finding], str]) -> list[Finding]:
    """What is wrong with a checkpoint: what every look finds. A look that finds nothing ends the check.

    Args:
        alike: the part of a finding that must be equal in two looks for both to have found the same thing.
    """
    found = look()
    for seconds in _PAUSES_SECONDS:
        if not found:
            break
        pause(seconds)
        again = {alike(one) for one in look()}
        found = [one for one in found if alike(one) in again]
    return found


def look_for_damage(tree: Tree) -> list[Finding]:
    """What one look at the files of a checkpoint finds; Refused if there is none."""
    facts = look_at(tree)
    scan = _Scan(tree, facts)
    return [*scan.check_files(), *_check_logs(facts), *scan.check_sources(), *scan.check_tables(), *scan.check_state()]


def verify_checkpoint(
    checkpoint: Checkpoint, tree: Tree, ledger: LedgerTarget | None, pause: Callable[[float], None]
) -> list[Finding]:
    """What is wrong with a checkpoint, and whether its job's ledger fits it."""

    def look_at_ledger() -> list[Finding]:
        if ledger is None:
            return []
        with ledger.opened() as opened:
            read = lambda: opened.peek() if opened.exists else None  # noqa: E731 - read behind the checkpoint
            return check_ledger(checkpoint, read, job=ledger.job, where=opened.where)

    # While a driver runs, the cost of a damaged file changes with every epoch; an error in the ledger stays the same.
    found = verify(lambda: look_for_damage(tree), pause, alike=lambda one: one.where)
    return found + verify(look_at_ledger, pause, alike=lambda one: one.what)


def check_ledger(
    checkpoint: Checkpoint, read: Callable[[], LedgerEntry | None], *, job: str, where: str
) -> list[Finding]:
    """Does the ledger fit the next epoch of this checkpoint?"""
    try:
        upcoming = next_epoch(checkpoint)
        if upcoming is not None:
            protocol.check_claim(read(), upcoming.epoch, is_adopting=False, where=where, job=job)
    except (LedgerMismatch, InvariantBroken) as mismatch:
        return [Finding(what=mismatch.what, where=mismatch.where, fix=mismatch.fix, is_fatal=True)]
    except LockgateError as error:
        if error.where == f"checkpoint {checkpoint.root}":
            return []  # a file of the logs, which the look at the files reports
        raise
    return []


def _check_logs(facts: CheckpointFacts) -> list[Finding]:
    """Epochs follow each other without a gap, and each has its files."""
    numbers = [epoch.number for epoch in facts.epochs]
    if not numbers:
        return []
    newest = numbers[-1]
    names = {entry.name for entry in facts.entries}
    committed = -1 if facts.committed is None else facts.committed.number
    # Spark logs only some epochs of a stateless query that tracks progress asynchronously. Ours log every one.
    may_skip = not facts.stores and facts.marker is None
    # Spark cleans up one log after the other, and the oldest files in any order.
    oldest = 0 if numbers[0] == 0 else min(numbers[0] + max(_FEWEST_BEHIND, len(numbers) // 10), newest)
    found = []
    for number in range(oldest, newest + 1):
        has_offsets, has_commit = f"offsets/{number}" in names, f"commits/{number}" in names
        if not has_offsets and (has_commit or not may_skip):
            found.append(
                Finding(
                    f"offsets/{number} is missing, so it is unknown what epoch {number} read"
                    + (", and no run can continue after it" if number >= newest - 1 else ""),
                    where=f"offsets/{number}",
                    fix=_COPY
                    if number >= newest - 1
                    else f"{_COPY}; a run continues without it, but cannot go back there",
                    is_fatal=number >= newest - 1,
                )
            )
        if not has_commit and has_offsets and number < committed and not may_skip:
            found.append(
                Finding(
                    f"commits/{number} is missing, and later epochs are committed",
                    where=f"commits/{number}",
                    fix=f"{_COPY}; a run continues without it",
                    is_fatal=False,
                )
            )
    pending = [number for number in numbers if number > committed and f"offsets/{number}" in names]
    if len(pending) > 1 and not may_skip:
        found.append(
            Finding(
                f"epochs {pending[0]} to {pending[-1]} are planned and not committed; there can be only one",
                where=f"commits/{pending[0]}",
                fix="the log of commits has lost its newest files, or is an older copy than the log of offsets: restore"
                " both from one copy of the checkpoint",
                is_fatal=True,
            )
        )
    return found


class _Scan:
    """One look at all files."""

    def __init__(self, tree: Tree, facts: CheckpointFacts) -> None:
        self._tree, self._facts = tree, facts
        self._sizes = {entry.name: entry.bytes for entry in facts.entries}
        self._bad: dict[str, str] = {}  # damaged files of the state, and why
        self._newest = facts.epochs[-1].number if facts.epochs else -1
        committed = facts.committed
        self._committed = -1 if committed is None else committed.number

    def check_files(self) -> list[Finding]:
        """Check every file that can be judged without other files."""
        found = []
        checks: list[tuple[str, Callable[[bytes], object], bool]] = [("metadata", _check_query, True)]
        for epoch in self._facts.epochs:
            number = epoch.number
            checks.append((f"offsets/{number}", read_offsets, number >= self._newest - 1))
            checks.append((f"commits/{number}", read_commit, number >= self._committed))
        checks.append((MARKER, parse_marker, False))
        for operator in self._facts.operators:
            if (file := operator_file(self._sizes, operator.id)) is not None:
                checks.append((file, partial(parse_operator, number=operator.id), True))
        names = [name for name in sorted(self._sizes) if not _is_aside(name)]
        checks += [(name, _check_nothing, self._committed < 0) for name in names if name.startswith("initial/")]
        checks += [(name, _check_nothing, True) for name in names if _KEPT.match(name)]
        for name, check, is_fatal in checks:
            why = self._why_bad(name, check)
            if why is not None:
                found.append(
                    Finding(
                        f"{name} is damaged: {why}" + ("" if is_fatal else "; a run continues without it"),
                        where=name,
                        fix="remove it: the next run writes a new one" if name == MARKER else _COPY,
                        is_fatal=is_fatal,
                    )
                )
        if "metadata" not in self._sizes and self._facts.epochs:
            found.append(
                Finding(
                    "metadata is missing: Spark would take the query for another one, and a ledger would not fit",
                    where="metadata",
                    fix=_COPY,
                    is_fatal=True,
                )
            )
        return found

    def check_sources(self) -> list[Finding]:
        """Check the notes of sources: since the newest summary none may be missing."""
        found = []
        logs: dict[str, dict[int, str]] = {}
        for name in self._sizes:
            if match := re.fullmatch(r"(sources/\d+)/(\d+)(\.compact)?", name):
                files = logs.setdefault(match[1], {})
                if match[3] or int(match[2]) not in files:
                    files[int(match[2])] = name
        for folder, files in sorted(logs.items()):
            base = max((number for number, name in files.items() if name.endswith(".compact")), default=0)
            for number, name in sorted(files.items()):
                why = self._why_bad(name, read_source_log)
                if why is not None:
                    found.append(
                        Finding(
                            f"{name} is damaged: {why}; it is a note of a source",
                            where=name,
                            fix=_COPY,
                            is_fatal=number >= base,
                        )
                    )
            for number in range(base, max(files)):
                if number not in files:
                    found.append(
                        Finding(
                            f"{folder}/{number} is missing: the source does not know which files it has read",
                            where=f"{folder}/{number}",
                            fix=_COPY,
                            is_fatal=True,
                        )
                    )
        return found

    def check_tables(self) -> list[Finding]:
        """Check that every note of a table names a snapshot that exists."""
        found = []
        newest: dict[str, int] = {}
        notes = []
        for name in self._sizes:
            if match := re.fullmatch(r"tables/([^/]+)/epochs/(\d+)", name):
                notes.append((match[1], int(match[2]), name))
                newest[match[1]] = max(newest.get(match[1], 0), int(match[2]))
        for table, number, name in sorted(notes):
            content = self._facts.read(name)
            digest = (content or b"").decode(errors="replace")
            file = f"tables/{table}/{digest}.parquet"
            if content is not None and file not in self._sizes:
                found.append(
                    Finding(
                        f"{file} is missing: epoch {number} and later ones read this snapshot of table {table!r}",
                        where=file,
                        fix=f"{_COPY}; or start from the beginning: lockgate run --new-life",
                        is_fatal=number == newest[table],
                    )
                )
            elif content is not None and (why := self._why_bad(file, None)) is not None:
                what = f"{file} is damaged: {why}; it is a snapshot of table {table!r}"
                found.append(Finding(what, where=file, fix=_COPY, is_fatal=number == newest[table]))
        return found

    def check_state(self) -> list[Finding]:
        """Check that each committed epoch to which a job may go back has all of its state."""
        found = self._check_operators()
        for store in self._facts.stores:
            for file in store.files:
                self._look_at_state(file)
        needed = self._needed_epochs()
        operators = {operator.id: operator for operator in self._facts.operators}
        losses: dict[str, tuple[str, list[int]]] = {}
        for store in self._facts.stores:
            losses.update(self._losses(store, operators[store.operator], needed))
        lost = {epoch for _, epochs in losses.values() for epoch in epochs}
        last_whole = max((epoch for epoch in needed if epoch not in lost), default=None)
        for name, (why, epochs) in sorted(losses.items()):
            found.append(self._loss(name, why, epochs, last_whole))
        for name, why in sorted(self._bad.items()):
            if name not in losses:
                what = f"{name} {why}; no epoch that is still in the checkpoint needs it"
                found.append(Finding(what, where=name, fix="check the disk; Spark removes it in time", is_fatal=False))
        return found

    def _check_operators(self) -> list[Finding]:
        """Check that all operators and partitions exist, and the schemas that they name."""
        found = []
        operators = {operator.id: operator for operator in self._facts.operators}
        if self._committed < 0 or not operators:
            return []
        for number in range(max(operators)):
            if number not in operators:
                what = f"state/{number} is missing: everything that an operator with state kept"
                found.append(Finding(what, where=f"state/{number}", fix=_COPY, is_fatal=True))
        newest = self._facts.committed
        count = None if newest is None else newest.partitions
        for operator in operators.values():
            if operator_file(self._sizes, operator.id) is None:
                name = f"state/{operator.id}/_metadata"
                what = f"{name} is missing: Spark does not know what operator {operator.id} keeps"
                found.append(Finding(what, where=name, fix=_COPY, is_fatal=True))
            found += self._check_schemas(operator)
            have = {(store.partition, store.name) for store in self._facts.stores if store.operator == operator.id}
            parts = {partition for partition, _ in have}
            if count is None or (parts == {0} and not operator.is_by_key):
                continue  # an operator that may take all rows into one partition, whatever their number
            for partition in range(count):
                for name in operator.stores or sorted({name for _, name in have}):
                    if (partition, name) not in have:
                        folder = f"state/{operator.id}/{partition}" + ("" if name == "default" else f"/{name}")
                        what = f"{folder} is missing: the state of one of {count} partitions"
                        found.append(Finding(what, where=folder, fix=_COPY, is_fatal=True))
        return found

    def _check_schemas(self, operator: Operator) -> list[Finding]:
        """Check the files of schemas that an operator's note names, with paths of the place where it was written."""
        file = operator_file(self._sizes, operator.id)
        content = None if file is None else self._facts.read(file)
        try:
            infos = read_object((content or b"").decode().split("\n", 1)[1])["stateStoreInfo"]
            paths = [str(path) for info in infos for path in info.get("stateSchemaFilePaths", ())]
        except (ValueError, IndexError, KeyError, TypeError, AttributeError):
            return []
        wanted = [
            path[path.rindex(f"state/{operator.id}/_stateSchema/") :] for path in paths if "/_stateSchema/" in path
        ]
        return [
            Finding(f"{name} is missing: the schema of the state's rows", where=name, fix=_COPY, is_fatal=True)
            for name in wanted
            if name not in self._sizes
        ]

    def _needed_epochs(self) -> list[int]:
        """The committed epochs whose state should exist."""
        numbers = [epoch.number for epoch in self._facts.epochs if epoch.is_committed]
        if not numbers or numbers[0] == 0:
            return numbers
        return numbers[min(max(_FEWEST_BEHIND, len(numbers) // 10), len(numbers) - 1) :]

    def _losses(self, store: Store, operator: Operator, needed: Iterable[int]) -> dict[str, tuple[str, list[int]]]:
        """The needed files of a store that are missing or damaged: why, and for which epochs."""
        losses: dict[str, tuple[str, list[int]]] = {}
        ids = self._facts.ids(store)
        for number in needed:
            count = self._facts.by_number[number].partitions
            if count is not None and store.partition >= count:
                continue
            chain = store.chain(number + 1, ids)
            causes = {file.name: self._bad[file.name] for file in chain.files if file.name in self._bad}
            for file in chain.files if chain.base else ():
                causes.update(self._missing_of(store, file) if file.is_snapshot else {})
            causes.update(_missing_versions(store, operator, chain.base, chain.missing, ids))
            for name, why in causes.items():
                losses.setdefault(name, (why, []))[1].append(number)
        return losses

    def _missing_of(self, store: Store, file: StateFile) -> dict[str, str]:
        """The files that a snapshot lists and that are missing or damaged."""
        snapshot = None if file.name in self._bad else self._facts.snapshot(file)
        found = {}
        for name, size in {} if snapshot is None else snapshot.files.items():
            entry = store.named.get(name)
            if entry is None:
                place = f"{store.folder}/{'logs' if name.endswith('.log') else 'SSTs'}/{name}"
                found[place] = f"is missing, and the snapshot {file.name} lists it"
            elif entry.bytes != size:
                found[entry.name] = (
                    f"is damaged: it has {entry.bytes:,} bytes, and the snapshot {file.name} says {size:,}"
                )
            elif (why := self._why_bad(entry.name, None)) is not None:
                found[entry.name] = f"is damaged: {why}"
        return found

    def _loss(self, name: str, why: str, epochs: list[int], last_whole: int | None) -> Finding:
        is_fatal = self._committed in epochs
        lost = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}"
        means = f"the state after {lost} cannot be loaded"
        if not is_fatal:
            return Finding(
                f"{name} {why}; {means}, so no run can go back there",
                where=name,
                fix=f"{_COPY}; a run continues after epoch {self._committed} without it",
                is_fatal=False,
            )
        to = last_whole
        back = "" if to is None else f", or go back to epoch {to}: lockgate checkpoints rollback --to {to}"
        return Finding(
            f"{name} {why}; {means}, so no run can continue",
            where=name,
            fix=f"{_COPY}{back}",
            is_fatal=True,
        )

    def _look_at_state(self, file: StateFile) -> None:
        check = read_snapshot if file.name.endswith(".zip") else check_compressed
        if (why := self._why_bad(file.name, check)) is not None:
            self._bad[file.name] = f"is damaged: {why}"

    def _why_bad(self, name: str, check: Callable[[bytes], object] | None) -> str | None:
        """Why a file is damaged; None if it is not, or if there is no file. Without a check only its bytes count."""
        sums = checksum_of(name)
        has_sums = sums in self._sizes
        try:
            if check is None and not has_sums:
                self._tree.read_through(name)
                return None
            content = self._tree.read(name)
            if content is None:
                return None
            told = self._tree.read(sums) if has_sums else None
        except OSError as error:
            return f"it cannot be read: {error}"
        if told is not None and not is_whole(content, told):
            return "its bytes do not fit its checksum"
        try:
            if check is not None:
                check(content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return str(error)
        return None


def _missing_versions(
    store: Store, operator: Operator, base: int, missing: tuple[int, ...], ids: dict[int, frozenset[str]]
) -> dict[str, str]:
    """The files of versions that are missing."""
    gone: dict[str, str] = {}
    earliest = min((file.version for file in store.files), default=1)
    if base == 0 and earliest > 1:
        # Report one missing file, and not all that were there before it.
        is_base = any(file.version == earliest and file.is_snapshot for file in store.files)
        name = _file(earliest - 1, store.kind if is_base else store.snapshot_kind, ids)
        why = "and all before it" if is_base else "a snapshot on which later changes build"
        gone[f"{store.folder}/{name}"] = f"is missing, {why}"
    elif base == 0 and operator.has_families and store.kind == "changelog":
        name = f"{store.folder}/{_file(1, store.snapshot_kind, ids)}"
        gone[name] = "is missing, the first snapshot, which distinguishes the kinds of rows"
    rest = [one for one in missing if one >= earliest]
    for version in rest:
        gone[f"{store.folder}/{_file(version, store.kind, ids)}"] = f"is missing, what version {version} changed"
    return gone


def _file(version: int, kind: str, ids: dict[int, frozenset[str]]) -> str:
    known = sorted(ids.get(version, ()))
    return f"{version}_{known[0]}.{kind}" if len(known) == 1 else f"{version}.{kind}"


def _is_aside(name: str) -> bool:
    return is_unfinished(name) or name.rpartition("/")[2].startswith(".")


def _check_nothing(content: bytes) -> None:
    """Accept any content: its reader judges it."""


def _check_query(content: bytes) -> None:
    if read_query(content) is None:
        raise ValueError("it does not have the id of the query")
