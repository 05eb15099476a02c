"""How long do people read? Pages turned by one reader, until a quarter of an hour passes without one.

lockgate plan examples/reading_sessions.py      the graphs and the guarantee
python examples/reading_sessions.py             a run over 1,200 made-up pages; needs no broker
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lockgate import FileSink, FileSource, Guarantee, Job, stream, windows
from lockgate.lab.demo import terminal
from lockgate.lab.demo.example import in_directories, run_main

PAGE = "reader STRING, book STRING, page INT, at TIMESTAMP"


def job(pages: str = "pages", sessions: str = "sessions") -> Job:
    """Pages and duration of every session, from the first page to the last; `window_end` is one gap later."""
    read = (
        stream("pages", FileSource(path=pages, value=PAGE))
        .event_time("at", lateness=timedelta(minutes=2))
        .key_by("reader")
        .window(windows.session(gap=timedelta(minutes=15)))
        .aggregate(pages="count(*)", seconds="unix_seconds(max(at)) - unix_seconds(min(at))")
    )
    return Job(
        "reading-sessions", read.to("sessions", FileSink(path=sessions)), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE
    )


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`, which marks events that are late for their windows as `_late`."""
    gap = timedelta(minutes=15)
    watermark = max(page["at"] for page in events["pages"]) - timedelta(minutes=2)
    sessions: dict[str, list[list[datetime]]] = defaultdict(list)
    for page in sorted(events["pages"], key=lambda page: page["at"]):
        own = sessions[page["reader"]]
        if not page["_late"]:
            if not own or page["at"] - own[-1][-1] > gap:
                own.append([])
            own[-1].append(page["at"])
    rows = [
        {
            "reader": reader,
            "window_start": times[0],
            "window_end": times[-1] + gap,
            "pages": len(times),
            "seconds": int(times[-1].timestamp()) - int(times[0].timestamp()),
        }
        for reader, own in sessions.items()
        for times in own
        if times[-1] + gap <= watermark
    ]
    return {"sessions": rows}


def make_pages(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Pages of six readers who pause now and then; a page arrives up to a minute after it was turned."""
    rng = random.Random(seed)
    times = dict.fromkeys(("ada", "ben", "cora", "dev", "eli", "fay"), datetime(2026, 1, 1, 12, tzinfo=UTC))
    turned = []
    for number in range(count):
        reader = rng.choice(list(times))
        is_pause = rng.random() < 0.05
        times[reader] += timedelta(seconds=rng.uniform(1_200, 5_400) if is_pause else rng.uniform(20, 120))
        book = rng.choice(["Emma", "Ulysses", "Middlemarch"])
        page = {"reader": reader, "book": book, "page": number, "at": times[reader].isoformat()}
        turned.append((times[reader] + timedelta(seconds=rng.uniform(0, 60)), number, page))
    for _, _, page in sorted(turned, key=lambda one: one[:2]):
        yield page


def main(directory: Path | None = None) -> None:
    """Write pages, run the job over them, show the longest sessions."""
    with in_directories("pages", "sessions", directory=directory) as tryout:
        tryout.send("pages", make_pages(count=1200, seed=7))
        tryout.run(job(**tryout.places))
        rows = sorted(tryout.rows("sessions"), key=lambda row: (-row["seconds"], row["reader"]))
    print(f"the longest of {len(rows)} sessions, in minutes")
    longest = {f"{row['reader']:4} {row['window_start']:%H:%M}": row["seconds"] // 60 for row in rows[:10]}
    print(terminal.bars(longest))


if __name__ == "__main__":
    run_main(main)
