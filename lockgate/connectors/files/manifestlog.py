"""The manifests of one job in a directory, in order: read what counts, and add the next one.

To add a manifest is to create the next number, which only one writer can do. Exactly-once depends on this
compare-and-swap. A number must never become free again, or a writer that slept could win it a second time. So old
manifests are removed from the lowest on, and a writer that added one checks that the one before is still there. If not,
other writers are far ahead. Either they were so before: then the added manifest counts for nothing and is removed. Or
they continued from it: then what they say includes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.commit.ledger import Entry
from lockgate.connectors.files.filesystem import ASIDE, NotAFile, System
from lockgate.connectors.files.manifest import BYTES_MAX, History, Manifest, NewerFormat, damaged, go_on, manifest_of
from lockgate.dataflow.job import is_job_name
from lockgate.errors import InvariantBroken

MANIFESTS = "_lockgate"

_READS = 5


@dataclass(frozen=True)
class Salvage:
    """The rest of manifests that cannot all be read: those up to the first that is missing or cannot be read."""

    history: History
    newest: int  # the highest number that is taken, readable or not

    def manifest(self, entry: Entry) -> Manifest:
        """The manifest that continues from the rest.

        No number becomes free again. Readers stop at a snapshot, so no reader reads what this one gives up.
        """
        return Manifest(
            sequence=self.newest + 1,
            entry=entry,
            groups=self.history.groups,
            is_snapshot=True,
            replaced=self.history.replaced,
            row_bytes=self.history.row_bytes,
        )


class ManifestLog:
    """The manifests of a job; remembers what it has read."""

    def __init__(self, system: System, job: str) -> None:
        self.system = system
        self.folder = f"{MANIFESTS}/{job}"
        self._job = job
        self.where = f"manifests of job {job!r} in {system.root}"
        self._known = History()

    def read(self) -> History:
        """What the manifests say now."""
        while self._known.sequence and (manifest := self._manifest(self._known.sequence + 1)) is not None:
            self._known = self._known.followed_by(manifest)
        # After reading: numbers are removed from the lowest on, so if this one is there, the next was not removed.
        if self._known.sequence == 0 or not self.system.exists(self._name(self._known.sequence)):
            self._known = self._read_all()
        return self._known

    def add(self, manifest: Manifest) -> bool:
        """Add a manifest after the last one that was read; False if another writer was first."""
        if not self.system.publish(self._name(manifest.sequence), manifest.to_bytes()):
            return False
        if manifest.sequence == 1 or self.system.exists(self._name(manifest.sequence - 1)):
            self._known = self._known.followed_by(manifest)
            return True
        before, self._known = self._known, self._read_all()
        if _has(self._known, manifest, before):
            return True
        self.system.delete(self._name(manifest.sequence))
        return False

    def salvage(self) -> Salvage:
        """What can be read of manifests that cannot all be read; an empty history if no manifest can be used."""
        sequences = self._sequences()
        chain: list[Manifest] = []
        for sequence in reversed(sequences):
            if chain and chain[-1].sequence != sequence + 1:
                chain = []  # one below these is missing, so they do not say all
            manifest = self._readable(sequence)
            chain = [] if manifest is None else [*chain, manifest]
            if manifest is not None and (manifest.is_snapshot or sequence == 1):
                break
        else:
            chain = []
        return Salvage(_joined(chain), newest=max(sequences, default=0))

    def settle(self) -> None:
        """Make what was read survive a power cut, before anything depends on it."""
        if self._known.sequence:
            self.system.sync(self._name(self._known.sequence))

    def prune(self) -> None:
        """Remove what is older than the last two snapshots."""
        snapshots = 0
        sequence = self.read().sequence
        # A manifest that cannot be read may still be here, if a person continued from those before it.
        while sequence > 0 and (manifest := self._readable(sequence)) is not None:
            snapshots += manifest.is_snapshot
            if snapshots == 2:
                for old in self._sequences():
                    if old < sequence:
                        self.system.delete(self._name(old))
                return
            sequence -= 1

    def asides(self) -> list[str]:
        """What was written aside and not put in place. If it is removed during a write, the writer repeats it."""
        names = self.system.names(self.folder)
        return [f"{self.folder}/{name}" for name in names if name.startswith((ASIDE, f".{ASIDE}"))]  # and its checksum

    def _read_all(self) -> History:
        """From the newest back to a snapshot or the first; again if one is removed in the meantime."""
        newest = missing = 0
        for _ in range(_READS):
            newest = sequence = max(self._sequences(), default=0)
            chain: list[Manifest] = []
            while sequence > 0 and (manifest := self._manifest(sequence)) is not None:
                chain.append(manifest)
                if manifest.is_snapshot:
                    break
                sequence -= 1
            if sequence == 0 or (chain and chain[-1].is_snapshot):
                return _joined(chain)
            missing = sequence
        raise InvariantBroken(
            f"manifest {missing} is gone, although {newest} is there and counts on it",
            where=self.where,
            fix=f"bring {self.system.root}/{self._name(missing)} back from a copy; only Lockgate may remove manifests."
            f" {go_on(self._job)}",
        )

    def _readable(self, sequence: int) -> Manifest | None:
        """A manifest, or None if it is missing or cannot be read."""
        try:
            return self._manifest(sequence)
        except NewerFormat:
            raise
        except InvariantBroken:
            return None

    def _sequences(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self.system.names(self.folder) if name.endswith(".json"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _manifest(self, sequence: int) -> Manifest | None:
        name = self._name(sequence)
        where = f"{self.system.root}/{name}"
        try:
            content = self.system.read(name, limit=BYTES_MAX + 1)
        except NotAFile as error:
            raise damaged(str(error), b"", self._job, where) from None
        if content is None:
            return None
        manifest = manifest_of(content, self._job, where)
        if manifest.sequence != sequence:
            raise damaged(f"its number is {manifest.sequence}", content, self._job, where)
        if link := self.system.find_link(manifest.paths):
            raise InvariantBroken(
                f"{link!r} is a link, and what this manifest names below it may lie outside of the directory",
                where=where,
                fix="find out what made the link, and remove it; to keep files on another disk, mount it there",
            )
        return manifest

    def _name(self, sequence: int) -> str:
        return f"{self.folder}/{sequence:020}.json"


def _joined(chain: list[Manifest]) -> History:
    """What manifests say together; the newest comes first."""
    history = History()
    for manifest in reversed(chain):
        history = history.followed_by(manifest)
    return history


def _has(history: History, manifest: Manifest, before: History) -> bool:
    """Did the writers of a history continue from this manifest, which was added after `before`?

    Files have names that are never used twice, and replaced ones are listed for a while.
    """
    known = {file.path for file in before.files}
    added = {file.path for group in manifest.groups for file in group.files} - known
    counted = {file.path for file in history.files} | {one.path for one in history.replaced}
    return bool(added & counted) or before.entry != manifest.entry == history.entry


def logs_in(system: System) -> dict[str, ManifestLog]:
    """The manifests of a directory, by job."""
    return {job: ManifestLog(system, job) for job in system.names(MANIFESTS) if is_job_name(job)}
