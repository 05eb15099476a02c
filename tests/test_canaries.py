"""No password is anywhere but where the user has put it: jobs with logins run, fail and die, and all is searched.

Kafka is reached over TLS with SCRAM (the password is in a variable), PostgreSQL over TLS with SCRAM (a file), MQTT over
mutual TLS (a hook). What a run leaves is searched for each password, in each form that a program may give it: its
directories with checkpoints, logs, Spark's event log and temporary files, the files of the broker and of the database
(topics, ledgers, tables), command lines, what it prints and what its metrics say.
"""

import base64
import gzip
import os
import random
import re
import shutil
import signal
import sys
import textwrap
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psutil
import psycopg
import pytest

from lockgate.lab.services import ports
from lockgate.lab.services.postgres import Postgres
from support import mqtt, secured
from support.canaries import Canaries, forms_of
from support.certificates import Authority
from support.impostors import tls_in_front
from support.mqtt import Broker, running_broker, say_hello
from support.process import LOCKGATE, Process, parameters, running
from support.process import run as run_process
from support.records import count_ids, make_topics, send
from support.secured import Secured, grant, secured_broker
from support.waiting import wait_for

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")

# With what base64, addresses and JSON write in another way.
PASSWORDS = {name: f"c4nary+{name}+{uuid4().hex}" for name in ("kafka", "carol", "postgres", "mqtt", "wrong", "typed")}

_PROOF_SECONDS = 600.0  # two runs of a job, one of them with a kill, on a machine that does other things too

ORDERS = """
    from lockgate import Guarantee, Job, KafkaSink, KafkaSource, PostgresSink, stream

    def job(name: str, servers: str, ca: str, dsn: str, user: str = "alice", password: str = "env:KAFKA_WORD") -> Job:
        client = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": ca,
        }
        source = KafkaSource(topic=f"{name}-in", servers=servers, value="id BIGINT", client=client)
        rows = stream("in", source)
        out, copy = (
            KafkaSink(topic=f"{name}-{topic}", servers=servers, key="id", client=client) for topic in ("out", "copy")
        )
        return Job(
            name,
            rows.to("out", out),
            rows.to("copy", copy, guarantee=Guarantee.AT_LEAST_ONCE),
            rows.to("table", PostgresSink(table="orders", dsn=dsn, create=True)),
            guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
            dead_letters=KafkaSink(topic=f"{name}-letters", servers=servers, client=client),
        )
"""
METERS = """
    import vault
    from lockgate import Guarantee, Job, KafkaSink, MqttSource, stream

    def job(name: str, servers: str, ca: str, port: int, issuer: str, certificate: str, key: str) -> Job:
        client = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": "hook:vault:read",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": ca,
        }
        source = MqttSource(
            topic="plant/#",
            host="localhost",
            port=port,
            value="n INT",
            username="meter",
            password="hook:vault:read",
            tls={"ca_certs": issuer, "certfile": certificate, "keyfile": key},
        )
        out = KafkaSink(topic=f"{name}-out", servers=servers, client=client)
        return Job(name, stream("in", source).select(id="n").to("out", out), guarantee=Guarantee.AT_LEAST_ONCE)
"""
VAULT = """
    import os
    from pathlib import Path

    def read(login: str) -> str:
        return (Path(os.environ["VAULT"]) / login.partition(":")[0]).read_text()
"""


