"""Checkpoints made by hand, as Spark would leave them.

make_logs         the two logs of epochs, and where the source began: enough to compare with a ledger
make_checkpoint   twelve epochs with state, a table and leftovers: enough to remove something from it
Handmade          whole to the last checksum, until a test breaks it
"""

import io
import json
import os
import struct
import time
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.facts import CheckpointFacts, look_at
from lockgate.checkpoints.tree import LocalTree
from lockgate.checkpoints.verifying import Finding, look_for_damage

CONF = {"spark.sql.shuffle.partitions": "2"}
SNAPSHOTS = (2, 6, 10)
BEGIN_MS = 1_767_225_600_000  # 2026-01-01
END_OF_BLOCKS = b"LZ4Block\x15" + bytes(12)


def make_logs(
    root: Path, *, planned: int, committed: int, query: str = "q", partitions: Sequence[int] = ()
) -> Checkpoint:
    """So many epochs of a topic with two partitions, which give ten records each to an epoch.

    Args:
        partitions: of the state, epoch by epoch.
    """
    for folder in ("offsets", "commits", "sources/0"):
        (root / folder).mkdir(parents=True)
    (root / "metadata").write_text(json.dumps({"id": query}))
    (root / "sources" / "0" / "0").write_text('\0v1\n{"in":{"0":5,"1":5}}')
    for epoch in range(planned):
        conf = {"spark.sql.shuffle.partitions": str(partitions[epoch])} if partitions else {}
        ends = {"in": {"0": 5 + 10 * (epoch + 1), "1": 5 + 10 * (epoch + 1)}}
        told = {"batchWatermarkMs": 0, "conf": conf}
        (root / "offsets" / str(epoch)).write_text(f"v1\n{json.dumps(told)}\n{json.dumps(ends)}")
        (root / "offsets" / f".{epoch}.crc").write_text("crc")
    for epoch in range(committed):
        (root / "commits" / str(epoch)).write_text("v1\n{}")
        (root / "commits" / f".{epoch}.crc").write_text("crc")
    return Checkpoint(root=str(root))


def make_checkpoint(root: Path, *, job: str | None, epochs: int = 12, planned: int | None = None) -> LocalTree:
    """So many epochs are done, and as many are planned, or some more."""
    tree = LocalTree(root)
    if job is not None:
        tree.write("lockgate.json", json.dumps({"job": job, "made": "2026-01-31", "format": 1}).encode())
    tree.write("metadata", b'{"id":"q"}')
    for epoch in range(planned or epochs):
        offsets = json.dumps({"in": {"0": 10 * (epoch + 1)}})
        told = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": epoch, "conf": CONF})
        tree.write(f"offsets/{epoch}", f"v1\n{told}\n{offsets}".encode())
    for epoch in range(epochs):
        tree.write(f"commits/{epoch}", b'v1\n{"nextBatchWatermarkMs":0}')
    for partition in range(2):
        store = f"state/0/{partition}"
        for version in range(1, epochs + 1):
            tree.write(f"{store}/{version}.changelog", b"changes")
        for version in (one for one in SNAPSHOTS if one <= epochs):
            tree.write(f"{store}/SSTs/{version}.sst", b"sst")
            tree.write(f"{store}/{version}.zip", snapshot(f"{version}.sst"))
    schema = "file:/elsewhere/state/0/_stateSchema/default/0_id"
    tree.write("state/0/_stateSchema/default/0_id", b"schema")
    notes = {"stateStoreInfo": [{"storeName": "default", "stateSchemaFilePaths": [schema]}]}
    tree.write("state/0/_metadata/v2/0", f"v2\n{json.dumps(notes)}".encode())
    tree.write("native/steps.json", b"[]")
    tree.write("described/sources.json", b"[]")
    tree.write("sources/0/0", b'0v1\n{"in":{"0":0}}')
    for epoch, digest in ((0, "old"), (5, "middle"), (11, "new")):
        tree.write(f"tables/cards/{digest}.parquet", digest.encode())
        tree.write(f"tables/cards/epochs/{epoch}", digest.encode())
    return tree


