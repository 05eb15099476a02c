"""Faults between clients and Kafka: first with brokers that only echo, then with real ones."""

import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from lockgate.connectors.kafka.codecs import Codec
from lockgate.connectors.kafka.encode import Records, encode
from lockgate.connectors.kafka.errorcodes import RETRIABLE
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.topics import make_topic
from lockgate.connectors.kafka.transaction import Transactions
from lockgate.connectors.kafka.wire import Connection, Place, Producer, Unanswered
from lockgate.errors import BadMachine
from lockgate.lab.services import ports
from lockgate.lab.services.kafka import Detour, KafkaCluster, Node, server_properties
from lockgate.lab.services.kafkaproxy import Api, KafkaProxy, _Inspector
from lockgate.lab.services.lostreplies import LostReplies
from lockgate.lab.services.ports import HOST
from lockgate.lab.services.stack import Stack
from support.records import consuming
from support.waiting import wait_for

SOON = 20.0
"""What must happen is waited for so long, in seconds."""


# -- brokers that only echo ---------------------------------------------------------------------------------------


class Echo:
    """Answers each request with its correlation id and its own api key, in one piece or byte by byte."""

    def __init__(self, *, is_slow: bool) -> None:
        self.is_slow = is_slow
        self.heard: list[tuple[int, int]] = []
        self._door = socket.create_server((HOST, 0))
        self.port: int = self._door.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._answer, args=(connection,)))
            self._threads[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while head := connection.recv(4, socket.MSG_WAITALL):
                    (length,) = struct.unpack(">i", head)
                    api, _, correlation = struct.unpack(">hhi", connection.recv(length, socket.MSG_WAITALL)[:8])
                    self.heard.append((api, correlation))
                    answer = struct.pack(">iih", 6, correlation, api)
                    size = 1 if self.is_slow else len(answer)
                    for at in range(0, len(answer), size):
                        connection.sendall(answer[at : at + size])
                        time.sleep(0.001)
            except (OSError, struct.error):
                return

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for thread in self._threads:
            thread.join()


def request(api: int, correlation: int, body: bytes = b"") -> bytes:
    return struct.pack(">ihhi", 8 + len(body), api, 4, correlation) + body


def answer(api: int, correlation: int) -> bytes:
    return struct.pack(">iih", 6, correlation, api)


@pytest.fixture(params=[False, True], ids=["whole", "byte by byte"])
def echoes(request: pytest.FixtureRequest) -> Iterator[list[Echo]]:
    echoes = [Echo(is_slow=request.param) for _ in range(3)]
    yield echoes
    for echo in echoes:
        echo.close()


@pytest.fixture
def fake(echoes: list[Echo]) -> Iterator[KafkaProxy]:
    """The proxies before three brokers that only echo."""
    fronts = ports.choose(3, random.Random())
    nodes = tuple(
        Node(id=id, port=1, controller_port=2, detour=Detour(port=echo.port, proxy_port=front))
        for id, (echo, front) in enumerate(zip(echoes, fronts, strict=True), start=1)
    )
    with KafkaProxy(KafkaCluster(directory=Path("somewhere"), cluster_id="id", nodes=nodes)) as proxy:
        yield proxy


@pytest.fixture
def connect(fake: KafkaProxy) -> Iterator[Callable[[int], socket.socket]]:
    """Opens clients of one broker's proxy."""
    with ExitStack() as opened:
        yield lambda broker: opened.enter_context(
            socket.create_connection((HOST, fake.brokers[broker].port), timeout=SOON)
        )


Connect = Callable[[int], socket.socket]


def read(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (piece := client.recv(count - len(found))):
        found += piece
    return found


def read_until_reset(client: socket.socket) -> bytes:
    """What came before the reset."""
    found = b""
    try:
        while piece := client.recv(100):
            found += piece
    except ConnectionResetError:
        return found
    raise AssertionError("it ended without a reset")


def test_only_the_reply_that_was_aimed_at_is_lost_and_its_connection_reset(
    fake: KafkaProxy, echoes: list[Echo], connect: Connect
) -> None:
    lost = fake.lose_reply(Api.END_TXN)
    client, other = connect(1), connect(1)
    client.sendall(request(Api.METADATA, 1))
    assert read(client, 10) == answer(Api.METADATA, 1)
    assert not lost.has_struck
    client.sendall(request(Api.PRODUCE, 2, bytes(200_000)) + request(Api.END_TXN, 3) + request(Api.METADATA, 4))
    found = read_until_reset(client)
    # Of the one that is lost, no more comes than what it is not known by.
    assert found.startswith(answer(Api.PRODUCE, 2))
    assert len(found) < len(answer(Api.PRODUCE, 2)) + 8
    assert lost.wait(timedelta(seconds=SOON))
    assert (Api.END_TXN, 3) in echoes[0].heard
    other.sendall(request(Api.END_TXN, 1))
    assert read(other, 10) == answer(Api.END_TXN, 1)


@pytest.mark.parametrize("size", [1, 3, 8, 10, 11, 1000])
def test_replies_before_the_lost_one_pass_whole_however_they_come(size: int) -> None:
    lost = LostReplies()
    inspector = _Inspector(lost, Counter())
    reply = lost.arm(Api.END_TXN)
    inspector.request(request(Api.METADATA, 1) + request(Api.END_TXN, 2) + request(Api.METADATA, 3))
    data = answer(Api.METADATA, 1) + answer(Api.END_TXN, 2) + answer(Api.METADATA, 3)
    passed = b""
    for at in range(0, len(data), size):
        ruling = inspector.reply(data[at : at + size])
        passed += data[at : at + size][: ruling.passing_bytes]
        if ruling.is_reset:
            break
    assert reply.has_struck
    assert passed[:10] == answer(Api.METADATA, 1)
    assert len(passed) < 10 + 8


def test_the_reply_of_whichever_broker_is_asked_is_lost_and_only_once(
    fake: KafkaProxy, connect: Connect, echoes: list[Echo]
) -> None:
    lost = fake.lose_reply(Api.END_TXN, skip=1)
    clients = [connect(broker) for broker in (1, 2, 3)]
    clients[0].sendall(request(Api.END_TXN, 1))
    assert read(clients[0], 10) == answer(Api.END_TXN, 1)
    assert not lost.has_struck
    clients[2].sendall(request(Api.END_TXN, 1))
    read_until_reset(clients[2])
    assert lost.has_struck
    clients[1].sendall(request(Api.END_TXN, 1))
    assert read(clients[1], 10) == answer(Api.END_TXN, 1)
    assert [len(echo.heard) for echo in echoes] == [1, 1, 1]
    assert fake.requests[Api.END_TXN] == 3
    assert fake.requests[Api.PRODUCE] == 0


def test_one_whose_connection_broke_before_the_reply_strikes_the_next(fake: KafkaProxy, connect: Connect) -> None:
    lost = fake.lose_reply(Api.END_TXN)
    client = connect(1)
    fake.brokers[1].delay(timedelta(hours=1))
    client.sendall(request(Api.END_TXN, 1))
    wait_for("the request", lambda: fake.requests[Api.END_TXN])
    assert fake.reset() == 1
    fake.brokers[1].heal()
    assert not lost.has_struck
    again = connect(2)
    again.sendall(request(Api.END_TXN, 1))
    read_until_reset(again)
    assert lost.has_struck


def test_healing_calls_off_what_has_not_struck(fake: KafkaProxy, connect: Connect) -> None:
    lost = fake.lose_reply(Api.END_TXN)
    fake.heal()
    client = connect(1)
    client.sendall(request(Api.END_TXN, 1))
    assert read(client, 10) == answer(Api.END_TXN, 1)
    assert not lost.has_struck


def test_verbs_reach_every_broker(fake: KafkaProxy, connect: Connect) -> None:
    clients = [connect(broker) for broker in (1, 2, 3)]
    for client in clients:
        client.sendall(request(Api.METADATA, 1))
        assert read(client, 10) == answer(Api.METADATA, 1)
    fake.cut()
    assert all(proxy.faults.cut for proxy in fake.brokers.values())
    fake.heal()
    fake.delay(timedelta(seconds=1))
    fake.lose_replies()
    fake.refuse()
    for proxy in fake.brokers.values():
        assert proxy.faults.delay_to_client == proxy.faults.delay_to_server == timedelta(seconds=1)
        assert proxy.faults.are_replies_lost
        assert proxy.faults.is_refusing
    assert fake.reset() == 3


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1", struct.pack(">i", -1), bytes(4)])
def test_what_is_not_kafka_is_reset_and_counted(fake: KafkaProxy, connect: Connect, garbage: bytes) -> None:
    client = connect(1)
    client.sendall(garbage)
    assert read_until_reset(client) == b""
    assert fake.brokers[1].counts.not_understood_count == 1


def test_a_proxy_whose_port_is_taken_leaves_none_of_the_others_open(echoes: list[Echo]) -> None:
    fronts = ports.choose(2, random.Random())
    nodes = [Node(id=1, port=1, controller_port=2, detour=Detour(port=echoes[0].port, proxy_port=fronts[0]))]
    nodes += [replace(nodes[0], id=2, detour=Detour(port=echoes[1].port, proxy_port=echoes[2].port))]
    before = threading.active_count()
    with pytest.raises(BadMachine, match=str(echoes[2].port)):
        KafkaProxy(KafkaCluster(directory=Path("somewhere"), cluster_id="id", nodes=tuple(nodes)))
    assert threading.active_count() == before
    assert ports.is_free(fronts[0])


def test_brokers_without_detours_have_no_proxies() -> None:
    nodes = (Node(id=1, port=1, controller_port=2), Node(id=2, port=3, controller_port=4, detour=Detour(5, 6)))
    with pytest.raises(BadMachine, match=r"would lead clients past[\s\S]*is_proxied=True"):
        KafkaProxy(KafkaCluster(directory=Path("somewhere"), cluster_id="id", nodes=nodes))


def test_a_second_server_leads_to_the_proxy_and_the_first_does_not() -> None:
    node = Node(id=1, port=1001, controller_port=2001, detour=Detour(port=3001, proxy_port=4001))
    cluster = KafkaCluster(directory=Path("somewhere"), cluster_id="id", nodes=(node,))
    found = dict(line.split("=", 1) for line in server_properties(cluster, node).splitlines())
    assert found["listeners"] == ("BROKER://127.0.0.1:1001,CONTROLLER://127.0.0.1:2001,PROXIED://127.0.0.1:3001")
    assert found["advertised.listeners"] == "BROKER://127.0.0.1:1001,PROXIED://127.0.0.1:4001"
    assert found["listener.security.protocol.map"] == "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT"
    assert found["inter.broker.listener.name"] == "BROKER"
    assert (cluster.servers, cluster.proxied_servers) == ("127.0.0.1:1001", "127.0.0.1:4001")


# -- real brokers -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 3])
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A Kafka of this module's own whose brokers know their proxies."""
    stack = Stack(tmp_path_factory.mktemp("proxied"), brokers=request.param, is_proxied=True)
    try:
        stack.up(postgres=False)
        yield stack
    finally:
        stack.down()


@pytest.fixture
def proxy(proxied: Stack) -> Iterator[KafkaProxy]:
    with KafkaProxy(proxied.kafka) as proxy:
        yield proxy


@pytest.fixture
def connection(proxy: KafkaProxy) -> Iterator[Connection]:
    """A client behind the proxy that gives up a request after three seconds."""
    client = {"request.timeout.ms": "3000", "delivery.timeout.ms": "60000"}
    connection = Connection(read_settings(proxy.servers, client, where="test"), where="test")
    yield connection
    proxy.heal()
    connection.close()


@pytest.fixture
def topic(connection: Connection) -> str:
    name = f"proxied-{uuid4().hex[:8]}"
    make_topic(connection, name, partitions=3, where="test")
    return name


@pytest.fixture
def transactions(connection: Connection) -> Transactions:
    return Transactions(connection, f"id-{uuid4().hex[:8]}", timeout_ms=60_000, where="test")


class Reader:
    """Reads what is committed beside the proxy."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.values: set[bytes] = set()

    def wait_for(self, *values: bytes) -> None:
        def look() -> bool:
            for records in self._consumer.poll(timeout_ms=100).values():
                self.values |= {record.value for record in records}
            return {*values} <= self.values

        wait_for(f"records {values}", look, explain=lambda: f"beside {self.values}")


@pytest.fixture
def reader(proxied: Stack, topic: str) -> Iterator[Reader]:
    with consuming(proxied.kafka.servers, [topic]) as (consumer, _):
        yield Reader(consumer)


def write(transactions: Transactions, producer: Producer, place: Place, value: bytes) -> None:
    transactions.add(producer, [place])
    data = encode(
        Records(keys=None, values=pa.array([value], pa.binary())),
        codec=Codec.NONE,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        now_ms=int(time.time() * 1000),
    )
    connection, code = transactions.connection, -1
    while code in (-1, *RETRIABLE):  # a new partition is not ready at once
        leader = connection.shapes([place[0]], is_fresh=True)[place[0]].leaders[place[1]]
        answer = connection.ask(connection.produce_request(transactions.id, place, data), node=leader)
        code = int(answer.responses[0].partition_responses[0].error_code)
    assert code == 0


@pytest.mark.system
def test_clients_of_the_proxy_stay_behind_it_and_the_reader_never_meets_it(
    proxied: Stack, proxy: KafkaProxy, connection: Connection, transactions: Transactions, topic: str, reader: Reader
) -> None:
    producer = transactions.begin()
    for partition in range(3):
        write(transactions, producer, (topic, partition), b"%d" % partition)
    transactions.end(producer, is_commit=True)
    reader.wait_for(b"0", b"1", b"2")
    assert proxy.requests[Api.PRODUCE] >= 3
    assert proxy.requests[Api.END_TXN] == 1
    assert proxy.requests[Api.FETCH] == 0
    leaders = connection.shapes([topic])[topic].leaders
    assert {*leaders} == {node.id for node in proxied.kafka.nodes}
    assert all(proxy.brokers[leader].counts.to_server_bytes for leader in leaders)


@pytest.mark.system
def test_a_transaction_whose_end_is_not_answered_is_committed_and_the_client_hears_of_an_error(
    proxy: KafkaProxy, connection: Connection, transactions: Transactions, topic: str, reader: Reader
) -> None:
    producer = transactions.begin()
    write(transactions, producer, (topic, 0), b"booked")
    lost = proxy.lose_reply(Api.END_TXN)
    with pytest.raises(Unanswered):
        connection.end_transaction(transactions.id, producer, is_commit=True)
    assert lost.has_struck
    reader.wait_for(b"booked")
    assert proxy.requests[Api.END_TXN] == 1
    # The very same request again is answered: the coordinator knows that it has done it. On a busy machine it may ask
    # a few times to be asked later, while it notes that the markers are written.
    transactions.end(producer, is_commit=True)
    assert proxy.requests[Api.END_TXN] >= 2


@pytest.mark.system
def test_a_client_continues_after_a_cut_and_the_reader_reads_on_in_the_meantime(
    proxied: Stack, proxy: KafkaProxy, connection: Connection, transactions: Transactions, topic: str, reader: Reader
) -> None:
    producer = transactions.begin()
    write(transactions, producer, (topic, 0), b"before the cut")
    proxy.cut()
    with pytest.raises(Unanswered):
        connection.end_transaction(transactions.id, producer, is_commit=True)
    beside = Connection(read_settings(proxied.kafka.servers, {}, where="test"), where="test")
    try:
        others = Transactions(beside, f"id-{uuid4().hex[:8]}", timeout_ms=60_000, where="test")
        other = others.begin()
        write(others, other, (topic, 1), b"during the cut")
        others.end(other, is_commit=True)
    finally:
        beside.close()
    reader.wait_for(b"during the cut")
    assert b"before the cut" not in reader.values
    proxy.heal()
    transactions.end(producer, is_commit=True)
    reader.wait_for(b"before the cut")


@pytest.mark.system
def test_a_client_continues_after_resets_and_delays(
    proxy: KafkaProxy, transactions: Transactions, topic: str, reader: Reader
) -> None:
    producer = transactions.begin()
    write(transactions, producer, (topic, 0), b"slow")
    assert proxy.reset() > 0
    proxy.delay(timedelta(milliseconds=200))
    began = time.monotonic()
    transactions.end(producer, is_commit=True)
    assert time.monotonic() - began >= 0.4, "there and back"
    reader.wait_for(b"slow")


@pytest.mark.system
def test_brokers_get_a_second_server_when_they_are_started_and_not_while_they_run(tmp_path: Path) -> None:
    plain = Stack(tmp_path / "plain")
    try:
        plain.up(postgres=False)
        assert plain.kafka.detours == {}
        with pytest.raises(BadMachine, match="without a door for proxies"):
            Stack(plain.root, is_proxied=True).up(postgres=False)
        plain.down()
        Stack(plain.root, is_proxied=True).up(postgres=False)
        detours = plain.kafka.detours
        assert detours.keys() == {1}
        with KafkaProxy(plain.kafka) as proxy:
            Connection(read_settings(proxy.servers, {}, where="test"), where="test").close()
            assert proxy.requests[Api.METADATA] > 0
        plain.up(postgres=False)
        assert plain.kafka.detours == detours, "they are remembered"
    finally:
        plain.down()
