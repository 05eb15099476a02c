"""Jobs whose checkpoints and outputs were written by an earlier version, and that this version continues.

These jobs are part of the fixtures: a change of one would be an upgrade of the job, which is another matter. Add a job
instead, with its fixture. Each reads the same rows, six epochs of ten, and writes files below the working directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from lockgate import (
    FileSink,
    Guarantee,
    Job,
    KafkaSink,
    Late,
    MemorySource,
    PostgresSink,
    SqliteSink,
    StatefulFunction,
    Stream,
    acks,
    aggregates,
    list_of,
    map_of,
    pattern,
    stream,
    synopses,
    value,
    windows,
)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SIZE, PER_EPOCH = 60, 10
COLUMNS = "id BIGINT, k STRING, v BIGINT, at TIMESTAMP"


def row(number: int) -> tuple[int, str, int, datetime]:
    """One event: its key goes round, and every seventh is half a minute late."""
    late = timedelta(seconds=30) if number % 7 == 6 else timedelta()
    return number, "abcd"[number * number % 7 % 4], number * 37 % 23, BEGIN + timedelta(seconds=10 * number) - late


def keys_and_ids() -> list[tuple[str, int]]:
    """Of all events, in order."""
    return sorted((key, number) for number, key, _, _ in map(row, range(SIZE)))


def events(name: str = "events") -> Stream:
    """The events of a job."""
    rows = [row(number) for number in range(SIZE)]
    return stream(name, MemorySource(rows, value=COLUMNS, per_epoch=PER_EPOCH))


def timed(*, late: Late = Late.DROP, allowed: str | None = None) -> Stream:
    """The same in event time."""
    return events().event_time("at", lateness="5 seconds", late=late, allowed=allowed)


def table(name: str = "results", key: str | tuple[str, ...] | None = None) -> SqliteSink:
    """A table of the file in which all results of a job are."""
    return SqliteSink(table=name, path="results.db", key=key)


def exactly(name: str, *streams: Stream, **more: Any) -> Job:
    """A job whose outputs are in one transaction with its ledger."""
    outputs = [one.to(f"out{number}", table(f"out{number}")) for number, one in enumerate(streams)]
    return Job(name, *outputs, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, **more)


class Visits(StatefulFunction):
    """All kinds of state, and timers of both kinds of time."""

    schema = "k STRING, what STRING, n BIGINT, total BIGINT"
    total = value("BIGINT")
    newest = value("STRUCT<id BIGINT, at TIMESTAMP>")
    recent = list_of("BIGINT", ttl="36500 days")
    seen = map_of("BIGINT", "STRING", ttl="36500 days")

    def process(self, row: Any, context: Any) -> Iterator[Any]:
        self.total.set((self.total.get() or 0) + row.v)
        self.newest.set({"id": row.id, "at": row.at})
        self.recent.append(row.v)
        self.seen.set(row.v, f"in {row.id}")
        context.at(row.at + timedelta(seconds=90), "silence")
        context.after(timedelta(days=36_500), "never")
        yield context.key.k, "event", len(list(self.recent.get())), self.total.get()

    def on_timer(self, timer: Any, context: Any) -> Iterator[Any]:
        yield context.key.k, f"silent since {self.newest.get().id}", len(dict(self.seen.items())), self.total.get()


def rolling() -> Job:
    """Rolling aggregates of every kind, and synopses."""
    summary = (
        events()
        .key_by("k")
        .rolling(
            name="summary",
            n="count(*)",
            total="sum(v)",
            mean="avg(v)",
            best=aggregates.combine("v", max, "BIGINT"),
            first=aggregates.first("v"),
            last=aggregates.last("at"),
            middle=aggregates.history("v", sorted, "ARRAY<BIGINT>"),
            many=synopses.distinct("v"),
            often=synopses.top("v", k=2),
            shares=synopses.quantiles("v", at=(0.5,)),
            some=synopses.sample("v", size=3),
        )
    )
    return exactly("rolling", summary)


def function() -> Job:
    """A function with state and timers."""
    return exactly("function", timed().key_by("k").process(Visits(), name="visits"))


def patterns() -> Job:
    """Patterns under way, those that time out among them."""
    risen = pattern.begin("low", "v < 12").then("high", "v > 15").within(timedelta(seconds=40))
    found = timed().key_by("k").detect(risen, name="risen")
    return exactly("patterns", found, found.timed_out)


def own_windows() -> Job:
    """Windows whose state is Lockgate's own: by number, by condition, and of all keys together."""
    keyed = events().key_by("k")
    counted = keyed.window(windows.sliding_count(4, every=2), name="counted").aggregate(n="count(*)", total="sum(v)")
    until = keyed.window(windows.until("v > 18"), name="until").aggregate(n="count(*)", last="max(id)")
    # Without the begin and the end of a window, which are times of arrival.
    return exactly("own-windows", counted.select("k", "n", "total"), until.select("k", "n", "last"))


