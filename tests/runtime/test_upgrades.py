"""The table of docs/UPGRADES.md, as far as it is about sources, outputs and stateless steps: one checkpoint, many
codes.

What becomes of state itself is in test_state.py.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lockgate import FileSource, Guarantee, Job, MemorySink, Stream, stream
from lockgate.errors import Refused
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DDL = "k STRING, v INT, at TIMESTAMP"


class Upgrades:
    """A job whose code changes from run to run."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.sent = 0
        for name in ("a", "b", "c"):
            (place / name).mkdir()

    def read(self, folder: str = "a", name: str | None = None, ddl: str = DDL, lateness: str = "1 second") -> Stream:
        source = FileSource(path=str(self.place / folder), value=ddl)
        return stream(name or folder, source).event_time("at", lateness=lateness)

    def send(self, folder: str = "a") -> None:
        """One more event."""
        at = (BEGIN + timedelta(seconds=self.sent)).isoformat()
        (self.place / folder / f"{self.sent}.json").write_text(f'{{"k": "x", "v": 1, "at": "{at}", "more": "m"}}')
        self.sent += 1

    def run(self, *outputs: Stream, guarantee: Guarantee = Guarantee.AT_LEAST_ONCE) -> list[list[Any]]:
        """What came out, output by output."""
        sinks = [MemorySink() for _ in outputs]
        named = [rows.to(f"out {at}", sink) for at, (rows, sink) in enumerate(zip(outputs, sinks, strict=True))]
        job = Job("upgraded", *named, guarantee=guarantee)
        run_to_the_end(job, self.place)
        return [sink.rows for sink in sinks]


def totals(rows: Stream) -> Stream:
    return rows.key_by("k").parallel(2).rolling(name="totals", total="sum(v)")


def shown(rows: Sequence[Any]) -> list[int]:
    return [row.total for row in rows]


@pytest.mark.slow
def test_a_checkpoint_continues_through_harmless_changes_and_refuses_the_others(tmp_path: Path) -> None:
    job = Upgrades(tmp_path)
    b = job.read("b")
    job.send()
    job.run(totals(job.read().merge(b)))
    # Accepted: conditions, steps without state, lateness, a source's name, a column more, what is declared.
    accepted = [
        totals(job.read().where("v > 0").merge(b)),
        totals(job.read().select("k", "v", "at").merge(b)).select("k", "total", twice="2 * v"),
        totals(job.read(lateness="1 minute").merge(b)),
        totals(job.read(name="renamed").merge(b)),
        totals(job.read(ddl=f"{DDL}, more STRING").select("k", "v", "at").merge(b)),
    ]
    for count, changed in enumerate(accepted, start=2):
        job.send()
        (rows,) = job.run(changed)
        assert shown(rows) == [count]
    job.send()
    same = totals(job.read().merge(b))
    (rows,) = job.run(same, guarantee=Guarantee.EXACTLY_ONCE)
    assert shown(rows) == [7]
    # Refused, before anything runs, with what was and what is.
    with pytest.raises(Refused, match=r"read in the order 'a' \(files in .*/a\), 'b' .* in the order 'b' .*, 'a' "):
        job.run(totals(b.merge(job.read())))
    with pytest.raises(Refused, match=r"'c' \(files in .*/c\) is now in the place of 'b' \(files in .*/b\)"):
        job.run(totals(job.read().merge(job.read("c"))))
    with pytest.raises(Refused, match=r"'a' \(.*\), 'b' \(.*\) were read, and now 'a' \(files in .*/a\)"):
        job.run(totals(job.read()))
    with pytest.raises(Refused, match=r"'a' \(.*\), 'b' \(.*\) were read, and now 'a' \(.*\), 'b' \(.*\), 'b' \(.*\)"):
        job.run(same, b)
    # Accepted: an output of the same rows, and without it again.
    job.send()
    first, second = job.run(same, same.where("total > 100"))
    assert (shown(first), second) == ([8], [])
    job.send()
    (rows,) = job.run(same)
    assert shown(rows) == [9]
