"""Jobs with state of every kind, over files, for tests that deal their state out anew."""

from collections.abc import Iterator
from typing import Any

from lockgate import FileSource, Guarantee, Job, SqliteSink, StatefulFunction, stream, value, windows


class Silences(StatefulFunction):
    """How many events a team had when it has been silent for five seconds."""

    schema = "team STRING, events INT"
    seen = value("INT")

    def process(self, row: Any, context: Any) -> Iterator[dict[str, Any]]:
        from datetime import timedelta

        self.seen.set((self.seen.get() or 0) + 1)
        context.at(row.at + timedelta(seconds=5), "silence")
        yield from ()

    def on_timer(self, timer: Any, context: Any) -> Iterator[dict[str, Any]]:
        yield {"team": context.key.team, "events": self.seen.get()}
        self.seen.clear()


def job(root: str, kind: str, parallel: int = 0) -> Job:
    popped = stream("popped", FileSource(path=f"{root}/popped", value="team STRING, n INT, at TIMESTAMP"))
    other = stream("other", FileSource(path=f"{root}/other", value="team STRING, m INT, at2 TIMESTAMP"))
    timed = popped.event_time("at", lateness="1 second")
    teams = timed.key_by("team")
    keyed = teams.parallel(parallel) if parallel else teams

    def to(name: str, rows: Any) -> Any:
        return rows.to(f"{name} out", SqliteSink(path=f"{root}/{kind}.db", table=name))

    if kind == "python":
        outputs = [
            to("totals", keyed.rolling(name="totals", total="sum(n)").select("team", "n", "total")),
            to("silences", keyed.process(Silences(), name="silences")),
        ]
    elif kind == "windows":
        outputs = [to("sums", keyed.window(windows.tumbling("10 seconds"), name="sums").aggregate(total="sum(n)"))]
    elif kind == "sessions":
        outputs = [to("sums", keyed.window(windows.session(gap="3 seconds"), name="sums").aggregate(total="sum(n)"))]
    else:
        joined = timed.join(other.event_time("at2", lateness="1 second"), on="team", within="30 seconds", name="pairs")
        outputs = [to("pairs", joined.select("team", "n", "m"))]
    return Job(kind, *outputs, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