def corrected() -> Job:
    """Windows that late events correct, and that speak before they end."""
    windowed = (
        timed(late=Late.CORRECT, allowed="1 minute").key_by("k").window(windows.tumbling("1 minute"), name="sums")
    )
    return exactly("corrected", windowed.trigger(every=2).aggregate(n="count(*)", total="sum(v)"))


def native_windows(window: Any, name: str) -> Job:
    """Windows whose state is Spark's."""
    return exactly(name, timed().key_by("k").window(window, name="sums").aggregate(n="count(*)", total="sum(v)"))


def native_tumbling() -> Job:
    """Tumbling windows of Spark's."""
    return native_windows(windows.tumbling("1 minute"), "native-tumbling")


def native_session() -> Job:
    """Sessions of Spark's."""
    return native_windows(windows.session(gap=timedelta(seconds=25)), "native-session")


def joined() -> Job:
    """Two streams, with the events that found no partner."""
    left = timed()
    right = stream(
        "others",
        MemorySource([row(number) for number in range(0, SIZE, 3)], value=COLUMNS, per_epoch=PER_EPOCH // 3),
    ).select("k", other="id", w="v", then="at")
    pairs = left.join(
        right.event_time("then", lateness="5 seconds"), on="k", within="30 seconds", how="left", name="pairs"
    )
    return exactly("joined", pairs)


def letters() -> Job:
    """Dead letters, beside what is good."""

    def halved(row: Any) -> Any:
        if row.v % 5 == 0:
            raise ValueError("v is a multiple of five")
        return row.id, 100 // (row.v % 5)

    made = events().map(halved, schema="id BIGINT, half BIGINT")
    return Job(
        "letters",
        made.to("out0", table("out0")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
        dead_letters=table("letters"),
    )


def files() -> Job:
    """Files in folders, committed by manifests."""
    kept = events().select("id", "k", "v").to("out0", FileSink("files", partition_by=["k"]))
    return Job("files", kept, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)


def acknowledged() -> Job:
    """At-least-once by acknowledgement."""
    kept = events().where("v > 3").to("out0", table("out0"))
    return Job("acknowledged", kept, guarantee=Guarantee.AT_LEAST_ONCE, tracking=acks(), dead_letters=table("letters"))


def upserts() -> Job:
    """Upserts below exactly-once, fenced by a ledger."""
    counted = timed().key_by("k").rolling(n="count(*)", name="counted").select("k", "n")
    return Job("upserts", counted.to("out0", table("out0", key="k")), guarantee=Guarantee.EXACTLY_ONCE)


JOBS: dict[str, Callable[[], Job]] = {
    "rolling": rolling,
    "function": function,
    "patterns": patterns,
    "own-windows": own_windows,
    "corrected": corrected,
    "native-tumbling": native_tumbling,
    "native-session": native_session,
    "joined": joined,
    "letters": letters,
    "files": files,
    "acknowledged": acknowledged,
    "upserts": upserts,
}


def to_kafka(address: str) -> Job:
    """A topic with the ledger beside it; the address is that of the broker, a slash, and the topic."""
    servers, topic = address.rsplit("/", 1)
    out = events().to("out", KafkaSink(servers=servers, topic=topic, key="k"))
    return Job(topic, out, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)


def to_postgres(address: str) -> Job:
    """A table with the ledger beside it; the address is the DSN."""
    out = events().to("out", PostgresSink(table="compat", dsn=address, key="id", create=True))
    return Job("compat", out, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)


WITH_SERVICES: dict[str, Callable[[str], Job]] = {"kafka": to_kafka, "postgres": to_postgres}


def job(name: str, address: str = "") -> Job:
    """The job of this name, for the command line."""
    return WITH_SERVICES[name](address) if address else JOBS[name]()
