from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from lockgate.errors import BadMachine, ServiceFailed
from lockgate.lab.services.kafka import KafkaCluster, Node, server_properties
from lockgate.lab.services.stack import Stack
from support.records import read, send
from support.waiting import wait_for


def cluster(count: int) -> KafkaCluster:
    nodes = tuple(Node(id=i, port=1000 + i, controller_port=2000 + i) for i in range(1, count + 1))
    return KafkaCluster(directory=Path("/somewhere"), cluster_id="id", nodes=nodes)


def settings(count: int) -> dict[str, str]:
    text = server_properties(cluster(count), cluster(count).nodes[0])
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(("count", "replicas", "in_sync"), [(1, "1", "1"), (3, "3", "2")])
def test_replication_follows_the_number_of_brokers(count: int, replicas: str, in_sync: str) -> None:
    found = settings(count)
    for name in ("default", "offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        assert found[f"{name}.replication.factor"] == replicas
    assert found["min.insync.replicas"] == found["transaction.state.log.min.isr"] == in_sync
    assert found["controller.quorum.voters"].count("@") == count


def test_every_listener_is_on_the_loopback_interface() -> None:
    found = settings(3)
    for name in ("listeners", "advertised.listeners"):
        assert all(listener.split("://")[1].startswith("127.0.0.1:") for listener in found[name].split(","))


def test_a_misspelt_topic_is_not_created() -> None:
    assert settings(1)["auto.create.topics.enable"] == "true"


def test_killing_a_broker_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadMachine, match="There is no broker 7"):
        cluster(3).kill(7)


@pytest.mark.system
def test_three_brokers_keep_taking_writes_when_one_is_killed_and_it_comes_back(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "services", brokers=3)
    try:
        assert stack.up(postgres=False)
        servers = stack.status().kafka.servers
        assert servers is not None
        bootstrap = servers.split(",")
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        # The cluster's own settings, as a client sees them: broker defaults decide what the topic gets.
        admin.create_topics([NewTopic(name="orders", num_partitions=3, replication_factor=-1)])
        # A broker tells of a new topic when it has heard of it itself.
        partitions = wait_for("the topic", lambda: admin.describe_topics(["orders"])[0]["partitions"])
        assert [len(partition["replica_nodes"]) for partition in partitions] == [3, 3, 3]
        assert config(admin, "orders")["min.insync.replicas"] == "2"
        admin.close()

        stack.kill_broker(2)
        status = stack.status()
        assert not status.kafka.running
        assert [broker.running for broker in status.kafka.brokers] == [True, False, True]
        send(servers, "orders", map(str, range(30)))

        assert stack.up(postgres=False)
        assert stack.status().kafka.running
        assert len(read(servers, "orders")) == 30
    finally:
        stack.down()


@pytest.mark.system
def test_a_broker_that_cannot_start_is_reported_with_the_end_of_its_log_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    stack = Stack(tmp_path / "services")
    try:
        stack.up(postgres=False)
        stack.down()
        meta = tmp_path / "services" / "kafka" / "broker-1" / "data" / "meta.properties"
        meta.write_text(meta.read_text().replace("node.id=1", "node.id=9"))
        with pytest.raises(ServiceFailed, match=r"ended right after its start[\s\S]*node id") as failure:
            stack.up(postgres=False)
        assert failure.value.where.endswith("broker.log")
        assert not stack.status().kafka.running
    finally:
        stack.down()


def config(admin: KafkaAdminClient, topic: str) -> dict[str, str]:
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    return {name: str(entry["value"]) for name, entry in described["topic"][topic].items()}
