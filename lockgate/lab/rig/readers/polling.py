"""An output that is looked at again and again: a table, or a directory.

A look gives the rows of one moment. Between two looks rows may come and go unseen, so nothing is said of what no look
saw. What a look saw means different things, depending on how rows are kept (see Keeping):

    ADDED      a row keeps its place permanently: a row that was seen and is not there in the end is gone
    REPLACED   rows give way to others of their key: what was seen on the way shows only that the job makes progress

A server that is away, and a file that is locked, are no gap: the next look sees what has come. Only the last look, when
the job is over, has to succeed.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple

from lockgate.lab.rig.history import Fact, Gap, Read, Reader
from lockgate.lab.rig.judge.promises import Keeping
from lockgate.lab.rig.readers.output import Clock, Output

_EVERY_SECONDS = 0.3
_PATIENCE_SECONDS = 60.0


class Away(Exception):
    """The output cannot be read at this moment."""


class Seen(NamedTuple):
    """A row that is there."""

    version: Hashable  # another row, or another value of the same, has another one
    offset: int  # its place, the same whenever it is looked at
    key: bytes | None
    value: bytes


class Polled(Output):
    """One output, by one label, that is looked at again and again."""

    def __init__(self, label: str, keeping: Keeping) -> None:
        self.labels = (label,)
        self._label, self._keeping = label, keeping
        self._poller: _Poller | None = None

    @abstractmethod
    def look(self, known: Collection[Hashable]) -> Iterable[Seen]:
        """The rows of this moment without the versions that are known; none if there is no table yet.

        Raises Away if the output cannot be read at this moment.
        """

    def release(self) -> None:
        """Let go of what was kept for the next look."""
        return

    def start_along(self, clock: Clock) -> None:
        self._poller = _Poller(self, clock)
        self._poller.start()

    def seen(self) -> Sequence[Fact]:
        return () if self._poller is None else self._poller.facts

    def finish_along(self) -> list[Fact]:
        return [] if self._poller is None else self._poller.finish()

    def after(self, clock: Clock) -> list[Fact]:
        try:
            rows = look_patiently(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, the output was not read to its end
            return [Gap(Reader.AFTER, _failure_text(self._label, error), clock())]
        finally:
            self.release()
        if self._keeping is Keeping.REPLACED:
            rows = sorted(rows, key=lambda row: (row.key or b"", row.value))
            rows = [row._replace(offset=number) for number, row in enumerate(rows)]
        return [self.as_read(row, Reader.AFTER, clock()) for row in rows]

    def as_read(self, row: Seen, reader: Reader, at_seconds: float) -> Read:
        """A row as a fact; neither tables nor files tell of events and epochs."""
        return Read(reader, self._label, 0, row.offset, row.key, row.value, None, None, at_seconds)

    @property
    def label(self) -> str:
        """What it is called in every run."""
        return self._label

    @property
    def keeping(self) -> Keeping:
        """How it keeps rows."""
        return self._keeping


def look_patiently(output: Polled, known: Collection[Hashable] = ()) -> list[Seen]:
    """What is there, as soon as the output can be read."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return list(output.look(known))
        except Away:
            if time.monotonic() > deadline:
                raise
            time.sleep(_EVERY_SECONDS)


class _Poller(threading.Thread):
    """Looks until the job is over, and then once more."""

    def __init__(self, output: Polled, clock: Clock) -> None:
        super().__init__(name=f"lockgate-rig-reader-{output.label}", daemon=True)
        self._output, self._clock = output, clock
        self.facts: list[Fact] = []
        self._known: set[Hashable] = set()
        self._is_over = threading.Event()

    def run(self) -> None:
        """Look until the job is over; the look after that is the last one."""
        try:
            while not self._is_over.wait(_EVERY_SECONDS):
                try:
                    self._note(self._output.look(self._known))
                except Away:
                    continue
            self._note(look_patiently(self._output, self._known))
        except Exception as error:  # noqa: BLE001 - a reader that died saw nothing more, and that has to be known
            self.facts.append(Gap(Reader.ALONG, _failure_text(self._output.label, error), self._clock()))
        finally:
            self._output.release()

    def finish(self) -> list[Fact]:
        """All that it has seen."""
        self._is_over.set()
        self.join()
        return self.facts

    def _note(self, rows: Iterable[Seen]) -> None:
        rows = list(rows)  # all of one look, or none
        at_seconds = self._clock()
        for row in rows:
            self._known.add(row.version)
            if self._output.keeping is Keeping.REPLACED:
                row = row._replace(offset=len(self.facts))  # every value that is seen under a key is one of its own
            self.facts.append(self._output.as_read(row, Reader.ALONG, at_seconds))


def _failure_text(label: str, error: Exception) -> str:
    return f"{label}: {type(error).__name__}: {error}"
