"""What PostgreSQL says and what follows from it; no message shows a password."""

import logging
import re
import signal
import threading
import time
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import errors

from lockgate.connectors.postgres import connect as connecting
from lockgate.connectors.postgres.connect import PATIENCE, Away, Lost, StagingGone, connect, failure_of
from lockgate.errors import EpochFailed, Failed, Refused, RowRefused, Unreachable
from lockgate.lab.services.postgres import Postgres

SOON = timedelta(seconds=0.2)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.AdminShutdown, Lost),
        (errors.CrashShutdown, Lost),
        (errors.CannotConnectNow, Lost),
        (errors.ConnectionDoesNotExist, Lost),
        (errors.ConnectionFailure, Lost),
        (errors.TooManyConnections, Lost),
        (errors.IdleInTransactionSessionTimeout, Lost),
        (psycopg.OperationalError, Lost),
        (errors.InvalidPassword, Refused),
        (errors.InvalidCatalogName, Refused),
        (errors.InsufficientPrivilege, Refused),
        (errors.ReadOnlySqlTransaction, Unreachable),
        (errors.InvalidTextRepresentation, RowRefused),
        (errors.StringDataRightTruncation, RowRefused),
        (errors.NotNullViolation, RowRefused),
        (errors.UniqueViolation, RowRefused),
        (errors.CheckViolation, RowRefused),
        (errors.NumericValueOutOfRange, RowRefused),
        (errors.CharacterNotInRepertoire, RowRefused),
        (errors.UndefinedTable, Failed),
        (errors.DiskFull, EpochFailed),
        (errors.SerializationFailure, EpochFailed),
        (errors.DeadlockDetected, EpochFailed),
        (errors.LockNotAvailable, EpochFailed),
        (errors.QueryCanceled, EpochFailed),
        (errors.OutOfMemory, EpochFailed),
    ],
)
def test_each_error_means_one_thing(error: type[psycopg.Error], expected: type[Exception]) -> None:
    assert type(failure_of(error("said"), where="test")) is expected


def test_a_staging_table_that_is_gone_is_no_fault_of_the_job() -> None:
    failure = failure_of(errors.UndefinedTable('relation "lockgate_staging_1_2" does not exist'), where="test")
    assert type(failure) is StagingGone


@pytest.mark.system
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ((":[^:@/]+@", ":wr0ng-word@"), "password authentication failed"),
        ((r"/lockgate\?", "/elsewhere?"), '"elsewhere" does not exist'),
        (("search_path", "search_paths"), "unrecognized configuration parameter"),
    ],
)
def test_a_wrong_address_is_refused_at_once(dsn: str, change: tuple[str, str], what: str) -> None:
    began = time.monotonic()
    with pytest.raises(Refused, match=what) as raised:
        connect(re.sub(*change, dsn), where="test", name="test")
    assert time.monotonic() - began < PATIENCE.total_seconds() / 2
    assert raised.value.fix
    assert str(urlsplit(dsn).password) not in str(raised.value)
    assert "wr0ng-word" not in str(raised.value)


def test_a_server_that_does_not_come_up_is_reported_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connecting, "_WORD_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(connecting, "_LOOK_EVERY_SECONDS", 0.02)
    dsn = "postgresql://ada:s3cret@127.0.0.1:1/sales"
    with caplog.at_level(logging.WARNING), pytest.raises(Away, match=r"refused.*; waited for it 0 s") as raised:
        connect(dsn, where="test", name="test", patience=SOON)
    assert "waiting for PostgreSQL" in caplog.text
    assert "s3cret" not in f"{raised.value}{caplog.text}"
    assert isinstance(raised.value, EpochFailed)


@pytest.mark.system
def test_a_server_that_comes_back_is_waited_for(server: Postgres) -> None:
    server.daemon.send(signal.SIGKILL)
    server.daemon.wait_for_end(timedelta(seconds=10))
    threading.Timer(1.0, server.start).start()
    with connect(server.dsn, where="test", name="test") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    server.wait()


@pytest.mark.system
def test_what_a_connection_relies_on_is_set(server: Postgres) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for setting in ("statement_timeout = '1s'", "synchronous_commit = off", "lock_timeout = '1s'"):
            connection.execute(f"ALTER ROLE lockgate SET {setting}")  # type: ignore[call-overload]
    try:
        with connect(server.dsn, where="test", name="a name") as connection:
            shown: Any = {
                name: connection.execute("SELECT current_setting(%s)", [name]).fetchone()
                for name in ("statement_timeout", "synchronous_commit", "lock_timeout", "application_name")
            }
    finally:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("ALTER ROLE lockgate RESET ALL")
    assert [value for (value,) in shown.values()] == ["0", "on", "0", "a name"]