@dataclass(frozen=True)
class World:
    """All that jobs of these tests use. `secrets` alone may hold passwords, and the environment of processes."""

    home: Path
    secrets: Path
    broker: Secured
    postgres: Postgres
    mqtt: Broker
    authority: Authority
    ca: Path
    dsn: str  # a reference

    @property
    def environ(self) -> dict[str, str]:
        temporary = str(self.home / "tmp")
        return {
            "KAFKA_WORD": PASSWORDS["kafka"],
            "CAROLS_WORD": PASSWORDS["carol"],
            "WRONG_WORD": PASSWORDS["wrong"],
            "VAULT": str(self.secrets),
            "TMPDIR": temporary,
            "SPARK_LOCAL_DIRS": temporary,
            "SPARK_CONF_DIR": str(self.home / "conf"),
            "JDK_JAVA_OPTIONS": f"{os.environ['JDK_JAVA_OPTIONS']} -Djava.io.tmpdir={temporary}",
            "LOCKGATE_HOME": str(self.home / "services"),
        }

    def command(self, verb: str, name: str, *options: str, **changes: object) -> list[str]:
        given = {"name": name, "servers": self.broker.scram_512.servers, "ca": self.ca, "dsn": self.dsn, **changes}
        return [*LOCKGATE, verb, str(self.home / "jobs" / "orders.py"), *parameters(**given), *options]

    def make_topics(self, name: str, count: int) -> None:
        make_topics(self.broker.servers, *(f"{name}-{one}" for one in ("in", "out", "copy", "letters")))
        send(self.broker.servers, f"{name}-in", [{"id": number} for number in range(count)])

    def search(self, *processes: Process) -> Canaries:
        """Look at everything as it is now."""
        canaries = Canaries(PASSWORDS)
        # The settings of the broker name the users of PLAIN with their passwords.
        settings = self.broker.directory / "server.properties"
        canaries.look_below(self.home, self.broker.directory, self.postgres.directory, except_below=[settings])
        for process in processes:
            canaries.look(process.text, "what was printed")
            if process.child.poll() is None:
                assert canaries.look_at_processes(process.pid) >= 3  # supervisor, driver and JVM
        return canaries


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home, secrets = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("secrets")
    for folder in ("tmp", "jobs", "conf", "events"):
        (home / folder).mkdir()
    for name, text in (("orders", ORDERS), ("meters", METERS), ("vault", VAULT)):
        (home / "jobs" / f"{name}.py").write_text(textwrap.dedent(text))
    plain = ("eventLog.compress", "shuffle.compress", "shuffle.spill.compress", "broadcast.compress")  # for the search
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (home / "events").as_uri(),
        **{f"spark.{name}": "false" for name in plain},
    }
    (home / "conf" / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    authority = Authority(tmp_path_factory.mktemp("authority"))
    (port,) = ports.choose(1, random.Random())
    postgres = Postgres(tmp_path_factory.mktemp("postgres"), port, PASSWORDS["postgres"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secured, "ALICES_PASSWORD", PASSWORDS["kafka"])
        patch.setattr(secured, "CAROLS_PASSWORD", PASSWORDS["carol"])
        patch.setitem(mqtt.LOGIN, "password", PASSWORDS["mqtt"])
        try:
            postgres.start()
            postgres.wait()
            with (
                secured_broker(tmp_path_factory.mktemp("kafka")) as broker,
                running_broker(tmp_path_factory.mktemp("mqtt"), authority=authority) as meters,
                tls_in_front(port, authority.server_context("localhost")) as tls_port,
            ):
                address = f"postgresql://lockgate:{quote(PASSWORDS['postgres'], safe='')}@localhost:{tls_port}/lockgate"
                checks = f"sslmode=verify-full&sslrootcert={authority.certificate}&require_auth=scram-sha-256"
                (secrets / "dsn").write_text(f"{address}?{checks}\n")
                (secrets / "kafka").write_text(PASSWORDS["kafka"])
                (secrets / "mqtt").write_text(PASSWORDS["mqtt"])
                ca, dsn = broker.directory / "ca.pem", f"file:{secrets / 'dsn'}"
                yield World(home, secrets, broker, postgres, meters, authority, ca, dsn)
        finally:
            postgres.stop()


def rows_in(world: World, table: str = "orders") -> int:
    """How many rows the table has; none if there is no table yet."""
    try:
        with psycopg.connect(
            f"host=127.0.0.1 port={world.postgres.port} user=lockgate dbname=lockgate", password=PASSWORDS["postgres"]
        ) as connection:
            found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            return int(found[0]) if found else 0
    except psycopg.errors.UndefinedTable:
        return 0


def drivers_of(process: Process) -> list[psutil.Process]:
    """The drivers that a supervisor has started."""
    return psutil.Process(process.pid).children()


# -- the search -------------------------------------------------------------------------------------------------------

PLANTED = 'c4nary/planted+%\u00fc"word'


@pytest.mark.parametrize("how", forms_of(PLANTED))
@pytest.mark.parametrize("packed", ["plain", "zip", "gzip"])
def test_the_search_finds_a_password_in_each_form(how: str, packed: str, tmp_path: Path) -> None:
    content = b"before \0" + forms_of(PLANTED)[how] + b" behind"
    file = tmp_path / "deep" / "file"
    file.parent.mkdir()
    if packed == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inside", content)
    else:
        file.write_bytes(gzip.compress(content) if packed == "gzip" else content)
    canaries = Canaries({"planted": PLANTED})
    canaries.look_below(tmp_path)
    assert {place for place, _ in canaries.found} == {
        f"{file}{'!inside' if packed == 'zip' else '!' * (packed == 'gzip')}"
    }
    assert f"planted ({how})" in {name for _, name in canaries.found}


@pytest.mark.parametrize("before", range(4))
def test_the_search_finds_a_password_in_the_middle_of_base64(before: int) -> None:
    canaries = Canaries({"planted": PLANTED})
    canaries.look(base64.b64encode(b"x" * before + PLANTED.encode() + b"behind"), "here")
    assert canaries.found


def test_the_search_finds_a_password_in_a_name_and_nothing_where_there_is_none(tmp_path: Path) -> None:
    canaries = Canaries({"planted": "c4nary-word"})
    (tmp_path / "file").write_text("c4nary")
    canaries.look_below(tmp_path)
    assert not canaries.found
    (tmp_path / "c4nary-word").touch()
    canaries.look_below(tmp_path, except_below=[tmp_path / "file"])
    assert canaries.found


@pytest.mark.process
def test_the_search_finds_a_password_in_the_command_line_of_a_grandchild(tmp_path: Path) -> None:
    inner = "import sys, time; print('ready', flush=True); time.sleep(600)"
    outer = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], 'c4nary-' + 'word'])"
    with running(sys.executable, "-c", outer, inner, cwd=tmp_path) as process:
        process.wait_for("the grandchild", lambda: process.printed == "ready\n")
        canaries = Canaries({"planted": "c4nary-word"})
        assert canaries.look_at_processes(process.pid) == 2
        assert canaries.found


