"""The libraries of a job as one archive, for machines that have a Python and nothing else.

It contains the files that are installed here, by the lists of files of the libraries. So it works only with the same
system, processor and version of Python. It needs no network and no tool. On the other machine Spark unpacks it into a
directory, which must be on Python's path.
"""

from __future__ import annotations

import importlib.metadata
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path

from lockgate.errors import BadMachine


def pack_environment(names: Iterable[str], archive: Path) -> Path:
    """Put the files of some distributions into an archive, at its root."""
    with tarfile.open(archive, "w:gz", compresslevel=6) as packed:
        for name in names:
            found = importlib.metadata.distribution(name)
            if found.files is None or _is_linked(found):
                what = "does not say which files it has" if found.files is None else "is a link to its sources here"
                raise BadMachine(
                    f"{name} {what}, so it cannot be sent along",
                    where=str(found.locate_file("")),
                    fix="install it from a wheel, or omit --environment and install requirements.txt there",
                )
            for file in found.files:
                # Commands are outside of the directory of the modules; they are not needed.
                if ".." in file.parts or "__pycache__" in file.parts:
                    continue
                place = Path(str(found.locate_file(file)))
                if place.is_file():
                    packed.add(place, arcname=file.as_posix(), recursive=False)
    return archive


def _is_linked(found: importlib.metadata.Distribution) -> bool:
    """Was it installed with `pip install -e`? Then its list of files names only the link."""
    told = json.loads(found.read_text("direct_url.json") or "{}")
    return bool(told.get("dir_info", {}).get("editable"))
