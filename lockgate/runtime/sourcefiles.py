"""The very files that a checkpoint has read, noted in it: a file is its path, its size and its modification time.

Spark knows a file that it has read by its path alone. One that is overwritten or appended to afterwards is never read
again, and an epoch that is replayed would have other rows. So:

    at every start, every epoch,    look at all files; the job stops if one that was read is not as it was, and names it
    and now and then in between
    an epoch is planned             its files must be as Spark listed them; note them, before any of them is read
    an epoch is decided             its files must still be so, before anything of it is visible
    an epoch is replayed            its files must be as they were noted. If no output has a ledger they may have
                                    changed: nothing of the epoch counts yet, and it is read as it is now

A file may go when the epochs of all passes that read it are committed. What is gone is remembered until it is 30 days
older than the newest file that was read and no epoch that can be gone back to has it; then Spark forgets it, and so do
its log and these notes. A file that comes with such an old time might be one of those: Spark passes over it in silence,
so the job stops and names it. After a file of the future, all others would be so old: it is refused before it is read.

    described/files/epochs/N    the files of epoch N: path, bytes, modified_ms; a line of JSON each
    described/files/known       those of many epochs, with the epoch
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any

from py4j.protocol import Py4JError

from lockgate.errors import Failed, Refused, SourceChanged, Unreachable
from lockgate.escaping import escape
from lockgate.files.inbox import (
    Facts,
    look_at,
    look_below,
    may_overlap,
    move,
    names_below,
    plain_directory,
    plain_path,
    remove,
    root_of,
)
from lockgate.files.inside import LeadsOutside
from lockgate.files.system import as_os_error
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.runtime.lifecycle.logs import read_offsets, read_source_log
from lockgate.runtime.lifecycle.tree import open_tree
from lockgate.sources.files import KEPT, REMEMBERED, FileSource
from lockgate.sources.returned import FOLDER
from lockgate.untrusted import Unreadable, read_object, take

log = logging.getLogger(__name__)

_NOTES = "described/files/epochs"
_KNOWN = "described/files/known"
_NOTES_MAX = 100
_PAUSE_SECONDS = 5.0
# So many times as long as a look took, the next one waits: while no epoch runs, and when one is planned.
_PAUSE_SHARE, _PAUSE_SHARE_EPOCH = 20, 4
_UNKNOWN_BYTES = -1  # of a file that was read before sizes were noted
_UNKNOWN_EPOCH = -1
_AHEAD_MS = timedelta(days=1) // timedelta(milliseconds=1)
_REMEMBERED_MS = REMEMBERED // timedelta(milliseconds=1)
_RESET = "or begin again with everything: lockgate run --new-life"


@dataclass(frozen=True)
class ReadDirectory:
    """A FileSource of a job."""

    source: FileSource
    where: str
    passes: int  # how often the query reads it

    @cached_property
    def root(self) -> str:
        """The directory below which its files lie."""
        return root_of(self.source.path)

    @cached_property
    def _names(self) -> re.Pattern[str]:
        return names_below(self.source.path)

    def has(self, path: str) -> bool:
        """Does a file lie there?"""
        return self.name_of(path) is not None

    def name_of(self, path: str) -> str | None:
        """The name of a file below the directory; None if the source does not read it."""
        root = f"{self.root.rstrip('/')}/"
        if ":///" in root:  # of the default file system, whose address Spark adds
            scheme, _, rest = path.partition("://")
            path = f"{scheme}:///{rest.partition('/')[2]}"
        name = path.removeprefix(root)
        return name if path.startswith(root) and self._names.match(name) else None


@dataclass(frozen=True, slots=True)
class Known:
    """A file that was read."""

    facts: Facts
    epoch: int

    def is_like(self, now: Facts) -> bool:
        """Is it the file that is there now?"""
        same_bytes = self.facts.bytes in (_UNKNOWN_BYTES, now.bytes)
        return same_bytes and self.facts.modified_ms == now.modified_ms


@dataclass
class _Log:
    """What one source of the query has read, as Spark keeps it."""

    paths: dict[str, int] = field(default_factory=dict)  # with their place in its log
    newest_ms: int = -1
    newest: str = ""


@dataclass(frozen=True, slots=True)
class _Logged:
    """An entry of Spark's log."""

    modified_ms: int
    batch: int


