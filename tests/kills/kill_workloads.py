"""The jobs whose processes are killed: seeded events in, and what has to come out, computed without Lockgate.

keyed      a filter and a computed column, rows exchanged to the writer of their key
alike      the same without an exchange: source and sink are partitioned alike
spread     the same without a key
split      two topics in one transaction
rolling    a running total per key: state, and the order of events shows in every row
windows    sums per key and ten seconds: state and a watermark
counts     sums of every five events of a key
timers     a function with state and timers: sums per key and ten seconds, told by a timer, and every eighth event
alarms     a pattern, in two topics: a large amount after a small one, and small ones that none followed in time
state      the last three in one job, in one transaction
late       events out of order, some too late: native windows and corrected sessions, each with its late events
joined     pairs of a small amount and a large one of a key, at most half a minute apart

three systems      the rows of keyed, into Kafka, PostgreSQL and files
table and files    the same without Kafka
two clusters       the same, into Kafka twice
"""

import base64
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kafka.partitioner.default import murmur2

PARTITIONS = 4
DEAD_LETTERS = "-letters"
KEYS = [f"key-{number}" for number in range(16)]
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = timedelta(seconds=10)
LATENESS = timedelta(seconds=120)
WITHIN = timedelta(seconds=30)
DELAYS = [timedelta(seconds=seconds) for seconds in (*[0] * 6, 1, 2, 5, 9, 17, 30, 60, 90)]
SHORT_LATENESS, ALLOWED, GAP = timedelta(seconds=20), timedelta(seconds=40), timedelta(seconds=4)
COUNT, EIGHTH = 5, 8
TIME = "%Y-%m-%dT%H:%M:%S.%fZ"

HEAD = """\
import random
from datetime import UTC, datetime

from lockgate import FileSink, Guarantee, Job, KafkaSink, KafkaSource, Late, PostgresSink
from lockgate import StatefulFunction, acks, map_of, pattern, stream, value, windows


def job(servers: str, name: str, read: str, write: str, dsn: str = "", files: str = "", second: str = "") -> Job:
    source = KafkaSource(topic=read, servers=servers, {columns})
    events = stream("events", source)
{body}
    return Job(name, {outputs}, guarantee=Guarantee.{guarantee}, epoch="100 milliseconds"{settings})
"""

Event = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """A job as a file, and its known answer."""

    name: str
    body: str
    outputs: dict[str, str]  # the stream of each output, by the suffix of its topic
    expect: Callable[[Any], Iterable[tuple[str, str | None, Event]]]  # suffix of the topic, key, value
    key: str | None = "name"  # of the sink
    is_read_by_key: bool = False  # is the name the key of the source's records, which are placed by it?
    is_ordered: bool = True  # do the rows of a key show the order of their events, by an id?
    has_windows: bool = False
    has_late: bool = False  # do events come too late? Then the answer depends on the epochs, and is computed from them
    guarantee: str = "END_TO_END_EXACTLY_ONCE"
    settings: str = ""  # of the job, as text
    others: tuple[str, ...] = ()  # further outputs, as text: into a table (dsn), files, another cluster (second)

    def source(self) -> str:
        """The text of the job file."""
        keyed = "" if self.key is None else f', key="{self.key}"'
        kafka = [
            f'{made}.to("out{suffix}", KafkaSink(topic=write + "{suffix}", servers=servers{keyed}))'
            for suffix, made in self.outputs.items()
        ]
        outputs = ", ".join([*kafka, *self.others])
        columns = 'value="id INT, name STRING, amount INT, at TIMESTAMP"'
        if self.is_read_by_key:
            columns = 'value="id INT, amount INT, at TIMESTAMP", key="name STRING"'
        return HEAD.format(
            columns=columns, body=self.body, outputs=outputs, guarantee=self.guarantee, settings=self.settings
        )

    @property
    def suffixes(self) -> list[str]:
        """Of the topics that it writes."""
        return [*self.outputs, *([DEAD_LETTERS] if self.settings else ())]

    def parameters(self, *, servers: str, name: str, read: str, write: str) -> dict[str, str]:
        """Of the job file."""
        return {"servers": servers, "name": name, "read": read, "write": write}

    @property
    def has_table(self) -> bool:
        """Does it write to PostgreSQL and files, too?"""
        return _TABLE in self.others

    @property
    def has_second(self) -> bool:
        """Does it write to a second Kafka?"""
        return _SECOND in self.others

    def make_events(self, rng: random.Random) -> Iterator[Event]:
        """What is sent."""
        return disorder(events(rng), rng) if self.has_late else events(rng)

    def compared(self, row: Event) -> bytes:
        """A row as it is compared; a letter counts as what it says of its event, whichever epoch it left in."""
        if "life" in row:
            event = json.loads(base64.b64decode(row["value"]))
            row = {"event": event["id"], "step": row["step"], "reason": row["reason"]}
        return json.dumps(row, sort_keys=True, separators=(",", ":")).encode()

    def partition(self, event: Event) -> int:
        """Where an event is sent to: all of one key to one partition."""
        if self.is_read_by_key:
            return int((murmur2(event["name"].encode()) & 0x7FFFFFFF) % PARTITIONS)
        return int(event["name"].rpartition("-")[2]) % PARTITIONS

    def record(self, event: Event) -> tuple[bytes, bytes]:
        """The key and the value of an event in the topic."""
        shown = {name: value for name, value in event.items() if name != "name" or not self.is_read_by_key}
        return event["name"].encode(), json.dumps(shown).encode()

    def finale(self) -> Event | None:
        """What is sent when all else is processed, so that every window closes."""
        last = {"id": -1, "name": "end-0", "amount": 0, "at": (BEGAN + timedelta(days=9)).isoformat()}
        return last if self.has_windows or self.has_late else None


