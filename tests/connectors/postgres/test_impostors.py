"""The password goes to the server that it is meant for, and to nobody who only answers at its address.

The stranger is a server of this test. The real server is PostgreSQL; its build has no TLS, so TLS is put in front.
Both are on the loopback interface. `hostaddr` leads there, and `host` is a name elsewhere.
"""

import re
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import lockgate
from lockgate.connectors.postgres.address import server_of
from lockgate.connectors.postgres.connect import connect
from lockgate.connectors.postgres.ledger import PostgresLedger
from lockgate.errors import LockgateError, Refused
from support.certificates import Authority
from support.impostors import CLEAR_TEXT, MD5, NO_PASSWORD, Stranger, stranger, tls_in_front

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")

NAME = "db.example"
PASSWORD = "c4nary-w0rd"
QUESTIONS = {"clear text": CLEAR_TEXT, "md5": MD5, "nothing at all": NO_PASSWORD}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"))


def dsn_of(port: int, *options: str, host: str = NAME, password: str = PASSWORD) -> str:
    """An address elsewhere that leads to a port of this machine."""
    words = (f"host={host} hostaddr=127.0.0.1 port={port} user=ada dbname=sales password={password}", *options)
    return " ".join(words)


def refusal_of(dsn: str) -> LockgateError:
    with pytest.raises(LockgateError) as raised:
        connect(dsn, where="output 'orders'", name="test", patience=timedelta(0)).close()
    assert PASSWORD not in str(raised.value)
    return raised.value


def require_trusted_by_nobody(dsn: str, someone: Stranger, *, what: str) -> None:
    """The connection is refused at once, for this reason, and the stranger has heard nothing."""
    refusal = refusal_of(dsn)
    assert isinstance(refusal, Refused)
    assert refusal.what.startswith("PostgreSQL is not trusted, and got no password")
    assert what in refusal.what
    assert refusal.where == "output 'orders'"
    assert refusal.fix
    assert someone.heard == []


# -- strangers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_stranger_without_tls_learns_nothing_not_even_a_name(question: str) -> None:
    with stranger(QUESTIONS[question]) as someone:
        require_trusted_by_nobody(dsn_of(someone.port), someone, what="does not support SSL")
    assert someone.met == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_stranger_with_a_certificate_of_its_own_learns_nothing_not_even_a_name(
    question: str, authority: Authority
) -> None:
    with stranger(QUESTIONS[question], authority.server_context(NAME)) as someone:
        require_trusted_by_nobody(dsn_of(someone.port), someone, what="certificate verify failed")
    assert someone.met == []


@pytest.mark.parametrize(
    ("question", "what"),
    [
        ("clear text", "server requested a cleartext password"),
        ("md5", "server requested a hashed password"),
        ("nothing at all", "server did not complete authentication"),
    ],
)
@pytest.mark.parametrize("weaker", ["sslmode=disable", "sslmode=prefer", "sslmode=require"])
def test_a_weaker_sslmode_does_not_give_the_password_away(
    question: str, what: str, weaker: str, authority: Authority
) -> None:
    context = authority.server_context(NAME) if weaker == "sslmode=require" else None
    with stranger(QUESTIONS[question], context) as someone:
        require_trusted_by_nobody(dsn_of(someone.port, weaker), someone, what=what)
    assert len(someone.met) == 1


@pytest.mark.parametrize("question", ["clear text", "md5"])
def test_a_server_that_proves_its_identity_does_not_receive_the_password_either(
    question: str, authority: Authority
) -> None:
    with stranger(QUESTIONS[question], authority.server_context(NAME)) as someone:
        dsn = dsn_of(someone.port, f"sslrootcert={authority.certificate}")
        require_trusted_by_nobody(dsn, someone, what="authentication method requirement")


def test_the_stranger_hears_a_password_that_the_dsn_gives_away() -> None:
    """The tests above would pass with a stranger that is deaf."""
    with stranger(CLEAR_TEXT) as someone:
        refusal_of(dsn_of(someone.port, "sslmode=disable", "require_auth=password"))
    assert len(someone.heard) == 1
    assert PASSWORD.encode() in someone.heard[0]
    with stranger(MD5) as someone:
        refusal_of(dsn_of(someone.port, "sslmode=disable", "require_auth=md5"))
    assert [heard[5:8] for heard in someone.heard] == [b"md5"]