class SourceFiles:
    """Those of a job."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        directories: Sequence[ReadDirectory],
        *,
        logs: Sequence[int | None],
        is_exact: bool,
        job: str,
        now: Callable[[], float],
    ) -> None:
        """Look at nothing yet.

        Args:
            logs: which of Spark's logs of sources each line of the offsets belongs to; scans may share one. It is None
                for sources that are no FileSource, although some of them read files of ours.
            is_exact: must an epoch that is replayed have the very rows that it had?
            now: the clock, in seconds since 1970.
        """
        assert checkpoint.spark is not None
        self._spark = checkpoint.spark
        self._checkpoint = checkpoint
        self._tree = open_tree(checkpoint.root, checkpoint.spark)
        self._directories = directories
        self._log_of = logs
        self._is_exact = is_exact
        self._job = job
        self._now = now
        self._lock = threading.RLock()
        self._is_loaded = False
        self._is_first = False  # no epoch was planned in this checkpoint
        self._known: dict[str, Known] = {}
        self._logs: dict[int, _Log] = {}
        self._current: dict[str, Facts] = {}  # of the epoch in hand
        self._is_in_hand = False
        self._pending: dict[str, Facts] = {}  # files that were listed, and not read to the end, as a start found them
        self._with_log: set[str] = set()
        self._has_warned = False
        self._to_clean: set[str] = set()
        self._notes = 0
        self._looked_at = self._look_took = 0.0

    # -- a start ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Refuse to go on if a file is not the one that was read; before the query starts."""
        with self._lock:
            if self._is_loaded:
                return
            self._is_loaded = True
            self._refuse_disagreement()
            if self._checkpoint.query() is None:
                self._is_first = True
                return
            try:
                self._load()
            except SourceChanged as error:
                raise Refused(error.what, error.where, error.fix) from None

    def _refuse_disagreement(self) -> None:
        for one in self._directories:
            for other in self._directories:
                paths = one.source.path, other.source.path
                if one.source.processed != other.source.processed and may_overlap(*paths):
                    raise Refused(
                        f"two sources read {paths[0]} and {paths[1]}, which may have the same files; processed ones are"
                        f" to become {one.source.processed} for one of them and {other.source.processed} for the other",
                        where=f"{one.where}; {other.where}",
                        fix="give both the same archive= or delete=, or directories of their own",
                    )

    def _load(self) -> None:
        planned, committed = (self._checkpoint.epochs(log) for log in ("offsets", "commits"))
        newest = planned[-1] if planned else -1
        self._is_first = not planned
        has_notes = self._checkpoint.read(_KNOWN) is not None or bool(self._checkpoint.epochs(_NOTES))
        noted = self._load_notes(newest)
        replayed = newest if newest not in committed else -1
        starts = {number: first for number, (first, _) in self._ranges(replayed).items()}
        pending: dict[str, tuple[Known | None, bool]] = {}
        ends = self._ends(newest)
        for number in map(int, filter(str.isdecimal, self._tree.folders("sources"))):
            end, logged = ends.get(number, -1), self._read_log(number)
            for path, entry in logged.items():
                before = noted.get(path)
                if entry.batch <= end:
                    if before is None and replayed >= 0 and entry.batch >= starts[number]:
                        self._refuse_ahead(number, path, entry)
                    self._add(number, path, entry)
                is_open = entry.batch > end or (replayed >= 0 and entry.batch >= starts[number])
                if is_open and (before is None or before.epoch == replayed):
                    if not has_notes and entry.batch <= end:  # files were not noted yet, so it may have been read
                        before = Known(Facts(_UNKNOWN_BYTES, entry.modified_ms), replayed)
                    pending[path] = (before, entry.batch <= end)
                    continue
                # The notes come first: Spark's log has no sizes.
                self._known[path] = before or Known(Facts(_UNKNOWN_BYTES, entry.modified_ms), _UNKNOWN_EPOCH)
        self._to_clean = {path for path in self._known if self._is_to_clean(path)}
        now = self._look()
        self._compare(now)
        self._forget(now)
        for path, (before, is_planned) in pending.items():
            if path in self._known:
                continue  # another pass over the source has read it before
            if path in now:
                if before is not None:
                    self._check_replayed(path, before, now[path])
                self._pending[path] = now[path]
            elif is_planned:
                raise self._gone(path)

    def _load_notes(self, newest: int) -> dict[str, Known]:
        """The notes up to an epoch; later ones were rolled back, and none of them may come back."""
        known = self._read_note(_KNOWN)
        found = {path: one for path, one in known.items() if one.epoch <= newest}
        if len(found) < len(known):
            self._tree.write(_KNOWN, _as_lines(found))
        numbers = self._checkpoint.epochs(_NOTES)
        for number in numbers:
            if number > newest:
                self._tree.remove(f"{_NOTES}/{number}")
            else:
                found |= self._noted(number)
        self._notes = len(numbers)
        return found

    def _check_replayed(self, path: str, before: Known, now: Facts) -> None:
        """A file of an epoch that has begun, and that Spark has not logged as committed."""
        if before.is_like(now):
            return
        change = tell_change(before.facts, now)
        if self._is_exact:
            raise SourceChanged(
                f"file {path} was changed, and its epoch has begun and is not committed: {change}; a replay would have"
                " other rows",
                where=self._where(path),
                fix="restore it as it was, with its modification time; or plan the epoch again, with the file as it is"
                f" now: lockgate checkpoints rollback FILE --uncommitted; {_RESET}",
            )
        message = "job %s: file %s was changed before its epoch was committed, and is read as it is now: %s"
        log.warning(message, self._job, escape(path), change)

    # -- an epoch ---------------------------------------------------------------------------------------------------

    def plan(self, epoch: int) -> None:
        """Note the files of an epoch, before they are read; SourceChanged if one is not as it was."""
        with self._lock:
            self._current, self._is_in_hand = {}, True
            if self._is_first:  # now a file without a note is one that was not read
                self._tree.write(_KNOWN, b"")
                self._is_first = False
            planned = self._files_of(epoch)
            if not any(planned.values()):
                self._watch()
                return
            paths = {path for entries in planned.values() for path in entries}
            is_due = (
                time.monotonic() - self._looked_at >= _PAUSE_SHARE_EPOCH * self._look_took
                or self._notes >= _NOTES_MAX  # they are summed up, and what is gone is forgotten
            )
            now = self._look() if is_due else look_at(paths, self._spark)
            noted = self._noted(epoch)
            for number, entries in planned.items():
                for path, entry in entries.items():
                    if path not in noted and path not in self._known:
                        self._refuse_ahead(number, path, entry)
                    self._current[path] = self._check_planned(number, path, entry, now.get(path), noted)
                    self._add(number, path, entry)
            self._keep_note(epoch, now)
            self._compare(now)
            self._trim(epoch)
            self.clean()

    def _refuse_ahead(self, number: int, path: str, entry: _Logged) -> None:
        """A file of the future, before it is read: every later one would be too old for Spark."""
        newest_ms = self._logs[number].newest_ms if number in self._logs else -1
        # If one of the future was read before this was checked, files need such a time to be read at all.
        if entry.modified_ms > max(self._now() * 1000 + _AHEAD_MS, newest_ms):
            raise SourceChanged(
                f"file {path} has a time in the future ({_as_time(entry.modified_ms)}): when it is read, Spark takes"
                f" files that are {REMEMBERED.days} days older than that for read, also new ones",
                where=self._where(path),
                fix="set the clock of this machine if it is wrong; else give the file the time of now (touch FILE);"
                " nothing of it was read, so then plan the epoch again: lockgate checkpoints rollback FILE"
                f" --uncommitted; {_RESET}",
            )

    def _check_planned(
        self, number: int, path: str, entry: _Logged, now: Facts | None, noted: Mapping[str, Known]
    ) -> Facts:
        if now is None:
            raise self._gone(path)
        read = self._logs[number].paths.get(path, entry.batch) if number in self._logs else entry.batch
        if read < entry.batch:  # it is so old that Spark has forgotten it, and would read it again
            known = self._known.get(path) or Known(Facts(_UNKNOWN_BYTES, entry.modified_ms), _UNKNOWN_EPOCH)
            raise self._changed(path, known, now)
        if path in self._known and path not in noted:  # another pass over the source has read it before
            if not self._known[path].is_like(now):
                raise self._changed(path, self._known[path], now)
        elif path in self._pending or path not in noted:
            listed = self._pending.get(path) or Facts(_UNKNOWN_BYTES, entry.modified_ms)
            if not Known(listed, _UNKNOWN_EPOCH).is_like(now):
                raise SourceChanged(
                    f"file {path} was changed between being listed and being read: {tell_change(listed, now)}",
                    where=self._where(path),
                    fix="write files elsewhere and put them in place by a rename; nothing of this one was read, so when"
                    " it is complete, run the job again",
                )
        else:
            self._check_replayed(path, noted[path], now)
        return now

    def confirm(self) -> None:
        """Are the files of the epoch still as they were when it was planned? What was read of one may be mixed."""
        with self._lock:
            now = look_at(self._current, self._spark)
            for path, facts in self._current.items():
                if path not in now:
                    raise self._gone(path)
                if now[path] != facts:
                    raise SourceChanged(
                        f"file {path} was changed while it was read: {tell_change(facts, now[path])}",
                        where=self._where(path),
                        fix="write files elsewhere and put them in place by a rename; nothing of the epoch is"
                        " committed: restore the file as it was, or plan the epoch again, with the file as it is now:"
                        f" lockgate checkpoints rollback FILE --uncommitted; {_RESET}",
                    )

    def end_epoch(self) -> None:
        """The epoch in hand is written."""
        self._is_in_hand = False

    def _gone(self, path: str) -> SourceChanged:
        return SourceChanged(
            f"file {path} is gone, and its epoch is not committed, so it has to be read",
            where=self._where(path),
            fix=f"put it back as it was, with its modification time; {_RESET}",
        )

    # -- all files --------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Look at all files, unless that was done a moment ago; SourceChanged if one that was read has changed."""
        try:
            with self._lock:
                if self._is_loaded and not self._is_in_hand:  # an epoch looks itself
                    self._watch()
        except (OSError, Py4JError, Unreachable) as error:  # it may answer again before the next epoch
            log.info("job %s: the files of its sources cannot be compared now: %s", self._job, error)
            self._looked_at = time.monotonic()

    def _watch(self) -> None:
        if time.monotonic() - self._looked_at >= max(_PAUSE_SECONDS, _PAUSE_SHARE * self._look_took):
            self.look()

    def look(self) -> None:
        """Look at all files now, and clean up."""
        with self._lock:
            now = self._look()
            self._compare(now)
            self.clean()

    def _look(self) -> dict[str, Facts]:
        began = time.monotonic()
        try:
            found = look_below((one.source.path for one in self._directories), self._spark)
        except OSError as error:
            raise Unreachable(
                f"files cannot be looked at: {error}",
                where=f"{', '.join(one.where for one in self._directories)}; checkpoint {self._checkpoint.root}",
                fix="see that the file system answers and that the job may read there; the job goes on where it was",
            ) from error
        self._with_log = found.with_log
        self._looked_at = time.monotonic()
        self._look_took = self._looked_at - began
        return found.files

    def _compare(self, now: Mapping[str, Facts]) -> None:
        began = time.monotonic()
        for path, facts in now.items():
            known = self._known.get(path)
            if known is None:
                self._refuse_skipped(path, facts)
            elif not known.is_like(facts):
                raise self._changed(path, known, facts)
            elif known.facts.bytes == _UNKNOWN_BYTES:
                self._known[path] = Known(facts, known.epoch)
        self._look_took += time.monotonic() - began

    def _refuse_skipped(self, path: str, facts: Facts) -> None:
        for directory in self._directories:
            if not directory.has(path) or any(path.startswith(f"{one}/") for one in self._with_log):
                continue
            for one in self._logs.values():
                is_of_it = path not in one.paths and any(map(directory.has, islice(one.paths, 1)))
                if is_of_it and facts.modified_ms < one.newest_ms - _REMEMBERED_MS:
                    raise SourceChanged(
                        f"file {path} was not read, and its time ({_as_time(facts.modified_ms)}) is more than"
                        f" {REMEMBERED.days} days before that of the newest file that was, {one.newest}"
                        f" ({_as_time(one.newest_ms)}): what is so old is taken for read and forgotten",
                        where=directory.where,
                        fix=f"if it is new, give it {self._time_for(one)} and it is read; if it was read, or should not"
                        " be, move it away",
                    )

    def _time_for(self, one: _Log) -> str:
        """The time that a file needs to be read, in words."""
        if one.newest_ms - _REMEMBERED_MS < self._now() * 1000:
            return "the time of now (touch FILE)"
        newest = _as_time(one.newest_ms)
        return f"the time of that file of the future, as every later one (touch -d {newest} FILE),"

    def _changed(self, path: str, known: Known, now: Facts) -> SourceChanged:
        return SourceChanged(
            f"file {path} was changed after it was read: {tell_change(known.facts, now)}; what is new in it would"
            " never be read",
            where=self._where(path),
            fix="write what is new into a file with another name, put in place by a rename; then restore this one as it"
            f" was, with its modification time, or move it away: its epoch is committed; {_RESET}",
        )

    def _where(self, path: str) -> str:
        found = [one.where for one in self._directories if one.has(path)]
        return f"{', '.join(found) or 'a source of files'}; checkpoint {self._checkpoint.root}"

    # -- what is remembered -------------------------------------------------------------------------------------------

    def _keep_note(self, epoch: int, now: Mapping[str, Facts]) -> None:
        """Before the files are read: after a crash they are compared with it."""
        known = {path: Known(facts, epoch) for path, facts in self._current.items()}
        known = {
            path: one for path, one in known.items() if path not in self._known or self._known[path].epoch == epoch
        }
        if self._notes >= _NOTES_MAX:
            self._forget(now)
            older = {path: one for path, one in self._known.items() if one.epoch != epoch}
            self._tree.write(_KNOWN, _as_lines(older))
            for number in self._checkpoint.epochs(_NOTES):
                if number != epoch:
                    self._tree.remove(f"{_NOTES}/{number}")
            self._notes = 0
        self._tree.write(f"{_NOTES}/{epoch}", _as_lines(known))
        self._notes += 1
        self._known.update(known)
        self._to_clean.update(path for path in self._current if self._is_to_clean(path))

    def _noted(self, epoch: int) -> dict[str, Known]:
        return self._read_note(f"{_NOTES}/{epoch}")

    def _read_note(self, name: str) -> dict[str, Known]:
        try:
            return _read_lines(self._checkpoint.read(name) or b"")
        except Unreadable as error:
            raise self._checkpoint.damaged(name, str(error)) from None

    def _add(self, number: int, path: str, entry: _Logged) -> None:
        one = self._logs.setdefault(number, _Log())
        one.paths.setdefault(path, entry.batch)
        if entry.modified_ms > one.newest_ms:
            one.newest_ms, one.newest = entry.modified_ms, path

    def _forget(self, now: Mapping[str, Facts]) -> None:
        """Forget what is gone, is forgotten by Spark too, and belongs to no epoch that can be gone back to."""
        began = time.monotonic()
        horizon = max((one.newest_ms for one in self._logs.values()), default=-1) - _REMEMBERED_MS
        gone = [path for path, one in self._known.items() if one.facts.modified_ms < horizon and path not in now]
        kept = self._ends(min(self._checkpoint.epochs("offsets"), default=-1)) if gone else {}
        for path in gone:
            readers = [(number, one) for number, one in self._logs.items() if path in one.paths]
            if all(
                self._known[path].facts.modified_ms < one.newest_ms - _REMEMBERED_MS
                and one.paths[path] <= kept.get(number, -1)
                for number, one in readers
            ):
                del self._known[path]
                for _, one in readers:
                    del one.paths[path]
        self._look_took += time.monotonic() - began

    def _trim(self, epoch: int) -> None:
        """Take what is forgotten out of the newest summaries of Spark's log, which else hold every path forever.

        Spark reads a summary when it writes the next one, and when a query starts; never while it runs an epoch.
        """
        for number, (first, last) in self._ranges(epoch).items():
            for batch in range(first, last + 1) if number in self._logs else ():
                name = f"sources/{number}/{batch}.compact"
                content = self._checkpoint.read(name)
                if content is None:
                    continue
                head, *lines = content.decode().split("\n")
                paths = self._logs[number].paths
                kept = [line for line in lines if not line or plain_path(str(read_object(line)["path"])) in paths]
                if len(kept) < len(lines):
                    self._replace(name, "\n".join([head, *kept]).encode())

    def _replace(self, name: str, content: bytes) -> None:
        """As Spark replaces its own files, so that a crash leaves the old one or the new one."""
        jvm: Any = self._spark.sparkContext._jvm
        with as_os_error():
            path = jvm.org.apache.hadoop.fs.Path(f"{self._checkpoint.root}/{name}")
            made = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
            manager = made.create(path.getParent(), self._spark.sparkContext._jsc.hadoopConfiguration())
            stream = manager.createAtomic(path, True)
            try:
                stream.write(bytearray(content))
                stream.close()
            except BaseException:
                stream.cancel()
                raise

    # -- Spark's own log ----------------------------------------------------------------------------------------------

    def _ends(self, epoch: int) -> dict[int, int]:
        """The last entry of each source's log that belongs to an epoch or to one before it."""
        content = self._checkpoint.read(f"offsets/{epoch}") if epoch >= 0 else None
        offsets = () if content is None else read_offsets(content).offsets
        told = [(self._log_of[int(one.source)], one.told) for one in offsets if isinstance(one.told, dict)]
        ends = [(log, place.get("logOffset")) for log, place in told if log is not None]
        return {log: end for log, end in ends if isinstance(end, int)}

    def _ranges(self, epoch: int) -> dict[int, tuple[int, int]]:
        """The entries of each source's log that belong to an epoch: the first and the last."""
        before = self._ends(epoch - 1)
        return {number: (before.get(number, -1) + 1, end) for number, end in self._ends(epoch).items()}

    def _files_of(self, epoch: int) -> dict[int, dict[str, _Logged]]:
        """The files of an epoch, by the number of their source."""
        found: dict[int, dict[str, _Logged]] = {}
        for number, (first, last) in self._ranges(epoch).items():
            found[number] = {}
            for batch in range(first, last + 1):
                content = self._read_batch(number, batch)
                if content is None:
                    raise Failed(
                        f"sources/{number}/{batch} is missing: the files of epoch {epoch} are unknown",
                        where=f"checkpoint {self._checkpoint.root}",
                        fix="put it back from a copy; look what else is wrong: lockgate checkpoints verify",
                    )
                found[number] |= {path: one for path, one in _read_entries(content).items() if one.batch == batch}
        return found

    def _read_batch(self, number: int, batch: int) -> bytes | None:
        name = f"sources/{number}/{batch}"
        summary = self._checkpoint.read(f"{name}.compact")
        return self._checkpoint.read(name) if summary is None else summary

    def _read_log(self, number: int) -> dict[str, _Logged]:
        """The whole log of a source: its newest summary, and what came after it."""
        folder = f"sources/{number}"
        names = [one.name.removeprefix(f"{folder}/") for one in self._tree.entries(folder)]
        summaries = [int(name.removesuffix(".compact")) for name in names if re.fullmatch(r"\d+\.compact", name)]
        base = max(summaries, default=-1)
        later = [int(name) for name in names if name.isdecimal() and int(name) > base]
        found: dict[str, _Logged] = {}
        for batch in [*([base] if summaries else []), *sorted(later)]:
            found |= _read_entries(self._read_batch(number, batch) or b"v1")
        return found

    # -- processed files ----------------------------------------------------------------------------------------------

    def _is_to_clean(self, path: str) -> bool:
        return any(one.has(path) and one.source.processed != KEPT for one in self._directories)

    def _directory_of_done(self, path: str, ends: Mapping[int, int]) -> ReadDirectory | None:
        """The directory of a file that all passes over it have read in epochs up to `ends`; None if one has not."""
        found = [one for one in self._directories if one.has(path)]
        # An epoch that is only planned has its files in these logs too.
        readers = sum(
            one.paths[path] <= ends.get(number, -1) for number, one in self._logs.items() if path in one.paths
        )
        return found[0] if readers >= sum(one.passes for one in found) else None

    def clean(self) -> None:
        """Archive or delete the files of committed epochs; what fails is tried again later."""
        if not self._to_clean:
            return
        with self._lock:
            last = max(self._checkpoint.epochs("commits"), default=-1)
            ends = self._ends(last)
            done = [path for path in self._to_clean if path in self._known and self._known[path].epoch <= last]
            now = look_at(done, self._spark)
            for path in done:
                directory, known = self._directory_of_done(path, ends), self._known[path]
                if directory is None:
                    continue
                if path in now and not known.is_like(now[path]):
                    raise self._changed(path, known, now[path])
                try:
                    if path in now:
                        self._clean(path, directory, known)
                except LeadsOutside as error:  # it stays as it is, and the others are cleaned up
                    log.warning(
                        "job %s: %s is processed and is left alone: %s", self._job, escape(path), escape(str(error))
                    )
                except OSError as error:
                    if not self._has_warned:
                        log.warning(
                            "job %s: %s is processed and cannot be cleaned up: %s",
                            self._job,
                            escape(path),
                            escape(str(error)),
                        )
                    self._has_warned = True
                    return
                self._to_clean.discard(path)

    def _clean(self, path: str, directory: ReadDirectory, known: Known) -> None:
        name = directory.name_of(path)
        if name is None:
            raise LeadsOutside(f"it does not lie in {directory.root}")
        root = path.removesuffix(name)
        if directory.source.delete:
            remove(root, name, self._spark)
        if directory.source.archive is None:
            return
        archive = plain_directory(directory.source.archive)
        # A file of that name may have been processed, and archived, long ago.
        for one in (name, f"{name}.{known.facts.modified_ms}"):
            alike = (each for each in self._directories if each.source.archive == directory.source.archive)
            if any(each.has(f"{archive}/{one}") for each in alike):
                raise Failed(
                    f"file {path} is processed, and is to be moved to {archive}/{one}, where it would be read again",
                    where=self._where(path),
                    fix="name another directory with archive=; the file is unchanged",
                )
            if move(root, name, archive, one, self._spark):
                return
        raise FileExistsError(f"{archive}/{name} is there already")


