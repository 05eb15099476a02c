"""Logins by reference: Spark's connector gets text that a JVM resolves itself, our client resolves when it connects."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockgate import KafkaSink, KafkaSource
from lockgate.connectors.kafka.allowlist import PRESENTING, READING, check_client
from lockgate.connectors.kafka.references import spark_options
from lockgate.connectors.kafka.settings import read_settings
from lockgate.errors import BadJob, Refused

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
WORD = {"sasl.username": "bob", "sasl.password": "env:WORD"}
CANARY = "c4nary-w0rd"


def options(client: Mapping[str, str]) -> dict[str, str]:
    check_client(client, READING, where="here")
    return spark_options(client, "a:9092", where="here")


@pytest.mark.parametrize(
    ("reference", "placeholder"),
    [
        ("env:WORD", "env:WORD"),
        ("file:/run/secrets/word", "file:/run/secrets/word"),
        ("file:/odd {name}?+%", "file:/odd%20%7Bname%7D%3F%2B%25"),
        ("hook:vault:read", "hook:vault:read?kafka%3A%2F%2Fa%3A9092%2Fsasl.password"),
    ],
)
def test_a_login_is_written_for_java_with_the_reference_in_it(reference: str, placeholder: str) -> None:
    for login in (
        {"sasl.username": "bob", "sasl.password": reference},
        {"sasl.jaas.config": f'{SCRAM} required username="bob" password="{reference}";'},
    ):
        made = options(SASL | login)
        found = f'{SCRAM} required username="bob" password="${{lockgate:quoted:{placeholder}}}";'
        assert made["kafka.sasl.jaas.config"] == found
        assert made["kafka.config.providers"] == "lockgate"
        assert made["kafka.config.providers.lockgate.class"] == "lockgate.References"
        assert made["kafka.config.providers.lockgate.param.python"] == sys.executable
        assert not {"kafka.sasl.username", "kafka.sasl.password"} & made.keys()


def test_other_secrets_become_references_by_their_own_names() -> None:
    made = options(
        {
            "security.protocol": "SSL",
            "kafka.ssl.key.password": "file:/run/key",
            "ssl.keystore.password": "env:STORE",
            "ssl.truststore.certificates": "env:ISSUERS",
            "client.id": "env:no-login",
        }
    )
    assert made["kafka.ssl.key.password"] == "${lockgate:text:file:/run/key}"
    assert made["kafka.ssl.keystore.password"] == "${lockgate:text:env:STORE}"
    assert made["kafka.ssl.truststore.certificates"] == "${lockgate:text:env:ISSUERS}"
    assert made["kafka.client.id"] == "env:no-login"


def test_without_a_reference_java_gets_what_the_job_gives_and_no_provider() -> None:
    jaas = f"{SCRAM} required username=bob password='{CANARY}';"
    assert options(SASL | {"sasl.jaas.config": jaas}) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": jaas,
    }
    apart = options(SASL | {"sasl.username": 'b"b', "sasl.password": "a\\b\n"})
    assert apart["kafka.sasl.jaas.config"] == f'{SCRAM} required username="b\\"b" password="a\\\\b\\012";'
    assert options({"client.id": "orders"}) == {"kafka.client.id": "orders"}


@pytest.mark.parametrize(
    ("client", "told"),
    [
        ({"sasl.username": "bob"}, "belong together"),
        ({"sasl.password": CANARY}, "belong together"),
        (WORD | {"sasl.jaas.config": f'{SCRAM} required username="b" password="{CANARY}";'}, "twice"),
        ({"sasl.jaas.config": "env:LOGIN"}, "Lockgate could not check which class it names"),
        ({"sasl.jaas.config": f'{SCRAM} required username="b" password="file:{CANARY}";'}, "no absolute path"),
        ({"sasl.username": "bob", "sasl.password": "hook:vault"}, "names no function"),
        ({"sasl.username": "bob", "sasl.password": "${lockgate:text:env:WORD}"}, "Lockgate's own form of a reference"),
        (WORD | {"client.id": "${lockgate:text:env:WORD}"}, "Lockgate's own form of a reference"),
        (WORD | {"config.providers": "env"}, "'config.providers' is refused"),
        (WORD | {"config.providers.lockgate.class": "com.acme.Spy"}, "is refused"),
    ],
)
def test_a_login_that_cannot_be_followed_is_refused_and_not_shown(client: dict[str, str], told: str) -> None:
    with pytest.raises(BadJob) as caught:
        check_client(SASL | client, READING, where="here")
    assert told in caught.value.what
    if "file:" not in str(client):
        assert CANARY not in str(caught.value)


def test_a_reference_without_sasl_is_refused_as_any_login_is() -> None:
    with pytest.raises(BadJob, match="the client would send plain text"):
        check_client(WORD, READING, where="here")


def test_another_vendors_kafka_cannot_resolve_references() -> None:
    jaas = f'kafkashaded.{PLAIN} required username="b" password="env:WORD";'
    with pytest.raises(BadJob, match="does not work with the login module kafkashaded"):
        options({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas})


def test_our_client_resolves_when_it_connects_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORD", raising=False)
    settings = read_settings("a:9092", SASL | WORD, where="here")
    assert settings.user == "bob"
    with pytest.raises(Refused, match="env:WORD leads to no value") as caught:
        settings.client_arguments(where="sink 'counts'")
    assert caught.value.where == "sasl.password, sink 'counts'"
    for word in (CANARY, "another"):
        monkeypatch.setenv("WORD", word)
        arguments = settings.client_arguments(where="here")
        assert arguments["sasl_plain_password"] == word
        assert CANARY not in repr(arguments) + repr(settings)


def test_a_user_name_may_be_a_reference(tmp_path: Path) -> None:
    (tmp_path / "user").write_text("a=b,c\n")
    login = {"sasl.username": f"file:{tmp_path / 'user'}", "sasl.password": CANARY}
    arguments = read_settings("a:9092", SASL | login, where="here").client_arguments(where="here")
    assert arguments["sasl_plain_username"] == "a=3Db=2Cc"
    made = options(SASL | login)["kafka.sasl.jaas.config"]
    assert made == f'{SCRAM} required username="${{lockgate:quoted:file:{tmp_path}/user}}" password="{CANARY}";'


def test_endpoints_show_references_and_hide_values() -> None:
    jaas = f'{SCRAM} required username="bob" password="{CANARY}";'
    for client in ({"kafka.sasl.jaas.config": jaas}, {"sasl.password": CANARY}, {"kafka.ssl.keystore.key": CANARY}):
        source = KafkaSource(topic="t", servers="a:9092", value="n INT", client=client)
        assert repr(source.client) == repr(dict.fromkeys(client, "***"))
        assert source.client == client
    sink = KafkaSink(topic="t", servers="a:9092", client=SASL | WORD)
    assert "'sasl.password': 'env:WORD'" in repr(sink)


def test_the_presenter_takes_references_under_the_names_of_librdkafka() -> None:
    check_client(SASL | WORD | {"ssl.key.pem": "file:/run/key.pem"}, PRESENTING, where="here")
    with pytest.raises(BadJob, match="no absolute path"):
        check_client(SASL | WORD | {"ssl.key.pem": "file:key.pem"}, PRESENTING, where="here")
