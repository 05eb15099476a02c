"""The only way to PostgreSQL: connections that wait for a server, and what its errors mean here.

    what PostgreSQL says                                what follows
    not there, starting, going away, connection lost    Lost: wait for it, two minutes at most; nothing is visible.
                                                        Away: it did not come in that time
    wrong password, no such database, no right to       Refused, with the fix
    no TLS, a certificate that proves nothing, a        Refused: the server may be an impostor, and has not got the
    password wanted in another way than SCRAM           password (see address.py)
    a value, a constraint                               Failed with PostgreSQL's own detail: a repeat cannot help
    disk full, deadlock, cancelled, staging is gone     EpochFailed: nothing is visible, the epoch is repeated

No message shows a password.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from lockgate.connectors.postgres.address import conninfo_of, server_of
from lockgate.errors import BadMachine, EpochFailed, Failed, LockgateError, Refused, RowRefused, Unreachable

if TYPE_CHECKING:
    from psycopg import Connection as _Connection
    from psycopg import Error as PostgresError

    Connection: TypeAlias = _Connection[tuple[Any, ...]]

log = logging.getLogger(__name__)

PATIENCE = timedelta(minutes=2)
IDLE_LIMIT = timedelta(seconds=60)
"""How long a driver may be silent in a transaction: a driver that stopped there would hold the ledger forever."""

STAGING_PREFIX = "lockgate_staging_"

_STAGING = re.compile(rf'"?{STAGING_PREFIX}\w+"?')
_LOOK_EVERY_SECONDS = 0.5
_WORD_EVERY_SECONDS = 5.0
_EXCERPT = 500
_GOING = ("57P01", "57P02", "57P03", "57P05", "25P03", "53300")
_RIGHTS = "grant what is missing to that user, or name another one in the dsn"
# Before a session starts there is only text. For a text that is not listed here the driver waits.
# When libpq says one of these, the password has not been sent yet.
_STRANGERS = (
    (
        "does not support SSL",
        "switch TLS on in the server; or, on a network that you trust, sslmode=disable in the dsn",
    ),
    ("does not match host name", "write a name of the certificate as host= (and hostaddr= if it does not resolve)"),
    ("host name must be specified", "write a name of the certificate as host=, beside hostaddr="),
    ("certificate verify failed", "sslrootcert=/path/to/issuer in the dsn, on each machine; or renew what has expired"),
    ("root certificate", "correct sslrootcert= in the dsn; the file must be on each machine that connects"),
    ("authentication method requirement", "store the password as SCRAM in the server; or say require_auth= in the dsn"),
)
_REFUSALS = (
    ("authentication failed", "correct the user and the password in the dsn (or PGPASSWORD, or ~/.pgpass)"),
    ("no password supplied", "give the password in the dsn, in PGPASSWORD or in ~/.pgpass"),
    ("no pg_hba.conf entry", "let the server's pg_hba.conf admit this machine and user, or change sslmode in the dsn"),
    ("does not exist", "create it, or correct the dsn"),
    ("not permitted to log in", _RIGHTS),
    ("permission denied", _RIGHTS),
    ("not currently accepting connections", "ALTER DATABASE ... ALLOW_CONNECTIONS true, or name another database"),
    ("weak sslmode", "omit sslmode= from the dsn, or write verify-full"),
    ("definition of service", "correct service= in the dsn (or PGSERVICE), or the service file"),
    ("connection is bad: invalid", "correct that option in the dsn"),
    ("configuration parameter", "correct options= in the dsn"),
    ("invalid value for parameter", "correct options= in the dsn"),
    ("certificate", "correct sslmode, sslrootcert, sslcert and sslkey in the dsn"),
)


class Lost(EpochFailed):
    """The server is not there, or the connection to it is gone; what was not committed is undone."""


class Away(Lost):
    """The driver waited for the server, and the server did not come."""


class StagingGone(EpochFailed):
    """A staging table is not there any more: another driver of the job has removed it."""


def connect(dsn: str, *, where: str, name: str, patience: timedelta | None = None) -> Connection:
    """A connection, not in autocommit; waits for a server that is not there. `name` is shown in pg_stat_activity."""
    psycopg = _driver()
    limit = (PATIENCE if patience is None else patience).total_seconds()
    server, conninfo = server_of(dsn, where), conninfo_of(dsn, where)
    began = time.monotonic()
    word_due = began + _WORD_EVERY_SECONDS
    while True:
        connection: Connection | None = None
        try:
            connection = psycopg.connect(
                conninfo, application_name=name, client_encoding="utf8", prepare_threshold=None
            )
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            _settle(connection)
            return connection
        except psycopg.Error as error:
            if connection is not None:
                connection.close()
            failure = failure_of(error, where=where)
        if not isinstance(failure, Lost):
            raise failure
        now = time.monotonic()
        if now - began >= limit:
            raise Away(f"{failure.what}; waited for it {now - began:.0f} s", where=where, fix=failure.fix)
        if now >= word_due:
            log.warning("waiting for PostgreSQL since %.0f s (%s): %s", now - began, server, failure.what)
            word_due = now + _WORD_EVERY_SECONDS
        time.sleep(min(_LOOK_EVERY_SECONDS, limit))


@contextmanager
def translated_errors(*, where: str, table: str | None = None) -> Iterator[None]:
    """Raise what PostgreSQL says as an error of Lockgate; `table` is the one that the user knows."""
    psycopg = _driver()
    try:
        yield
    except psycopg.Error as error:
        raise failure_of(error, where=where, table=table) from error


def failure_of(error: PostgresError, *, where: str, table: str | None = None) -> LockgateError:
    """What an error of PostgreSQL means here."""
    psycopg = _driver()
    state, said = error.sqlstate, _said(error)
    if state is None:
        return _without_state(error, said, where, is_operational=isinstance(error, psycopg.OperationalError))
    if state.startswith("08") or state in _GOING:
        return _lost(said, where)
    if state.startswith("28") or state in ("3D000", "42501"):
        return Refused(f"PostgreSQL refuses: {said}", where=where, fix=_RIGHTS)
    if state == "25006":
        return Unreachable(
            f"this PostgreSQL only reads: {said}",
            where=where,
            fix="name the primary in the dsn; with several hosts add target_session_attrs=read-write",
        )
    if state in ("42P01", "3F000") and STAGING_PREFIX in said:
        return StagingGone(
            f"what was staged is not there any more: {said}",
            where=where,
            fix="another driver of this job took over, or another session dropped the table; the epoch is repeated",
        )
    if state[:2] in ("22", "23", "44"):
        place = "a row"
        if table is not None:
            place, said = f"a row for table {table}", _STAGING.sub(table, said)  # the user knows no other
        return RowRefused(
            f"PostgreSQL does not take {place}: {said}",
            where=where,
            fix="correct the rows (where, select, cast) or the table; nothing of the epoch is visible, and the job"
            " repeats it when it runs again",
        )
    if state == "53100":
        return EpochFailed(
            f"PostgreSQL's disk is full: {said}",
            where=where,
            fix="free space on the server's disk; the epoch is repeated, nothing of it is visible",
        )
    if state == "55P03":
        return EpochFailed(
            f"another session holds what is needed: {said}",
            where=where,
            fix="SELECT pid, pg_blocking_pids(pid), query FROM pg_stat_activity shows which; the epoch is repeated",
        )
    if state[:2] in ("40", "53", "54", "57", "58", "XX"):
        return EpochFailed(f"PostgreSQL gave up: {said}", where=where, fix="the epoch is repeated")
    return Failed(
        f"PostgreSQL refuses a statement: {said}",
        where=where,
        fix="see that the table is what it was when the job began, and run the job again",
    )


def _without_state(error: PostgresError, said: str, where: str, *, is_operational: bool) -> LockgateError:
    if not is_operational:
        return Failed(
            f"the PostgreSQL client failed: {type(error).__name__}", where=where, fix="check the options in the dsn"
        )
    for text, fix in _STRANGERS:
        if text in said:
            return Refused(f"PostgreSQL is not trusted, and got no password: {said}", where=where, fix=fix)
    for text, fix in _REFUSALS:
        if text in said:
            return Refused(f"PostgreSQL refuses the connection: {said}", where=where, fix=fix)
    return _lost(said, where)


def _lost(said: str, where: str) -> Lost:
    return Lost(
        f"PostgreSQL is not there: {said}",
        where=where,
        fix="start the server, or correct host and port in the dsn; nothing of the epoch is visible",
    )


def _said(error: PostgresError) -> str:
    """PostgreSQL's own words in one line: what, the detail, and for COPY the line, column and value."""
    diag = error.diag
    if diag.message_primary is None:
        return " ".join(str(error).split())[:_EXCERPT]
    parts = [diag.message_primary, diag.message_detail]
    parts += [f"column {diag.column_name!r}" if diag.column_name else None]
    parts += [f"constraint {diag.constraint_name!r}" if diag.constraint_name else None]
    parts += [diag.context if diag.context and diag.context.startswith("COPY") else None]
    return " ".join("; ".join(part for part in parts if part).split())[:_EXCERPT]


def _settle(connection: Connection) -> None:
    """Settings that our transactions rely on, whatever the server, the database or the role sets."""
    connection.execute(
        "SELECT set_config('statement_timeout', '0', false),"
        " set_config('lock_timeout', '0', false),"
        " set_config('idle_in_transaction_session_timeout', %s, false),"
        # What is committed must survive a crash: with asynchronous commits it does not. Stronger settings stay.
        " set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
        " WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)",
        [str(int(IDLE_LIMIT.total_seconds() * 1000))],
    )
    connection.commit()


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise BadMachine(
            "The PostgreSQL client library is not installed.",
            where="package psycopg",
            fix="pip install 'lockgate[postgres]'",
        ) from error
    return psycopg