def events(rng: random.Random) -> Iterator[Event]:
    """Events without end; their times go on by a quarter of a second."""
    number = 0
    while True:
        yield {
            "id": number,
            "name": rng.choice(KEYS),
            "amount": rng.randrange(100),
            "at": (BEGAN + number * timedelta(milliseconds=250)).isoformat(),
        }
        number += 1


def disorder(made: Iterable[Event], rng: random.Random) -> Iterator[Event]:
    """The same events, some of which happened earlier, up to far behind what is waited for."""
    for event in made:
        yield {**event, "at": (_time(event) - rng.choice(DELAYS)).isoformat()}


def _doubled(event: Event) -> Event:
    return {"id": event["id"], "name": event["name"], "twice": event["amount"] * 2}


def _expect_keyed(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    for event in sent:
        if event["amount"] % 10:
            yield "", event["name"], _doubled(event)


def _expect_spread(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    return ((suffix, None, value) for suffix, _, value in _expect_keyed(sent))


def _expect_split(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    for event in sent:
        row = {"id": event["id"], "name": event["name"], "amount": event["amount"]}
        if event["amount"] < 60:
            yield "-small", event["name"], row
        if event["amount"] >= 40:  # some events go both ways
            yield "-large", event["name"], row


def _expect_rolling(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    totals: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for event in sent:
        totals[event["name"]] += event["amount"]
        counts[event["name"]] += 1
        row = {"id": event["id"], "name": event["name"], "amount": event["amount"]}
        yield "", event["name"], {**row, "total": totals[event["name"]], "count": counts[event["name"]]}


def _expect_windows(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    sums: dict[tuple[str, datetime], list[int]] = defaultdict(list)
    for event in sent:
        at = datetime.fromisoformat(event["at"])
        sums[event["name"], at - (at - BEGAN) % WINDOW].append(event["amount"])
    for (name, start), amounts in sums.items():
        times = {"window_start": _text(start), "window_end": _text(start + WINDOW)}
        yield "", name, {"name": name, **times, "total": sum(amounts), "count": len(amounts)}


def _expect_letters(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    totals: dict[str, int] = {}
    for event in sent:
        if event["amount"] % 10 == 3:
            yield DEAD_LETTERS, None, {"event": event["id"], "step": "map", "reason": "ValueError: three"}
        elif event["amount"] % 10 == 4:
            yield DEAD_LETTERS, None, {"event": event["id"], "step": "totals", "reason": "ValueError: four"}
        else:
            totals[event["name"]] = totals.get(event["name"], 0) + event["amount"]
            yield "", event["name"], {"id": event["id"], "name": event["name"], "total": totals[event["name"]]}


def _by_name(sent: list[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in sent:
        found[event["name"]].append(event)
    return found


def _expect_counts(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    for name, mine in _by_name(sent).items():
        for last in range(COUNT, len(mine) + 1, COUNT):
            part = mine[last - COUNT : last]
            times = {"window_start": _shown(part[0])["at"], "window_end": _shown(part[-1])["at"]}
            yield "", name, {"name": name, **times, "total": sum(one["amount"] for one in part), "id": part[-1]["id"]}


def _expect_timers(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    for name, mine in _by_name(sent).items():
        for last in range(EIGHTH, len(mine) + 1, EIGHTH):
            yield "", name, {"name": name, "what": "event", "number": mine[last - 1]["id"], "total": last}
    for _, key, row in _expect_windows(sent):
        begin = datetime.strptime(row["window_start"], TIME).replace(tzinfo=UTC)
        slot = int(begin.timestamp()) // WINDOW.seconds
        yield "", key, {"name": key, "what": "timer", "number": slot, "total": row["total"]}


def _expect_alarms(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    for name, mine in _by_name(sent).items():
        waiting: list[Event] = []
        for event in [*mine, None]:
            while waiting and (event is None or _time(event) > _time(waiting[0]) + WITHIN):
                alone = waiting.pop(0)
                begin = _shown(alone)["at"]
                yield "-alone", name, {"name": name, "match_start": begin, "reached": "small", "small": _shown(alone)}
            if event is None:
                break
            if event["amount"] > 80 and waiting:
                times = {"match_start": _shown(waiting[0])["at"], "match_end": _shown(event)["at"]}
                yield "", name, {"name": name, **times, "small": _shown(waiting[0]), "large": _shown(event)}
                waiting.clear()
            elif event["amount"] < 20:
                waiting.append(event)


def _expect_state(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    for part, expect in (("-counts", _expect_counts), ("-timers", _expect_timers), ("-alarms", _expect_alarms)):
        for suffix, key, row in expect(sent):
            yield part + suffix, key, row


def _expect_joined(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    for name, mine in _by_name(sent).items():
        for one in mine:
            for two in mine:
                if one["amount"] < 20 and two["amount"] > 80 and abs(_time(one) - _time(two)) <= WITHIN:
                    yield "", name, {"name": name, "id": one["id"], "large_id": two["id"]}


# -- events that come too late ---------------------------------------------------------------------------------------


def _expect_late(taken: list[list[Event]]) -> Iterator[tuple[str, str | None, Event]]:
    in_time: list[Event] = []
    sessions: dict[str, list[_Session]] = defaultdict(list)
    for epoch, before, now in _clocked(taken):
        fresh: dict[str, list[_Session]] = defaultdict(list)
        for event in epoch:
            at, name = _time(event), event["name"]
            start = at - (at - BEGAN) % WINDOW
            if start + WINDOW <= before:
                yield "-late", name, {**_shown(event), **_span(start, start + WINDOW)}
            else:
                in_time.append(event)
            if at + GAP + ALLOWED <= before:
                yield "-sessions-late", name, {**_shown(event), **_span(at, at + GAP)}
            else:
                fresh[name].append(_Session(at, at + GAP, [event["amount"]], is_changed=True))
        for name in {*sessions, *fresh}:
            for row in _settle(sessions[name], fresh[name], now):
                yield "-sessions", name, {"name": name, **row}
    for _, name, row in _expect_windows([event for event in in_time if event["id"] >= 0]):
        yield "", name, row  # all of them are closed by the last event


def _clocked(taken: list[list[Event]]) -> Iterator[tuple[list[Event], datetime, datetime]]:
    """Each epoch with the watermark that those before it have acted on, and its own; a last one acts on all."""
    before = now = greatest = datetime.fromtimestamp(0, UTC)
    for epoch in [*taken, []]:
        yield epoch, before, now
        greatest = max([greatest, *map(_time, epoch)])
        before, now = now, max(now, greatest - SHORT_LATENESS)


@dataclass
class _Session:
    start: datetime
    end: datetime
    amounts: list[int]
    is_changed: bool = False  # since it was told
    told: int = 0
    told_end: datetime | None = None

    def row(self, end: datetime, total: int | None, count: int | None) -> Event:
        final = {"revision": self.told, "is_final": True}
        return {**_span(self.start, end), **final, "total": total, "count": count}


def _settle(kept: list[_Session], fresh: list[_Session], now: datetime) -> Iterator[Event]:
    """Let the sessions of a key meet, as docs/WINDOWS.md has it, and tell those that are over."""
    met: list[_Session] = []
    # Of two that begin together the older one is first: it was perhaps told.
    for one in sorted([*kept, *fresh], key=lambda one: (one.start, -one.told)):
        if not met or one.start > met[-1].end:
            met.append(one)
            continue
        whole = met[-1]
        if one.told_end is not None and one.start > whole.start:
            yield one.row(one.start, None, None)
        whole.end = max(whole.end, one.end)
        whole.amounts = whole.amounts + one.amounts
        whole.is_changed = whole.is_changed or one.is_changed
    for one in met:
        if one.end <= now and (one.is_changed or one.told_end != one.end):
            yield one.row(one.end, sum(one.amounts), len(one.amounts))
            one.told, one.told_end, one.is_changed = one.told + 1, one.end, False
    kept[:] = [one for one in met if one.end + ALLOWED > now]


def _span(start: datetime, end: datetime) -> Event:
    return {"window_start": _text(start), "window_end": _text(end)}


def _time(event: Event) -> datetime:
    return datetime.fromisoformat(event["at"])


def _shown(event: Event) -> Event:
    """An event as a part of a result."""
    return {**event, "at": _text(_time(event))}


def _text(moment: datetime) -> str:
    return moment.strftime(TIME)


_DOUBLE = '    large = events.where("amount % 10 <> 0").select("id", "name", twice="amount * 2")'

_ROLLING = """
    totals = (
        events.select("id", "name", "amount")
        .key_by("name")
        .rolling(total="sum(amount)", count="count(*)", name="totals")
    )
"""

_TIMED = f'    timed = events.event_time("at", lateness="{LATENESS.seconds} seconds")\n'

_COUNTS = f"""
    counts = (
        timed.key_by("name")
        .window(windows.tumbling_count({COUNT}), name="counts")
        .aggregate(total="sum(amount)", id="max(id)")
    )
"""

_TIMERS = f"""
    class Slots(StatefulFunction):
        schema = "name STRING, what STRING, number BIGINT, total BIGINT"
        events = value("BIGINT")
        totals = map_of("BIGINT", "BIGINT")

        def process(self, row, context):
            slot = int(row.at.timestamp()) // {WINDOW.seconds}
            self.events.set((self.events.get() or 0) + 1)
            self.totals.set(slot, self.totals.get(slot, 0) + row.amount)
            context.at(datetime.fromtimestamp((slot + 1) * {WINDOW.seconds}, UTC), name=str(slot))
            if self.events.get() % {EIGHTH} == 0:
                yield (row.name, "event", row.id, self.events.get())

        def on_timer(self, timer, context):
            slot = int(timer.name)
            yield (context.key.name, "timer", slot, self.totals.get(slot))
            self.totals.remove(slot)

    slots = timed.key_by("name").process(Slots(), name="slots")
"""

_ALARMS = f'''
    sudden = pattern.begin("small", "amount < 20").then("large", "amount > 80").within("{WITHIN.seconds} seconds")
    alarms = timed.key_by("name").detect(sudden, name="alarms")
    alone = alarms.timed_out.select("name", "match_start", "reached", "small")
'''

_SHORT = f'lateness="{SHORT_LATENESS.seconds} seconds"'

_LATE = f"""
    aside = events.event_time("at", {_SHORT}, late=Late.TO_SIDE_OUTPUT)
    sums = (
        aside.key_by("name")
        .window(windows.tumbling("{WINDOW.seconds} seconds"), name="sums")
        .aggregate(total="sum(amount)", count="count(*)")
    )
    corrected = events.event_time("at", {_SHORT}, late=Late.CORRECT, allowed="{ALLOWED.seconds} seconds")
    sessions = (
        corrected.key_by("name")
        .window(windows.session(gap="{GAP.seconds} seconds"), name="sessions")
        .aggregate(total="sum(amount)", count="count(*)")
    )
"""

_JOINED = f"""
    waits = "{LATENESS.seconds} seconds"
    small = events.where("amount < 20").select("name", "id", "at").event_time("at", lateness=waits)
    large = events.where("amount > 80").select("name", large_id="id", then="at").event_time("then", lateness=waits)
    pairs = small.join(large, on="name", within="{WITHIN.seconds} seconds", name="pairs")
    named = pairs.select("name", "id", "large_id")
"""

_LETTERS = """
    class Totals(StatefulFunction):
        schema = "id INT, name STRING, total INT"
        total = value("INT")

        def process(self, row, context):
            self.total.set((self.total.get() or 0) + row.amount)
            if row.amount % 10 == 4:
                raise ValueError("four")
            yield row.id, row.name, self.total.get()

    def check(row):
        if row.amount % 10 == 3:
            raise ValueError("three")
        return row.id, row.name, row.amount

    checked = events.map(check, schema="id INT, name STRING, amount INT")
    totals = checked.key_by("name").process(Totals(), name="totals")
"""
_ACKS = """
    def fail(row):
        if random.random() < 0.3:
            raise OSError("not now")
        return row.id, row.name, row.amount * 2

    large = events.where("amount % 10 <> 0").map(fail, schema="id INT, name STRING, twice INT")
"""
_TO_LETTERS = ', dead_letters=KafkaSink(topic=write + "-letters", servers=servers)'
_TABLE = 'large.to("table", PostgresSink(table=name, dsn=dsn, create=True))'
_FILES = 'large.to("files", FileSink(files))'
_SECOND = 'large.to("second", KafkaSink(topic=write, servers=second, key="name"))'

_WINDOWS = f"""
    sums = (
        events.event_time("at", lateness="{LATENESS.seconds} seconds")
        .key_by("name")
        .window(windows.tumbling("{WINDOW.seconds} seconds"), name="sums")
        .aggregate(total="sum(amount)", count="count(*)")
    )
"""

_SPLIT = '    parts = events.select("id", "name", "amount").split(small="amount < 60", large="amount >= 40")'

_RETRIED = ', tracking=acks(max_attempts=20, backoff="10 milliseconds")'
_PARTS = {"-small": 'parts["small"]', "-large": 'parts["large"]'}
_STATES = {"-counts": "counts", "-timers": "slots", "-alarms": "alarms", "-alarms-alone": "alone"}
_LATES = {"": "sums", "-late": "sums.late", "-sessions": "sessions", "-sessions-late": "sessions.late"}
_MATCHES = {"": "alarms", "-alone": "alone"}
_ALL_STATE = _COUNTS + _TIMERS + _ALARMS
_LARGE, _TOTALS = {"": "large"}, {"": "totals"}

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("keyed", _DOUBLE, _LARGE, _expect_keyed),
        Workload("alike", _DOUBLE, _LARGE, _expect_keyed, is_read_by_key=True),
        Workload("spread", _DOUBLE, _LARGE, _expect_spread, key=None, is_ordered=False),
        Workload("split", _SPLIT, _PARTS, _expect_split),
        Workload("three systems", _DOUBLE, _LARGE, _expect_keyed, others=(_TABLE, _FILES)),
        Workload("table and files", _DOUBLE, {}, _expect_keyed, others=(_TABLE, _FILES)),
        Workload("two clusters", _DOUBLE, _LARGE, _expect_keyed, others=(_SECOND,)),
        Workload("letters", _LETTERS, _TOTALS, _expect_letters, is_ordered=False, settings=_TO_LETTERS),
        Workload("rolling", _ROLLING, _TOTALS, _expect_rolling),
        Workload("windows", _WINDOWS, {"": "sums"}, _expect_windows, is_ordered=False, has_windows=True),
        Workload("counts", _TIMED + _COUNTS, {"": "counts"}, _expect_counts),
        Workload("timers", _TIMED + _TIMERS, {"": "slots"}, _expect_timers, is_ordered=False, has_windows=True),
        Workload(
            "alarms",
            _TIMED + _ALARMS,
            {"": "alarms", "-alone": "alone"},
            _expect_alarms,
            is_ordered=False,
            has_windows=True,
        ),
        Workload(
            "state", _TIMED + _COUNTS + _TIMERS + _ALARMS, _STATES, _expect_state, is_ordered=False, has_windows=True
        ),
        Workload("late", _LATE, _LATES, _expect_late, is_ordered=False, has_late=True),
        Workload("joined", _JOINED, {"": "named"}, _expect_joined, is_ordered=False),
    )
}


def weaker(name: str, workload: str, guarantee: str, settings: str = "") -> Workload:
    """A workload under a lower guarantee, which promises no order."""
    return replace(WORKLOADS[workload], name=name, guarantee=guarantee, settings=settings, is_ordered=False)


WORKLOADS |= {
    workload.name: workload
    for workload in (
        replace(weaker("acks", "keyed", "AT_LEAST_ONCE", _TO_LETTERS + _RETRIED), body=_ACKS),
        weaker("counts, at least once", "counts", "AT_LEAST_ONCE"),
        weaker("rolling, exactly once", "rolling", "EXACTLY_ONCE"),
        weaker("rolling, at most once", "rolling", "AT_MOST_ONCE"),
    )
}
