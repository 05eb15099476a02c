import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from lockgate.errors import BadMachine
from lockgate.lab.services.stack import MARKER, Stack, default_root
from support.records import read, send
from support.waiting import PATIENCE_SECONDS


def test_the_root_is_under_the_current_directory_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCKGATE_HOME", raising=False)
    assert default_root() == tmp_path / ".lockgate" / "services"
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "elsewhere"))
    assert default_root() == tmp_path / "elsewhere" / "services"


def test_nothing_started_is_nothing_running_and_leaves_no_trace(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "services")
    status = stack.status()
    assert not status.is_running
    assert status.kafka.servers is None
    assert not stack.down()
    assert not (tmp_path / "services").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path, fresh: bool) -> None:
    precious = tmp_path / "kafka" / "precious"
    precious.parent.mkdir()
    precious.write_text("mine")
    with pytest.raises(BadMachine, match="left alone"):
        Stack(tmp_path).up(fresh=fresh)
    assert precious.read_text() == "mine"
    assert not (tmp_path / MARKER).exists()


@pytest.mark.parametrize("brokers", [0, 2, 4])
def test_only_one_or_three_brokers_are_offered(tmp_path: Path, brokers: int) -> None:
    with pytest.raises(BadMachine, match="ask for 1 or 3"):
        Stack(tmp_path, brokers=brokers)


