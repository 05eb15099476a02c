"""Files: read with JSON and Arrow, by what manifests say, and by nothing else of the code that writes them.

    exactly-once    a file counts once a manifest names it: `_lockgate/JOB/NUMBER.json`, of which the newest snapshot
                    and all behind it count
    less than that  every file counts whose path has no part that begins with `_` or `.`, as Spark and Hive have it

A directory that does not exist yet has no rows. A file that counts and does not exist has none either: its rows are
lost. The place of a row is its file, numbered as they were first seen, and its number in the file.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection, Hashable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lockgate.lab.rig.judge.promises import Keeping
from lockgate.lab.rig.readers.polling import Away, Polled, Seen
from lockgate.lab.rig.readers.rows import canonical

_ROWS_PER_FILE = 10**9
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")


class _File(NamedTuple):
    path: Path
    kind: str
    partition_by: tuple[str, ...] = ()  # columns that are in the file under other names


class Files(Polled):
    """A directory that a FileSink writes."""

    def __init__(self, label: str, path: Path, kind: str, *, is_exact: bool) -> None:
        super().__init__(label, Keeping.ADDED)
        self._root, self._kind, self._is_exact = path, kind, is_exact
        self._numbers: dict[Path, int] = {}

    def look(self, known: Collection[Hashable]) -> list[Seen]:
        try:
            files = list(self._named() if self._is_exact else self._lying())
        except FileNotFoundError as error:  # removed while we looked: what replaces it is there
            raise Away(str(error)) from error
        return [row for file in files if (file.path, 0) not in known for row in self._rows(file)]

    def _rows(self, file: _File) -> Iterator[Seen]:
        base = self._numbers.setdefault(file.path, len(self._numbers)) * _ROWS_PER_FILE
        try:
            rows = list(self._read(file))
        except FileNotFoundError:
            return
        folders = {} if self._is_exact else self._folders(file.path)
        for number, row in enumerate(rows):
            yield Seen((file.path, number), base + number, None, canonical({**row, **folders}))

    def _read(self, file: _File) -> Iterator[dict[str, Any]]:
        if file.kind == "parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(file.path, coerce_int96_timestamp_unit="us") as opened:
                rows = opened.read().to_pylist()
        elif file.kind == "json":
            lines = file.path.read_text(encoding="utf-8").split("\n")
            rows = [json.loads(line, parse_float=str) for line in lines if line]
        else:
            rows = self._read_csv(file.path)
        inside = {f"__{name}".lower(): name for name in file.partition_by}
        for row in rows:
            yield {inside.get(name.lower(), name): value for name, value in row.items()}

    def _read_csv(self, path: Path) -> list[dict[str, Any]]:
        """Values as they are written, by the number of their column: a file has no names."""
        how: dict[str, Any] = {} if self._is_exact else {"escapechar": "\\", "doublequote": False}
        with path.open(encoding="utf-8", newline="") as opened:
            return [{str(number): text for number, text in enumerate(row)} for row in csv.reader(opened, **how) if row]

    def _named(self) -> Iterator[_File]:
        """The files that manifests name, those of every job that has any here."""
        home = self._root / "_lockgate"
        if not home.is_dir():
            return
        for folder in sorted(one for one in home.iterdir() if one.is_dir()):
            for group in _groups(folder):
                partition_by = tuple(group["partition_by"])
                yield from (_File(self._root / path, group["kind"], partition_by) for path, _, _ in group["files"])

    def _lying(self) -> Iterator[_File]:
        """The files that lie there for everybody to see."""
        for path in sorted(self._root.rglob("*")):
            parts = path.relative_to(self._root).parts
            if not any(part.startswith(("_", ".")) for part in parts) and path.is_file():
                yield _File(path, self._kind)

    def _folders(self, path: Path) -> dict[str, str]:
        """The columns that only the names of directories hold."""
        parts = (part.partition("=") for part in path.relative_to(self._root).parts[:-1])
        return {_plain(name): _plain(value) for name, sign, value in parts if sign}


def _groups(folder: Path) -> list[dict[str, Any]]:
    """What counts: the newest snapshot and all behind it."""
    sequence = max((int(one.stem) for one in folder.glob("*.json") if one.stem.isdigit()), default=0)
    groups: list[dict[str, Any]] = []
    while sequence > 0:
        manifest = json.loads((folder / f"{sequence:020}.json").read_bytes())
        groups = [*manifest["groups"], *groups]
        sequence = 0 if manifest["is_snapshot"] else sequence - 1
    return groups


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
