"""Where a job of the fixtures works, what is visible there, and the archive that keeps it."""

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lockgate import read_files

FIXTURES = Path(__file__).parent / "fixtures"
JOB_FILE = Path(__file__).parent / "jobs.py"
EXPECTED, SAVEPOINT = "expected.json", "savepoint"


def words(name: str, address: str = "") -> list[str]:
    """What tells a command about checkpoints which job is meant, in the job's directory."""
    return ["-p", f"name={name}", "-p", f"address={address}", "--checkpoint", "checkpoint"]


def visible(place: Path, spark: SparkSession) -> dict[str, list[Any]]:
    """The rows of all tables and committed files, in an order of their own, as JSON has them."""
    found: dict[str, list[Any]] = {}
    results = place / "results.db"
    if results.exists():
        with closing(sqlite3.connect(results)) as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in names:
                columns = [column for _, column, *_ in database.execute(f'PRAGMA table_info("{name}")')]
                if "life" in columns:  # dead letters: it differs from run to run, and the id is made of it
                    columns = [column for column in columns if column not in ("life", "id")]
                if not name.startswith("lockgate_"):
                    quoted = ", ".join(f'"{column}"' for column in columns)
                    found[name] = database.execute(f'SELECT {quoted} FROM "{name}"').fetchall()
    if (place / "files").exists():
        found["files"] = [tuple(row) for row in read_files(spark, str(place / "files")).collect()]
    return {
        name: sorted(json.loads(json.dumps(rows, default=bytes.hex)), key=json.dumps) for name, rows in found.items()
    }


def pack(place: Path, archive: Path) -> None:
    """Keep a directory, the same bytes for the same content."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
        return info

    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz") as packed:
        for entry in sorted(place.iterdir()):
            packed.add(entry, entry.name, filter=plain)


def unpack(archive: Path, place: Path) -> None:
    """Lay out what was kept."""
    with tarfile.open(archive) as packed:
        # Python 3.11.2 has no filters, and none is needed: we packed it.
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        packed.extractall(place)
