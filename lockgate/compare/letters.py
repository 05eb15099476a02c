"""Dead letters as far as they must be the same in every run.

A letter names the run that wrote it, and where events are tried again it counts the attempts, so no two runs write the
same bytes. What is left is why and where the event failed, its place in its source, and the event itself:

    left away     id, job, life, epoch    of the run
                  attempts                of the tracking: three by acknowledgement are one by checkpoint
                  the record's key        made of columns of the letter, of those above perhaps
    renamed       our topics and job      as the author calls them, wherever the letter's texts name them

A row that is not the JSON of a letter stays as it is: the sink may write another format, or rows of another output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockgate.compare.counting import Row
from lockgate.dataflow.deadletters import LETTER
from lockgate.dataflow.schema import parse_ddl

_COLUMNS = frozenset(parse_ddl(LETTER, "dead letters").names)
_OF_RUN = frozenset({"id", "job", "life", "epoch"})
_LEFT_AWAY = _OF_RUN | {"attempts"}
_ALWAYS_THERE = _OF_RUN | {"step", "reason"}  # others may stand beside the value, in headers or the record's time


@dataclass(frozen=True)
class Letters:
    """The letters of one run."""

    topic: str | None  # the author's; None where the job has none
    names: Mapping[str, str]  # ours, in this run -> the author's

    def reduce(self, row: Row) -> Row:
        """The row, as it is in every run."""
        topic, _, value = row
        letter = _read(value) if topic == self.topic else None
        if letter is None:
            return row
        kept = {name: told for name, told in letter.items() if name not in _LEFT_AWAY and told is not None}
        return topic, None, self._renamed(json.dumps(kept, sort_keys=True)).encode()

    def _renamed(self, text: str) -> str:
        if not self.names:
            return text
        # The longest first: a job's name begins the names of its topics. Names have no characters that JSON changes.
        ours = "|".join(re.escape(name) for name in sorted(self.names, key=len, reverse=True))
        return re.sub(ours, lambda found: self.names[found[0]], text)


def _read(value: bytes | None) -> dict[str, Any] | None:
    try:
        told = json.loads(value or b"")
    except ValueError:
        return None
    is_letter = isinstance(told, dict) and _ALWAYS_THERE <= told.keys() <= _COLUMNS
    return told if is_letter else None
