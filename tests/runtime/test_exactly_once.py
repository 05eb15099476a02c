"""An exactly-once job against a real broker: what each kind of trouble ends in, seen by a read_committed reader.

Kills of processes are in tests/kills; here the trouble is in the broker, the ledger and the checkpoint.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kafka import KafkaAdminClient
from lockgate import ConsoleSink, Guarantee, Job, KafkaSink, KafkaSource, Run, plan, run, stream, windows
from lockgate.commit.ledger import Entry
from lockgate.errors import EpochTooLong, Fenced, LedgerMismatch, Refused, TopicGone
from lockgate.kafka.ledgeredit import replace_entry
from lockgate.kafka.ledgertopic import LedgerTopic, ledger_topic, transactional_id
from lockgate.kafka.settings import read_settings
from lockgate.kafka.topics import create_topics
from lockgate.kafka.transaction import Transactions
from lockgate.kafka.wire import Connection, Unanswered, connect
from lockgate.kafka.writer import RecordRefused
from lockgate.runtime.checkpoints import Checkpoint
from support import records

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("spark")]

EXACT = Guarantee.END_TO_END_EXACTLY_ONCE
VALUE = "id BIGINT, card STRING, amount INT"


@dataclass
class Bench:
    """Topics, a checkpoint and a name of one test's own."""

    servers: str
    place: Path
    name: str

    @property
    def read(self) -> str:
        return f"{self.name}-in"

    @property
    def out(self) -> str:
        return f"{self.name}-out"

    @property
    def checkpoint(self) -> str:
        return str(self.place / "checkpoint")

    def send(self, ids: range) -> None:
        payments = [{"id": number, "card": f"c{number % 50}", "amount": number % 100} for number in ids]
        records.send(self.servers, self.read, payments, key=lambda payment: payment["card"])

    def source(self, **options: Any) -> Any:
        return stream("in", KafkaSource(topic=self.read, servers=self.servers, value=VALUE, **options))

    def sink(self, topic: str | None = None, **options: Any) -> KafkaSink:
        return KafkaSink(topic=topic or self.out, servers=self.servers, **{"key": "card", **options})

    def job(self, *, function: Callable[[Any], Any] | None = None, **options: Any) -> Job:
        rows = self.source()
        if function is not None:
            rows = rows.map(function, VALUE)
        return Job(self.name, rows.to("out", self.sink(**options)), guarantee=EXACT)

    def run(self, job: Job | None = None, **options: Any) -> Run:
        settings = {"until_caught_up": True, "rows_per_epoch": 400, "checkpoint": self.checkpoint, **options}
        return run(job or self.job(), log_file=self.place / "spark.log", **settings)

    def ids(self, topic: str | None = None) -> Counter[int]:
        return records.count_ids(self.servers, topic or self.out)

    def records(self, topic: str | None = None) -> list[Any]:
        """All that a read_committed reader finds, up to the end of the log."""
        return records.read(self.servers, topic or self.out)

    @property
    def connection(self) -> Connection:
        return connect(read_settings(self.servers, {}, where="test"), where="test")

    @property
    def ledger(self) -> LedgerTopic:
        return LedgerTopic(self.connection, self.name, where="test")

    def entry(self) -> Entry:
        entry = self.ledger.peek()
        assert entry is not None
        return entry

    @property
    def transactions(self) -> Transactions:
        return Transactions(self.connection, transactional_id(self.name), timeout_ms=60_000, where="test")


