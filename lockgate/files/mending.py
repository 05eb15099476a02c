"""The manifests of a job in a directory, as a person meets them (see commit/mending.py).

A manifest is the ledger and names the files that count, too. So it can be added to, but not made anew: behind a ledger
without files the next run would take all files for leftovers and remove them. Where manifests are lost, only a copy
helps.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockgate.commit.ledger import Entry
from lockgate.commit.mending import MendableLedger, moved
from lockgate.commit.resource import Moved
from lockgate.errors import Failed, InvariantBroken, Refused
from lockgate.files.log import MANIFESTS, ManifestLog
from lockgate.files.manifest import DATA
from lockgate.files.store import FileStore
from lockgate.files.system import LocalSystem, local_path


class FileLedger(MendableLedger):
    """The ledger of one job in one directory on this machine's disk."""

    option = "--files DIR"

    def __init__(self, path: str, job: str, *, where: str) -> None:
        root = local_path(path)
        if root is None:
            raise Refused(
                f"{path} does not lie on this machine's disk",
                where=where,
                fix=f"look yourself: the newest file in {path.rstrip('/')}/{MANIFESTS}/{job} holds the ledger, as"
                " `entry`",
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

    def peek(self) -> Entry | None:
        try:
            entry = ManifestLog(self._system, self._job).read().entry
        except InvariantBroken as broken:
            raise Failed(broken.what, where=broken.where, fix=broken.fix) from None
        except OSError as error:
            raise Failed(f"the file system failed: {error}", where=self.where, fix="see that it may be read") from error
        if entry is None and self._system.names(f"{DATA}/{self._job}"):
            raise Failed(
                f"job {self._job!r} has files here, but no manifest names them",
                where=self.where,
                fix=f"bring {MANIFESTS}/{self._job} back from a copy; with a ledger that is made anew the next run"
                " would take the files for leftovers, and remove them",
            )
        return entry

    def replace(self, seen: Entry | None, entry: Entry) -> None:
        if self.peek() == entry:
            return
        try:
            self._store.publish(None, entry, after=seen)
        except Moved:
            raise moved(self.peek(), self.where) from None

    def waiting(self) -> Sequence[str]:
        return [name for name in self._store.leftovers() if name.startswith(f"{DATA}/")]