# -- jobs -------------------------------------------------------------------------------------------------------------


@needs_openssl
@pytest.mark.system
@pytest.mark.slow
def test_a_job_that_runs_is_killed_and_continues_shows_no_password(world: World) -> None:
    name = f"orders-{uuid4().hex[:8]}"
    world.make_topics(name, 20)
    command = world.command("run", name, "--metrics", "0", "--json")
    with running(*command, cwd=world.home, environ=world.environ, name=name) as process:
        process.wait_for("rows", lambda: rows_in(world) >= 20)
        canaries = world.search(process)
        address = re.search(r"metrics at (http://\S+)", process.said)
        assert address is not None
        with urllib.request.urlopen(address[1]) as page:
            canaries.look(page.read(), "metrics")
        assert canaries.found == set()
        (driver,) = drivers_of(process)
        driver.kill()
        send(world.broker.servers, f"{name}-in", [{"id": number} for number in range(20, 40)])
        process.wait_for("rows after the kill", lambda: rows_in(world) >= 40)
        assert world.search(process).found == set()
        assert process.end(signal.SIGTERM) == 0
    assert count_ids(world.broker.servers, f"{name}-out") == Counter(range(40))
    canaries = world.search(process)
    assert canaries.found == set()
    assert canaries.looked_at > 100
    events = b"".join(file.read_bytes() for file in (world.home / "events").rglob("*") if file.is_file())
    assert b"SparkListenerSQLExecutionStart" in events


@needs_openssl
@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"password": "env:WRONG_WORD"}, "does not let us in"),
        ({"password": "env:NO_SUCH_WORD"}, "env:NO_SUCH_WORD leads to no value"),
        ({"dsn": "env:NO_SUCH_WORD"}, "env:NO_SUCH_WORD leads to no value"),
        ({"user": "carol", "password": "env:CAROLS_WORD"}, "deny Write on topic"),
    ],
    ids=["wrong password", "no password", "no address", "no right"],
)
def test_a_job_that_is_refused_shows_no_password(changes: dict[str, str], told: str, world: World) -> None:
    name = f"orders-{uuid4().hex[:8]}"
    world.make_topics(name, 1)
    grant(world.broker.servers, "carol", ("READ", "TOPIC", f"{name}-in"))
    command = world.command("run", name, "--until-caught-up", **changes)
    with running(*command, cwd=world.home, environ=world.environ, name=name) as process:
        assert process.end() == 2
    assert told in process.said
    assert world.search(process).found == set()