def snapshot(*ssts: str) -> bytes:
    """A snapshot of RocksDB that names these files."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        files = [{"localFileName": name, "dfsSstFileName": name, "sizeBytes": 3} for name in ssts]
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files, "numKeys": 1}))
    return content.getvalue()


def make_old(tree: LocalTree, name: str, content: bytes = b"x") -> None:
    """A file that nobody has written to for two days."""
    tree.write(name, content)
    before = time.time() - 2 * 86400
    os.utime(tree.path / name, (before, before))


@dataclass(frozen=True)
class Handmade:
    """A query over a topic of two partitions, with one operator that has state."""

    root: Path

    @property
    def tree(self) -> LocalTree:
        return LocalTree(self.root)

    @property
    def facts(self) -> CheckpointFacts:
        return look_at(self.tree)

    @property
    def damages(self) -> list[Finding]:
        return look_for_damage(self.tree)

    def damaged_files(self) -> list[str]:
        return [one.where for one in self.damages]

    def make(self, committed: Iterable[int], *, pending: int | None = None, partitions: int = 2) -> None:
        """Epochs, each with ten records of partition 0 and one of partition 1."""
        numbers = [*committed]
        self.write("metadata", b'{"id":"the-query"}')
        self.write("sources/0/0", b'\0v1\n{"orders":{"0":100,"1":0}}')
        self.write_operator(partitions)
        for number in [*numbers, *([] if pending is None else [pending])]:
            self.write_offsets(number, partitions=partitions)
        for number in numbers:
            self.write(f"commits/{number}", b'v1\n{"nextBatchWatermarkMs":0}')
            for partition in range(partitions):
                self.write_changes(partition, number + 1)

    def write_offsets(self, number: int, *, partitions: int = 2, records: int = 10) -> None:
        told = {
            "batchWatermarkMs": BEGIN_MS + number * 1000,
            "batchTimestampMs": BEGIN_MS + number * 60_000,
            "conf": {"spark.sql.shuffle.partitions": str(partitions)},
        }
        ends = {"orders": {"0": 100 + (number + 1) * records, "1": number + 1}}
        self.write(f"offsets/{number}", f"v1\n{json.dumps(told)}\n{json.dumps(ends)}".encode())

    def write_operator(self, partitions: int, name: str = "stateStoreSave") -> None:
        told = {
            "operatorInfo": {"operatorId": 0, "operatorName": name},
            "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}],
        }
        self.write("state/0/_metadata/metadata", f"v1\n{json.dumps(told)}".encode())

    def write_changes(self, partition: int, version: int) -> None:
        body = b"changes of %d" % version
        block = struct.pack("<8sBiiI", b"LZ4Block", 0x15, len(body), len(body), 0) + body
        self.write(f"state/0/{partition}/{version}.changelog", block + END_OF_BLOCKS)

    def write_snapshot(self, partition: int, version: int, *, rows: int = 5) -> str:
        """A snapshot that lists one table; the name of that."""
        table = f"{version:06}-table.sst"
        self.write(f"state/0/{partition}/SSTs/{table}", b"rows" * 100)
        files = [{"localFileName": "1.sst", "dfsSstFileName": table, "sizeBytes": 400}]
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("CURRENT", "MANIFEST-1")
            archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files, "numKeys": rows}))
        self.write(f"state/0/{partition}/{version}.zip", packed.getvalue())
        return f"state/0/{partition}/SSTs/{table}"

    def write(self, name: str, content: bytes) -> None:
        """A file, with the checksum that Hadoop keeps beside it."""
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        sums = [struct.pack(">I", zlib.crc32(content[at : at + 512])) for at in range(0, len(content), 512)]
        file.with_name(f".{file.name}.crc").write_bytes(b"crc\0" + struct.pack(">i", 512) + b"".join(sums))

    def remove(self, name: str) -> None:
        file = self.root / name
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    def flip(self, name: str) -> None:
        """One byte becomes another."""
        content = bytearray((self.root / name).read_bytes())
        content[len(content) // 2] ^= 0xFF
        (self.root / name).write_bytes(content)

    def cut(self, name: str) -> None:
        """Half a file, and no checksum that would tell."""
        content = (self.root / name).read_bytes()
        self.remove(name)
        (self.root / name).write_bytes(content[: len(content) // 2])
