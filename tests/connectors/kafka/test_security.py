"""What `read_settings` makes of Java's names opens the doors of a broker that asks who is there, and only those."""

import json
import shutil
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream
from lockgate.connectors.kafka.settings import read_settings
from lockgate.errors import BadMachine
from support.cli import call
from support.records import count_ids, make_topics, send
from support.runs import run_to_the_end
from support.secured import ALICES_PASSWORD, KEY_PASSWORD, Secured, Way

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl"),
]

FAST_S = 8.0  # well below the ten seconds after which any broker that does not answer is given up


def ask(servers: str, client: dict[str, str]) -> list[str]:
    """The names of the topics, through our own client."""
    admin = KafkaAdminClient(**read_settings(servers, client, where="test").client_arguments(where="test"))
    try:
        return [topic["name"] if isinstance(topic, dict) else topic for topic in admin.list_topics()]
    finally:
        admin.close()


@pytest.mark.parametrize("way", ["plain", "scram_256", "scram_512", "unencrypted", "certificate"])
def test_the_broker_lets_in(way: str, secured: Secured) -> None:
    found: Way = getattr(secured, way)
    assert isinstance(ask(found.servers, found.client), list)


def by_reference(way: str, secured: Secured, folder: Path) -> Way | None:
    """A way in whose secrets are references; the driver, its JVM and workers have to resolve them."""
    (folder / "alice").write_text(f"{ALICES_PASSWORD}\n")
    login = {
        "file": {"sasl.username": "alice", "sasl.password": f"file:{folder / 'alice'}"},
        "hook": {"sasl.username": "alice", "sasl.password": "hook:support.vault:alice"},
        "quoted": {"sasl.username": "bob", "sasl.password": "hook:support.vault:bob"},
    }.get(way)
    if login is not None:
        door = secured.plain if way == "quoted" else secured.scram_512
        return Way(door.servers, {name: text for name, text in door.client.items() if "jaas" not in name} | login)
    if way != "certificate_file":
        return None
    client = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": f"file:{secured.directory / 'ca.pem'}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": f"file:{secured.directory / 'client.crt'}",
        "ssl.keystore.key": f"file:{secured.directory / 'client.key'}",
    }
    return Way(secured.certificate.servers, client)


def test_certificates_and_an_encrypted_key_may_be_given_inline_and_on_one_line(secured: Secured) -> None:
    home = secured.directory
    client = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": (home / "ca.pem").read_text().replace("\n", " "),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": (home / "client.crt").read_text().replace("\n", " "),
        "ssl.keystore.key": (home / "client.encrypted.key").read_text(),
        "ssl.key.password": KEY_PASSWORD,
    }
    assert isinstance(ask(secured.certificate.servers, client), list)
    (secured.directory / "word").write_text(f"{KEY_PASSWORD}\n")
    assert isinstance(ask(secured.certificate.servers, client | {"ssl.key.password": f"file:{home / 'word'}"}), list)
    with pytest.raises(BadMachine, match=r"ssl\.keystore\.key cannot be used") as caught:
        ask(secured.certificate.servers, client | {"ssl.key.password": "wrong-secret"})
    assert "wrong-secret" not in str(caught.value)


