"""Files for tests: put in place whole, as a reader of a growing directory needs them."""

from pathlib import Path
from typing import Any
from uuid import uuid4

from support.records import as_bytes


def put(folder: Path, *lines: Any, name: str | None = None) -> None:
    """Put a file into a folder: one line for each text, bytes, or value, which is written as JSON."""
    aside = folder.with_name(f"{uuid4().hex}.aside")
    aside.write_bytes(b"".join((as_bytes(line) or b"") + b"\n" for line in lines))
    aside.rename(folder / (name or f"{uuid4().hex}.json"))
