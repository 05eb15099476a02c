"""The least rights that the docs name are enough; without one of them, the error names it and what it is on."""

import json
import logging
import re
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream
from lockgate.connectors.kafka.rights import Denied
from lockgate.presenter.gathering import Limits
from lockgate.presenter.presenter import Places, Presenter
from support.cli import Called, call
from support.records import count_ids, make_topics, producing, read_json, send
from support.runs import live, run_to_the_end
from support.secured import CAROLS_PASSWORD, Secured, grant
from support.waiting import wait_for

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl"),
]

DOCS = Path(__file__).parents[3] / "docs" / "KAFKA_SECURITY.md"
Right = tuple[str, str, str]
EXACT: dict[str, Right] = {
    "read the source": ("READ", "TOPIC", "{name}-in"),
    "write the output": ("WRITE", "TOPIC", "{name}-out"),
    "write in transactions": ("WRITE", "TRANSACTIONAL_ID", "lockgate.{name}"),
    "read the ledger": ("READ", "TOPIC", "lockgate.{name}.ledger"),
    "write the ledger": ("WRITE", "TOPIC", "lockgate.{name}.ledger"),
    "see the ledger's settings": ("DESCRIBE_CONFIGS", "TOPIC", "lockgate.{name}.ledger"),
    "make the ledger": ("CREATE", "TOPIC", "lockgate.{name}.ledger"),
    "show the source's offsets": ("READ", "GROUP", "lockgate.{name}"),
}
IN_TRANSACTIONS = EXACT["write in transactions"]
JOB = """
from lockgate import Guarantee, Job, KafkaSink, MemorySource, stream

def job() -> Job:
    sink = KafkaSink(topic="out", servers={way.servers!r}, client={way.client!r})
    rows = stream("in", MemorySource([], value="id BIGINT"))
    return Job({name!r}, rows.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
"""
LETTERS = """
from lockgate import Guarantee, Job, KafkaSink, MemorySource, stream

def job() -> Job:
    out, letters = (KafkaSink(topic=topic, servers={way.servers!r}, client={way.client!r})
                    for topic in ("out", {letters!r}))
    rows = stream("in", MemorySource([], value="id BIGINT"))
    return Job({name!r}, rows.to("out", out), guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=letters)
"""
NAMES = {"TOPIC": "topic", "TRANSACTIONAL_ID": "transactional id", "GROUP": "consumer group"}


class Guarded:
    """A job of carol's, who has no rights but those that are granted."""

    def __init__(self, secured: Secured, place: Path) -> None:
        self.secured, self.place = secured, place
        self.name = f"rights-{uuid.uuid4().hex[:8]}"
        make_topics(secured.servers, f"{self.name}-in", f"{self.name}-out")
        send(secured.servers, f"{self.name}-in", [{"id": number} for number in range(10)])

    def grant(self, *rights: Right) -> None:
        named = [(operation, kind, name.format(name=self.name)) for operation, kind, name in rights]
        grant(self.secured.servers, "carol", *named)

    def job(self, guarantee: Guarantee, out: str) -> Job:
        servers, client = self.secured.carol.servers, self.secured.carol.client
        source = KafkaSource(topic=f"{self.name}-in", servers=servers, value="id BIGINT", client=client)
        sink = KafkaSink(topic=f"{self.name}-{out}", servers=servers, key="id", client=client)
        return Job(self.name, stream("in", source).to("out", sink), guarantee=guarantee)

    def run(self, guarantee: Guarantee = Guarantee.END_TO_END_EXACTLY_ONCE, out: str = "out") -> None:
        run_to_the_end(self.job(guarantee, out), self.place)

    def refusal(self, guarantee: Guarantee = Guarantee.END_TO_END_EXACTLY_ONCE, out: str = "out") -> Denied:
        with pytest.raises(Denied) as caught:
            self.run(guarantee, out)
        return caught.value

    def call(self, *words: str) -> Called:
        options = [word for name, text in self.secured.carol.client.items() for word in ("--client", f"{name}={text}")]
        return call(*words, "--servers", self.secured.carol.servers, *options)


@pytest.fixture
def guarded(secured: Secured, tmp_path: Path) -> Guarded:
    return Guarded(secured, tmp_path)


def check_named(told: str, right: Right, name: str) -> None:
    """The right, what it is on, who lacks it, and the command that grants it."""
    operation, kind, resource = right[0], right[1], right[2].format(name=name)
    title = operation.replace("_", " ").title().replace(" ", "")
    assert re.search(f"deny [A-Za-z ]*{title}", told), told
    assert f"on {NAMES[kind]} {resource!r} to user 'carol'" in told
    assert re.search(rf"kafka-acls\.sh .* --allow-principal User:carol .*--operation {title} .*{resource}", told)
    assert CAROLS_PASSWORD not in told


def test_the_page_lists_the_rights() -> None:
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("|")]
    for operation, kind, name in EXACT.values():
        title = operation.replace("_", " ").title().replace(" ", "")
        place = {"{name}-in": "of the source", "{name}-out": "of the output"}.get(name, name.format(name="JOB"))
        assert [row for row in rows if all(word in row for word in (title, NAMES[kind], place))], (title, place)