# What PLAIN sends is the password itself, and kafka-python writes down what it sends when it is asked to debug.
@pytest.mark.parametrize(("way", "user", "level"), [("plain", "bob", "INFO"), ("scram_512", "alice", "DEBUG")])
def test_a_wrong_password_is_reported_at_once_is_not_shown_and_leaves_no_thread(
    way: str, user: str, level: str, secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    found: Way = getattr(secured, way)
    module = found.client["sasl.jaas.config"].split()[0]
    wrong = found.client | {"sasl.jaas.config": f'{module} required username="{user}" password="wrong-secret";'}
    threads_before = threading.active_count()
    began = time.monotonic()
    with caplog.at_level(level), pytest.raises(SaslAuthenticationFailedError) as caught:
        ask(found.servers, wrong)
    assert time.monotonic() - began < FAST_S
    assert threading.active_count() == threads_before
    assert "wrong-secret" not in str(caught.value)
    assert "wrong-secret" not in caplog.text


def test_a_login_that_the_listener_does_not_take_is_reported_at_once(secured: Secured) -> None:
    plain = {name: text for name, text in secured.plain.client.items() if name.startswith("sasl")}
    began = time.monotonic()
    with pytest.raises(UnsupportedSaslMechanismError):
        ask(secured.unencrypted.servers, secured.unencrypted.client | plain)
    with pytest.raises(IllegalSaslStateError):  # a listener that wants no login at all
        ask(secured.certificate.servers, secured.certificate.client | plain | {"security.protocol": "SASL_SSL"})
    assert time.monotonic() - began < FAST_S


@pytest.mark.parametrize("way", ["plain", "certificate"])
def test_a_broker_that_a_stranger_vouches_for_is_not_believed(way: str, secured: Secured) -> None:
    found: Way = getattr(secured, way)
    began = time.monotonic()
    with pytest.raises(KafkaConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(found.servers, found.client | {"ssl.truststore.location": str(secured.directory / "stranger.pem")})
    assert time.monotonic() - began < FAST_S


def test_a_client_without_a_certificate_gets_an_error_at_once(secured: Secured) -> None:
    client = {name: text for name, text in secured.certificate.client.items() if "keystore" not in name}
    began = time.monotonic()
    with pytest.raises(KafkaConnectionError, match="CERTIFICATE"):
        ask(secured.certificate.servers, client)
    assert time.monotonic() - began < FAST_S


def test_the_name_of_the_host_is_checked(secured: Secured) -> None:
    servers = secured.plain.servers.replace("127.0.0.1", "localhost")  # its certificate holds only the number
    began = time.monotonic()
    with pytest.raises(KafkaConnectionError, match="not valid for 'localhost'"):
        ask(servers, secured.plain.client)
    assert time.monotonic() - began < FAST_S


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "way", ["plain", "scram_256", "scram_512", "certificate", "file", "hook", "quoted", "certificate_file"]
)
def test_a_job_reads_and_writes_behind_the_server(way: str, secured: Secured, tmp_path: Path) -> None:
    """Spark's connector reads with these settings and writes the copy; our writer writes the other, in workers."""
    door = by_reference(way, secured, tmp_path) or getattr(secured, way)
    name = f"guarded-{uuid.uuid4().hex[:8]}"
    make_topics(secured.servers, f"{name}-in", f"{name}-out", f"{name}-copy")
    send(secured.servers, f"{name}-in", [{"id": number} for number in range(100)])
    rows = stream(
        "in", KafkaSource(topic=f"{name}-in", servers=door.servers, value="id BIGINT", client=door.client)
    ).where("id >= 0")
    out, copy = (
        KafkaSink(topic=f"{name}-{topic}", servers=door.servers, key="id", client=door.client)
        for topic in ("out", "copy")
    )
    job = Job(
        name,
        rows.to("out", out),
        rows.to("copy", copy, guarantee=Guarantee.AT_LEAST_ONCE),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )
    run_to_the_end(job, tmp_path)
    assert count_ids(secured.servers, f"{name}-out") == Counter(range(100))
    assert count_ids(secured.servers, f"{name}-copy") == Counter(range(100))
    options = [word for setting, text in door.client.items() for word in ("--client", f"{setting}={text}")]
    at_servers = ("--servers", door.servers, *options)
    assert json.loads(call("ledger", "show", name, *at_servers, "--json").out)["entry"]["epoch"] >= 0
    listed = json.loads(call("transactions", "list", *at_servers, "--json").out)["transactions"]
    assert f"lockgate.{name}" in {one["transactional_id"] for one in listed}
