"""Identify the files that a job has read by path, size and modification time, and note them in the checkpoint.

Spark identifies a file that it has read only by its path. If the file is overwritten or grows afterwards, Spark never
reads it again, and a replayed epoch would have other rows. So:

    at every start, every epoch,    look at all files; if a file that was read has changed, the job stops and names it
    and from time to time between
    an epoch is planned             its files must be as Spark listed them; note them, before any of them is read
    an epoch is decided             its files must still be the same, before anything of it is visible
    an epoch is replayed            its files must be as they were noted. If no output has a ledger they may have
                                    changed: nothing of the epoch counts yet, and the job reads them as they are now

A file may be removed when the epochs of all passes that read it are committed. The notes (filenotes.py) keep a removed
file until it is 30 days older than the newest file that was read, and no epoch to which the job can go back has it.
Then Spark forgets it, and so do its log (filelog.py) and the notes. A new file with such an old time might be one of
those: Spark silently skips it, so the job stops and names it. After a file with a time in the future all others would
be that old: it is refused before it is read.

This is one story, and one class, because every one of these checks reads and updates the same record of known files.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from itertools import islice

from py4j.protocol import Py4JError

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.tree import open_tree
from lockgate.connectors.files.confined import LeadsOutside
from lockgate.connectors.files.listing import (
    Facts,
    look_at,
    look_below,
    may_overlap,
    move,
    names_below,
    plain_directory,
    remove,
    root_of,
)
from lockgate.connectors.files.source import REMEMBERED
from lockgate.dataflow.endpoints import Source
from lockgate.dataflow.locations import KEPT, Files
from lockgate.errors import Failed, Refused, SourceChanged, Unreachable
from lockgate.escaping import escape
from lockgate.runtime.filelog import FileLogs, Logged
from lockgate.runtime.filenotes import UNKNOWN_BYTES, FileNotes, Known, as_time, describe_change

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 5.0
# The next look waits this many times as long as the last one took: while no epoch runs, and when one is planned.
_PAUSE_SHARE, _PAUSE_SHARE_EPOCH = 20, 4
_UNKNOWN_EPOCH = -1
_AHEAD_MS = timedelta(days=1) // timedelta(milliseconds=1)
_REMEMBERED_MS = REMEMBERED // timedelta(milliseconds=1)
_RESET = "or start from the beginning: lockgate run --new-life"


@dataclass(frozen=True)
class ReadDirectory:
    """A source of a job whose files are watched."""

    source: Source
    where: str
    passes: int  # how often the query reads it

    @cached_property
    def files(self) -> Files:
        """Where its files are, and what happens to them."""
        files = self.source.watched_files
        assert files is not None
        return files

    @cached_property
    def root(self) -> str:
        """The directory that has its files below it."""
        return root_of(self.files.path)

    @cached_property
    def _names(self) -> re.Pattern[str]:
        return names_below(self.files.path)

    def has(self, path: str) -> bool:
        """Is a file one of the source's files?"""
        return self.name_of(path) is not None

    def name_of(self, path: str) -> str | None:
        """The name of a file below the directory; None if the source does not read it."""
        root = f"{self.root.rstrip('/')}/"
        if ":///" in root:  # on the default file system, whose address Spark adds
            scheme, _, rest = path.partition("://")
            path = f"{scheme}:///{rest.partition('/')[2]}"
        name = path.removeprefix(root)
        return name if path.startswith(root) and self._names.match(name) else None


@dataclass
class _Log:
    """What one source of the query has read, according to Spark's log."""

    paths: dict[str, int] = field(default_factory=dict)  # with their batch in the log
    newest_ms: int = -1
    newest: str = ""


