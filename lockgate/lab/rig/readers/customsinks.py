"""Rows that a sink of the user's own shows, by its own reader: what it gives is compared, whatever keeps it.

The reader says what is there now, in any order. A row has no place of its own, so rows with equal content are counted:
the second of two equal rows is another row than the first. A row that was seen is gone if fewer of its content are
there in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

from lockgate.lab.rig.judge.promises import Keeping
from lockgate.lab.rig.readers.polling import Away, Polled, Seen
from lockgate.lab.rig.readers.rows import canonical, key_of


class CustomSinkRows(Polled):
    """What a sink can show."""

    def __init__(
        self, label: str, look: Callable[[], Iterable[Mapping[str, Any]]], *, key: Collection[str] = ()
    ) -> None:
        super().__init__(label, Keeping.REPLACED if key else Keeping.ADDED)
        self._look, self._key = look, key
        self._places: dict[tuple[bytes, int], int] = {}

    def look(self, known: Collection[Hashable]) -> list[Seen]:
        try:
            rows = [dict(row) for row in self._look()]
        except Exception as error:
            raise Away(f"{type(error).__name__}: {error}") from error
        seen, times = [], Counter[bytes]()
        for row in rows:
            value = canonical(row)
            version = value, times[value]
            times[value] += 1
            place = self._places.setdefault(version, len(self._places))
            if version not in known:
                seen.append(Seen(version, place, key_of(row, self._key), value))
        return seen
