"""Faults between clients and PostgreSQL: first over bytes made by hand, then with a real server."""

import struct
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest

from lockgate.lab.services.lostreplies import LostReplies
from lockgate.lab.services.pipes import NotUnderstood, Ruling
from lockgate.lab.services.postgres import Postgres
from lockgate.lab.services.postgresproxy import PostgresProxy, _Inspector

# -- bytes --------------------------------------------------------------------------------------------------------


def greeting(code: int, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 8 + len(body), code) + body


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", 4 + len(body)) + body


TLS, STARTUP = greeting(80_877_103), greeting(3 << 16, b"user\0lockgate\0\0")
READY = message(b"Z", b"T")


def done(tag: bytes) -> bytes:
    return message(b"C", tag + b"\0")


def passed(inspector: _Inspector, data: bytes, size: int) -> tuple[bytes, bool]:
    """What passes of a server's words that come in pieces of this size, and whether the connection is reset."""
    found = b""
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        ruling = inspector.reply(piece)
        found += piece[: ruling.passing_bytes]
        if ruling.is_reset:
            return found, True
    return found, False


@pytest.fixture
def lost() -> LostReplies:
    return LostReplies()


@pytest.fixture
def inspector(lost: LostReplies) -> _Inspector:
    """Of a client that has asked for encryption, was refused it, and has introduced itself."""
    inspector = _Inspector(lost)
    inspector.request(TLS)
    assert inspector.reply(b"N") == Ruling(1)
    inspector.request(STARTUP)
    return inspector


@pytest.mark.parametrize("size", [1, 2, 5, 7, 1000])
def test_the_reply_to_a_commit_is_lost_and_nothing_before_it(
    inspector: _Inspector, lost: LostReplies, size: int
) -> None:
    reply = lost.arm("COMMIT")
    before = message(b"D", b"a row that says C\0\0\0\x0bCOMMIT\0") + done(b"SELECT 1") + READY
    assert passed(inspector, before, size) == (before, False)
    assert not reply.has_struck
    commit = done(b"COMMIT")
    found, is_reset = passed(inspector, before + commit + READY, size)
    assert is_reset
    assert reply.has_struck
    assert found.startswith(before)
    assert len(found) < len(before + commit), "no client can read a message that is not whole"


def test_the_connection_is_reset_when_the_server_is_ready_again_and_not_before(
    inspector: _Inspector, lost: LostReplies
) -> None:
    lost.arm("INSERT")
    assert inspector.reply(done(b"INSERT 0 17")) == Ruling(0)
    assert inspector.reply(message(b"N", b"a notice\0")) == Ruling(0)
    assert inspector.reply(READY) == Ruling(0, is_reset=True)


@pytest.mark.parametrize("tag", [b"ROLLBACK", b"COMMIT PREPARED", b"COMMITTED", b"SELECT 0", b""])
def test_other_commands_are_not_taken_for_a_commit(inspector: _Inspector, lost: LostReplies, tag: bytes) -> None:
    reply = lost.arm("COMMIT")
    data = done(tag) + READY
    assert inspector.reply(data) == Ruling(len(data))
    assert not reply.has_struck


def test_a_commit_that_no_fault_targets_passes(inspector: _Inspector) -> None:
    data = done(b"COMMIT") + READY
    assert inspector.reply(data) == Ruling(len(data))


def test_a_notice_before_the_answer_about_encryption_is_not_taken_for_it(lost: LostReplies) -> None:
    inspector = _Inspector(lost)
    inspector.request(STARTUP)
    data = message(b"N", b"x" * 30) + READY
    assert inspector.reply(data) == Ruling(len(data))


def test_what_is_encrypted_or_no_postgres_is_not_understood(lost: LostReplies) -> None:
    asked = _Inspector(lost)
    asked.request(TLS)
    with pytest.raises(NotUnderstood):
        asked.reply(b"S")
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET / HTTP/1.1", greeting(2 << 16)):
        with pytest.raises(NotUnderstood):
            _Inspector(lost).request(garbage)


# -- a real server ------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(server: Postgres) -> Iterator[PostgresProxy]:
    with PostgresProxy(server) as proxy:
        yield proxy


