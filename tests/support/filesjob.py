"""A job that writes files by hand: what Spark would write is a few lines of JSON here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lockgate.commit.ledger import Entry
from lockgate.connectors.files.compaction import Compaction, Limits, Target, run_compaction
from lockgate.connectors.files.filesystem import LocalSystem, System
from lockgate.connectors.files.manifest import Group
from lockgate.connectors.files.manifestlog import ManifestLog
from lockgate.connectors.files.reading import committed_files
from lockgate.connectors.files.store import FileStore, directory_of

JOB = "payments"
SCHEMA = "n INT"
START = datetime(2026, 1, 1, tzinfo=UTC)


def entry(epoch: int | None, run: str = "run-1") -> Entry:
    """What the ledger says once an epoch is out."""
    return Entry(run=run, query="query", epoch=epoch, digest=f"digest-{epoch}", at="2026-01-01T00:00:00.000+00:00")


@dataclass
class FilesJob:
    """A directory, and what a job does with it."""

    root: Path
    job: str = JOB
    now: datetime = START
    system: System = field(init=False)

    def __post_init__(self) -> None:
        self.system = LocalSystem(self.root)

    def store(self, *, partition_by: tuple[str, ...] = (), system: System | None = None) -> FileStore:
        return FileStore(system or self.system, self.job, kind="json", partition_by=partition_by, roll_bytes=1_000_000)

    def stage(self, store: FileStore, epoch: int, numbers: Sequence[int] | Mapping[str, Sequence[int]]) -> str:
        """Stage these numbers as one file, or as one for each partition."""
        directory = store.fresh_directory(epoch)
        parts = numbers if isinstance(numbers, Mapping) else {"": numbers}
        for partition, some in parts.items():
            write_lines(self.root / directory / partition / f"part-0-{epoch}.json", some)
        return store.seal(directory, SCHEMA)

    def commit(self, store: FileStore, epoch: int, numbers: Sequence[int] | Mapping[str, Sequence[int]]) -> str:
        """Stage and publish an epoch, behind whatever is out."""
        staged = self.stage(store, epoch, numbers)
        store.publish(staged, entry(epoch), after=store.read())
        return staged

    def sweep(self, store: FileStore, *, keep: Sequence[str] = ()) -> None:
        """Remove what is left over, but for what was staged under these names."""
        kept = {directory_of(staged) for staged in keep}
        store.remove([name for name in store.leftovers() if name not in kept])

    def seen(self) -> list[int]:
        """What a reader sees, in order of size."""
        lines = (line for file in committed_files(str(self.root)) for line in Path(file).read_text().splitlines())
        return sorted(json.loads(line)["n"] for line in lines)

    def log(self) -> ManifestLog:
        return ManifestLog(self.system, self.job)

    def manifests(self) -> list[int]:
        folder = self.root / "_lockgate" / self.job
        return sorted(int(file.stem) for file in folder.glob("*.json") if file.stem.isdigit())

    def data(self) -> list[str]:
        """The directories below data/<job>."""
        return self.system.names(f"data/{self.job}")

    def merge(self, chosen: Group, target: Target) -> None:
        """What Spark does in a compaction: the rows of a partition, in one file."""
        partitions: dict[str, list[int]] = {}
        for file in chosen.files:
            lines = (self.root / file.path).read_text().splitlines()
            partitions.setdefault(file.partition, []).extend(json.loads(line)["n"] for line in lines)
        for partition, numbers in partitions.items():
            write_lines(self.root / target.directory / partition / "part-0-merged.json", numbers)

    def compact(self, *, grace: timedelta = timedelta(hours=1), system: System | None = None) -> Compaction:
        limits = Limits(smaller_bytes=1000, roll_bytes=1000, grace=grace)
        return run_compaction(system or self.system, self.job, limits, merge=self.merge, now=lambda: self.now)


def write_lines(file: Path, numbers: Sequence[int]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
