"""The state stores of a checkpoint: their files, and the files from which a version of the state is loaded.

Every partition of every operator with state has its own folder (a join has several). Epoch N leaves version N+1:

    state/0/3/8.changelog      the changes of version 8, compressed         of the RocksDB store
    state/0/3/5.zip            a snapshot of version 5, without its tables
    state/0/3/SSTs/*.sst       the tables; the snapshot lists its own ones. The same holds for logs/*.log
    state/0/3/8.delta          the changes                                  of Spark's own store, in memory
    state/0/3/5.snapshot       everything

Spark loads version V from the newest snapshot up to V and all changes since. If there is no snapshot, it loads all
changes from the first. A name may have an id after the number, which the log of commits has, too: `8_<id>.changelog`.
Tables that no snapshot lists come from an upload that ended early, or from one that runs now.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from lockgate.checkpoints.tree import Entry
from lockgate.untrusted import BYTES_MAX, Unreadable, as_list, as_object, as_type, excerpt, read_object, take

_FILE = re.compile(r"state/(\d+)/(\d+)/(?:([^/]+)/)?(\d+)(?:_([^./]+))?\.(changelog|delta|snapshot|zip)")
_NAMED = re.compile(r"state/(\d+)/(\d+)/(?:([^/]+)/)?(SSTs|logs)/([^/.][^/]*)")
_SNAPSHOTS = ("snapshot", "zip")
_DEFAULT = "default"

_LZ4_MAGIC = b"LZ4Block"
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compression of files in a snapshot. Others are refused: LZMA takes as much memory as the file asks for."""
_NO_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OSError)
_LZ4_HEADER = struct.Struct("<8sBiiI")  # magic, token, bytes compressed, bytes not compressed, checksum


@dataclass(frozen=True)
class StateFile:
    """A file of one version."""

    name: str
    version: int
    id: str | None
    is_snapshot: bool
    bytes: int


@dataclass(frozen=True)
class Snapshot:
    """The list in a snapshot of RocksDB."""

    rows: int | None
    files: Mapping[str, int]  # bytes, by the names in the folders SSTs and logs


@dataclass
class Store:
    """One partition of one operator's state."""

    operator: int
    partition: int
    name: str
    folder: str
    files: list[StateFile] = field(default_factory=list)
    named: dict[str, Entry] = field(default_factory=dict)  # what snapshots may list, by name

    @property
    def kind(self) -> str:
        """The ending of the names of its changes; of its snapshots if it has no changes."""
        endings = {file.name.rpartition(".")[2] for file in self.files}
        return next((one for one in ("changelog", "delta", "zip", "snapshot") if one in endings), "changelog")

    @property
    def snapshot_kind(self) -> str:
        """The ending of the names of its snapshots."""
        return "snapshot" if self.kind in ("delta", "snapshot") else "zip"

    def at(self, version: int, ids: Collection[str] = ()) -> list[StateFile]:
        """The files of a version; if several tries left files, only those whose ids count, if the ids are known."""
        found = [file for file in self.files if file.version == version]
        chosen = [file for file in found if file.id is None or file.id in ids]
        return chosen if ids else found

    def chain(self, version: int, ids: Mapping[int, Collection[str]] | None = None) -> Chain:
        """What Spark loads to get a version; `ids` are the ids that count, by version, as far as they are known."""
        return next(self.chains(version, ids))

    def chains(self, version: int, ids: Mapping[int, Collection[str]] | None = None) -> Iterator[Chain]:
        """The ways to get a version, from the newest snapshot first; without a snapshot only if there is none."""
        known = ids or {}
        has_snapshot = False
        bases = sorted({file.version for file in self.files if file.is_snapshot and file.version <= version})
        for base in reversed(bases):
            snapshots = [file for file in self.at(base, known.get(base, ())) if file.is_snapshot]
            if snapshots:
                has_snapshot = True
                yield self._behind(base, snapshots, version, known)
        if not has_snapshot:
            yield self._behind(0, [], version, known)

    def _behind(self, base: int, snapshots: list[StateFile], version: int, ids: Mapping[int, Collection[str]]) -> Chain:
        changes: list[StateFile] = []
        missing: list[int] = []
        for one in range(base + 1, version + 1):
            found = [file for file in self.at(one, ids.get(one, ())) if not file.is_snapshot]
            changes += found
            if not found:
                missing.append(one)
        return Chain(base=base, files=(*snapshots, *changes), missing=tuple(missing))


