"""A checkpoint made by hand, as Spark would leave it: epochs, two stores of RocksDB, a table, leftovers."""

import io
import json
import os
import time
import zipfile
from pathlib import Path

from lockgate.runtime.lifecycle.tree import LocalTree

CONF = {"spark.sql.shuffle.partitions": "2"}
SNAPSHOTS = (2, 6, 10)


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
