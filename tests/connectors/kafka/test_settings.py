"""Java's names become ours, nothing is dropped in silence, and no message holds a password."""

import pickle
import ssl
from pathlib import Path

import pytest
from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError

from lockgate.connectors.kafka.client import is_refusal
from lockgate.connectors.kafka.settings import BATCH_BYTES, ClientSettings, is_java_only, read_settings
from lockgate.errors import BadJob, BadMachine

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
WHERE = "sink 'counts', declared at job.py:7"
LOGIN = f'{PLAIN} required username="bob" password="s3cret";'
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----\n"
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": LOGIN}
SSL = {"security.protocol": "SSL"}


def read(client: dict[str, str], *, is_lookup: bool = False) -> ClientSettings:
    return read_settings("one:9092, two:9092", client, where=WHERE, is_lookup=is_lookup)


def refusal(client: dict[str, str]) -> str:
    with pytest.raises(BadJob) as caught:
        read(client)
    assert caught.value.where == WHERE
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


def test_a_job_without_settings_gets_the_defaults() -> None:
    settings = read({})
    arguments = settings.client_arguments(where="test")
    assert arguments["bootstrap_servers"] == ["one:9092", "two:9092"]
    assert arguments["security_protocol"] == "PLAINTEXT"
    assert "ssl_context" not in arguments
    assert (settings.codec, settings.batch_bytes, settings.transaction_timeout_ms) == ("none", BATCH_BYTES, None)
    assert (settings.request_timeout_ms, settings.delivery_timeout_ms) == (30_000, 120_000)


def test_what_concerns_writing_is_kept_separate_from_what_concerns_connecting() -> None:
    settings = read(
        {
            "compression.type": "zstd",
            "batch.size": "16384",
            "transaction.timeout.ms": "60000",
            "delivery.timeout.ms": "90000",
            "kafka.request.timeout.ms": "5000",
            "connections.max.idle.ms": "1000",
            "metadata.max.age.ms": "2000",
            "reconnect.backoff.ms": "10",
            "reconnect.backoff.max.ms": "100",
            "client.id": "counts",
        }
    )
    assert settings.codec == "zstd"
    assert (settings.batch_bytes, settings.transaction_timeout_ms) == (16_384, 60_000)
    assert (settings.request_timeout_ms, settings.delivery_timeout_ms) == (5_000, 90_000)
    assert dict(settings.arguments) == {
        "client_id": "counts",
        "connections_max_idle_ms": 1_000,
        "metadata_max_age_ms": 2_000,
        "reconnect_backoff_max_ms": 100,
        "reconnect_backoff_ms": 10,
        "request_timeout_ms": 5_000,
        "security_protocol": "PLAINTEXT",
    }


def test_numbers_may_be_numbers() -> None:
    assert read({"batch.size": 7}).batch_bytes == 7  # type: ignore[dict-item]


def test_a_long_request_makes_the_delivery_long_as_in_java() -> None:
    assert read({"request.timeout.ms": "300000"}).delivery_timeout_ms == 300_000


@pytest.mark.parametrize(
    ("mechanism", "login", "user", "password"),
    [
        ("PLAIN", f'{PLAIN} required username="bob" password="p";', "bob", "p"),
        ("PLAIN", f"  {PLAIN}\n  required\n  password='p' username=bob ;\n", "bob", "p"),
        ("PLAIN", rf'{PLAIN} required username="b\"ob" password="a\\b;c=\'\x";', 'b"ob', r"a\b;c='x"),
        ("PLAIN", rf'{PLAIN} required username="bob" password="\101\7\t\n";', "bob", "A\a\t\n"),
        ("PLAIN", f'kafkashaded.{PLAIN} required username="bob" password="";', "bob", ""),
        ("SCRAM-SHA-256", f'{SCRAM} required username="a=b,c" password="a=b,c";', "a=3Db=2Cc", "a=b,c"),
        ("SCRAM-SHA-512", f'{SCRAM} optional username="grüße" password="p";', "grüße", "p"),
    ],
)
def test_a_login_is_read_as_java_reads_it(mechanism: str, login: str, user: str, password: str) -> None:
    settings = read({"security.protocol": "sasl_ssl", "sasl.mechanism": mechanism, "sasl.jaas.config": login})
    arguments = settings.client_arguments(where="test")
    assert arguments["security_protocol"] == "SASL_SSL"
    assert arguments["sasl_mechanism"] == mechanism
    assert arguments["sasl_plain_username"] == user
    assert arguments["sasl_plain_password"] == password


