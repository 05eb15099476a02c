"""Faults of databases are done to a real server, and are over when they are told."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import psycopg
import pytest

from lockgate.proof import troubles_databases as databases
from lockgate.proof.faults import ANY_MOMENT, Kind, Strike
from lockgate.services.postgres import Postgres
from lockgate.services.postgresproxy import PostgresProxy

pytestmark = pytest.mark.system

STRIKE = Strike(Kind.KILL_BROKER, ANY_MOMENT)


@dataclass
class Services:
    postgres: Postgres


@dataclass
class Place:
    stack: Any
    postgres_proxy: PostgresProxy | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(1))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_AWAY_SECONDS", "_PAUSE_SECONDS", "_CUT_SECONDS", "_SLOW_SECONDS"):
        monkeypatch.setattr(databases, name, (1.0, 1.5))


@pytest.fixture
def scene(server: Postgres) -> Iterator[Place]:
    with PostgresProxy(server) as proxy:
        yield Place(Services(server), proxy)


def answer_seconds(dsn: str) -> float:
    """How long a new client waits for an answer."""
    began = time.monotonic()
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    return time.monotonic() - began


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_killed_server_is_up_again_when_it_is_told(scene: Place, server: Postgres) -> None:
    before = server.daemon.pid
    with psycopg.connect(server.dsn) as connection:
        told = databases.kill_postgres(scene, STRIKE)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert told == f"postgres {before} and all below it"
    assert server.daemon.pid not in (None, before)
    answer_seconds(server.dsn)


def test_a_stopped_server_says_nothing_and_then_goes_on(scene: Place, server: Postgres) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        pausing = beside(lambda: databases.pause_postgres(scene, STRIKE))
        time.sleep(0.4)
        eldest = psutil.Process(server.daemon.pid)
        family = [eldest, *eldest.children(recursive=True)]
        assert len(family) > 3
        assert {one.status() for one in family} == {psutil.STATUS_STOPPED}
        connection.execute("SELECT 1")
        pausing.join()
        assert psutil.STATUS_STOPPED not in {one.status() for one in family if one.is_running()}
    answer_seconds(server.dsn)


def test_a_server_that_is_not_there_cannot_be_struck(server: Postgres, tmp_path: Any) -> None:
    none = Place(Services(Postgres(directory=tmp_path, port=1, password="none")))
    assert databases.kill_postgres(none, STRIKE) is None
    assert databases.pause_postgres(none, STRIKE) is None


@pytest.mark.parametrize("trouble", [databases.cut_postgres, databases.delay_postgres])
def test_a_network_is_whole_again_when_it_is_told(scene: Place, trouble: Callable[..., str | None]) -> None:
    assert scene.postgres_proxy is not None
    striking = beside(lambda: trouble(scene, STRIKE))
    time.sleep(0.3)
    assert scene.postgres_proxy.faults != type(scene.postgres_proxy.faults)()
    striking.join()
    assert scene.postgres_proxy.faults == type(scene.postgres_proxy.faults)()
    answer_seconds(scene.postgres_proxy.dsn)


def test_connections_are_reset_where_there_are_any(scene: Place) -> None:
    assert scene.postgres_proxy is not None
    assert databases.reset_postgres(scene, STRIKE) is None
    with psycopg.connect(scene.postgres_proxy.dsn) as connection:
        assert databases.reset_postgres(scene, STRIKE) == "1 connections to PostgreSQL"
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_commit_takes_effect_and_its_reply_is_lost(scene: Place, server: Postgres) -> None:
    assert scene.postgres_proxy is not None
    told: list[str | None] = []
    with psycopg.connect(scene.postgres_proxy.dsn) as connection:
        connection.execute("CREATE TABLE committed (id bigint)")
        striking = beside(lambda: told.append(databases.lose_commit(scene, STRIKE)))
        time.sleep(0.3)
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        striking.join()
    assert told == ["a reply to COMMIT"]
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM committed").fetchone() == (0,)


def test_a_reply_that_nobody_waits_for_is_not_lost_later(scene: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_REPLY_LIMIT", databases.timedelta(seconds=0.2))
    assert scene.postgres_proxy is not None
    assert databases.lose_commit(scene, STRIKE) is None
    with psycopg.connect(scene.postgres_proxy.dsn) as connection:
        connection.execute("SELECT 1")
        connection.commit()
