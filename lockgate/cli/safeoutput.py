"""What commands print for people: control characters of records, files and brokers are shown, and move no cursor.

A command prints much that others have chosen: keys of events, names of files, fields of a ledger, ids of transactions.
So standard output is behind a writer that escapes all of it. Only commands that draw (`run`, `demo`) write as they
like; they escape what they quote.

Line ends pass. A field that could begin a line of its own is escaped where it is put into a line (escaping.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

from lockgate.escaping import escape


class _Escaping:
    """Passes text on; all else is that of the stream behind it."""

    def __init__(self, behind: TextIO) -> None:
        self._behind = behind

    def write(self, text: str) -> int:
        return self._behind.write(escape(text, keeps="\n\t"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)


@contextmanager
def plain_output() -> Iterator[None]:
    """Escape what is printed in this block."""
    with redirect_stdout(cast(TextIO, _Escaping(sys.stdout))):
        yield
