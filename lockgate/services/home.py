"""Where this checkout keeps what it starts and writes. A file of its own: it needs no package for local services."""

import os
from pathlib import Path


def home() -> Path:
    """$LOCKGATE_HOME, or .lockgate in the current directory."""
    return Path(os.environ.get("LOCKGATE_HOME") or ".lockgate")
