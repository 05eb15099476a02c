"""A group of readers has read everything only if each of them has."""

from collections.abc import Sequence

from lockgate.lab.rig.history import Fact, Gap, Read, Reader, ReadToEnd
from lockgate.lab.rig.readers.group import Readers
from lockgate.lab.rig.readers.output import Clock, Output


class Scripted(Output):
    """Saw what it is told that it saw."""

    def __init__(self, label: str, *facts: Fact) -> None:
        self.labels = (label,)
        self._facts = facts

    def start_along(self, clock: Clock) -> None:
        return

    def seen(self) -> Sequence[Fact]:
        return self._facts

    def finish_along(self) -> list[Fact]:
        return [*self._facts]

    def after(self, clock: Clock) -> list[Fact]:
        return [*self._facts]


def test_the_end_of_reading_is_noted_once_and_only_if_no_reader_has_a_gap() -> None:
    row = Read(Reader.ALONG, "a", 0, 0, None, b"{}", None, None, 1.0)
    whole = Readers((Scripted("a", row), Scripted("b")))
    assert whole.finish_along(lambda: 2.0) == [row, ReadToEnd(Reader.ALONG, 2.0)]
    assert whole.after(lambda: 2.0)[-1] == ReadToEnd(Reader.AFTER, 2.0)
    gap = Gap(Reader.ALONG, "b: away", 1.5)
    assert Readers((Scripted("a", row), Scripted("b", gap))).finish_along(lambda: 2.0) == [row, gap]


def test_what_is_seen_so_far_are_rows() -> None:
    row, gap = Read(Reader.ALONG, "a", 0, 0, None, b"{}", None, None, 1.0), Gap(Reader.ALONG, "b: away", 1.5)
    assert Readers((Scripted("a", row), Scripted("b", gap))).seen() == [row]