@pytest.mark.parametrize(
    "login",
    [
        f'{PLAIN} required username="bob" password="s3cret"',
        f'{PLAIN} required username="bob" password="s3cret;',
        f'{PLAIN} username="bob" password="s3cret";',
        f'{PLAIN} required username="bob" password "s3cret";',
        f'{PLAIN} required username="bob" password=;',
        f'{PLAIN} required username="bob" password="s3cret"; {PLAIN} required;',
        f'{PLAIN} required username="bob" password=9s3cret;',
        f'{PLAIN} needed username="bob" password="s3cret";',
        f"{PLAIN}",
        f"{PLAIN} required;",
        f'{PLAIN} required username="bob";',
        f'{PLAIN} required username="bob" password="s3cret" tokenauth="true";',
        f'{SCRAM} required username="bob" password="s3cret";',
        'com.acme.Login required username="bob" password="s3cret";',
        "",
    ],
)
def test_a_login_that_is_not_well_formed_is_refused_without_showing_it(login: str) -> None:
    assert "sasl.jaas.config" in refusal(SASL | {"sasl.jaas.config": login})


@pytest.mark.parametrize(
    ("client", "told"),
    [
        ({"linger.ms": "5"}, "'linger.ms' is not known"),
        ({"kafka.buffer.memory": "5"}, "'buffer.memory' is not known"),
        ({"buffer.memory": "5"}, "known are batch.size, client.id, compression.type"),
        ({"batch.size": "5", "kafka.batch.size": "6"}, "'batch.size' is given twice"),
        ({"batch.size": "many"}, "batch.size='many'"),
        ({"batch.size": "0"}, "batch.size='0'"),
        ({"request.timeout.ms": "-1"}, "request.timeout.ms='-1'"),
        ({"request.timeout.ms": "3000000000"}, "from 1 to 2147483647"),
        ({"request.timeout.ms": "20", "delivery.timeout.ms": "10"}, "delivery.timeout.ms=10 is shorter"),
        ({"compression.type": "rar"}, "none, gzip, snappy, lz4, zstd"),
        ({"security.protocol": "TLS"}, "PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL"),
        ({"sasl.mechanism": "PLAIN"}, "no effect without security.protocol"),
        ({"security.protocol": "SASL_PLAINTEXT", **SASL, "ssl.key.password": "s3cret"}, "no effect without a key"),
        (SASL | {"security.protocol": "SASL_PLAINTEXT", "ssl.truststore.type": "PEM"}, "set security.protocol to SSL"),
        (SASL | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism='GSSAPI' is not supported"),
        ({"security.protocol": "SASL_SSL", "sasl.jaas.config": LOGIN}, "sasl.mechanism is not set"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.password is not set"),
        (SASL | {"sasl.login.class": "x"}, "'sasl.login.class' is refused"),
        (SSL | {"ssl.truststore.location": "/a.jks"}, "keytool -list -rfc"),
        (SSL | {"ssl.truststore.location": "/a.jks", "ssl.truststore.password": "s3cret"}, "'ssl.truststore.password'"),
        (SSL | {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/a.p12"}, "openssl pkcs12"),
        (SSL | {"ssl.keystore.type": "JKS", "ssl.keystore.location": "/a.jks"}, "set ssl.keystore.type=PEM"),
        (SSL | {"ssl.truststore.certificates": CERTIFICATE}, "set ssl.truststore.type=PEM"),
        (SSL | {"ssl.truststore.type": "PEM", "ssl.truststore.password": "s3cret"}, "'ssl.truststore.password' is not"),
        (SSL | {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "/a.pem"}, "contains no certificate"),
        (
            SSL
            | {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": CERTIFICATE}
            | {"ssl.truststore.location": "/a.pem"},
            "say the same thing twice",
        ),
        (SSL | {"ssl.keystore.type": "PEM", "ssl.keystore.key": KEY}, "one of them is missing"),
        (
            SSL
            | {"ssl.keystore.type": "PEM", "ssl.keystore.key": "s3cret"}
            | {"ssl.keystore.certificate.chain": CERTIFICATE},
            "ssl.keystore.key contains no private key",
        ),
        (SSL | {"ssl.cipher.suites": "x"}, "'ssl.cipher.suites' is not known"),
        (SSL | {"ssl.endpoint.identification.algorithm": "ldaps"}, "https is the default"),
        ({"batch.size": None}, "neither text nor a whole number"),
        ({"batch.size": True}, "neither text nor a whole number"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_fix(client: dict[str, str], told: str) -> None:
    assert told in refusal(client)


def test_a_look_up_leaves_to_spark_what_does_not_concern_connecting() -> None:
    settings = read(SASL | {"linger.ms": "5", "fetch.min.bytes": "1", "batch.size": "many"}, is_lookup=True)
    assert dict(settings.arguments)["sasl_plain_username"] == "bob"
    assert settings.batch_bytes == BATCH_BYTES


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ({}, False),
        ({"linger.ms": "5"}, False),
        (SASL, False),
        ({"security.protocol": "SASL_SSL"}, True),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/a.jks"}, True),
        (SSL | {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/a.pem"}, False),
        (SSL | {"ssl.enabled.protocols": "TLSv1.3"}, True),
    ],
)
def test_what_only_javas_client_can_do_is_known_beforehand(client: dict[str, str], expected: bool) -> None:
    assert is_java_only(client) is expected


def test_settings_travel_and_are_keys() -> None:
    client = SASL | {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": CERTIFICATE, "client.id": "a"}
    settings = read(client)
    again = pickle.loads(pickle.dumps(settings))
    assert again == settings == read(dict(reversed(client.items())))
    assert hash(again) == hash(settings)
    assert settings != read(client | {"sasl.jaas.config": LOGIN.replace("s3cret", "other")})


def test_no_secret_is_shown() -> None:
    identity = {"ssl.keystore.type": "PEM", "ssl.keystore.key": KEY, "ssl.keystore.certificate.chain": CERTIFICATE}
    settings = pickle.loads(pickle.dumps(read(SASL | identity | {"ssl.key.password": "s3cret"})))
    for shown in (repr(settings), repr(settings.arguments), repr(settings.tls), f"{settings}", repr({"a": settings})):
        assert "s3cret" not in shown
    assert dict(settings.arguments)["sasl_plain_password"] == "s3cret"


def test_the_name_of_the_host_is_always_checked() -> None:
    for more in ({}, {"ssl.endpoint.identification.algorithm": "https"}):
        context = read(SSL | more).client_arguments(where="test")["ssl_context"]
        assert context.check_hostname is True
        assert context.verify_mode.name == "CERT_REQUIRED"


@pytest.mark.parametrize("store", ["truststore", "keystore"])
@pytest.mark.parametrize("content", [None, "not PEM", CERTIFICATE])
def test_a_file_that_cannot_be_used_is_reported_with_the_machine(
    store: str, content: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "a.pem"
    if content is not None:
        file.write_text(content)
    settings = read(SSL | {f"ssl.{store}.type": "PEM", f"ssl.{store}.location": str(file)})
    with pytest.raises(BadMachine, match=rf"ssl\.{store}\.location cannot be used") as caught:
        settings.client_arguments(where="test")
    assert str(file) in caught.value.where
    assert "every machine" in caught.value.fix


def test_a_refusal_is_distinguished_from_a_broker_that_is_away() -> None:
    told = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required")
    told.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    assert is_refusal(SaslAuthenticationFailedError())
    assert is_refusal(KafkaConnectionError(told))
    assert not is_refusal(KafkaConnectionError(ssl.SSLEOFError(8, "EOF occurred in violation of protocol")))
    assert not is_refusal(KafkaConnectionError("socket disconnected"))
    assert not is_refusal(None)
