"""The hashes of libraries: from Lockgate's own lock file, and from an index for libraries that are not in it.

With hashes pip accepts only the files that were tried, and no other files with the same names. Pip checks all hashes or
none: so a list of libraries has a hash for each of them, or no hash at all.

    in requirements.lock, in this version    every file of that version, for any platform
    not in it                                the one file that pip takes here, which it must fetch first
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCK = "requirements.lock"
_LINE = re.compile(r"([a-z0-9][a-z0-9-]*)==([^\s;\\]+)\s*(?:;\s*([^\\]*?))?\s*\\?")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})\b")
_PIP_SECONDS = 300


@dataclass(frozen=True)
class Locked:
    """A library of the lock file."""

    name: str
    version: str
    marker: str  # the condition under which it is needed; empty for always
    sha256: tuple[str, ...]  # of every file of this version


def read_lock(text: str) -> list[Locked]:
    """The libraries of a lock file.

    >>> read_lock("six==1.17.0 ; python_version < '3.12' \\\\\\n    --hash=sha256:" + "0" * 64)[0].marker
    "python_version < '3.12'"
    """
    found: list[Locked] = []
    for line in text.splitlines():
        if line.startswith((" ", "#")) or not line.strip():
            if found and (hashes := _HASH.findall(line)):
                last = found[-1]
                found[-1] = Locked(last.name, last.version, last.marker, (*last.sha256, *hashes))
        elif begun := _LINE.fullmatch(line):
            found.append(Locked(begun[1], begun[2], begun[3] or "", ()))
        else:
            raise ValueError(f"{line!r} is not a line of a lock file")
    return found


def lock_file() -> Path | None:
    """The lock file: beside this module in an installed package, at the root of a checkout; None if there is none."""
    here = Path(__file__)
    return next((file for file in (here.with_name(LOCK), here.parents[2] / LOCK) if file.is_file()), None)


def hashes_of(pinned: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The hashes of these libraries, by name. A library is missing if neither the lock file nor pip has its hash."""
    file = lock_file()
    locked = {} if file is None else {(one.name, one.version): one.sha256 for one in read_lock(file.read_text())}
    known = {name: locked[name, version] for name, version in pinned.items() if (name, version) in locked}
    others = [f"{name}=={version}" for name, version in pinned.items() if name not in known]
    return {**known, **(_ask_pip(others) if others else {})}


def _ask_pip(wanted: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The hashes of the files that pip would install; empty if it finds no index, or no such file."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--report", "-", *wanted]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PIP_SECONDS, check=True)
        installs = json.loads(done.stdout)["install"]
        return {
            re.sub(r"[-_.]+", "-", one["metadata"]["name"]).lower(): (_sha256(one["download_info"]["archive_info"]),)
            for one in installs
        }
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return {}


def _sha256(archive: Mapping[str, Any]) -> str:
    """The hash of a file, from the report of any pip since 22.2."""
    found = archive.get("hashes", {}).get("sha256") or str(archive["hash"]).removeprefix("sha256=")
    return str(found)
