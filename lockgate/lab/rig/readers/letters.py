"""Dead letters in the form in which runs of one job are compared: without what differs from run to run.

    left out    id, job, life, epoch    of the run
                attempts, hindered      of the tracking: three attempts by acknowledgement are one by checkpoint
                the key                 a sink may keep letters by their ids; the letter itself takes its place
    renamed     topics and job of the run, wherever the letter names them

A row that is not the JSON of a letter stays as it is: the sink may write another format, or rows of another output.
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
    """A letter as it is compared; `names` are those of the run, and what they are called in every run."""
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
