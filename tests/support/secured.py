"""A real broker that asks who is there, and what a client may do.

It has a listener for each way in, all on the loopback interface:

    PLAINTEXT        for itself, and for tests that look behind the curtain; who comes in here may do everything
    SASL_SSL         PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512
    SASL_PLAINTEXT   SCRAM-SHA-512 alone
    SSL              with a certificate from every client

Rights are checked by Kafka's StandardAuthorizer. `alice`, `bob` and the certificate may do everything; `carol` has no
rights but those that a test grants.
"""

import base64
import random
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from lockgate.lab.services import ports
from lockgate.lab.services.kafka import KafkaCluster, Node, server_properties
from lockgate.provision.jars import broker_jars
from lockgate.provision.java import find_java
from support.waiting import wait_for

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
# With all that a password may hold: the broker reads it with Java's own parser, we with ours.
BOBS_PASSWORD = r"a \"quoted\" b\\ack;slash='n, more="
ALICES_PASSWORD = "alice-secret"
CAROLS_PASSWORD = "carol-secret"
KEY_PASSWORD = "key-secret"


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
    carol: Way


@contextmanager
def secured_broker(home: Path) -> Iterator[Secured]:
    """One broker, ended with the context."""
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
    storage = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config", str(properties)]
    for name, password in (("alice", ALICES_PASSWORD), ("carol", CAROLS_PASSWORD)):
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            storage += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
    subprocess.run(storage, check=True, capture_output=True)
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(home / "ca.pem")}
    login = {
        "PLAIN": f'{PLAIN} required username="bob" password="{BOBS_PASSWORD}";',
        "SCRAM-SHA-256": f'{SCRAM} required username="alice" password="{ALICES_PASSWORD}";',
        "SCRAM-SHA-512": f'{SCRAM} required username="alice" password="{ALICES_PASSWORD}";',
    }

    carol = f'{SCRAM} required username="carol" password="{CAROLS_PASSWORD}";'

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
            carol=Way(f"127.0.0.1:{sasl_ssl}", sasl("SASL_SSL", "SCRAM-SHA-512") | {"sasl.jaas.config": carol}),
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
        "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN} required user_bob="{BOBS_PASSWORD}"'
        f' user_carol="{CAROLS_PASSWORD}";',
        "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
        "listener.name.shouted.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.shouted.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice;User:bob;User:CN=client",
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


@contextmanager
def _admin(servers: str) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=servers.split(","))
    try:
        yield admin
    finally:
        admin.close()


def grant(servers: str, user: str, *rights: tuple[str, str, str]) -> None:
    """Let a user do exactly this and nothing else: operation, kind of resource, its name. Returns when it counts."""
    wanted = [
        ACL(
            principal=f"User:{user}",
            host="*",
            operation=ACLOperation[operation],
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=ResourcePattern(ResourceType[kind], name),
        )
        for operation, kind, name in rights
    ]
    everything = ACLFilter(
        principal=f"User:{user}",
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
    )
    with _admin(servers) as admin:
        admin.delete_acls([everything])
        admin.create_acls(wanted)
        wait_for("the rights", lambda: len(admin.describe_acls(everything)[0]) == len(wanted))
