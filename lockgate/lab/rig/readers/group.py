"""All readers of a job's outputs, as one.

A reader has read everything only if it has read every output to its end, and no output has a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lockgate.lab.rig.history import Fact, Gap, Read, Reader, ReadToEnd
from lockgate.lab.rig.readers.deadletters import compared
from lockgate.lab.rig.readers.output import Clock, Output


@dataclass(frozen=True)
class Readers:
    """All of them."""

    outputs: tuple[Output, ...]
    letters: frozenset[str] = frozenset()  # the labels of the outputs that are dead letters
    names: Mapping[str, str] = field(default_factory=dict)  # of the run, and what they are called in every run

    @property
    def labels(self) -> tuple[str, ...]:
        """Of every output that is read."""
        return tuple(label for output in self.outputs for label in output.labels)

    def clear(self) -> None:
        """Remove what an earlier run of the same name left; a run calls it at its end, too."""
        for output in self.outputs:
            output.clear()

    def start_along(self, clock: Clock) -> None:
        """Begin to read along."""
        for output in self.outputs:
            output.start_along(clock)

    def seen(self) -> list[Read]:
        """The rows that were seen so far."""
        return [fact for output in self.outputs for fact in [*output.seen()] if isinstance(fact, Read)]

    def finish_along(self, clock: Clock) -> list[Fact]:
        """The job is over: read to the end. Everything that was seen."""
        return self._ended(Reader.ALONG, [fact for output in self.outputs for fact in output.finish_along()], clock)

    def after(self, clock: Clock) -> list[Fact]:
        """Everything that is there."""
        return self._ended(Reader.AFTER, [fact for output in self.outputs for fact in output.after(clock)], clock)

    def log(self, clock: Clock) -> list[Fact]:
        """Everything that was ever written into outputs that have a log."""
        return self._ended(Reader.LOG, [fact for output in self.outputs for fact in output.log(clock)], clock)

    def standing(self, clock: Clock) -> list[Fact]:
        """What is left open."""
        return [one for output in self.outputs for one in output.standing(clock)]

    def _ended(self, reader: Reader, facts: Sequence[Fact], clock: Clock) -> list[Fact]:
        told = [
            compared(fact, self.names) if isinstance(fact, Read) and fact.output in self.letters else fact
            for fact in facts
        ]
        has_gap = any(isinstance(fact, Gap) for fact in told)
        return told if has_gap else [*told, ReadToEnd(reader, clock())]