@pytest.fixture
def table(server: Postgres) -> str:
    with psycopg.connect(server.dsn) as beside:
        beside.execute("DROP TABLE IF EXISTS booked")
        beside.execute("CREATE TABLE booked (word TEXT)")
    return "booked"


def words(server: Postgres) -> list[str]:
    """What a reader beside the proxy sees."""
    with psycopg.connect(server.dsn) as beside:
        return [word for (word,) in beside.execute("SELECT word FROM booked ORDER BY word")]


COMMITS: dict[str, Callable[[psycopg.Connection], object]] = {
    "simple": lambda connection: connection.commit(),
    "extended": lambda connection: connection.execute("COMMIT", prepare=True, binary=True),
    "several": lambda connection: connection.execute("SELECT 1; COMMIT; SELECT 2"),
}


@pytest.mark.system
@pytest.mark.parametrize("form", COMMITS)
def test_a_commit_whose_reply_is_lost_is_in_force_and_the_client_hears_of_an_error(
    server: Postgres, proxy: PostgresProxy, table: str, form: str
) -> None:
    with psycopg.connect(proxy.dsn, autocommit=form != "simple") as other:
        other.execute("SELECT 1")
        connection = psycopg.connect(proxy.dsn, autocommit=form != "simple")
        if form != "simple":
            connection.execute("BEGIN")
        connection.execute("INSERT INTO booked VALUES (%s)", ["seat 7"])
        assert words(server) == []
        lost = proxy.lose_reply()
        with pytest.raises(psycopg.OperationalError):
            COMMITS[form](connection)
        assert lost.wait(timedelta(seconds=20))
        assert connection.broken
        connection.close()
        assert words(server) == ["seat 7"]
        # Only that one: others go on, and so does who comes again.
        assert other.execute("SELECT 2").fetchone() == (2,)
    with psycopg.connect(proxy.dsn) as again:
        again.execute("INSERT INTO booked VALUES ('seat 8')")
    assert words(server) == ["seat 7", "seat 8"]
    assert proxy.counts.reset_count == 1


@pytest.mark.system
def test_a_commit_that_fails_is_reported_and_the_fault_waits_for_one_that_does_not(
    server: Postgres, proxy: PostgresProxy, table: str
) -> None:
    with psycopg.connect(server.dsn) as beside:
        beside.execute("ALTER TABLE booked ADD UNIQUE (word) DEFERRABLE INITIALLY DEFERRED")
    lost = proxy.lose_reply()
    connection = psycopg.connect(proxy.dsn)
    connection.execute("INSERT INTO booked VALUES ('twice'), ('twice')")
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.commit()
    assert not lost.has_struck
    connection.execute("INSERT INTO booked VALUES ('once')")
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert lost.has_struck
    connection.close()
    assert words(server) == ["once"]


@pytest.mark.system
def test_a_statement_that_commits_by_itself_is_in_force_when_its_reply_is_lost(
    server: Postgres, proxy: PostgresProxy, table: str
) -> None:
    proxy.lose_reply("INSERT")
    with psycopg.connect(proxy.dsn, autocommit=True) as connection, pytest.raises(psycopg.OperationalError):
        connection.execute("INSERT INTO booked VALUES (%s)", ["by itself"])
    assert words(server) == ["by itself"]


@pytest.mark.system
def test_healing_calls_off_what_has_not_struck(server: Postgres, proxy: PostgresProxy, table: str) -> None:
    lost = proxy.lose_reply()
    proxy.heal()
    with psycopg.connect(proxy.dsn) as connection:
        connection.execute("INSERT INTO booked VALUES ('heard')")
    assert not lost.has_struck
    assert words(server) == ["heard"]


@pytest.mark.system
def test_a_client_of_a_server_that_was_killed_is_turned_away_and_comes_back_with_it(
    server: Postgres, proxy: PostgresProxy
) -> None:
    server.kill()
    try:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(proxy.dsn)
        assert proxy.counts.refused_count >= 1
    finally:
        server.start()
        server.wait()
    with psycopg.connect(proxy.dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
