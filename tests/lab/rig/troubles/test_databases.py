"""Faults of databases, and of the network before them, are done to a real server, and are over when they are told."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psutil
import psycopg
import pytest

from lockgate.lab.rig.faults import ANY_MOMENT, COMMIT_REPLY, Kind, Strike
from lockgate.lab.rig.troubles import databases, network
from lockgate.lab.services.postgres import Postgres
from lockgate.lab.services.postgresproxy import PostgresProxy

pytestmark = pytest.mark.system

STRIKE = Strike(Kind.KILL_POSTGRES, ANY_MOMENT)
COMMIT = Strike(Kind.LOSE_REPLY, COMMIT_REPLY)


@dataclass
class Place:
    """What these faults find; a pause lasts until the test has seen what it wants to see."""

    postgres: Postgres
    postgres_proxy: PostgresProxy | None = None
    kafka_proxy: None = None
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    is_seen: threading.Event = field(default_factory=threading.Event)

    def pause(self, seconds: tuple[float, float]) -> None:
        assert self.is_seen.wait(30)


@pytest.fixture
def scene(server: Postgres) -> Iterator[Place]:
    with PostgresProxy(server) as proxy:
        yield Place(server, proxy)


def answer_seconds(dsn: str) -> float:
    """How long a new client waits for an answer."""
    began = time.monotonic()
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    return time.monotonic() - began


def wait_for(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def commit_until_unheard(connection: psycopg.Connection[Any]) -> int:
    """Commit rows, one each, until one is not answered, and its id; the first may come before the fault."""
    for number in range(1_000_000):
        connection.execute("INSERT INTO committed VALUES (%s)", [number])
        try:
            connection.commit()
        except psycopg.OperationalError:
            return number
    raise AssertionError("every commit was answered")


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_killed_server_is_up_again_when_the_fault_is_over(scene: Place, server: Postgres) -> None:
    before = server.daemon.pid
    with psycopg.connect(server.dsn) as connection:
        scene.is_seen.set()
        told = databases.kill_postgres(scene, STRIKE)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert told == f"postgres {before} and all below it"
    assert server.daemon.pid not in (None, before)
    answer_seconds(server.dsn)


def test_a_stopped_server_says_nothing_and_then_continues(scene: Place, server: Postgres) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        pausing = beside(lambda: databases.pause_postgres(scene, STRIKE))
        eldest = psutil.Process(server.daemon.pid)
        family = [eldest, *eldest.children(recursive=True)]
        assert len(family) > 3
        wait_for(lambda: {one.status() for one in family} == {psutil.STATUS_STOPPED})
        scene.is_seen.set()
        connection.execute("SELECT 1")
        pausing.join()
        assert psutil.STATUS_STOPPED not in {one.status() for one in family if one.is_running()}
    answer_seconds(server.dsn)


def test_a_server_that_is_not_there_cannot_be_struck(server: Postgres, tmp_path: Any) -> None:
    none = Place(Postgres(directory=tmp_path, port=1, password="none"))
    assert databases.kill_postgres(none, STRIKE) is None
    assert databases.pause_postgres(none, STRIKE) is None


@pytest.mark.parametrize("trouble", [network.cut_network, network.delay_network])
def test_a_network_is_whole_again_after_heal(scene: Place, trouble: Callable[..., str | None]) -> None:
    assert scene.postgres_proxy is not None
    proxy, whole = scene.postgres_proxy, type(scene.postgres_proxy.faults)()
    striking = beside(lambda: trouble(scene, STRIKE))
    wait_for(lambda: proxy.faults != whole)
    scene.is_seen.set()
    striking.join()
    assert proxy.faults == whole
    answer_seconds(scene.postgres_proxy.dsn)


def test_connections_are_reset_where_there_are_any(scene: Place) -> None:
    assert scene.postgres_proxy is not None
    assert network.reset_network(scene, STRIKE) is None
    with psycopg.connect(scene.postgres_proxy.dsn) as connection:
        assert network.reset_network(scene, STRIKE) == "1 connections"
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_commit_takes_effect_and_its_reply_is_lost(scene: Place, server: Postgres) -> None:
    assert scene.postgres_proxy is not None
    told: list[str | None] = []
    with psycopg.connect(scene.postgres_proxy.dsn) as connection:
        connection.execute("CREATE TABLE committed (id bigint)")
        connection.commit()
        striking = beside(lambda: told.append(network.lose_reply(scene, COMMIT)))
        last = commit_until_unheard(connection)
        striking.join()
    assert told == ["a reply to COMMIT"]
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT max(id) FROM committed").fetchone() == (last,)


def test_a_reply_that_no_test_waits_for_is_not_lost_later(scene: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_REPLY_LIMIT", timedelta(seconds=0.2))
    assert scene.postgres_proxy is not None
    assert network.lose_reply(scene, COMMIT) is None
    with psycopg.connect(scene.postgres_proxy.dsn) as connection:
        connection.execute("SELECT 1")
        connection.commit()
