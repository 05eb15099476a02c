"""The user's own line, kept with everything that the user declares.

Errors about a job name a line that the user can change, never a line inside Lockgate. Frames of this package are
skipped, so the origin is right however deep the calls of the builder are nested.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

# With its separator: the user's own folder may be called lockgate-jobs.
_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


@dataclass(frozen=True)
class Origin:
    """A place in the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def caller() -> Origin:
    """The innermost line outside of Lockgate that led to this call."""
    frame = sys._getframe(1)
    # Generated dataclass constructors have the file name <string>: they belong to this package too.
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_code.co_filename == "<string>"
    ):
        frame = frame.f_back
    return Origin(file=frame.f_code.co_filename, line=frame.f_lineno)