@pytest.mark.usefixtures("spark")
def test_a_job_and_its_commands_work_with_the_least_rights(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    guarded.grant(*EXACT.values())
    with caplog.at_level(logging.WARNING):
        guarded.run()
    assert count_ids(guarded.secured.servers, f"{guarded.name}-out") == Counter(range(10))
    assert "lag tools" not in caplog.text
    guarded.grant(EXACT["read the ledger"])
    assert json.loads(guarded.call("ledger", "show", guarded.name, "--json").out)["entry"]["epoch"] == 0
    guarded.grant(*(EXACT[what] for what in EXACT if "the ledger" in what and "make" not in what), IN_TRANSACTIONS)
    place = str(guarded.place / "checkpoint")
    done = guarded.call("ledger", "set", guarded.name, "--epoch", "0", "--checkpoint", place, "--yes")
    assert done.status == 0, done.err
    guarded.grant(("DESCRIBE", "TRANSACTIONAL_ID", "lockgate.{name}"))
    own = f"lockgate.{guarded.name}"
    listed = json.loads(guarded.call("transactions", "list", "--json").out)["transactions"]
    assert [one["transactional_id"] for one in listed] == [own]
    assert json.loads(guarded.call("transactions", "show", own, "--json").out)["is_open"] is False


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("without", [what for what in EXACT if what != "show the source's offsets"])
def test_a_right_that_a_job_lacks_is_named(without: str, guarded: Guarded) -> None:
    guarded.grant(*(right for what, right in EXACT.items() if what != without))
    check_named(str(guarded.refusal()), EXACT[without], guarded.name)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("withdrawn", "guarantee"),
    [
        ("read the source", Guarantee.END_TO_END_EXACTLY_ONCE),
        ("read the source", Guarantee.AT_LEAST_ONCE),
        ("write the output", Guarantee.END_TO_END_EXACTLY_ONCE),
        ("write the output", Guarantee.AT_LEAST_ONCE),
        ("write the ledger", Guarantee.END_TO_END_EXACTLY_ONCE),
        ("write in transactions", Guarantee.END_TO_END_EXACTLY_ONCE),
    ],
)
def test_a_right_that_is_withdrawn_while_a_job_runs_is_named(
    withdrawn: str, guarantee: Guarantee, guarded: Guarded
) -> None:
    servers = guarded.secured.servers
    guarded.grant(*EXACT.values())
    with live(guarded.job(guarantee, "out"), guarded.place) as started:
        wait_for("its rows", lambda: count_ids(servers, f"{guarded.name}-out") == Counter(range(10)))
        guarded.grant(*(right for what, right in EXACT.items() if what != withdrawn))
        send(servers, f"{guarded.name}-in", [{"id": 10}])
        with pytest.raises(Denied) as caught:
            started.wait()
    check_named(str(caught.value), EXACT[withdrawn], guarded.name)
    assert "declared at" in caught.value.where