class SourceFiles:
    """The files of a job's sources."""

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
        """Read nothing yet.

        Args:
            logs: for each line of the offsets the number of Spark's log of its source; scans may share a log. None for
                sources whose files are not watched, although some of them read files of ours.
            is_exact: must a replayed epoch have exactly the same rows?
            now: the clock, in seconds since 1970.
        """
        assert checkpoint.spark is not None
        self._spark = checkpoint.spark
        self._checkpoint = checkpoint
        self._notes = FileNotes(checkpoint, open_tree(checkpoint.root, checkpoint.spark))
        self._file_logs = FileLogs(checkpoint, logs)
        self._directories = directories
        self._is_exact = is_exact
        self._job = job
        self._now = now
        self._lock = threading.RLock()
        self._is_loaded = False
        self._is_first = False  # no epoch was planned in this checkpoint
        self._known: dict[str, Known] = {}
        self._logs: dict[int, _Log] = {}
        self._current: dict[str, Facts] = {}  # of the current epoch
        self._is_in_hand = False
        self._pending: dict[str, Facts] = {}  # files that were listed and not completely read, as a start found them
        self._with_log: set[str] = set()
        self._has_warned = False
        self._to_clean: set[str] = set()
        self._looked_at = self._look_took = 0.0

    # -- a start ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Refuse to continue if a file is not the one that was read; called before the query starts."""
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
                paths = one.files.path, other.files.path
                if one.files.processed != other.files.processed and may_overlap(*paths):
                    raise Refused(
                        f"two sources read {paths[0]} and {paths[1]}, which may have the same files; processed files"
                        f" are {one.files.processed} in one of them, and {other.files.processed} in the other",
                        where=f"{one.where}; {other.where}",
                        fix="give both the same archive= or delete=, or separate directories",
                    )

    def _load(self) -> None:
        planned, committed = (self._checkpoint.epochs(log) for log in ("offsets", "commits"))
        newest = planned[-1] if planned else -1
        self._is_first = not planned
        has_notes = self._notes.exist()
        noted = self._notes.load(newest)
        replayed = newest if newest not in committed else -1
        starts = {number: first for number, (first, _) in self._file_logs.ranges(replayed).items()}
        pending: dict[str, tuple[Known | None, bool]] = {}
        ends = self._file_logs.ends(newest)
        for number in self._file_logs.numbers():
            end, logged = ends.get(number, -1), self._file_logs.read(number)
            for path, entry in logged.items():
                before = noted.get(path)
                if entry.batch <= end:
                    if before is None and replayed >= 0 and entry.batch >= starts[number]:
                        self._refuse_ahead(number, path, entry)
                    self._add(number, path, entry)
                is_open = entry.batch > end or (replayed >= 0 and entry.batch >= starts[number])
                if is_open and (before is None or before.epoch == replayed):
                    if (
                        not has_notes and entry.batch <= end
                    ):  # the checkpoint has no notes of files yet, so the file may have been read
                        before = Known(Facts(UNKNOWN_BYTES, entry.modified_ms), replayed)
                    pending[path] = (before, entry.batch <= end)
                    continue
                # The notes come first: Spark's log has no sizes.
                self._known[path] = before or Known(Facts(UNKNOWN_BYTES, entry.modified_ms), _UNKNOWN_EPOCH)
        self._to_clean = {path for path in self._known if self._is_to_clean(path)}
        now = self._look()
        self._compare(now)
        self._forget(now)
        for path, (before, is_planned) in pending.items():
            if path in self._known:
                continue  # another pass over the source read it before
            if path in now:
                if before is not None:
                    self._check_replayed(path, before, now[path])
                self._pending[path] = now[path]
            elif is_planned:
                raise self._gone(path)

    def _check_replayed(self, path: str, before: Known, now: Facts) -> None:
        """Check a file of an epoch that has begun, and that Spark has not logged as committed."""
        if before.is_like(now):
            return
        change = describe_change(before.facts, now)
        if self._is_exact:
            raise SourceChanged(
                f"file {path} was changed, and its epoch has begun and is not committed: {change}; a replay would have"
                " other rows",
                where=self._where(path),
                fix="restore it as it was, with its modification time; or plan the epoch again with the changed file:"
                f" lockgate checkpoints rollback FILE --uncommitted; {_RESET}",
            )
        message = "job %s: file %s was changed before its epoch was committed, and is read as it is now: %s"
        log.warning(message, self._job, escape(path), change)

    # -- an epoch ---------------------------------------------------------------------------------------------------

    def plan(self, epoch: int) -> None:
        """Note the files of an epoch, before they are read; SourceChanged if one has changed."""
        with self._lock:
            self._current, self._is_in_hand = {}, True
            if self._is_first:
                self._notes.begin()
                self._is_first = False
            planned = self._file_logs.files_of(epoch)
            if not any(planned.values()):
                self._watch()
                return
            paths = {path for entries in planned.values() for path in entries}
            is_due = (
                time.monotonic() - self._looked_at >= _PAUSE_SHARE_EPOCH * self._look_took
                or self._notes.are_due  # then the notes are merged, and removed files are forgotten
            )
            now = self._look() if is_due else look_at(paths, self._spark)
            noted = self._notes.of(epoch)
            for number, entries in planned.items():
                for path, entry in entries.items():
                    if path not in noted and path not in self._known:
                        self._refuse_ahead(number, path, entry)
                    self._current[path] = self._check_planned(number, path, entry, now.get(path), noted)
                    self._add(number, path, entry)
            self._keep_note(epoch, now)
            self._compare(now)
            self._file_logs.trim(epoch, {number: one.paths for number, one in self._logs.items()})
            self.clean()

    def _refuse_ahead(self, number: int, path: str, entry: Logged) -> None:
        """Refuse a file with a time in the future before it is read: every later file would be too old for Spark."""
        newest_ms = self._logs[number].newest_ms if number in self._logs else -1
        # If an earlier version has read such a file, files need a time like that to be read at all.
        if entry.modified_ms > max(self._now() * 1000 + _AHEAD_MS, newest_ms):
            raise SourceChanged(
                f"file {path} has a time in the future ({as_time(entry.modified_ms)}): after it is read, Spark skips"
                f" all files that are {REMEMBERED.days} days older than that, even new ones",
                where=self._where(path),
                fix="set the clock of this machine if it is wrong; otherwise give the file the current time (touch"
                " FILE); nothing of it was read, so then plan the epoch again: lockgate checkpoints rollback FILE"
                f" --uncommitted; {_RESET}",
            )

    def _check_planned(
        self, number: int, path: str, entry: Logged, now: Facts | None, noted: Mapping[str, Known]
    ) -> Facts:
        if now is None:
            raise self._gone(path)
        read = self._logs[number].paths.get(path, entry.batch) if number in self._logs else entry.batch
        if read < entry.batch:  # the file is so old that Spark has forgotten it, and would read it again
            known = self._known.get(path) or Known(Facts(UNKNOWN_BYTES, entry.modified_ms), _UNKNOWN_EPOCH)
            raise self._changed(path, known, now)
        if path in self._known and path not in noted:  # another pass over the source read it before
            if not self._known[path].is_like(now):
                raise self._changed(path, self._known[path], now)
        elif path in self._pending or path not in noted:
            listed = self._pending.get(path) or Facts(UNKNOWN_BYTES, entry.modified_ms)
            if not Known(listed, _UNKNOWN_EPOCH).is_like(now):
                raise SourceChanged(
                    f"file {path} was changed after it was listed and before it was read:"
                    f" {describe_change(listed, now)}",
                    where=self._where(path),
                    fix="write files elsewhere and rename them into place; nothing of this one was read, so run the job"
                    " again when it is complete",
                )
        else:
            self._check_replayed(path, noted[path], now)
        return now

    def confirm(self) -> None:
        """Fail if a file of the epoch changed since the plan: the rows that were read may be a mixture."""
        with self._lock:
            now = look_at(self._current, self._spark)
            for path, facts in self._current.items():
                if path not in now:
                    raise self._gone(path)
                if now[path] != facts:
                    raise SourceChanged(
                        f"file {path} was changed while it was read: {describe_change(facts, now[path])}",
                        where=self._where(path),
                        fix="write files elsewhere and rename them into place; nothing of the epoch is committed:"
                        " restore the file as it was, or plan the epoch again with the changed file:"
                        f" lockgate checkpoints rollback FILE --uncommitted; {_RESET}",
                    )

    def end_epoch(self) -> None:
        """Note that the current epoch is written."""
        self._is_in_hand = False

    def _gone(self, path: str) -> SourceChanged:
        return SourceChanged(
            f"file {path} is gone, and its epoch is not committed, so the job must read it",
            where=self._where(path),
            fix=f"restore it as it was, with its modification time; {_RESET}",
        )

    # -- all files --------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Look at all files if the last look is some seconds ago; SourceChanged if a file that was read has changed."""
        try:
            with self._lock:
                if self._is_loaded and not self._is_in_hand:  # a running epoch looks itself
                    self._watch()
        except (OSError, Py4JError, Unreachable) as error:  # the file system may answer again before the next epoch
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
            found = look_below((one.files.path for one in self._directories), self._spark)
        except OSError as error:
            raise Unreachable(
                f"files cannot be listed: {error}",
                where=f"{', '.join(one.where for one in self._directories)}; checkpoint {self._checkpoint.root}",
                fix="check that the file system answers and that the job may read there; the job then continues where"
                " it stopped",
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
            elif known.facts.bytes == UNKNOWN_BYTES:
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
                        f"file {path} was not read, and its time ({as_time(facts.modified_ms)}) is more than"
                        f" {REMEMBERED.days} days before that of the newest file that was, {one.newest}"
                        f" ({as_time(one.newest_ms)}): Spark takes such an old file as read, and skips it",
                        where=directory.where,
                        fix=f"if it is new, give it {self._time_for(one)} so that it is read; if it was read, or should"
                        " not be, move it away",
                    )

    def _time_for(self, one: _Log) -> str:
        """The time that a file needs so that Spark reads it, in words."""
        if one.newest_ms - _REMEMBERED_MS < self._now() * 1000:
            return "the current time (touch FILE)"
        newest = as_time(one.newest_ms)
        return f"the time of that newest file, like every later one (touch -d {newest} FILE),"

    def _changed(self, path: str, known: Known, now: Facts) -> SourceChanged:
        return SourceChanged(
            f"file {path} was changed after it was read: {describe_change(known.facts, now)}; the job would never read"
            " its new content",
            where=self._where(path),
            fix="write the new content into another file, and rename that into place; then restore this one as it"
            f" was, with its modification time, or move it away: its epoch is committed; {_RESET}",
        )

    def _where(self, path: str) -> str:
        found = [one.where for one in self._directories if one.has(path)]
        return f"{', '.join(found) or 'a source of files'}; checkpoint {self._checkpoint.root}"

    # -- what is remembered -------------------------------------------------------------------------------------------

    def _keep_note(self, epoch: int, now: Mapping[str, Facts]) -> None:
        """Note the files of an epoch before they are read; after a crash they are compared with the note."""
        known = {path: Known(facts, epoch) for path, facts in self._current.items()}
        known = {
            path: one for path, one in known.items() if path not in self._known or self._known[path].epoch == epoch
        }
        if self._notes.are_due:
            self._forget(now)
            self._notes.merge(self._known, epoch)
        self._notes.write(epoch, known)
        self._known.update(known)
        self._to_clean.update(path for path in self._current if self._is_to_clean(path))

    def _add(self, number: int, path: str, entry: Logged) -> None:
        one = self._logs.setdefault(number, _Log())
        one.paths.setdefault(path, entry.batch)
        if entry.modified_ms > one.newest_ms:
            one.newest_ms, one.newest = entry.modified_ms, path

    def _forget(self, now: Mapping[str, Facts]) -> None:
        """Forget files that are gone, that Spark forgets, too, and that no epoch needs to which the job can go back."""
        began = time.monotonic()
        horizon = max((one.newest_ms for one in self._logs.values()), default=-1) - _REMEMBERED_MS
        gone = [path for path, one in self._known.items() if one.facts.modified_ms < horizon and path not in now]
        kept = self._file_logs.ends(min(self._checkpoint.epochs("offsets"), default=-1)) if gone else {}
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

    # -- processed files ----------------------------------------------------------------------------------------------

    def _is_to_clean(self, path: str) -> bool:
        return any(one.has(path) and one.files.processed != KEPT for one in self._directories)

    def _directory_of_done(self, path: str, ends: Mapping[int, int]) -> ReadDirectory | None:
        """The directory of a file that all its passes have read in epochs up to `ends`; None if one pass has not."""
        found = [one for one in self._directories if one.has(path)]
        # An epoch that is only planned has its files in these logs, too.
        readers = sum(
            one.paths[path] <= ends.get(number, -1) for number, one in self._logs.items() if path in one.paths
        )
        return found[0] if readers >= sum(one.passes for one in found) else None

    def clean(self) -> None:
        """Archive or delete the files of committed epochs; a failure is retried later."""
        if not self._to_clean:
            return
        with self._lock:
            last = max(self._checkpoint.epochs("commits"), default=-1)
            ends = self._file_logs.ends(last)
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
                except LeadsOutside as error:  # this file stays, and the others are cleaned up
                    log.warning(
                        "job %s: %s is processed and stays where it is: %s", self._job, escape(path), escape(str(error))
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
            raise LeadsOutside(f"it is not in {directory.root}")
        root = path.removesuffix(name)
        if directory.files.delete:
            remove(root, name, self._spark)
        if directory.files.archive is None:
            return
        archive = plain_directory(directory.files.archive)
        # A file of that name may have been processed, and archived, long ago.
        for one in (name, f"{name}.{known.facts.modified_ms}"):
            alike = (each for each in self._directories if each.files.archive == directory.files.archive)
            if any(each.has(f"{archive}/{one}") for each in alike):
                raise Failed(
                    f"file {path} is processed; in its archive {archive}/{one} the job would read it again",
                    where=self._where(path),
                    fix="name another directory with archive=; the file is unchanged",
                )
            if move(root, name, archive, one, self._spark):
                return
        raise FileExistsError(f"{archive}/{name} exists already")
