"""What an output owes: the rows of the undisturbed job, under the guarantee that is declared for it.

They come from an undisturbed run, or are computed from the events. An undisturbed run and a trial get the same events,
in the same partitions and the same order, and name topics by the same labels: so the trace of a row is the same in
both, and rows with equal bytes that come of different events can be distinguished.

If undisturbed runs differ from each other (a function that is not deterministic, results that depend on where epochs
end) there is nothing to compare with, and `rows` is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from lockgate.guarantees import Guarantee
from lockgate.lab.rig.history import Content, Trace


class Row(NamedTuple):
    """A row that has to come."""

    key: bytes | None
    value: bytes | None
    trace: Trace | None = None

    @property
    def content(self) -> Content:
        """Key and value."""
        return self.key, self.value


class Keeping(Enum):
    """How an output keeps its rows, and so what can be said of the way to its end.

    LOG         a topic: all that was ever written can be read, in its order; rows name their events and epochs
    ADDED       a table or a directory into which rows are added: one that was seen stays at its place
    REPLACED    a table with a key: rows give way to others, so only the end can be compared
    """

    LOG = "log"
    ADDED = "added"
    REPLACED = "replaced"


@dataclass(frozen=True)
class Promise:
    """What one output owes."""

    guarantee: Guarantee
    rows: tuple[Row, ...] | None  # of the job undisturbed; None: no run is like another
    batch: tuple[Row, ...] | None = None  # the same computed at once over all events, apart from the stream
    is_ordered: bool = False  # nothing gathers events on the way: what comes of a key leaves in the order of its events
    is_placed_by_key: bool = True  # the rows of a key have one partition; not where a column chooses it
    keeping: Keeping = Keeping.LOG
    has_transactions: bool = True  # may something be left open or waiting in it? Not among files
    tells_epochs: bool = True  # can the epoch of a row be known? Without that, nothing is said of split epochs


Promises = Mapping[str, Promise]
"""By output."""
