"""The login of MQTT goes to the broker that it is meant for, and to nobody who only answers at its address."""

import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockgate import Guarantee, Job, MemorySink, MqttSource, stream
from lockgate.connectors.mqtt import session as mqttsession
from lockgate.connectors.mqtt.session import Link, Session, probe
from lockgate.errors import BadJob, BadMachine, Failed, Refused, Unreachable
from lockgate.planner.plan import plan
from support.certificates import Authority
from support.impostors import Listener, listener
from support.mqtt import LOGIN, Broker, running_broker
from support.waiting import wait_for

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")

CANARY = "c4nary-w0rd"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("broker"), authority=authority) as broker:
        yield broker


def link(port: int, tls: Any, **changes: Any) -> Link:
    given = {"host": "localhost", "port": port, "topic": "plant/#", "client_id": f"test{port}", "username": "meter"}
    rest = {"password": CANARY, "is_kept": False, "room": 10, "where": "source 'numbers'", "tls": tls}
    return Link(**{**given, **rest, **changes})


def trusting(authority: Authority) -> dict[str, str]:
    return {"ca_certs": str(authority.certificate)}


def require_untrusted(someone: Listener, wanted: Link, why: str) -> None:
    """The look before a run is refused, and so is a session that runs; the stranger has heard no password."""
    with pytest.raises(Refused, match="is not trusted, and got no password") as caught:
        probe(wanted)
    assert why in caught.value.what
    assert caught.value.where == "source 'numbers'"
    session = Session(wanted)
    try:
        wait_for("the end", lambda: session._failure is not None)
        with pytest.raises(Failed, match="is not trusted, and got no password"):
            session.number(0, 1)
    finally:
        session.close()
    assert len(someone.met) >= 2
    assert CANARY not in str(someone.heard)


@pytest.mark.parametrize(
    ("name", "is_ours", "why"),
    [
        ("localhost", False, "unable to get local issuer certificate"),
        ("broker.example", True, "Hostname mismatch, certificate is not valid for 'localhost'"),
    ],
)
def test_a_broker_with_a_wrong_certificate_gets_no_password(
    name: str, is_ours: bool, why: str, authority: Authority, other_authority: Authority
) -> None:
    shown = (authority if is_ours else other_authority).server_context(name)
    with listener(shown) as someone:
        require_untrusted(someone, link(someone.port, trusting(authority)), why)


def test_an_issuer_that_only_the_test_knows_is_not_trusted_by_the_machine(authority: Authority) -> None:
    with listener(authority.server_context("localhost")) as someone:
        require_untrusted(someone, link(someone.port, True), "unable to get local issuer certificate")


def test_a_broker_without_tls_gets_no_password(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqttsession, "_ANSWER_SECONDS", 1.0)
    with listener() as someone:
        with pytest.raises(Refused):
            probe(link(someone.port, trusting(authority)))
        assert someone.heard
        assert CANARY not in str(someone.heard)


@pytest.mark.parametrize("is_secured", [True, False])
def test_the_listener_would_hear_a_password_that_is_sent_to_it(
    is_secured: bool, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqttsession, "_ANSWER_SECONDS", 1.0)
    with listener(authority.server_context("localhost") if is_secured else None) as someone:
        with pytest.raises(Unreachable):
            probe(link(someone.port, trusting(authority) if is_secured else False))
        assert CANARY in str(someone.heard)


@pytest.mark.system
def test_a_broker_that_asks_who_we_are_lets_in_who_shows_it(
    broker: Broker, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = authority.issue("job")
    (tmp_path / "password").write_text(LOGIN["password"])
    monkeypatch.setenv("METER", LOGIN["username"])
    identity = {"certfile": str(certificate), "keyfile": str(key)}
    login = {"username": "env:METER", "password": f"file:{tmp_path / 'password'}"}
    wanted = link(broker.port, trusting(authority) | identity, **login)
    probe(wanted)
    session = Session(wanted)
    try:
        wait_for("a subscription", lambda: session._is_subscribed)
        broker.publish("plant/a", 1)
        wait_for("a message", lambda: session.number(0, 1) == 1)
        assert session.numbered(0, 1)[0][1].payload == b'{"n": 1}'
    finally:
        session.close()
    with pytest.raises(Unreachable, match="ended the connection before it answered") as caught:
        probe(link(broker.port, trusting(authority), **LOGIN))
    assert "certfile and keyfile" in caught.value.fix
    with pytest.raises(Refused, match="Not authorized"):
        probe(link(broker.port, trusting(authority) | identity, password="guess"))


def test_a_reference_without_a_value_is_refused_before_any_connection_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("METER", raising=False)
    with listener() as someone:
        with pytest.raises(Refused, match="env:METER leads to no value") as caught:
            probe(link(someone.port, False, password="env:METER"))
        assert caught.value.where == "password, source 'numbers'"
        assert not someone.met


@pytest.mark.parametrize("name", ["ca_certs", "certfile"])
def test_a_file_that_cannot_be_used_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadMachine, match=f"the file of {name} in tls= cannot be used: No such file"):
        probe(link(1, {name: str(tmp_path / "none.pem")}))


def test_the_lowest_protocol_and_the_checks_are_fixed() -> None:
    from lockgate.connectors.mqtt.tls import make_context

    context = make_context(True, login="test", where="here")
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("tls", "told"),
    [
        ({"cert_reqs": "CERT_NONE"}, "'cert_reqs' of tls= is refused: it switches a check off"),
        ({"tls_insecure": True}, "'tls_insecure' of tls= is refused: it switches a check off"),
        ({"check_hostname": False}, "'check_hostname' of tls= is refused: it switches a check off"),
        ({"verify": False}, "'verify' of tls= is refused: it switches a check off"),
        ({"tls_version": "TLSv1"}, "'tls_version' of tls= is refused"),
        ({"ca_cert": "/ca.pem"}, "'ca_cert' of tls= is not known"),
        ({"ca_certs": ""}, "'ca_certs' of tls= is not a text"),
        ({"keyfile": "/key.pem"}, "a key without its certificate"),
        ({"certfile": "/c.pem", "keyfile_password": "file:word"}, "no absolute path"),
        ("yes", "tls= is str"),
    ],
)
def test_what_switches_a_check_off_or_means_nothing_is_refused_by_name(tls: Any, told: str) -> None:
    source = MqttSource(topic="t", host="h", value="n INT", tls=tls)
    with pytest.raises(BadJob) as caught:
        plan(Job("job", stream("in", source).to("out", MemorySink()), guarantee=Guarantee.AT_LEAST_ONCE))
    assert told in caught.value.what
    assert "test_tls.py" in caught.value.where


def test_the_password_of_a_key_is_not_shown() -> None:
    source = MqttSource(topic="t", host="h", value="n INT", tls={"certfile": "/c.pem", "keyfile_password": CANARY})
    assert "'certfile': '/c.pem', 'keyfile_password': '***'" in repr(source)
    assert source.tls == {"certfile": "/c.pem", "keyfile_password": CANARY}
