"""A real broker that asks who is there: what `read_settings` makes of Java's names opens its doors, and only those.

The broker has a listener for each way in, all on the loopback interface:

    PLAINTEXT        for itself, and for tests that look behind the curtain
    SASL_SSL         PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512
    SASL_PLAINTEXT   SCRAM-SHA-512 alone
    SSL              with a certificate from every client
"""

import base64
import random
import shutil
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)

from kafka import KafkaAdminClient
from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream
from lockgate.errors import BadMachine
from lockgate.kafka.settings import read_settings
from lockgate.services import ports
from lockgate.services.kafka import KafkaCluster, Node, server_properties
from lockgate.spark.jars import broker_jars
from lockgate.spark.java import find_java
from support.records import count_ids, make_topics, send
from support.runs import run_to_the_end

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl"),
]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
# With all that a password may hold: the broker reads it with Java's own parser, we with ours.
BOBS_PASSWORD = r"a \"quoted\" b\\ack;slash='n, more="
ALICES_PASSWORD = "alice-secret"
KEY_PASSWORD = "key-secret"
FAST_S = 8.0  # well below the ten seconds after which any broker that does not answer is given up


@dataclass(frozen=True)
class Way:
    """One way in: the address of a listener, and the `client=` of a job that is let in there."""

    servers: str
    client: dict[str, str]