def _read_lines(content: bytes) -> dict[str, Known]:
    """The files that a note names; Unreadable if it is none."""
    found = {}
    for line in content.splitlines():
        told = read_object(line)
        facts = Facts(take(told, "bytes", int), take(told, "modified_ms", int))
        found[take(told, "path", str)] = Known(facts, take(told, "epoch", int))
    return found


def _read_entries(content: bytes) -> dict[str, _Logged]:
    """The files in a piece of Spark's log, without those of events that come once more."""
    try:
        logged = read_source_log(content)
    except ValueError:  # of a source of another kind; `lockgate checkpoints verify` finds what is damaged
        logged = []
    files = (one for one in logged if isinstance(one, dict) and "path" in one and "batchId" in one)
    entries = ((plain_path(str(one["path"])), one) for one in files)
    return {
        path: _Logged(int(one["timestamp"]), int(one["batchId"])) for path, one in entries if f"/{FOLDER}/" not in path
    }


def _as_lines(known: Mapping[str, Known]) -> bytes:
    lines = (
        json.dumps({"path": path, "bytes": one.facts.bytes, "modified_ms": one.facts.modified_ms, "epoch": one.epoch})
        for path, one in known.items()
    )
    return "".join(f"{line}\n" for line in lines).encode()


def _as_time(modified_ms: int) -> str:
    return datetime.fromtimestamp(modified_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def tell_change(before: Facts, now: Facts) -> str:
    """What is not as it was.

    >>> tell_change(Facts(10, 0), Facts(12, 1500))
    'it had 10 bytes of 1970-01-01T00:00:00.000Z, and has 12 bytes of 1970-01-01T00:00:01.500Z'
    """
    had = "was" if before.bytes == _UNKNOWN_BYTES else f"had {before.bytes} bytes"
    return f"it {had} of {_as_time(before.modified_ms)}, and has {now.bytes} bytes of {_as_time(now.modified_ms)}"