@needs_openssl
@pytest.mark.system
@pytest.mark.slow
def test_a_job_that_loses_its_right_while_it_runs_shows_no_password(world: World) -> None:
    name = f"orders-{uuid4().hex[:8]}"
    world.make_topics(name, 5)
    topics = [f"{name}-{one}" for one in ("in", "out", "copy", "letters")]
    rights = [("ALL", "TOPIC", one) for one in (*topics, f"lockgate.{name}.ledger")]
    rights += [("ALL", "TRANSACTIONAL_ID", f"lockgate.{name}"), ("ALL", "GROUP", f"lockgate.{name}")]
    grant(world.broker.servers, "carol", *rights)
    command = world.command("run", name, "--no-supervise", user="carol", password="env:CAROLS_WORD")
    with running(*command, cwd=world.home, environ=world.environ, name=name) as process:
        process.wait_for("rows", lambda: count_ids(world.broker.servers, f"{name}-out").total() == 5)
        grant(world.broker.servers, "carol", *(right for right in rights if right[2] != f"{name}-in"))
        send(world.broker.servers, f"{name}-in", [{"id": 5}])
        assert process.end(seconds=180) in (1, 2)
    assert f"{name}-in" in process.said
    assert world.search(process).found == set()


@needs_openssl
@pytest.mark.system
@pytest.mark.slow
def test_a_job_that_reads_mqtt_with_a_hook_shows_no_password(world: World) -> None:
    name = f"meters-{uuid4().hex[:8]}"
    make_topics(world.broker.servers, f"{name}-out")
    certificate, key = world.authority.issue("job")
    given = {
        "name": name,
        "servers": world.broker.scram_512.servers,
        "ca": world.ca,
        "port": world.mqtt.port,
        "issuer": world.authority.certificate,
        "certificate": certificate,
        "key": key,
    }
    command = [*LOCKGATE, "run", str(world.home / "jobs" / "meters.py"), *parameters(**given)]
    with running(*command, cwd=world.home, environ=world.environ, name=name) as process:
        came = say_hello(world.mqtt, lambda: count_ids(world.broker.servers, f"{name}-out"))
        process.wait_for("a message", came)
        assert world.search(process).found == set()
        assert process.end(signal.SIGTERM) == 0
    assert world.search(process).found == set()


@needs_openssl
@pytest.mark.system
@pytest.mark.slow
def test_a_package_holds_no_password(world: World) -> None:
    out = world.home / "package"
    options = ("--checkpoint", "hdfs://host/checkpoints/orders", "--out", str(out))
    packed = run_process(*world.command("package", "orders", *options), cwd=world.home, environ=world.environ)
    assert packed.returncode == 0, packed.stderr
    assert any(file.name.startswith("references-") for file in (out / "jars").iterdir())
    typed = world.command("package", "orders", *options, password=PASSWORDS["typed"])
    refused = run_process(*typed, cwd=world.home, environ=world.environ)
    assert refused.returncode == 2
    assert "'password' contains a password" in refused.stderr
    canaries = world.search()
    canaries.look(packed.stdout + packed.stderr + refused.stdout + refused.stderr, "what was printed")
    assert canaries.found == set()


@needs_openssl
@pytest.mark.system
@pytest.mark.slow
def test_a_proof_and_its_page_show_no_password_that_was_typed(world: World) -> None:
    page = world.home / "proof.html"
    dsn = f"postgresql://ada:{quote(PASSWORDS['typed'], safe='')}@db.example/orders"
    options = ("--kills", "1", "--events", "200", "--faults", "kill driver", "--points", "SENT", "--html", str(page))
    password = f"two words {PASSWORDS['typed']}"
    command = world.command("prove", "proven", *options, password=password, dsn=dsn)
    canaries, most = Canaries(PASSWORDS), 0
    with running(*command, cwd=world.home, environ=world.environ, name="proven") as process:

        def is_over() -> bool:
            nonlocal most
            # What was typed is in the command line of the proof itself, where the user has put it.
            with suppress(psutil.Error):
                most = max(most, canaries.look_at_processes(*(child.pid for child in drivers_of(process))))
            assert canaries.found == set()
            return process.child.poll() is not None

        wait_for("the end of the proof", is_over, seconds=_PROOF_SECONDS, explain=lambda: process.text)
        assert process.end() == 0, process.text
    assert most >= 3, "a broker, a driver and its JVM"
    text = page.read_text()
    assert "password=***" in text
    assert "postgresql://ada:***@db.example/orders" in text
    searched = world.search(process)
    assert searched.found == set()
    assert searched.looked_at > 100
