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

import pytest
from kafka import KafkaAdminClient

from lockgate import ConsoleSink, Guarantee, Job, KafkaSink, KafkaSource, Run, plan, stream, windows
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.commit.ledger import Entry
from lockgate.connectors.kafka.ledgeredit import replace_entry
from lockgate.connectors.kafka.ledgertopic import LedgerTopic, ledger_topic, transactional_id
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.topics import create_topics
from lockgate.connectors.kafka.transaction import Transactions
from lockgate.connectors.kafka.wire import Connection, Unanswered, connect
from lockgate.connectors.kafka.writer import RecordRefused
from lockgate.errors import EpochTooLong, Fenced, LedgerMismatch, Refused
from support.records import count_ids, producing, unique
from support.site import Site
from support.waiting import wait_for

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("spark")]

EXACT = Guarantee.END_TO_END_EXACTLY_ONCE
VALUE = "id BIGINT, card STRING, amount INT"


class Payments(Site):
    """Payments that a job copies exactly once."""

    def pay(self, ids: range) -> None:
        payments = [{"id": number, "card": f"c{number % 50}", "amount": number % 100} for number in ids]
        self.send(payments, key=lambda payment: payment["card"])

    def source(self, **options: Any) -> Any:
        return stream("in", KafkaSource(topic=self.read, servers=self.servers, value=VALUE, **options))

    def sink(self, topic: str | None = None, **options: Any) -> KafkaSink:
        return KafkaSink(topic=topic or self.write, servers=self.servers, **{"key": "card", **options})

    def job(self, *, function: Callable[[Any], Any] | None = None, **options: Any) -> Job:
        rows = self.source()
        if function is not None:
            rows = rows.map(function, VALUE)
        return Job(self.name, rows.to("out", self.sink(**options)), guarantee=EXACT)

    def start(self, job: Job | None = None, **options: Any) -> Run:
        return super().start(job or self.job(), **{"rows_per_epoch": 400, **options})

    def ids(self, topic: str | None = None) -> Counter[int]:
        return count_ids(self.servers, topic or self.write)

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
def site(kafka: str, tmp_path: Path) -> Payments:
    site = Payments(kafka, tmp_path, unique("job"))
    site.make(read_partitions=4, write_partitions=3)
    site.pay(range(1000))
    return site


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
            wait_for("leave to go on", Path(self.opened).exists)
        return as_read(row)

    def open(self) -> None:
        Path(self.opened).touch()

    def wait(self) -> None:
        wait_for("the gate", Path(self.reached).exists)


def as_read(row: Any) -> dict[str, Any]:
    return {"id": row.id, "card": row.card, "amount": row.amount}


def once(ids: range) -> Counter[int]:
    return Counter(dict.fromkeys(ids, 1))


def test_every_event_is_visible_once_and_a_second_run_adds_only_new_events(site: Payments) -> None:
    site.run()
    assert site.ids() == once(range(1000))
    assert site.entry().epoch == 2  # 1,000 events in epochs of 400
    site.run()
    site.pay(range(1000, 1100))
    site.run()
    assert site.ids() == once(range(1100))


def test_several_outputs_and_the_source_offsets_commit_in_the_one_transaction(site: Payments) -> None:
    rows = site.source()
    parts = rows.split(small="amount < 50", large="amount >= 50")
    large = f"{site.name}-large"
    job = Job(
        site.name,
        parts["small"].to("small", site.sink()),
        parts["large"].select("id", "card").to("large", site.sink(large, key=None, deleted="id % 2 = 0")),
        rows.where("id < 3").to("screen", ConsoleSink(), guarantee=Guarantee.AT_LEAST_ONCE),
        guarantee=EXACT,
    )
    site.run(job)
    assert site.ids() == Counter({number: 1 for number in range(1000) if number % 100 < 50})
    assert site.ids(large) == Counter({number: 1 for number in range(1000) if number % 100 >= 50 and number % 2})
    assert sum(record.value is None for record in site.records(large)) == 250  # tombstones
    admin = KafkaAdminClient(bootstrap_servers=site.servers)
    offsets = admin.list_group_offsets({f"lockgate.{site.name}": None})[f"lockgate.{site.name}"]
    assert sum(offset.offset for part, offset in offsets.items() if part.topic == site.read) == 1000
    admin.close()