@pytest.mark.usefixtures("spark")
def test_without_the_right_to_its_group_a_job_runs_and_says_so(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.grant(*(right for what, right in EXACT.items() if what != "show the source's offsets"))
    with caplog.at_level(logging.WARNING):
        guarded.run()
    assert count_ids(guarded.secured.servers, f"{guarded.name}-out") == Counter(range(10))
    check_named(caplog.text, EXACT["show the source's offsets"], guarded.name)


@pytest.mark.usefixtures("spark")
def test_less_than_exactly_once_needs_no_more_than_the_two_topics(guarded: Guarded) -> None:
    guarded.grant(EXACT["read the source"], EXACT["write the output"])
    guarded.run(Guarantee.AT_LEAST_ONCE)
    assert count_ids(guarded.secured.servers, f"{guarded.name}-out") == Counter(range(10))
    guarded.grant(EXACT["read the source"])
    check_named(str(guarded.refusal(Guarantee.AT_LEAST_ONCE)), EXACT["write the output"], guarded.name)
    new = ("WRITE", "TOPIC", "{name}-new")
    guarded.grant(EXACT["read the source"], new)
    refusal = guarded.refusal(Guarantee.AT_LEAST_ONCE, out="new")
    check_named(str(refusal), ("CREATE", "TOPIC", "{name}-new"), guarded.name)


def test_a_right_that_a_command_lacks_is_named(guarded: Guarded) -> None:
    guarded.grant()
    shown = guarded.call("ledger", "show", guarded.name)
    assert shown.status == 2
    check_named(shown.err, EXACT["read the ledger"], guarded.name)
    shown = guarded.call("transactions", "show", f"lockgate.{guarded.name}")
    assert shown.status == 2
    describe = ("DESCRIBE", "TRANSACTIONAL_ID", "lockgate.{name}")
    check_named(shown.err, describe, guarded.name)
    (guarded.place / "job.py").write_text(JOB.format(name=guarded.name, way=guarded.secured.carol))
    listed = call("transactions", "list", "job.py", cwd=guarded.place)  # brokers hide ids that it may not see
    assert listed.status == 2
    check_named(listed.err, describe, guarded.name)


@pytest.mark.usefixtures("spark")
def test_a_right_that_setting_a_ledger_or_ending_a_transaction_lacks_is_named(guarded: Guarded) -> None:
    guarded.grant(*EXACT.values())
    guarded.run()
    own, place = f"lockgate.{guarded.name}", str(guarded.place / "checkpoint")
    needed = [what for what in EXACT if what in ("read the ledger", "write the ledger", "write in transactions")]
    needed.append("see the ledger's settings")
    for without in needed:
        guarded.grant(*(EXACT[what] for what in needed if what != without))
        done = guarded.call("ledger", "set", guarded.name, "--epoch", "0", "--checkpoint", place, "--yes")
        assert done.status == 2, without
        check_named(done.err, EXACT[without], guarded.name)
    guarded.grant(("DESCRIBE", "TRANSACTIONAL_ID", "lockgate.{name}"))
    with producing(guarded.secured.servers, transactional_id=own) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(f"{guarded.name}-out", b"{}").get()
        ended = guarded.call("transactions", "abort", own, "--yes")
        producer.abort_transaction()
    assert ended.status == 2
    check_named(ended.err, IN_TRANSACTIONS, guarded.name)


def test_dead_letters_are_read_with_the_right_to_their_topic_alone(guarded: Guarded) -> None:
    make_topics(guarded.secured.servers, f"{guarded.name}-letters")
    way, name = guarded.secured.carol, guarded.name
    (guarded.place / "job.py").write_text(LETTERS.format(name=name, way=way, letters=f"{name}-letters"))
    read = ("READ", "TOPIC", "{name}-letters")
    for rights in ((), (("DESCRIBE", "TOPIC", read[2]),)):
        guarded.grant(*rights)
        listed = call("dead-letters", "list", "job.py", cwd=guarded.place)
        assert listed.status == 2
        check_named(listed.err, read, name)
    guarded.grant(read)
    listed = call("dead-letters", "list", "job.py", cwd=guarded.place)
    assert listed.status == 0, listed.text


def presenter_of(secured: Secured, mechanism: str) -> tuple[Presenter, list[Right]]:
    """A presenter of carol's, and the rights that it needs."""
    name = f"teller-{uuid.uuid4().hex[:8]}"
    topics = make_topics(secured.servers, f"{name}-in", f"{name}-score", f"{name}-out", partitions=1)
    client = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": "carol",
        "sasl.password": CAROLS_PASSWORD,
        "ssl.ca.location": str(secured.directory / "ca.pem"),
    }
    presenter = Presenter(Places(secured.carol.servers, topics[0], {"score": topics[1]}, topics[2], client), Limits())
    return presenter, [("READ", "TOPIC", topics[0]), ("READ", "TOPIC", topics[1]), ("WRITE", "TOPIC", topics[2])]


@contextmanager
def presenting(presenter: Presenter) -> Iterator[list[Denied]]:
    """It runs until the context ends; what it was denied."""
    is_ready, is_over = threading.Event(), threading.Event()
    refusals: list[Denied] = []

    def run() -> None:
        try:
            presenter.run(is_over, ready=is_ready.set)
        except Denied as error:
            refusals.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_for("the presenter", lambda: is_ready.is_set() or refusals)
        yield refusals
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_presenter_answers_behind_the_server_with_the_least_rights(mechanism: str, secured: Secured) -> None:
    presenter, rights = presenter_of(secured, mechanism)
    transactions, _, results = (name for _, _, name in rights)
    grant(secured.servers, "carol", *rights)
    with presenting(presenter) as refusals:
        send(secured.servers, transactions, [{"id": "t1"}])
        wait_for("its answer", lambda: read_json(secured.servers, results))
    assert refusals == []
    assert {answer["id"] for answer in read_json(secured.servers, results)} == {"t1"}


@pytest.mark.parametrize("without", [0, 1, 2], ids=["transactions", "scores", "results"])
def test_a_right_that_the_presenter_lacks_is_named(without: int, secured: Secured) -> None:
    presenter, rights = presenter_of(secured, "SCRAM-SHA-512")
    lacking = rights.pop(without)
    grant(secured.servers, "carol", *rights)
    with presenting(presenter) as refusals:
        wait_for("the refusal", lambda: refusals)
    check_named(str(refusals[0]), lacking, "")


def test_the_right_to_write_is_named_also_if_the_topic_may_be_seen(secured: Secured) -> None:
    presenter, rights = presenter_of(secured, "SCRAM-SHA-512")
    write = rights.pop()
    grant(secured.servers, "carol", *rights, ("DESCRIBE", "TOPIC", write[2]))
    with presenting(presenter) as refusals:
        send(secured.servers, rights[0][2], [{"id": "t1"}, {"id": "t2"}])
        wait_for("the refusal", lambda: refusals)
    check_named(str(refusals[0]), write, "")
