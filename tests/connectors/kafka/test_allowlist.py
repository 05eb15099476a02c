"""What is not on the list is refused by name, for every endpoint, before a client of any kind sees it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream
from lockgate.cli.main import main
from lockgate.connectors.kafka.allowlist import CONNECTING, LOOKING, PRESENTING, READING, WRITING, Use, check_client
from lockgate.connectors.kafka.settings import read_settings
from lockgate.errors import BadJob
from lockgate.lab.prove.redirect import Site, redirect
from lockgate.planner.plan import plan

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
LOGIN = f'{PLAIN} required username="bob" password="s3cret";'
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": LOGIN}
SSL = {"security.protocol": "SSL"}
JAVA = (READING, WRITING, CONNECTING, LOOKING)
USES = (*JAVA, PRESENTING)


def refusal(client: Mapping[str, object], use: Use) -> BadJob:
    with pytest.raises(BadJob) as caught:
        check_client(client, use, where="here")
    assert caught.value.where == "here"
    assert caught.value.fix
    assert "s3cret" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("use", USES, ids=lambda use: use.what)
@pytest.mark.parametrize(
    "name",
    [
        "interceptor.classes",
        "metric.reporters",
        "config.providers",
        "config.providers.file.class",
        "security.providers",
        "plugin.library.paths",
        "sasl.login.class",
        "sasl.login.callback.handler.class",
        "sasl.client.callback.handler.class",
        "sasl.kerberos.kinit.cmd",
        "sasl.oauthbearer.token.endpoint.url",
        "ssl.engine.factory.class",
        "ssl.engine.location",
        "ssl.provider",
        "ssl.trustmanager.algorithm",
        "value.deserializer",
        "partitioner.class",
        "partition.assignment.strategy",
    ],
)
def test_what_names_code_is_refused_by_name_with_the_reason(name: str, use: Use) -> None:
    error = refusal({**SSL, name: "s3cret"}, use)
    assert f"{name!r} is refused: " in error.what
    assert error.fix.startswith(("remove it", "set sasl.mechanism", "name the trusted issuers", "partition="))


@pytest.mark.parametrize("use", USES, ids=lambda use: use.what)
@pytest.mark.parametrize(
    "name",
    ["no.such.setting", "Security.Protocol", "kafka.kafka.client.id", "KAFKA.client.id", "error_cb", "client.id "],
)
def test_what_is_not_known_is_refused_and_not_passed_on(name: str, use: Use) -> None:
    error = refusal({name: "s3cret"}, use)
    assert "is not known" in error.what
    assert "client.id" in error.fix


@pytest.mark.parametrize("use", USES, ids=lambda use: use.what)
@pytest.mark.parametrize(
    ("client", "told"),
    [
        ({"sasl.mechanism": "PLAIN"}, "without security.protocol: the client would send plain text"),
        ({"ssl.key.password": "s3cret"}, "without security.protocol: the client would send plain text"),
        ({"security.protocol": "plaintext", "ssl.key.password": "s3cret"}, "with security.protocol=PLAINTEXT: the"),
        ({"security.protocol": "SSL", "sasl.mechanism": "PLAIN"}, "no effect with security.protocol=SSL"),
        ({"security.protocol": "TLS"}, "security.protocol='TLS' is not known"),
        (SSL | {"ssl.endpoint.identification.algorithm": ""}, "switches a check off"),
        (SSL | {"ssl.endpoint.identification.algorithm": " "}, "switches a check off"),
        (SSL | {"ssl.endpoint.identification.algorithm": "None"}, "switches a check off"),
        (SSL | {"ssl.endpoint.identification.algorithm": "ldaps"}, "is not known"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "'GSSAPI' is not supported"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "'OAUTHBEARER' is not supported"),
    ],
)
def test_what_would_leave_the_line_open_is_refused(client: dict[str, str], told: str, use: Use) -> None:
    assert told in refusal(client, use).what


def test_checks_that_librdkafka_can_switch_off_stay_on() -> None:
    client = {"security.protocol": "ssl", "enable.ssl.certificate.verification": "False"}
    assert "switches a check off" in refusal(client, PRESENTING).what
    assert (
        "seclevel=0" in refusal({"security.protocol": "ssl", "ssl.cipher.suites": "ALL:@seclevel=0"}, PRESENTING).what
    )
    login = {"security.protocol": "sasl_ssl", "sasl.username": "bob", "sasl.password": "s3cret"}
    assert "GSSAPI" in refusal(login, PRESENTING).what  # what it takes by default runs the command kinit
    check_client(login | {"sasl.mechanisms": "SCRAM-SHA-512"}, PRESENTING, where="here")
    twice = login | {"sasl.mechanism": "PLAIN", "sasl.mechanisms": "GSSAPI"}
    assert "one setting by two names" in refusal(twice, PRESENTING).what


@pytest.mark.parametrize(
    ("name", "text"),
    [("ssl.enabled.protocols", "TLSv1.2,SSLv3"), ("ssl.protocol", "TLS"), ("ssl.cipher.suites", "TLS_DH_anon_WITH_X")],
)
def test_tls_that_proves_nothing_is_refused(name: str, text: str) -> None:
    assert name in refusal(SSL | {name: text}, READING).what
    check_client(SSL | {"ssl.enabled.protocols": "TLSv1.2, TLSv1.3"}, READING, where="here")


@pytest.mark.parametrize(
    "login",
    [
        'com.acme.Login required username="bob" password="s3cret";',
        f'com.acme.{PLAIN} required username="bob" password="s3cret";',
        'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://a" username="" password="";',
        f'{PLAIN} required username="bob" password="s3cret"; com.acme.Login required;',
        f'com.acme.Login optional; {PLAIN} required username="bob" password="s3cret";',
        f'{PLAIN} required username="bob" password="s3cret" serviceName="x";',
        f'{PLAIN} required username="bob" username="eve" password="s3cret";',
        f'{PLAIN} required /* x */ username="bob" password="s3cret";',
        f'"{PLAIN}" required username="bob" password="s3cret";',
        f'{SCRAM} required username="bob" password="s3cret";',
        f'{PLAIN} required username="bob";',
        "",
    ],
)
@pytest.mark.parametrize("use", JAVA, ids=lambda use: use.what)
def test_a_login_is_one_module_of_kafkas_own_with_its_two_options(login: str, use: Use) -> None:
    assert "sasl.jaas.config" in refusal(SASL | {"sasl.jaas.config": login}, use).what


def test_a_login_without_its_mechanism_is_refused() -> None:
    error = refusal({"security.protocol": "SASL_SSL", "sasl.jaas.config": LOGIN}, READING)
    assert "GSSAPI" in error.what


def test_what_users_set_is_allowed_under_both_names() -> None:
    own = {"fetch.min.bytes": "1", "kafka.max.poll.records": 500, "group.id": "g", "client.rack": "r"}
    assert check_client(SASL | own, READING, where="here")["max.poll.records"] == "500"
    jks = {"ssl.truststore.location": "/a.jks", "ssl.truststore.password": "s3cret", "ssl.truststore.type": "JKS"}
    check_client(SASL | jks | {"linger.ms": "5", "buffer.memory": "9"}, WRITING, where="here")


@pytest.mark.parametrize("protocol", ["SASL_SSL", "sasl_plaintext"])
@pytest.mark.parametrize("use", JAVA, ids=lambda use: use.what)
def test_a_login_by_a_delegation_token_of_sparks_is_refused(protocol: str, use: Use) -> None:
    error = refusal({"security.protocol": protocol}, use)
    assert "a delegation token of Spark" in error.what
    assert "sasl.mechanism" in error.fix


@pytest.mark.parametrize(
    ("use", "name"), [(READING, "isolation.level"), (READING, "key.deserializer"), (WRITING, "kafka.acks")]
)
def test_what_a_guarantee_hangs_on_belongs_to_lockgate(use: Use, name: str) -> None:
    assert "the guarantee depends on it" in refusal({name: "0"}, use).what


# -- every endpoint ---------------------------------------------------------------------------------------------------

OPEN = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": LOGIN}


def job(*, reading: dict[str, str], writing: dict[str, str], guarantee: Guarantee) -> Job:
    source = KafkaSource(topic="in", servers="k:9092", value="id INT", client=reading)
    sink = KafkaSink(topic="out", servers="k:9092", client=writing)
    return Job("orders", stream("in", source).to("out", sink), guarantee=guarantee)


@pytest.mark.parametrize("guarantee", [*Guarantee])
@pytest.mark.parametrize("client", [OPEN, {"interceptor.classes": "com.acme.Spy"}], ids=["plain text", "code"])
def test_sources_and_sinks_of_every_guarantee_refuse_when_planned(client: dict[str, str], guarantee: Guarantee) -> None:
    for reading, writing in ((client, {}), ({}, client)):
        with pytest.raises(BadJob, match=r"plain text|is refused") as caught:
            plan(job(reading=reading, writing=writing, guarantee=guarantee))
        assert "test_allowlist.py" in caught.value.where


def test_a_proof_refuses_although_it_would_not_use_the_settings(tmp_path: Path) -> None:
    original = job(reading=OPEN, writing={}, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    site = Site("proof-1", "127.0.0.1:1", tmp_path, "postgresql://127.0.0.1/x")
    with pytest.raises(BadJob, match="plain text"):
        redirect(original, site)


@pytest.mark.parametrize("is_lookup", [False, True])
def test_what_lockgate_itself_says_is_refused(is_lookup: bool) -> None:
    with pytest.raises(BadJob, match="plain text"):
        read_settings("k:9092", OPEN, where="here", is_lookup=is_lookup)


PRESENT = ["present", "--servers", "k:1", "--transactions", "t", "--score", "a=b", "--results", "r"]


@pytest.mark.parametrize(
    "words",
    [
        ["ledger", "show", "orders", "--servers", "k:1"],
        ["ledger", "set", "orders", "--servers", "k:1", "--epoch", "1", "--checkpoint", "c"],
        ["transactions", "list", "--servers", "k:1"],
        ["transactions", "show", "orders", "--servers", "k:1"],
        ["transactions", "abort", "orders", "--servers", "k:1"],
        PRESENT,
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_commands_refuse(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--client", "sasl.mechanism=PLAIN"]) == 2
    assert "plain text" in capsys.readouterr().err
    assert main([*words, "--client", "interceptor.classes=com.acme.Spy"]) == 2
    assert "'interceptor.classes' is refused" in capsys.readouterr().err
