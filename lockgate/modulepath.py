"""Where a child process finds the modules that this process finds."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def module_path() -> str:
    """PYTHONPATH for a child process, which may work in another directory.

    An empty entry of `sys.path` is the working directory of this process, so the child gets its name. An editable
    install is found by a hook of this Python and is on no path, so the place of this package is always there.
    """
    places = list(map(os.path.abspath, sys.path))
    home = str(Path(__file__).parents[1])
    return os.pathsep.join(places if home in places else [*places, home])