@dataclass(frozen=True)
class Chain:
    """The parts of a version: a snapshot, or none if `base` is 0, and the changes since."""

    base: int
    files: tuple[StateFile, ...]
    missing: tuple[int, ...]  # versions whose changes are missing


def find_stores(entries: Iterable[Entry]) -> list[Store]:
    """The stores that these files belong to."""
    stores: dict[str, Store] = {}

    def store(operator: str, partition: str, name: str | None) -> Store:
        folder = f"state/{operator}/{partition}" + (f"/{name}" if name else "")
        return stores.setdefault(folder, Store(int(operator), int(partition), name or _DEFAULT, folder))

    for entry in entries:
        if found := _NAMED.fullmatch(entry.name):
            store(*found.group(1, 2, 3)).named[found[5]] = entry
        elif found := _FILE.fullmatch(entry.name):
            file = StateFile(entry.name, int(found[4]), found[5], found[6] in _SNAPSHOTS, entry.bytes)
            store(*found.group(1, 2, 3)).files.append(file)
    for one in stores.values():
        one.files.sort(key=lambda file: (file.version, file.is_snapshot, file.name))
    return sorted(stores.values(), key=lambda one: (one.operator, one.partition, one.name))


def read_snapshot(content: bytes) -> Snapshot:
    """What a snapshot of RocksDB lists; ValueError if it is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if odd := [one.filename for one in archive.infolist() if one.compress_type not in _PACKED]:
                raise ValueError(f"{excerpt(odd[0])} in it has a compression that Spark never uses")
            if (broken := archive.testzip()) is not None:
                raise ValueError(f"{broken} in it is damaged")
            if archive.getinfo("metadata").file_size > BYTES_MAX:
                raise Unreadable(f"its list of files has more than {BYTES_MAX:,} bytes")
            told = read_object(archive.read("metadata").decode().split("\n", 1)[1])
        files = {}
        for one in map(as_object, (*as_list(told.get("sstFiles") or []), *as_list(told.get("logFiles") or []))):
            name = one.get("dfsSstFileName") or one.get("dfsLogFileName")
            if name:
                files[str(name)] = take(one, "sizeBytes", int)
        rows = as_type(told.get("numKeys", -1), int, "numKeys")
        return Snapshot(rows=rows if rows >= 0 else None, files=files)
    except (*_NO_ZIP, KeyError, IndexError) as error:
        raise ValueError(f"it is not a complete ZIP file of a snapshot ({type(error).__name__}: {error})") from None


def check_compressed(content: bytes) -> None:
    """Raise ValueError if a file of changes ends early; checked only for LZ4, Spark's default."""
    if not content:
        raise ValueError("it is empty")
    if not content.startswith(_LZ4_MAGIC[: len(content)]):
        return
    at = 0
    while at < len(content):
        if at + _LZ4_HEADER.size > len(content):
            raise ValueError(f"it ends within a block, at byte {len(content):,}")
        magic, _, compressed, plain, _ = _LZ4_HEADER.unpack_from(content, at)
        if magic != _LZ4_MAGIC or compressed < 0 or plain < 0:
            raise ValueError(f"a block should begin at byte {at:,}, and there is none")
        at += _LZ4_HEADER.size + compressed
        if plain == 0:
            return
        if at > len(content):
            raise ValueError(f"it ends within a block, at byte {len(content):,}")
    raise ValueError("its last block is missing")
