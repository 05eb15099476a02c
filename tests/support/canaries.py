"""Passwords that sing: a search for them in whatever a job leaves behind, in each form that a program may give them.

files       every byte, also inside of zip and gzip files
processes   command lines of all processes below one
text        what was printed, or what a server answered
"""

import base64
import contextlib
import gzip
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import psutil


class Canaries:
    """A search for passwords; what was found is in `found`, as the place and the name of the password with its form."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self.forms = {
            f"{name} ({how})": form for name, password in passwords.items() for how, form in forms_of(password).items()
        }
        self.found: set[tuple[str, str]] = set()
        self.looked_at = 0

    def look(self, content: bytes | str, place: object) -> None:
        """Search some bytes."""
        content = content.encode() if isinstance(content, str) else content
        written = content.rstrip(b"\0")  # programs reserve space for files that grow
        self.looked_at += 1
        self.found |= {(str(place), name) for name, form in self.forms.items() if form in written}
        self._look_inside(content, place)

    def _look_inside(self, content: bytes, place: object) -> None:
        """Search what an archive holds."""
        with contextlib.suppress(zipfile.BadZipFile, zlib.error, EOFError, OSError):  # it is being written
            if content.startswith(b"PK\3\4"):
                with zipfile.ZipFile(BytesIO(content)) as archive:
                    for name in archive.namelist():
                        self.look(archive.read(name), f"{place}!{name}")
            elif content.startswith(b"\x1f\x8b"):
                self.look(gzip.decompress(content), f"{place}!")

    def look_below(self, *folders: Path, except_below: Iterable[Path] = ()) -> None:
        """Search all files of folders, and their names; one that goes away meanwhile is searched next time."""
        for folder in folders:
            for file in _files(folder, [*except_below]):
                self.look(str(file), f"name of {file}")
                try:
                    self.look(file.read_bytes(), file)
                except OSError:
                    continue

    def look_at_processes(self, *roots: int) -> int:
        """Search the command lines of processes and of all below them; how many there were."""
        count = 0
        for root in roots:
            try:
                processes = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for process in processes:
                with contextlib.suppress(psutil.Error):  # it has ended
                    self.look("\0".join(process.cmdline()), f"command line of {process.name()}")
                    count += 1
        return count


def forms_of(password: str) -> dict[str, bytes]:
    """A password as programs write it."""
    plain = password.encode()
    return {
        "plain": plain,
        "UTF-16": password.encode("utf-16-le"),
        "hexadecimal": plain.hex().encode(),
        "URL-encoded": quote(password, safe="").encode(),
        "URL-encoded, small letters": _small(quote(password, safe="")).encode(),
        "JSON": json.dumps(password)[1:-1].replace("/", "\\/").encode(),
        **{f"base64, from byte {shift}": _encoded(plain, shift) for shift in range(3)},
    }


def _encoded(plain: bytes, shift: int) -> bytes:
    """What base64 makes of a password that begins so many bytes behind a multiple of three, without its unsure ends."""
    whole = base64.b64encode(b"\0" * shift + plain).rstrip(b"=")
    end = len(whole) if (shift + len(plain)) % 3 == 0 else -1
    return whole[-(-shift * 8 // 6) : end]


def _small(text: str) -> str:
    first, *rest = text.split("%")
    return first + "".join(f"%{part[:2].lower()}{part[2:]}" for part in rest)


def _files(folder: Path, except_below: list[Path]) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if not any(file.is_relative_to(place) for place in except_below) and not file.is_symlink() and file.is_file():
            yield file
