"""The manifests of a job in a directory, for the commands that show and set ledgers (see `commit/repair.py`).

A manifest is the ledger and also names the files that count. So a manifest can be added, but not re-created: after a
ledger without files the next run would treat all files as leftovers and remove them. If all manifests are lost, only a
copy helps. If one cannot be read, a person can continue from those before it. Then a snapshot with what these say is
added after all that are there, and what only the others name does not count any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lockgate.commit.ledger import Entry
from lockgate.commit.repair import MendableLedger, moved
from lockgate.connectors.files.filesystem import LocalSystem, local_path
from lockgate.connectors.files.manifest import DATA
from lockgate.connectors.files.manifestlog import MANIFESTS, ManifestLog, Salvage
from lockgate.connectors.files.store import FileStore
from lockgate.errors import Failed, InvariantBroken, Moved, Refused
from lockgate.escaping import escape

_NEWEST_MAX = 1 << 63
"""No run adds so many manifests, and a number beyond 64 bits is not read."""


class FileLedger(MendableLedger):
    """The ledger of one job in one directory on this machine's disk."""

    option = "--files DIR"

    def __init__(self, path: str, job: str, *, where: str) -> None:
        root = local_path(path)
        if root is None:
            raise Refused(
                f"{path} does not lie on this machine's disk",
                where=where,
                fix=f"look at the newest file in {path.rstrip('/')}/{MANIFESTS}/{job}: it has the ledger, as `entry`",
            )
        if not root.is_dir():
            raise Refused(f"there is no directory {root}", where=where, fix="name the path of the job's FileSink")
        self.where = f"manifests of job {job!r} in {root}, {where}"
        self.name = f"manifests in {root}/{MANIFESTS}/{job}"
        self.facts = {"directory": str(root), "manifests": f"{MANIFESTS}/{job}"}
        self.missing = f"there are no manifests in {root}/{MANIFESTS}/{job}"
        self._job = job
        self._system = LocalSystem(root)
        # Nothing is staged through it, so it need not know how files are written.
        self._store = FileStore(self._system, job, kind="", partition_by=(), roll_bytes=1)
        self._salvage: Salvage | None = None  # what the command showed, if manifests are damaged

    def peek(self) -> Entry | None:
        with _translated_errors(self.where):
            entry = ManifestLog(self._system, self._job).read().entry
        if entry is None and self._system.names(f"{DATA}/{self._job}"):
            raise Failed(
                f"job {self._job!r} has files here, but no manifest names them",
                where=self.where,
                fix=f"bring {MANIFESTS}/{self._job} back from a copy; with a re-created ledger the next run"
                " would treat the files as leftovers, and remove them",
            )
        return entry

    def salvage(self, broken: InvariantBroken) -> tuple[Entry | None, str]:
        with _translated_errors(self.where):
            self._salvage = salvage = ManifestLog(self._system, self._job).salvage()
            self._refuse_loss(salvage, broken)
            return salvage.history.entry, "\n".join([broken.what, *self._given_up(salvage)])

    def replace(self, seen: Entry | None, entry: Entry) -> None:
        if self._salvage is not None:
            self._go_on(self._salvage, entry)
            return
        if self.peek() == entry:
            return
        try:
            self._store.publish(None, entry, after=seen)
        except Moved:
            raise moved(self.peek(), self.where) from None

    def _go_on(self, salvage: Salvage, entry: Entry) -> None:
        """Add the rest after all manifests that are there, unless they have changed since the command showed them."""
        log = ManifestLog(self._system, self._job)
        with _translated_errors(self.where):
            if log.salvage() != salvage or not log.add(salvage.manifest(entry)):
                raise Failed(
                    "the manifests have changed since they were looked at; nothing was written",
                    where=self.where,
                    fix="see that no driver and no compaction of this job runs, then look again",
                )

    def _refuse_loss(self, salvage: Salvage, broken: InvariantBroken) -> None:
        """Refuse to continue if rows that the readable manifests name are lost, or if no manifest can be used."""
        history = salvage.history
        if salvage.newest >= _NEWEST_MAX:
            raise Failed(
                f"a manifest has the number {salvage.newest}, which no run has reached: another program put it there",
                where=self.where,
                fix="move it away; the data files are untouched",
            )
        if history.sequence == 0 and self._system.names(f"{DATA}/{self._job}"):
            raise Failed(
                f"no manifest before the damage can be read: {broken.what}",
                where=broken.where,
                fix=f"bring {MANIFESTS}/{self._job} back from a copy; with a re-created ledger the next run"
                " would treat the files as leftovers, and remove them",
            )
        gone = [file.path for file in history.files if not self._system.exists(file.path)]
        if gone:
            raise Failed(
                f"manifests up to {history.sequence} can be read, but {len(gone)} of their files are gone, {gone[0]}"
                " for one: a later manifest has replaced them",
                where=broken.where,
                fix="bring the manifest that cannot be read back from a copy",
            )

    def _given_up(self, salvage: Salvage) -> Iterator[str]:
        """What continues from here, and what does not count any more."""
        history = salvage.history
        if history.entry is None:
            yield "No manifest stands before it."
        else:
            epoch = "no epoch" if history.entry.epoch is None else f"epoch {history.entry.epoch}"
            count = len(history.files)
            yield f"Manifests up to {history.sequence} can be read: {epoch} is committed, with {count} files."
        first = history.sequence + 1
        numbers = f"Manifest {first} is" if first == salvage.newest else f"Manifests {first}..{salvage.newest} are"
        folder = f"{DATA}/{self._job}"
        listed = (f"{folder}/{name}" for name in self._system.names(folder))
        directories = [one for one in listed if one not in history.directories]
        if not directories:
            yield f"{numbers} given up. No data file is lost."
            return
        yield f"{numbers} given up. No reader sees the files of these {len(directories)} directories any more:"
        for directory in directories:
            files = self._system.files(directory)
            yield f"  {escape(directory)}: {len(files)} files, {sum(files.values()):,} bytes"
        yield "The next run removes these directories: copy them first if you want to keep their rows."

    def waiting(self) -> Sequence[str]:
        return [name for name in self._store.leftovers() if name.startswith(f"{DATA}/")]


@contextmanager
def _translated_errors(where: str) -> Iterator[None]:
    """Report it if the file system fails."""
    try:
        yield
    except OSError as error:
        raise Failed(f"the file system failed: {error}", where=where, fix="see that it may be read") from error
