"""The jobs whose processes are killed: seeded events in, and what has to come out, computed without Lockgate.

keyed      a filter and a computed column, rows exchanged to the writer of their key
alike      the same without an exchange: source and sink are partitioned alike
spread     the same without a key
split      two topics in one transaction
rolling    a running total per key: state, and the order of events shows in every row
windows    sums per key and ten seconds: state and a watermark

three systems      the rows of keyed, into Kafka, PostgreSQL and files
table and files    the same without Kafka
two clusters       the same, into Kafka twice
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from kafka.partitioner.default import murmur2
from kill_checker import Content, Row

PARTITIONS = 4
KEYS = [f"key-{number}" for number in range(16)]
BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
WINDOW = timedelta(seconds=10)
LATENESS = timedelta(seconds=120)

HEAD = """\
from lockgate import FileSink, Guarantee, Job, KafkaSink, KafkaSource, PostgresSink, stream, windows


def job(servers: str, name: str, read: str, write: str, dsn: str = "", files: str = "", second: str = "") -> Job:
    source = KafkaSource(topic=read, servers=servers, {columns})
    events = stream("events", source)
{body}
    return Job(name, {outputs}, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, epoch="100 milliseconds")
"""

Event = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """A job as a file, and its known answer."""

    name: str
    body: str
    outputs: dict[str, str]  # the stream of each output, by the suffix of its topic
    expect: Callable[[list[Event]], Iterable[tuple[str, str | None, Event]]]  # suffix of the topic, key, value
    key: str | None = "name"  # of the sink
    is_read_by_key: bool = False  # is the name the key of the source's records, which are placed by it?
    is_stateful: bool = False
    is_ordered: bool = True
    has_windows: bool = False
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
        return HEAD.format(columns=columns, body=self.body, outputs=outputs)

    def topics(self, write: str) -> list[str]:
        """The topics that come out."""
        return [write + suffix for suffix in self.outputs]

    def expected(self, events: list[Event], write: str) -> list[Content]:
        """The records that have to come out, each as a reader finds it."""
        return [(write + suffix, key, canonical(value)) for suffix, key, value in self.expect(events)]

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
        return last if self.has_windows else None

    def position(self) -> Callable[[Row], Any] | None:
        """The place of a row's event among those of its key."""
        return (lambda row: json.loads(row.value)["id"]) if self.is_ordered else None


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


def canonical(value: Any) -> str:
    """One text for one JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


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


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000000Z")


_DOUBLE = '    large = events.where("amount % 10 <> 0").select("id", "name", twice="amount * 2")'

_TABLE = 'large.to("table", PostgresSink(table=name, dsn=dsn, create=True))'
_FILES = 'large.to("files", FileSink(files))'
_SECOND = 'large.to("second", KafkaSink(topic=write, servers=second, key="name"))'

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="keyed", body=_DOUBLE, outputs={"": "large"}, expect=_expect_keyed),
        Workload(name="alike", body=_DOUBLE, outputs={"": "large"}, expect=_expect_keyed, is_read_by_key=True),
        Workload(name="spread", body=_DOUBLE, outputs={"": "large"}, expect=_expect_spread, key=None, is_ordered=False),
        Workload(
            name="three systems", body=_DOUBLE, outputs={"": "large"}, expect=_expect_keyed, others=(_TABLE, _FILES)
        ),
        Workload(
            name="table and files",
            body=_DOUBLE,
            outputs={},
            expect=_expect_keyed,
            others=(_TABLE, _FILES),
        ),
        Workload(name="two clusters", body=_DOUBLE, outputs={"": "large"}, expect=_expect_keyed, others=(_SECOND,)),
        Workload(
            name="split",
            body='    parts = events.select("id", "name", "amount").split(small="amount < 60", large="amount >= 40")',
            outputs={"-small": 'parts["small"]', "-large": 'parts["large"]'},
            expect=_expect_split,
        ),
        Workload(
            name="rolling",
            body='    totals = (\n        events.select("id", "name", "amount")\n        .key_by("name")\n'
            '        .rolling(total="sum(amount)", count="count(*)", name="totals")\n    )',
            outputs={"": "totals"},
            expect=_expect_rolling,
            is_stateful=True,
        ),
        Workload(
            name="windows",
            body=f'    sums = (\n        events.event_time("at", lateness="{LATENESS.seconds} seconds")\n'
            f'        .key_by("name")\n        .window(windows.tumbling("{WINDOW.seconds} seconds"), name="sums")\n'
            '        .aggregate(total="sum(amount)", count="count(*)")\n    )',
            outputs={"": "sums"},
            expect=_expect_windows,
            is_stateful=True,
            is_ordered=False,
            has_windows=True,
        ),
    )
}
