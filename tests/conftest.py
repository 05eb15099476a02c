"""The rings, how tests are dealt to processes, and the fixtures that several folders share.

Rings (docs: CONTRIBUTING.md):

    no marker   pure: milliseconds, no JVM
    spark       the local Spark session of the run; `slow` as well if it takes more than five seconds alone
    system      real services and processes; `smoke` as well if it is part of `make test`
    prove       large numbers of kills

Tests that use the Spark session are dealt to one process, so that no other one starts a JVM. Those that `make test`
leaves out take longer than all others together, so they are dealt to two processes, file by file. A file with a group
of its own (`xdist_group`) goes to a third one. The other tests of a file stay together, because they share what the
file has started. Services are started once for all processes.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from lockgate.connectors.kafka.wire import disconnect_all
from lockgate.lab.services import ports
from lockgate.lab.services.hdfs import Hdfs, new_hdfs
from lockgate.lab.services.postgres import Postgres
from lockgate.lab.services.spark import SparkCluster
from lockgate.lab.services.stack import Stack
from lockgate.planner import physical
from support.databases import with_schema
from support.services import ask_for, kept_services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tests run many small plans, each a few times: most of the time would go into compiling what is never hot. Many small
# JVMs share two cores, so none of them needs threads that collect garbage at the same time. Without the second compiler
# a JVM sets 48 MB aside for code: a session of many plans fills that, throws code away and compiles it again.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m")
# A machine that is busy with other tests makes an example slow, and that is no finding.
settings.register_profile("lockgate", deadline=None)
settings.load_profile("lockgate")
# Tests start many Python processes, and each would compile the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# -- dealing ----------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Let the process that the user started own the services of all processes."""
    if not hasattr(config, "workerinput"):
        owned = ExitStack()
        owned.enter_context(kept_services())
        config.add_cleanup(owned.close)


@pytest.hookimpl(tryfirst=True)  # before xdist writes the group of a test behind its name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses Spark, and start with tests that take long: small ones fill the gaps in the end."""
    spark = [item for item in items if uses_spark(item) and item.get_closest_marker("xdist_group") is None]
    left_out = [item for item in spark if is_left_out(item)]
    groups = {"spark-1": 0, "spark-2": 0}
    group_of: dict[Path, str] = {}
    for file, count in Counter(item.path for item in left_out if not item.get_closest_marker("prove")).most_common():
        group_of[file] = min(groups, key=groups.__getitem__)
        groups[group_of[file]] += count
    for item in spark:
        group = group_of.get(item.path, "spark-1") if is_left_out(item) else "spark"
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: (not uses_spark(item), item.get_closest_marker("system") is None))


class Dealing(LoadScopeScheduling):
    """Deals the tests of a group, or else of a file, to one process."""

    def _split_scope(self, nodeid: str) -> str:
        name, _, group = nodeid.rpartition("@")
        return group if name and "]" not in group else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Dealing:
    """Deal as above, whatever --dist says."""
    return Dealing(config, log)


def is_left_out(item: pytest.Item) -> bool:
    """Does `make test` leave a test out?"""
    marks = {mark.name for mark in item.iter_markers()}
    return "slow" in marks or ("system" in marks and "smoke" not in marks)


def uses_spark(item: pytest.Item) -> bool:
    """Does a test use the Spark session of this process?"""
    return "spark" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="module", autouse=True)
def no_connections_are_left() -> Iterator[None]:
    """Close what this process keeps open: a file's own broker may be gone, and would be asked for it forever."""
    yield
    disconnect_all()


# -- services that all tests share; no test kills or reconfigures them ------------------------------------------------


@pytest.fixture(scope="session")
def stack() -> Stack:
    """A running Kafka (one broker) and PostgreSQL."""
    return Stack(ask_for("stack"))


@pytest.fixture(scope="session")
def kafka(stack: Stack) -> str:
    """The servers of the shared Kafka, as clients take them."""
    servers = stack.status().kafka.servers
    assert servers is not None
    return servers


@pytest.fixture(scope="session")
def postgres(stack: Stack) -> str:
    """The DSN of the shared PostgreSQL; most tests want `dsn`, which has a schema of their own."""
    dsn = stack.status().postgres.dsn
    assert dsn is not None
    return dsn


@pytest.fixture
def dsn(postgres: str) -> str:
    """A schema of the test's own in the shared PostgreSQL, as the first of the search path."""
    return with_schema(postgres)


@pytest.fixture(scope="session")
def hdfs() -> Hdfs:
    """A running HDFS."""
    found = ask_for("hdfs")
    assert isinstance(found, Hdfs)
    return found


@pytest.fixture(scope="session")
def master() -> str:
    """The address of a Spark cluster with two Workers of one core each."""
    return str(ask_for("cluster"))


# -- services of one file's own, which its tests may kill if they start them again ------------------------------------


@pytest.fixture(scope="module")
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A Kafka of one broker."""
    stack = Stack(tmp_path_factory.mktemp("services"), brokers=1)
    try:
        stack.up(postgres=False)
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A PostgreSQL."""
    (port,) = ports.choose(1, random.Random())
    server = Postgres(directory=tmp_path_factory.mktemp("postgres"), port=port, password="s3cret-word")
    try:
        server.start()
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def own_hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """An HDFS."""
    hdfs = new_hdfs(tmp_path_factory.mktemp("hdfs"))
    try:
        hdfs.start()
        hdfs.wait()
        yield hdfs
    finally:
        hdfs.stop()


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A Spark Master and two Workers, each with an executor of its own."""
    with SparkCluster(tmp_path_factory.mktemp("spark") / "cluster", workers=2) as cluster:
        yield cluster


# -- Spark ------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def few_tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks for each step with state, and not four: the session has two cores, and every task costs some time."""
    if uses_spark(request.node):
        monkeypatch.setattr(physical, "STATE_PARTITIONS", 2)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A Spark driver in this process, with Kafka's connector; jobs that are run in this process use it."""
    from lockgate.provision.kafkajars import kafka_jars
    from lockgate.spark.session import SessionPlan, open_session

    log = tmp_path_factory.mktemp("spark") / "spark.log"
    wanted = SessionPlan(app="tests", master="local[2]", jars=kafka_jars(), log_file=log)
    session = open_session(wanted)
    try:
        yield session
    finally:
        session.sparkContext.stop()
