"""A checkpoint with its ledger, a savepoint and a list of kept seeds, whole, for commands that look at them."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.savepoints import take_savepoint
from lockgate.checkpoints.tree import LocalTree
from lockgate.commit.ledger import Entry
from lockgate.connectors.files.ledger import FileLedger
from support.checkpoints import Handmade

JOB = "damaged"
BEGIN = datetime(2026, 1, 31, tzinfo=UTC)


@dataclass(frozen=True)
class Place:
    """Where all of it is, and the commands that read it."""

    root: Path

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def output(self) -> Path:
        return self.root / "out"

    @property
    def savepoint(self) -> Path:
        return self.root / "savepoint"

    def make(self) -> None:
        """Eight epochs with state, all but the newest of which the ledger knows."""
        made = Handmade(self.checkpoint)
        made.make(range(8), pending=8)
        made.write_snapshot(0, 4)
        made.write("lockgate.json", json.dumps({"job": JOB, "made": "2026-01-31", "format": 1}).encode())
        made.write("native/steps.json", b'[{"step": "totals"}]')
        made.write("described/sources.json", b'[{"source": "orders", "reads": "topic orders"}]')
        made.write("described/topics.json", b'{"read orders 0": "c/1"}')
        made.write("described/gaps.json", b"[]")
        made.write("tries.json", b'{"epoch": 8, "processed": 1, "delivered": 1}')
        Handmade(self.root / "other").make(range(3))
        self.output.mkdir()
        checkpoint = Checkpoint(root=str(self.checkpoint))
        entry = Entry(
            run="a-run", query="the-query", epoch=7, digest=checkpoint.digest(7), at=BEGIN.isoformat(), staged={}
        )
        FileLedger(str(self.output), JOB, where="test").replace(None, entry)
        take_savepoint(
            LocalTree(self.checkpoint),
            checkpoint,
            LocalTree(self.savepoint),
            job=JOB,
            ledger=entry,
            now=BEGIN,
            is_live=False,
        )

    def kinds(self) -> list[Path]:
        """One file of each kind: those that differ only in numbers are of one kind."""
        found = {re.sub(r"[0-9a-f]{6,}|[0-9]+", "N", str(file.relative_to(self.root))): file for file in self.files}
        return [file.relative_to(self.root) for _, file in sorted(found.items())]

    @property
    def files(self) -> list[Path]:
        """Every file that could be damaged; its checksum, too."""
        return sorted(file for file in self.root.rglob("*") if file.is_file())

    def commands(self, file: Path | None = None) -> list[list[str]]:
        """Commands that read all of it, or those that read a file, by its name below the root."""
        held = ["--files", str(self.output), "--checkpoint", str(self.checkpoint)]
        elsewhere = ["--files", str(self.output), "--checkpoint", str(self.root / "restored")]
        look = [
            ["checkpoints", "list", JOB, *held],
            ["checkpoints", "show", JOB, *held, "--epoch", "7", "--json"],
            ["checkpoints", "verify", JOB, *held],
            ["checkpoints", "clean", JOB, *held, "--keep", "2"],
            ["ledger", "show", JOB, *held],
            ["ledger", "set", JOB, *held, "--epoch", "8"],
        ]
        compare = [["checkpoints", "diff", str(self.checkpoint), str(self.root / "other")]]
        restore = [["checkpoints", "restore", str(self.savepoint), JOB, *elsewhere]]
        readers = {"checkpoint": [*look, *compare], "other": compare, "savepoint": restore, "out": [*look, *restore]}
        return [*look, *compare, *restore] if file is None else readers[file.parts[0]]