def test_windows_commit_once_over_restarts(site: Payments) -> None:
    def job() -> Job:
        counts = (
            stream("in", KafkaSource(topic=site.read, servers=site.servers, value=f"{VALUE}, at TIMESTAMP"))
            .where("at IS NOT NULL")  # what every site begins with has no time
            .event_time("at", lateness="1 second")
            .key_by("card")
            .window(windows.tumbling("1 minute"))
            .aggregate(events="count(*)")
        )
        return Job(site.name, counts.to("out", site.sink()), guarantee=EXACT)

    for part, minute in enumerate(("10:00", "10:01", "10:02", "10:30")):
        at = f"2026-01-01T{minute}:30Z"
        events = [{"id": number, "card": f"c{number % 4}", "amount": 1, "at": at} for number in range(40)]
        site.send(events, partition=lambda event: event["id"] % 4)
        site.run(job(), rows_per_epoch=70 if part % 2 else 500)
    windows_out = Counter((row["card"], row["window_start"], row["events"]) for row in map(value_of, site.records()))
    minutes = [f"2026-01-01T10:0{minute}:00.000000Z" for minute in range(3)]
    assert windows_out == Counter({(f"c{card}", minute, 10): 1 for card in range(4) for minute in minutes})


def value_of(record: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.value)
    return found


def test_rows_that_are_partitioned_alike_are_not_exchanged_and_rows_that_only_seem_so_are(site: Payments) -> None:
    alike = f"{site.name}-alike"
    create_topics(site.servers, [alike], partitions=4, where="test")

    def job() -> Job:
        rows = stream("in", KafkaSource(topic=site.read, servers=site.servers, value="id BIGINT", key="card STRING"))
        return Job(site.name, rows.where("id >= 0").to("out", site.sink(alike)), guarantee=EXACT)

    done = site.run(job())
    assert not done._writer.commits.clusters[0].epochs._coordinator._is_exchanging
    assert site.ids(alike) == once(range(1000))
    more = [{"id": number} for number in range(1000, 1040)]
    # The same keys, in a partition that Java's partitioner would not choose.
    place = {"key": lambda event: f"c{event['id'] % 50}", "partition": lambda event: event["id"] % 4}
    site.send(more, **place)
    done = site.run(job())
    assert done._writer.commits.clusters[0].epochs._coordinator._is_exchanging
    assert site.ids(alike) == once(range(1040))


def test_an_older_copy_of_the_checkpoint_stops_with_the_command_that_repairs_it(site: Payments) -> None:
    site.run()
    shutil.copytree(site.checkpoint, site.place / "older")
    site.pay(range(1000, 1500))
    site.run()
    shutil.rmtree(site.checkpoint)
    shutil.copytree(site.place / "older", site.checkpoint)
    site.pay(range(1500, 1600))
    with pytest.raises(LedgerMismatch, match="do not fit") as failure:
        site.run()
    assert f"lockgate ledger set {site.name} --epoch 2" in failure.value.fix
    assert site.ids() == once(range(1500))


def test_another_checkpoint_under_the_same_name_is_refused_and_a_reset_starts_over(site: Payments) -> None:
    site.run()
    with pytest.raises(LedgerMismatch, match="belongs to another checkpoint") as failure:
        site.run(checkpoint=str(site.place / "another"))
    assert "--new-life" in failure.value.fix
    assert site.ids() == once(range(1000))
    site.run(new_life=True)
    assert site.ids() == Counter(dict.fromkeys(range(1000), 2))  # said so, and asked for
    assert [place.name for place in site.checkpoint.parent.glob(f"{site.name}.before-*")]


def test_a_lost_ledger_stops_the_job_and_is_not_silently_re_created(site: Payments) -> None:
    site.run()
    delete_topic(site, ledger_topic(site.name))
    site.pay(range(1000, 1100))
    with pytest.raises(LedgerMismatch, match="its ledger is empty or gone"):
        site.run()
    assert site.ids() == once(range(1000))


def test_a_ledger_that_is_too_old_stops_and_continues_when_it_is_set_right(site: Payments) -> None:
    site.run()
    right = site.entry()
    older = replace(right, epoch=0, digest=Checkpoint(root=str(site.checkpoint)).digest(0))
    replace_entry(site.ledger, site.transactions, right, older)
    site.pay(range(1000, 1100))
    with pytest.raises(LedgerMismatch, match="the ledger is at epoch 0, the checkpoint already at 3"):
        site.run()
    replace_entry(site.ledger, site.transactions, older, right)
    site.run()
    assert site.ids() == once(range(1100))


def test_a_deleted_topic_stops_and_the_job_continues_when_it_is_there_again_and_accepted(site: Payments) -> None:
    site.run()
    delete_topic(site, site.write)
    site.pay(range(1000, 1100))
    with pytest.raises(Refused, match="is gone since the job used it"):
        site.run()
    create_topics(site.servers, [site.write], partitions=3, where="test")
    with pytest.raises(Refused, match="was deleted and created again"):
        site.run()
    site.run(accept_outputs=True)
    assert site.ids() == once(range(1000, 1100))