@pytest.fixture
def bench(kafka: str, tmp_path: Path) -> Bench:
    bench = Bench(servers=kafka, place=tmp_path, name=f"job-{uuid4().hex[:8]}")
    create_topics(kafka, [bench.read], partitions=4, where="test")
    create_topics(kafka, [bench.out], partitions=3, where="test")
    bench.send(range(1000))
    return bench


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A function that waits in the midst of an epoch, when older writers are fenced, until the test lets it go."""
    gate = Gate(str(tmp_path / "reached"), str(tmp_path / "open"))
    yield gate
    gate.open()


@dataclass(frozen=True)
class Gate:
    reached: str
    opened: str

    def __call__(self, row: Any) -> Any:
        if row.id == 999:
            Path(self.reached).touch()
            while not Path(self.opened).exists():
                time.sleep(0.02)
        return as_read(row)

    def open(self) -> None:
        Path(self.opened).touch()

    def wait(self) -> None:
        wait_until(Path(self.reached).exists)


def as_read(row: Any) -> dict[str, Any]:
    return {"id": row.id, "card": row.card, "amount": row.amount}


def wait_until(holds: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def once(ids: range) -> Counter[int]:
    return Counter(dict.fromkeys(ids, 1))


def test_every_event_is_out_once_and_a_second_run_adds_nothing_but_what_is_new(bench: Bench) -> None:
    bench.run()
    assert bench.ids() == once(range(1000))
    assert bench.entry().epoch == 2  # 1,000 events in epochs of 400
    bench.run()
    bench.send(range(1000, 1100))
    bench.run()
    assert bench.ids() == once(range(1100))


def test_several_outputs_and_the_source_offsets_commit_in_the_one_transaction(bench: Bench) -> None:
    rows = bench.source()
    parts = rows.split(small="amount < 50", large="amount >= 50")
    large = f"{bench.name}-large"
    job = Job(
        bench.name,
        parts["small"].to("small", bench.sink()),
        parts["large"].select("id", "card").to("large", bench.sink(large, key=None, deleted="id % 2 = 0")),
        rows.where("id < 3").to("screen", ConsoleSink(), guarantee=Guarantee.AT_LEAST_ONCE),
        guarantee=EXACT,
    )
    bench.run(job)
    assert bench.ids() == Counter({number: 1 for number in range(1000) if number % 100 < 50})
    assert bench.ids(large) == Counter({number: 1 for number in range(1000) if number % 100 >= 50 and number % 2})
    assert sum(record.value is None for record in bench.records(large)) == 250  # tombstones
    admin = KafkaAdminClient(bootstrap_servers=bench.servers)
    offsets = admin.list_group_offsets({f"lockgate.{bench.name}": None})[f"lockgate.{bench.name}"]
    assert sum(offset.offset for part, offset in offsets.items() if part.topic == bench.read) == 1000
    admin.close()


def test_windows_commit_once_over_restarts(bench: Bench) -> None:
    def job() -> Job:
        counts = (
            stream("in", KafkaSource(topic=bench.read, servers=bench.servers, value=f"{VALUE}, at TIMESTAMP"))
            .where("at IS NOT NULL")  # what every bench begins with has no time
            .event_time("at", lateness="1 second")
            .key_by("card")
            .window(windows.tumbling("1 minute"))
            .aggregate(events="count(*)")
        )
        return Job(bench.name, counts.to("out", bench.sink()), guarantee=EXACT)

    for part, minute in enumerate(("10:00", "10:01", "10:02", "10:30")):
        at = f"2026-01-01T{minute}:30Z"
        events = [{"id": number, "card": f"c{number % 4}", "amount": 1, "at": at} for number in range(40)]
        records.send(bench.servers, bench.read, events, partition=lambda event: event["id"] % 4)
        bench.run(job(), rows_per_epoch=70 if part % 2 else 500)
    windows_out = Counter((row["card"], row["window_start"], row["events"]) for row in map(value_of, bench.records()))
    minutes = [f"2026-01-01T10:0{minute}:00.000000Z" for minute in range(3)]
    assert windows_out == Counter({(f"c{card}", minute, 10): 1 for card in range(4) for minute in minutes})


def value_of(record: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.value)
    return found


def test_rows_that_are_partitioned_alike_are_not_exchanged_and_rows_that_only_seem_so_are(bench: Bench) -> None:
    alike = f"{bench.name}-alike"
    create_topics(bench.servers, [alike], partitions=4, where="test")

    def job() -> Job:
        rows = stream("in", KafkaSource(topic=bench.read, servers=bench.servers, value="id BIGINT", key="card STRING"))
        return Job(bench.name, rows.where("id >= 0").to("out", bench.sink(alike)), guarantee=EXACT)

    done = bench.run(job())
    assert not done._writer.commits.clusters[0].epochs._coordinator._is_exchanging
    assert bench.ids(alike) == once(range(1000))
    more = [{"id": number} for number in range(1000, 1040)]
    # The same keys, in a partition that Java's partitioner would not choose.
    place = {"key": lambda event: f"c{event['id'] % 50}", "partition": lambda event: event["id"] % 4}
    records.send(bench.servers, bench.read, more, **place)
    done = bench.run(job())
    assert done._writer.commits.clusters[0].epochs._coordinator._is_exchanging
    assert bench.ids(alike) == once(range(1040))


def test_an_older_copy_of_the_checkpoint_stops_with_the_command_that_mends_it(bench: Bench) -> None:
    bench.run()
    shutil.copytree(bench.checkpoint, bench.place / "older")
    bench.send(range(1000, 1500))
    bench.run()
    shutil.rmtree(bench.checkpoint)
    shutil.copytree(bench.place / "older", bench.checkpoint)
    bench.send(range(1500, 1600))
    with pytest.raises(LedgerMismatch, match="do not fit") as failure:
        bench.run()
    assert f"lockgate ledger set {bench.name} --epoch 2" in failure.value.fix
    assert bench.ids() == once(range(1500))


def test_another_checkpoint_under_the_same_name_is_refused_and_a_new_life_begins_again(bench: Bench) -> None:
    bench.run()
    with pytest.raises(LedgerMismatch, match="belongs to another checkpoint") as failure:
        bench.run(checkpoint=str(bench.place / "another"))
    assert "--new-life" in failure.value.fix
    assert bench.ids() == once(range(1000))
    bench.run(new_life=True)
    assert bench.ids() == Counter(dict.fromkeys(range(1000), 2))  # said so, and asked for
    assert [place.name for place in bench.place.glob("checkpoint.before-*")]


def test_a_lost_ledger_stops_and_is_not_made_anew_in_silence(bench: Bench) -> None:
    bench.run()
    delete_topic(bench, ledger_topic(bench.name))
    bench.send(range(1000, 1100))
    with pytest.raises(LedgerMismatch, match="its ledger is empty or gone"):
        bench.run()
    assert bench.ids() == once(range(1000))


def test_a_ledger_that_is_too_old_stops_and_goes_on_when_it_is_set_right(bench: Bench) -> None:
    bench.run()
    right = bench.entry()
    older = replace(right, epoch=0, digest=Checkpoint(root=bench.checkpoint).digest(0))
    replace_entry(bench.ledger, bench.transactions, right, older)
    bench.send(range(1000, 1100))
    with pytest.raises(LedgerMismatch, match="the ledger is at epoch 0, the checkpoint already at 3"):
        bench.run()
    replace_entry(bench.ledger, bench.transactions, older, right)
    bench.run()
    assert bench.ids() == once(range(1100))


def test_a_deleted_topic_stops_and_the_job_goes_on_when_it_is_there_again(bench: Bench) -> None:
    bench.run()
    delete_topic(bench, bench.out)
    bench.send(range(1000, 1100))
    with pytest.raises(TopicGone, match="does not exist any more"):
        bench.run()
    create_topics(bench.servers, [bench.out], partitions=3, where="test")
    bench.run()
    assert bench.ids() == once(range(1000, 1100))


def delete_topic(bench: Bench, name: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bench.servers)
    admin.delete_topics([name])
    wait_until(lambda: name not in bench.connection.topic_names())
    admin.close()


def test_a_hijacked_transactional_id_costs_a_try_and_no_row(bench: Bench, gate: Gate) -> None:
    started = bench.run(bench.job(function=gate), wait=False)
    gate.wait()
    with records.producing(bench.servers, transactional_id=transactional_id(bench.name)) as thief:
        thief.init_transactions()
        gate.open()
        started.wait()
    assert bench.ids() == once(range(1000))


def test_a_driver_whose_job_was_taken_over_stops_and_writes_nothing_more(bench: Bench, gate: Gate) -> None:
    started = bench.run(bench.job(function=gate), wait=False)
    gate.wait()
    before = bench.entry()
    producer, ledger = bench.transactions.begin(), bench.ledger
    bench.transactions.add(producer, [ledger.place])
    ledger.write(before.claimed("another-run", str(before.query), now()), producer)
    bench.transactions.end(producer, is_commit=True)
    gate.open()
    with pytest.raises(Fenced, match="Another driver of job"):
        started.wait()
    assert bench.entry().run == "another-run"
    assert set(bench.ids()) <= set(range(1000))
    assert max(bench.ids().values(), default=1) == 1
    bench.run()  # a third one takes over from there
    assert bench.ids() == once(range(1000))


def now() -> Any:
    from datetime import datetime

    return datetime.now(UTC)


def test_an_epoch_that_outlives_its_transaction_twice_stops_and_names_the_cure(bench: Bench) -> None:
    def linger(row: Any) -> Any:
        if row.id == 47_999:  # when other rows of its task are written already
            time.sleep(3)
        return as_read(row)

    bench.send(range(1000, 48_000))
    slow = bench.job(function=linger, key=None, client={"transaction.timeout.ms": "1000"})
    with pytest.raises(EpochTooLong, match="takes longer than the transaction may") as failure:
        bench.run(slow, rows_per_epoch=100_000)
    assert f"lockgate checkpoints rollback {bench.name} --uncommitted" in failure.value.fix
    assert bench.ids() == Counter()


@pytest.mark.parametrize("is_lost_before", [False, True], ids=["after it took effect", "before it took effect"])
def test_an_unknown_answer_to_the_end_is_read_from_the_ledger(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_lost_before: bool
) -> None:
    """The request really goes to the broker, or really does not; its answer is lost, and those to repetitions too."""
    end, begin = Connection.end_transaction, Connection.init_producer
    ends = {"committed": 0, "is_cut": False}

    def lossy_end(self: Connection, id: str, producer: Any, *, is_commit: bool) -> int:
        ends["committed"] += int(is_commit)
        if id == transactional_id(bench.name) and (ends["is_cut"] or ends["committed"] == 3):  # a claim, an epoch, then
            if not (ends["is_cut"] or is_lost_before):
                end(self, id, producer, is_commit=is_commit)
            ends["is_cut"] = True
            raise Unanswered("the answer was lost")
        return end(self, id, producer, is_commit=is_commit)

    def healing_begin(self: Connection, id: str, timeout_ms: int) -> Any:
        ends["is_cut"] = False
        return begin(self, id, timeout_ms)

    monkeypatch.setattr(Connection, "end_transaction", lossy_end)
    monkeypatch.setattr(Connection, "init_producer", healing_begin)
    bench.run(bench.job(client={"delivery.timeout.ms": "2000", "request.timeout.ms": "1500"}))
    assert ends["committed"] > 3
    assert bench.ids() == once(range(1000))


def test_a_record_that_is_too_big_is_named_by_key_and_size_and_nothing_of_its_epoch_is_seen(bench: Bench) -> None:
    def swell(row: Any) -> Any:
        return {**as_read(row), "card": row.card + "x" * (2_000_000 if row.id == 999 else 0)}

    with pytest.raises(RecordRefused, match=r"a record with key 'c49x+…' is [\d,]+ bytes; the topic takes at most"):
        bench.run(bench.job(function=swell), rows_per_epoch=100_000)
    assert bench.ids() == Counter()


def test_a_run_that_is_stopped_in_mid_epoch_leaves_no_transaction_open(bench: Bench, gate: Gate) -> None:
    started = bench.run(bench.job(function=gate), wait=False)
    gate.wait()
    stopper = threading.Thread(target=started.stop)
    stopper.start()
    stopper.join(timeout=120)
    assert not stopper.is_alive()
    _, view = bench.connection.describe_transaction(transactional_id(bench.name))
    assert view.state not in ("Ongoing", "PrepareCommit", "PrepareAbort")
    gate.open()
    bench.run()
    assert bench.ids() == once(range(1000))


def test_one_cluster_by_two_addresses_is_refused_before_anything_is_written(bench: Bench) -> None:
    again = KafkaSink(topic=f"{bench.out}-2", servers=bench.servers.replace("127.0.0.1:", "127.1:"), key="card")
    rows = bench.source()
    job = Job(bench.name, rows.to("out", bench.sink()), rows.to("again", again), guarantee=EXACT)
    assert plan(job).refusal() is None  # by their names alone nobody can tell
    with pytest.raises(Refused, match="name one Kafka cluster in two ways"):
        bench.run(job)
    assert not bench.records()
