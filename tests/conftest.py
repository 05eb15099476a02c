"""What several rings of tests share: one set of real local services, started when a test first asks for it."""

import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from lockgate.kafka.wire import disconnect_all
from lockgate.services import ports
from lockgate.services.hdfs import Hdfs, new_hdfs
from lockgate.services.postgres import Postgres
from lockgate.services.stack import Stack
from lockgate.spark.jars import connector_jars
from lockgate.spark.session import SessionPlan, open_session

# Tests start many short-lived JVMs, and most of their time went into compiling what was never hot.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
# A machine that is busy with other tests makes an example slow, and that is no finding.
settings.register_profile("lockgate", deadline=None)
settings.load_profile("lockgate")
# And many Python processes: each would compile the whole package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="module", autouse=True)
def no_connections_are_left() -> Iterator[None]:
    """A module's broker may be gone after it: connections that this process keeps would try to reach it for ever."""
    yield
    disconnect_all()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running Kafka (one broker) and PostgreSQL of this test session's own; leave it running."""
    stack = Stack(tmp_path_factory.mktemp("services"), brokers=1)
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="session")
def kafka(stack: Stack) -> str:
    """The servers of the session's Kafka, as clients take them."""
    servers = stack.status().kafka.servers
    assert servers is not None
    return servers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A PostgreSQL of this module's own: tests may kill it, if they start it again."""
    (port,) = ports.choose(1, random.Random())
    server = Postgres(directory=tmp_path_factory.mktemp("postgres"), port=port, password="s3cret-word")
    try:
        server.start()
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """An HDFS of this test session's own: tests may kill its nodes, if they start them again."""
    hdfs = new_hdfs(tmp_path_factory.mktemp("hdfs"))
    try:
        hdfs.start()
        hdfs.wait()
        yield hdfs
    finally:
        hdfs.stop()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark driver of this test session's own, with Kafka's connector; jobs that are run in this process use it."""
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    wanted = SessionPlan(app="tests", master="local[2]", jars=connector_jars(), log_file=log)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JDK_JAVA_OPTIONS")  # this one lives long
        session = open_session(wanted)
    try:
        yield session
    finally:
        session.sparkContext.stop()
