"""Dead letters in the form for comparing runs of one job: without what differs from run to run.

    omitted     id, job, life, epoch    of the run
                attempts, hindered      of the tracking: three attempts by acknowledgement are one by checkpoint
                the key                 a sink may key dead letters by id; the dead letter itself becomes the key
    renamed     topics and job of the run, wherever the dead letter names them

A row that is not the JSON of a dead letter stays as it is: the sink may write another format, or rows of another
output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lockgate.lab.rig.history import Read
from lockgate.lab.rig.readers.rows import canonical

_OF_THE_RUN = frozenset({"id", "job", "life", "epoch"})
_LEFT_OUT = _OF_THE_RUN | {"attempts", "hindered"}
_ALWAYS_THERE = _OF_THE_RUN | {"step", "reason"}
_OF_THE_EVENT = {"source", "part", "at", "child", "shown", "key", "value", "headers", "timestamp"}


def compared(letter: Read, names: Mapping[str, str]) -> Read:
    """A dead letter for the comparison; `names` maps the names of the run to those of every run."""
    told = _read(letter.value)
    if told is None:
        return letter
    kept = {name: text for name, text in told.items() if name not in _LEFT_OUT and text is not None}
    # The longest name first: the name of a job begins the names of its topics. JSON changes no character of a name.
    ours = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    text = canonical(kept).decode("utf-8", "surrogatepass")
    value = re.sub(ours, lambda found: names[found[0]], text) if names else text
    return replace(letter, key=None if letter.key is None else value.encode(), value=value.encode())


def _read(value: bytes | None) -> dict[str, Any] | None:
    try:
        told = json.loads(value or b"")
    except ValueError:
        return None
    is_letter = isinstance(told, dict) and _ALWAYS_THERE <= told.keys() <= _LEFT_OUT | _ALWAYS_THERE | _OF_THE_EVENT
    return told if is_letter else None
