"""The manifests of one job in a directory, in order: read what counts, and add the next one.

To add is to create the next number, which only one can do: that is the compare-and-swap on which exactly-once stands.
A number must never be free again, or one who slept could win it a second time. So old manifests are removed from the
lowest on, and who has added one looks whether the one before is still there. If not, others are far ahead. Either they
were so before, and what was added counts for nothing and is taken back; or they went on from it, and what they say has
it.
"""

from __future__ import annotations

from lockgate.dataflow.job import is_job_name
from lockgate.errors import InvariantBroken
from lockgate.files.manifest import History, Manifest, manifest_of
from lockgate.files.system import ASIDE, System

MANIFESTS = "_lockgate"

_READS = 5


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
        # Only now: numbers are removed from the lowest on, so if this one is there, the next was not removed.
        if self._known.sequence == 0 or not self.system.exists(self._name(self._known.sequence)):
            self._known = self._read_all()
        return self._known

    def add(self, manifest: Manifest) -> bool:
        """Add a manifest behind what was read last; False where another one was first."""
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

    def settle(self) -> None:
        """Make what was read outlive a power cut, before anybody acts on it."""
        if self._known.sequence:
            self.system.sync(self._name(self._known.sequence))

    def prune(self) -> None:
        """Remove what is older than the last two snapshots."""
        snapshots = 0
        sequence = self.read().sequence
        while sequence > 0 and (manifest := self._manifest(sequence)) is not None:
            snapshots += manifest.is_snapshot
            if snapshots == 2:
                for old in self._sequences():
                    if old < sequence:
                        self.system.delete(self._name(old))
                return
            sequence -= 1

    def asides(self) -> list[str]:
        """What was written aside and not put in place; where it is removed, who is at it just now writes it again."""
        names = self.system.names(self.folder)
        return [f"{self.folder}/{name}" for name in names if name.startswith((ASIDE, f".{ASIDE}"))]  # and its checksum

    def _read_all(self) -> History:
        """From the newest back to a snapshot or the first; again where one was removed meanwhile."""
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
                history = History()
                for manifest in reversed(chain):
                    history = history.followed_by(manifest)
                return history
            missing = sequence
        raise InvariantBroken(
            f"manifest {missing} is gone, although {newest} is there and counts on it",
            where=self.where,
            fix=f"bring {self.system.root}/{self._name(missing)} back from a copy; nobody but Lockgate may remove any",
        )

    def _sequences(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self.system.names(self.folder) if name.endswith(".json"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _manifest(self, sequence: int) -> Manifest | None:
        name = self._name(sequence)
        content = self.system.read(name)
        if content is None:
            return None
        where = f"{self.system.root}/{name}"
        manifest = manifest_of(content, self._job, where)
        if link := self.system.find_link(manifest.paths):
            raise InvariantBroken(
                f"{link!r} is a link, and what this manifest names below it may lie outside of the directory",
                where=where,
                fix="look who made the link, and remove it; to keep files on another disk, mount it there",
            )
        return manifest

    def _name(self, sequence: int) -> str:
        return f"{self.folder}/{sequence:020}.json"


def _has(history: History, manifest: Manifest, before: History) -> bool:
    """Did those who wrote a history go on from this manifest, which was added behind `before`?

    Files have names that nobody uses twice, and replaced ones are listed for a while.
    """
    known = {file.path for file in before.files}
    added = {file.path for group in manifest.groups for file in group.files} - known
    counted = {file.path for file in history.files} | {one.path for one in history.replaced}
    return bool(added & counted) or before.entry != manifest.entry == history.entry


def logs_in(system: System) -> dict[str, ManifestLog]:
    """The manifests that lie in a directory, by job."""
    return {job: ManifestLog(system, job) for job in system.names(MANIFESTS) if is_job_name(job)}