@pytest.mark.parametrize("option", ["kafka_port", "postgres_port"])
def test_a_port_asked_for_but_taken_is_refused_before_anything_starts(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(BadMachine, match=f"Port {port}.*taken"):
            Stack(tmp_path / "services").up(**{option: port})
    assert not (tmp_path / "services" / "state.json").exists()


def test_one_port_for_both_services_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(BadMachine, match="by Kafka and by PostgreSQL"):
        Stack(tmp_path / "services").up(kafka_port=port, postgres_port=port)


def test_doors_for_proxies_have_ports_of_their_own_and_are_remembered(tmp_path: Path) -> None:
    stack = Stack(tmp_path, brokers=3, is_proxied=True)
    (tmp_path / MARKER).touch()
    state = stack._invent(postgres=True, kafka_port=None, postgres_port=None)
    stack._write(state)
    cluster = stack.kafka
    assert cluster.nodes == state.nodes
    detours = cluster.detours.values()
    used = [port for node in cluster.nodes for port in (node.port, node.controller_port)]
    used += [port for detour in detours for port in (detour.port, detour.proxy_port)]
    assert len({*used, stack.postgres.port}) == 3 * 4 + 1
    for detour in detours:
        for port in (detour.port, detour.proxy_port):
            with pytest.raises(BadMachine, match=f"Port {port} is the port of"):
                stack._decide(state, postgres=True, kafka_port=port, postgres_port=None)


def test_nothing_started_has_neither_kafka_nor_postgres(tmp_path: Path) -> None:
    for ask in (lambda: Stack(tmp_path).kafka, lambda: Stack(tmp_path).postgres):
        with pytest.raises(BadMachine, match="start them first"):
            ask()


def test_a_damaged_state_file_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / MARKER).touch()
    (tmp_path / "state.json").write_text('{"nodes": 3}')
    with pytest.raises(BadMachine, match=r"cannot be read[\s\S]*state\.json"):
        Stack(tmp_path).status()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that the tests below stop and kill as they like."""
    own = Stack(tmp_path_factory.mktemp("own"), brokers=1)
    try:
        own.up()
        yield own
    finally:
        own.down()


@pytest.mark.system
def test_up_when_up_changes_nothing(own: Stack) -> None:
    own.up()
    before = own.status()
    assert not own.up()
    assert own.status() == before
    assert before.is_running


@pytest.mark.system
def test_two_stacks_side_by_side_do_not_disturb_each_other(own: Stack, stack: Stack) -> None:
    own.up()
    before = stack.status()
    servers = {own.status().kafka.servers, before.kafka.servers}
    assert len(servers) == 2
    own.down()
    assert stack.status() == before
    assert before.is_running


@pytest.mark.system
def test_data_and_addresses_survive_down_and_up_and_kill(own: Stack) -> None:
    own.up()
    before = own.status()
    write_both(own, number=1)

    assert own.down()
    assert not own.status().is_running
    assert own.up()
    assert addresses(own) == (before.kafka.servers, before.postgres.dsn)
    assert read_both(own) == ([1], [1])

    write_both(own, number=2)
    own.kill_broker(1)
    database = own.status().postgres.pid
    assert database is not None
    os.kill(database, signal.SIGKILL)
    wait_for_end(database)
    assert not own.status().kafka.running
    assert not own.status().postgres.running
    assert own.up()
    assert addresses(own) == (before.kafka.servers, before.postgres.dsn)
    assert read_both(own) == ([1, 2], [1, 2])


@pytest.mark.system
def test_a_remembered_port_that_a_stranger_took_is_refused_and_can_be_changed(own: Stack) -> None:
    own.up()
    own.down()
    port = own.status().kafka.brokers[0].port
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(BadMachine, match=rf"Port {port}[\s\S]*--fresh"):
            own.up()
        free = port + 1 if port % 2 else port - 1
        own.up(kafka_port=free, postgres=False)
        assert own.status().kafka.servers == f"127.0.0.1:{free}"
        assert own.status().is_running, "PostgreSQL was not asked for this time"
        with pytest.raises(BadMachine, match="lockgate down"):
            own.up(kafka_port=port)


@pytest.mark.system
def test_another_number_of_brokers_is_refused_and_fresh_wipes(own: Stack) -> None:
    with pytest.raises(BadMachine, match=r"1 broker\(s\) here, and 3 were asked for[\s\S]*--fresh"):
        Stack(own.root, brokers=3).up()
    own.up(fresh=True, postgres=False)
    servers = own.status().kafka.servers
    assert servers is not None
    admin = KafkaAdminClient(bootstrap_servers=servers)
    assert not [topic for topic in admin.list_topics() if not str(topic).startswith("__")]
    admin.close()
    assert own.status().postgres.dsn is None


@pytest.mark.system
def test_status_has_the_names_that_programs_read_and_the_password_is_private(stack: Stack) -> None:
    facts = json.loads(json.dumps(stack.status().as_json()))
    assert set(facts) == {"root", "kafka", "postgres"}
    assert set(facts["kafka"]) == {"running", "servers", "brokers"}
    assert set(facts["kafka"]["brokers"][0]) == {"id", "port", "pid", "running", "log"}
    assert {"running", "dsn", "port", "pid", "log"} <= set(facts["postgres"])
    assert stat.S_IMODE((stack.root / "state.json").stat().st_mode) == 0o600
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://lockgate:wrong@127.0.0.1:{facts['postgres']['port']}/lockgate")


def addresses(stack: Stack) -> tuple[str | None, str | None]:
    status = stack.status()
    return status.kafka.servers, status.postgres.dsn


def wait_for_end(pid: int) -> None:
    try:
        psutil.Process(pid).wait(timeout=PATIENCE_SECONDS)
    except psutil.NoSuchProcess:
        return


def write_both(stack: Stack, number: int) -> None:
    servers, dsn = addresses(stack)
    assert servers
    assert dsn
    admin = KafkaAdminClient(bootstrap_servers=servers)
    if number == 1:
        admin.create_topics([NewTopic(name="kept", num_partitions=1)])
    admin.close()
    send(servers, "kept", [str(number)])
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (number int)")
        connection.execute("INSERT INTO kept VALUES (%s)", [number])


def read_both(stack: Stack) -> tuple[list[int], list[int]]:
    servers, dsn = addresses(stack)
    assert servers
    assert dsn
    numbers = [int(record.value) for record in read(servers, "kept")]
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT number FROM kept ORDER BY number").fetchall()
    return numbers, [row[0] for row in rows]