def delete_topic(site: Payments, name: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=site.servers)
    admin.delete_topics([name])
    wait_for("the end of the topic", lambda: name not in site.connection.topic_names())
    admin.close()


def test_a_hijacked_transactional_id_costs_a_try_and_no_row(site: Payments, gate: Gate) -> None:
    started = site.run(site.job(function=gate), wait=False)
    gate.wait()
    with producing(site.servers, transactional_id=transactional_id(site.name)) as thief:
        thief.init_transactions()
        gate.open()
        started.wait()
    assert site.ids() == once(range(1000))


def test_a_driver_whose_job_was_taken_over_stops_and_writes_nothing_more(site: Payments, gate: Gate) -> None:
    started = site.run(site.job(function=gate), wait=False)
    gate.wait()
    before = site.entry()
    producer, ledger = site.transactions.begin(), site.ledger
    site.transactions.add(producer, [ledger.place])
    ledger.write(before.claimed("another-run", str(before.query), now()), producer)
    site.transactions.end(producer, is_commit=True)
    gate.open()
    with pytest.raises(Fenced, match="Another driver of job"):
        started.wait()
    assert site.entry().run == "another-run"
    assert set(site.ids()) <= set(range(1000))
    assert max(site.ids().values(), default=1) == 1
    site.run()  # a third one takes over from there
    assert site.ids() == once(range(1000))


def now() -> Any:
    from datetime import datetime

    return datetime.now(UTC)


def test_an_epoch_that_outlives_its_transaction_twice_stops_and_names_the_fix(site: Payments) -> None:
    def linger(row: Any) -> Any:
        if row.id == 47_999:  # when other rows of its task are written already
            time.sleep(3)
        return as_read(row)

    site.pay(range(1000, 48_000))
    slow = site.job(function=linger, key=None, client={"transaction.timeout.ms": "1000"})
    with pytest.raises(EpochTooLong, match="takes longer than the transaction may") as failure:
        site.run(slow, rows_per_epoch=100_000)
    assert f"lockgate checkpoints rollback {site.name} --uncommitted" in failure.value.fix
    assert site.ids() == Counter()


@pytest.mark.parametrize("is_lost_before", [False, True], ids=["after it took effect", "before it took effect"])
def test_an_unknown_answer_to_the_end_is_read_from_the_ledger(
    site: Payments, monkeypatch: pytest.MonkeyPatch, is_lost_before: bool
) -> None:
    """The request really goes to the broker, or really does not; its answer is lost, and those to repetitions too."""
    end, begin = Connection.end_transaction, Connection.init_producer
    ends = {"committed": 0, "is_cut": False}

    def lossy_end(self: Connection, id: str, producer: Any, *, is_commit: bool) -> int:
        ends["committed"] += int(is_commit)
        if id == transactional_id(site.name) and (ends["is_cut"] or ends["committed"] == 3):  # a claim, an epoch, then
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
    site.run(site.job(client={"delivery.timeout.ms": "2000", "request.timeout.ms": "1500"}))
    assert ends["committed"] > 3
    assert site.ids() == once(range(1000))


def test_a_record_that_is_too_big_is_named_by_key_and_size_and_nothing_of_its_epoch_is_seen(site: Payments) -> None:
    def swell(row: Any) -> Any:
        return {**as_read(row), "card": row.card + "x" * (2_000_000 if row.id == 999 else 0)}

    with pytest.raises(RecordRefused, match=r"a record with key 'c49x+…' is [\d,]+ bytes; the topic takes at most"):
        site.run(site.job(function=swell), rows_per_epoch=100_000)
    assert site.ids() == Counter()


def test_a_run_that_is_stopped_in_mid_epoch_leaves_no_transaction_open(site: Payments, gate: Gate) -> None:
    started = site.run(site.job(function=gate), wait=False)
    gate.wait()
    stopper = threading.Thread(target=started.stop)
    stopper.start()
    stopper.join(timeout=120)
    assert not stopper.is_alive()
    _, view = site.connection.describe_transaction(transactional_id(site.name))
    assert view.state not in ("Ongoing", "PrepareCommit", "PrepareAbort")
    gate.open()
    site.run()
    assert site.ids() == once(range(1000))


def test_one_cluster_by_two_addresses_is_refused_before_anything_is_written(site: Payments) -> None:
    again = KafkaSink(topic=f"{site.write}-2", servers=site.servers.replace("127.0.0.1:", "127.1:"), key="card")
    rows = site.source()
    job = Job(site.name, rows.to("out", site.sink()), rows.to("again", again), guarantee=EXACT)
    assert plan(job).refusal() is None  # by their names alone nobody can tell
    with pytest.raises(Refused, match="name one Kafka cluster in two ways"):
        site.run(job)
    assert not site.records()