@dataclass(frozen=True)
class Secured:
    """A running broker; `servers` is its PLAINTEXT listener, `directory` holds the PEM files."""

    servers: str
    directory: Path
    plain: Way
    scram_256: Way
    scram_512: Way
    unencrypted: Way
    certificate: Way


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One broker for this module, ended with it."""
    home = tmp_path_factory.mktemp("secured")
    make_certificates(home)
    port, controller_port, sasl_ssl, sasl_plaintext, certified = ports.choose(5, random.Random())
    node = Node(id=1, port=port, controller_port=controller_port)
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    cluster = KafkaCluster(directory=home, cluster_id=cluster_id, nodes=(node,))
    properties = home / "server.properties"
    properties.write_text(
        server_properties(cluster, node) + secured_properties(home, node, sasl_ssl, sasl_plaintext, certified)
    )
    (home / "broker-1").mkdir()
    class_path = ":".join(map(str, broker_jars()))
    java = [str(find_java().path), "-Xmx384m", "-Dlog4j2.level=WARN", "-cp", class_path]
    users = [f"{mechanism}=[name=alice,password={ALICES_PASSWORD}]" for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")]
    storage = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config", str(properties)]
    subprocess.run([*storage, "--add-scram", users[0], "--add-scram", users[1]], check=True, capture_output=True)
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(home / "ca.pem")}
    login = {
        "PLAIN": f'{PLAIN} required username="bob" password="{BOBS_PASSWORD}";',
        "SCRAM-SHA-256": f'{SCRAM} required username="alice" password="{ALICES_PASSWORD}";',
        "SCRAM-SHA-512": f'{SCRAM} required username="alice" password="{ALICES_PASSWORD}";',
    }

    def sasl(protocol: str, mechanism: str) -> dict[str, str]:
        return {
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": login[mechanism],
            **(trust if protocol == "SASL_SSL" else {}),
        }

    try:
        cluster.daemon(node).start([*java, "kafka.Kafka", str(properties)])
        cluster.wait()
        yield Secured(
            servers=cluster.servers,
            directory=home,
            plain=Way(f"127.0.0.1:{sasl_ssl}", sasl("SASL_SSL", "PLAIN")),
            scram_256=Way(f"127.0.0.1:{sasl_ssl}", sasl("SASL_SSL", "SCRAM-SHA-256")),
            scram_512=Way(f"127.0.0.1:{sasl_ssl}", sasl("SASL_SSL", "SCRAM-SHA-512")),
            unencrypted=Way(f"127.0.0.1:{sasl_plaintext}", sasl("SASL_PLAINTEXT", "SCRAM-SHA-512")),
            certificate=Way(
                f"127.0.0.1:{certified}",
                {
                    "security.protocol": "SSL",
                    **trust,
                    "ssl.keystore.type": "PEM",
                    "ssl.keystore.location": str(home / "client.pem"),
                },
            ),
        )
    finally:
        cluster.stop()


def secured_properties(home: Path, node: Node, sasl_ssl: int, sasl_plaintext: int, certified: int) -> str:
    """What this broker has beyond an ordinary one; where a name comes twice, Java takes the last."""
    host = "127.0.0.1"
    open_door = f"BROKER://{host}:{node.port}"
    doors = f"{open_door},SECURE://{host}:{sasl_ssl},SHOUTED://{host}:{sasl_plaintext},CERTIFIED://{host}:{certified}"
    settings = {
        "listeners": f"{doors},CONTROLLER://{host}:{node.controller_port}",
        "advertised.listeners": doors,
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,"
        "SHOUTED:SASL_PLAINTEXT,CERTIFIED:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(home / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(home / "ca.pem"),
        "listener.name.certified.ssl.client.auth": "required",
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN} required user_bob="{BOBS_PASSWORD}";',
        "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
        "listener.name.shouted.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.shouted.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
    }
    return "".join("{}={}\n".format(name, value.replace("\\", "\\\\")) for name, value in settings.items())


def make_certificates(home: Path) -> None:
    """An authority, what it signed for the broker and for a client, and another authority that signed nothing."""
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for name in ("ca", "stranger"):
        openssl(home, "req", "-x509", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    (home / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("broker", "client"):
        openssl(home, "req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
        openssl(home, "x509", "-req", "-in", f"{name}.csr", *sign, "-out", f"{name}.crt")
        (home / f"{name}.pem").write_text((home / f"{name}.key").read_text() + (home / f"{name}.crt").read_text())
    encrypt = ["-topk8", "-v2", "aes-256-cbc", "-passout", f"pass:{KEY_PASSWORD}"]
    openssl(home, "pkcs8", *encrypt, "-in", "client.key", "-out", "client.encrypted.key")


def openssl(home: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=home, check=True, capture_output=True)


def ask(servers: str, client: dict[str, str]) -> list[str]:
    """The names of the topics, through our own client."""
    admin = KafkaAdminClient(**read_settings(servers, client, where="test").client_arguments())
    try:
        return [topic["name"] if isinstance(topic, dict) else topic for topic in admin.list_topics()]
    finally:
        admin.close()


@pytest.mark.parametrize("way", ["plain", "scram_256", "scram_512", "unencrypted", "certificate"])
def test_the_broker_lets_in(way: str, secured: Secured) -> None:
    found: Way = getattr(secured, way)
    assert isinstance(ask(found.servers, found.client), list)


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
    with pytest.raises(BadMachine, match=r"ssl\.keystore\.key names cannot be used") as caught:
        ask(secured.certificate.servers, client | {"ssl.key.password": "wrong-secret"})
    assert "wrong-secret" not in str(caught.value)


# What PLAIN sends is the password itself, and kafka-python writes down what it sends when it is asked to debug.
@pytest.mark.parametrize(("way", "user", "level"), [("plain", "bob", "INFO"), ("scram_512", "alice", "DEBUG")])
def test_a_wrong_password_is_told_at_once_is_not_shown_and_leaves_no_thread(
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


def test_a_login_that_the_listener_does_not_take_is_told_at_once(secured: Secured) -> None:
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


def test_a_client_without_a_certificate_is_told_at_once(secured: Secured) -> None:
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
@pytest.mark.parametrize("way", ["scram_512", "certificate"])
def test_an_exactly_once_job_reads_and_writes_behind_the_door(way: str, secured: Secured, tmp_path: Path) -> None:
    """Spark's connector reads with these settings, our writer writes with them, in the driver and in the workers."""
    door: Way = getattr(secured, way)
    name = f"guarded-{uuid.uuid4().hex[:8]}"
    make_topics(secured.servers, f"{name}-in", f"{name}-out")
    send(secured.servers, f"{name}-in", [{"id": number} for number in range(100)])
    rows = stream(
        "in", KafkaSource(topic=f"{name}-in", servers=door.servers, value="id BIGINT", client=door.client)
    ).where("id >= 0")
    sink = KafkaSink(topic=f"{name}-out", servers=door.servers, key="id", client=door.client)
    job = Job(name, rows.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    run_to_the_end(job, tmp_path)
    assert count_ids(secured.servers, f"{name}-out") == Counter(range(100))
