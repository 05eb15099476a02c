"""Dead letters, as two runs of one job can be compared by them: without what is another thing in every run.

A letter names its job, the life and the epoch that it came in, and how often the event was tried; its id is made of
these. Topics and files that it tells of carry the name of the run. What is left says of which event it is, at which
step it failed, and why.
"""

from __future__ import annotations

import json
from dataclasses import replace

from lockgate.lab.rig.history import Read
from lockgate.lab.rig.readers.rows import canonical

_OF_THE_RUN = frozenset({"id", "job", "life", "epoch", "attempts", "hindered"})


def compared(letter: Read, run: str) -> Read:
    """A letter of the run of this name as it is compared; what is none is left as it is: it has no business there."""
    try:
        told = json.loads((letter.value or b"").replace(f"{run}-".encode(), b""))
    except ValueError:
        return letter
    if not isinstance(told, dict):
        return letter
    value = canonical({name: told[name] for name in told.keys() - _OF_THE_RUN})
    return replace(letter, key=None if letter.key is None else value, value=value)  # a sink may keep them by their ids
