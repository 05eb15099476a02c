"""A dsn names a server without showing a password, and a server elsewhere has to prove who it is."""

from pathlib import Path

import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from lockgate.connectors.postgres import address
from lockgate.connectors.postgres.address import conninfo_of, server_of
from lockgate.errors import BadJob, BadMachine

LIBPQ_VARIABLES = [option.envvar.decode() for option in pq.Conninfo.get_defaults() if option.envvar]


@pytest.fixture(autouse=True)
def plain_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without PostgreSQL's files, and no variable of libpq's: what is demanded hangs on them."""
    for name in (*LIBPQ_VARIABLES, "PGREQUIRESSL", "PGSERVICEFILE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def demanded(dsn: str) -> dict[str, str | None]:
    """What libpq is given about trust."""
    given = conninfo_to_dict(conninfo_of(dsn, "test"))
    return {name: given.get(name) for name in ("sslmode", "require_auth")}


WHOLE = {"sslmode": "verify-full", "require_auth": "scram-sha-256"}
NOTHING = {"sslmode": None, "require_auth": None}


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ada:s3cret@db:5432/sales",
        "postgres://ada:s3cret@db:5432/sales?sslpassword=s3cret",
        "port=5432 dbname=sales user=ada password=s3cret host=db",
        "host=db port=5432 user=ada password='s3cret' dbname=sales",
        "host=db port=5432 user=ada dbname=sales oauth_client_secret=s3cret scram_client_key=s3cret",
    ],
)
def test_one_database_has_one_name_without_its_password(dsn: str) -> None:
    assert server_of(dsn, where="test") == "dbname=sales host=db port=5432 user=ada"


@pytest.mark.parametrize(
    "dsn",
    [
        "host=db s3cret word",
        "postgresql://ada:s3cret%ZZ@db/sales",
        # libpq reads host=s3cret@db, dbname=s3cret@db/sales and host=s3cret@db of these.
        "postgresql://ada:wonder@s3cret@db/sales",
        "postgres://ada:5432/s3cret@db/sales",
        "postgresql://ada@s3cret@db/sales?sslmode=require",
    ],
)
@pytest.mark.parametrize("is_reference", [False, True])
def test_a_dsn_that_cannot_be_read_is_refused_without_being_shown(
    dsn: str, is_reference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALES_DSN", dsn)
    with pytest.raises(BadJob, match="cannot be read") as raised:
        conninfo_of("env:SALES_DSN" if is_reference else dsn, "test")
    assert "s3cret" not in str(raised.value)
    if not is_reference:
        with pytest.raises(BadJob, match="cannot be read") as raised:
            server_of(dsn, "test")
        assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ada:w%40nder%2Fland@db/sales",
        "postgresql://ada@db/sales",
        "postgresql://db/sales?user=ada&password=w@nder/land",
        "host=db dbname=sales user=ada password=w@nder/land",
    ],
)
def test_an_at_sign_in_a_password_is_read_if_nothing_else_is_meant(dsn: str) -> None:
    assert server_of(dsn, where="test") == "dbname=sales host=db user=ada"


def test_a_reference_is_its_own_name_and_is_not_resolved_for_it() -> None:
    assert server_of("env:NOT_SET_ANYWHERE", where="test") == "PostgreSQL at env:NOT_SET_ANYWHERE"


@pytest.mark.parametrize(
    "dsn",
    [
        "host=db.example",
        "postgresql://ada@db.example/sales",
        "host=10.0.0.7",
        "host=0.0.0.0",
        "host=localhost.example",
        "host=db.example hostaddr=127.0.0.1",
        "host=localhost hostaddr=10.0.0.7",
        "host=/run/postgresql hostaddr=10.0.0.7",
        "hostaddr=10.0.0.7",
        "host=localhost,db.example",
        "host=db.example sslmode='' require_auth=''",
        "postgresql://[2001:db8::7]/sales",
    ],
)
def test_a_remote_server_has_to_prove_its_identity(dsn: str) -> None:
    assert demanded(dsn) == WHOLE


@pytest.mark.parametrize(
    "dsn",
    [
        "host=localhost",
        "postgresql://127.0.0.1:5432/sales",
        "postgresql://[::1]/sales",
        "hostaddr=127.0.0.2",
        "host=/run/postgresql",
        "host=@abstract",
        "host=localhost,127.0.0.1,/run/postgresql",
        "dbname=sales",
    ],
)
def test_a_server_on_this_machine_is_met_as_libpq_has_it(dsn: str) -> None:
    assert demanded(dsn) == NOTHING


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("sslmode=disable", {**WHOLE, "sslmode": "disable"}),
        ("sslmode=prefer", {**WHOLE, "sslmode": "prefer"}),
        ("sslmode=verify-ca", {**WHOLE, "sslmode": "verify-ca"}),
        ("require_auth=md5", {**WHOLE, "require_auth": "md5"}),
        ("sslcert=/me.pem sslkey=/me.key", {**WHOLE, "require_auth": "scram-sha-256,none"}),
    ],
)
def test_what_the_dsn_says_counts_and_nothing_else_becomes_weaker(said: str, expected: dict[str, str]) -> None:
    assert demanded(f"host=db.example {said}") == expected


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PGSSLMODE", "require", {**WHOLE, "sslmode": None}),
        ("PGSSLMODE", "prefer", {**WHOLE, "sslmode": None}),
        ("PGSSLMODE", "", WHOLE),
        ("PGREQUIRESSL", "1", {**WHOLE, "sslmode": None}),
        ("PGREQUIREAUTH", "md5", {**WHOLE, "require_auth": None}),
        ("PGSSLCERT", "/me.pem", {**WHOLE, "require_auth": "scram-sha-256,none"}),
    ],
)
def test_what_a_variable_says_is_left_to_libpq(
    variable: str, value: str, expected: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert demanded("host=db.example") == expected


def test_the_host_may_come_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    assert demanded("dbname=sales") == WHOLE
    monkeypatch.delenv("PGHOST")
    monkeypatch.setenv("PGHOSTADDR", "10.0.0.7")
    assert demanded("dbname=sales") == WHOLE


def test_a_service_file_is_read_as_libpq_reads_it(plain_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services = plain_machine / "services.conf"
    services.write_text(
        "[far]\nhost=db.example\n[weak]\nhost=db.example\nsslmode=disable\nrequire_auth=md5\n"
        "[near]\nhost=localhost\n[default]\nhost=db.example\nsslmode=prefer\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    assert demanded("service=far") == WHOLE
    assert demanded("service=weak") == NOTHING
    assert demanded("service=weak sslmode=require") == {"sslmode": "require", "require_auth": None}
    assert demanded("service=near") == NOTHING
    assert demanded("service=default") == WHOLE  # libpq does not tell it from its own default
    monkeypatch.setenv("PGSERVICE", "far")
    assert demanded("dbname=sales") == WHOLE


def roots(dsn: str) -> str | None:
    found = conninfo_to_dict(conninfo_of(dsn, "test")).get("sslrootcert")
    return None if found is None else str(found)


def test_issuers_are_those_of_the_dsn_or_of_the_user_or_of_the_machine(
    plain_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = plain_machine / "bundle.crt"
    bundle.touch()
    monkeypatch.setattr(address, "_BUNDLES", (str(plain_machine / "nowhere"), str(bundle)))
    assert roots("host=db.example") == str(bundle)
    assert roots("host=localhost sslmode=verify-full") == str(bundle)
    assert roots("host=db.example sslrootcert=/own.pem") == "/own.pem"
    assert roots("host=db.example sslmode=verify-ca") is None
    monkeypatch.setenv("SSL_CERT_FILE", "/another.pem")
    assert roots("host=db.example") == "system"
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setattr(address, "_BUNDLES", ())
    assert roots("host=db.example") == "system"
    own = plain_machine / ".postgresql" / "root.crt"
    own.parent.mkdir()
    own.touch()
    assert roots("host=db.example") is None


def test_to_trust_the_machines_issuers_stays_verify_full_when_they_are_named_by_their_file(
    plain_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = plain_machine / "bundle.crt"
    bundle.touch()
    monkeypatch.setattr(address, "_BUNDLES", (str(bundle),))
    for dsn in ("host=db.example sslrootcert=system", "host=localhost sslrootcert=system"):
        assert roots(dsn) == str(bundle)
        assert demanded(dsn)["sslmode"] == "verify-full"


def test_an_old_libpq_is_refused_for_a_server_elsewhere_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pq, "version", lambda: 150_008)
    assert demanded("host=localhost") == NOTHING
    with pytest.raises(BadMachine, match="libpq 15, which cannot insist on SCRAM") as raised:
        conninfo_of("host=db.example", "test")
    assert "psycopg[binary]" in raised.value.fix


def test_a_password_file_is_not_read_twice(plain_machine: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = plain_machine / ".pgpass"
    kept.write_text("*:*:*:*:s3cret\n")
    kept.chmod(0o644)  # libpq warns of it whenever it looks
    conninfo_of("host=db.example", "test")
    assert capfd.readouterr().err == ""