def test_a_ledger_named_on_the_command_line_goes_through_the_same_server() -> None:
    with stranger(CLEAR_TEXT) as someone, pytest.raises(Refused, match="does not support SSL"):
        PostgresLedger(dsn_of(someone.port), "payments", where="--postgres")
    assert someone.heard == []


# -- the real server --------------------------------------------------------------------------------------------------


@pytest.fixture
def secured(postgres: str, authority: Authority) -> Iterator[int]:
    """The port at which the shared PostgreSQL shows a certificate for NAME."""
    with tls_in_front(int(urlsplit(postgres).port or 0), authority.server_context(NAME)) as port:
        yield port


def real_dsn(postgres: str, port: int, *options: str, host: str = NAME) -> str:
    facts = urlsplit(postgres)
    words = f"host={host} hostaddr=127.0.0.1 port={port} user={facts.username} password={facts.password}"
    return " ".join((words, f"dbname={facts.path[1:]}", *options))


@pytest.mark.system
def test_a_server_whose_certificate_is_right_is_connected_to(
    postgres: str, secured: int, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = real_dsn(postgres, secured, f"sslrootcert={authority.certificate}")
    with connect(named, where="test", name="test") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert connection.pgconn.ssl_in_use
    # What the machine trusts needs no word in the dsn.
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with connect(real_dsn(postgres, secured), where="test", name="test") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert connection.pgconn.ssl_in_use


@pytest.mark.system
def test_another_name_than_that_of_the_certificate_is_refused(
    postgres: str, secured: int, authority: Authority
) -> None:
    refusal = refusal_of(real_dsn(postgres, secured, f"sslrootcert={authority.certificate}", host="elsewhere.example"))
    assert isinstance(refusal, Refused)
    assert "does not match host name" in refusal.what
    assert "host=" in refusal.fix


@pytest.mark.system
def test_an_issuer_that_is_not_trusted_is_refused(postgres: str, secured: int, other_authority: Authority) -> None:
    for options in ((), (f"sslrootcert={other_authority.certificate}",)):
        refusal = refusal_of(real_dsn(postgres, secured, *options))
        assert isinstance(refusal, Refused)
        assert "certificate verify failed" in refusal.what
        assert "sslrootcert=" in refusal.fix


@pytest.mark.system
def test_a_real_server_without_tls_is_met_where_the_dsn_says_so(postgres: str) -> None:
    port = int(urlsplit(postgres).port or 0)
    refusal = refusal_of(real_dsn(postgres, port))
    assert "does not support SSL" in refusal.what
    assert "sslmode=disable" in refusal.fix
    with connect(real_dsn(postgres, port, "sslmode=disable"), where="test", name="test") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.system
def test_a_dsn_is_read_where_the_connection_is_opened(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "dsn"
    kept.write_text(f"{postgres}\n")
    monkeypatch.setenv("SALES_DSN", postgres)
    for reference in (f"file:{kept}", "env:SALES_DSN"):
        with connect(reference, where="test", name="test") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert str(urlsplit(postgres).password) not in server_of(reference, "test")


# -- the one door -----------------------------------------------------------------------------------------------------

DOORS = {
    "lab/rig/readers/databases.py",  # a judge shares no code with what it judges; it reads a server of the proof
    "connectors/postgres/connect.py",
    "lab/services/postgres.py",  # waits for the server that it has started, on the loopback interface
}


def test_all_connections_are_opened_in_one_place() -> None:
    package = Path(str(lockgate.__file__)).parent
    opens = re.compile(r"psycopg\.(connect|Connection\.connect|AsyncConnection)\(|pq\.PGconn\.connect\(")
    files = {str(file.relative_to(package)) for file in package.rglob("*.py") if opens.search(file.read_text())}
    assert files == DOORS
