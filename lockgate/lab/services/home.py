"""The directory for what this checkout starts and writes. This file needs no package for local services."""

import os
from pathlib import Path


def home() -> Path:
    """$LOCKGATE_HOME, or .lockgate in the current directory."""
    return Path(os.environ.get("LOCKGATE_HOME") or ".lockgate")
