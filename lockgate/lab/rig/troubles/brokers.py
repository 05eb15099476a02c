"""Kafka's brokers, killed or stopped: any of them, or the one that the job cannot do without right now."""

from __future__ import annotations

from contextlib import closing

from lockgate.connectors.kafka.ledgertopic import transactional_id
from lockgate.connectors.kafka.topics import asked
from lockgate.lab.rig.faults import Strike
from lockgate.lab.rig.troubles.scene import WHERE, Scene
from lockgate.lab.services.stack import Stack

_AWAY_SECONDS = (0.0, 4.0)
_PAUSE_SECONDS = (1.0, 6.0)


def kill_broker(scene: Scene, strike: Strike) -> str | None:
    """Any broker; it is started again over its data."""
    return _kill(scene, scene.rng.choice(_stack(scene).kafka.nodes).id, "broker")


def pause_broker(scene: Scene, strike: Strike) -> str | None:
    """Any broker, stopped for a while: it takes connections and says nothing."""
    kafka = _stack(scene).kafka
    node = scene.rng.choice(kafka.nodes)
    pid = kafka.daemon(node).pid
    return f"broker {node.id}" if scene.stop_for(pid, _PAUSE_SECONDS) else None


def kill_leader(scene: Scene, strike: Strike) -> str | None:
    """The broker that leads a partition that the job writes; another one takes over."""
    topic = scene.rng.choice(scene.topics)
    with closing(scene.connect()) as connection:
        leaders = asked(lambda: connection.shapes([topic], is_fresh=True), WHERE)[topic].leaders
    partition = scene.rng.randrange(len(leaders))
    return (
        None if leaders[partition] < 0 else _kill(scene, leaders[partition], f"leader of {topic}-{partition}: broker")
    )


def kill_coordinator(scene: Scene, strike: Strike) -> str | None:
    """The broker that coordinates the job's transactions; another one takes over."""
    with closing(scene.connect()) as connection:
        node = asked(lambda: connection.coordinator_of(transactional_id(scene.name)), WHERE)
    return _kill(scene, node, "coordinator: broker")


def _kill(scene: Scene, node: int, name: str) -> str:
    stack = _stack(scene)
    stack.kill_broker(node)
    scene.pause(_AWAY_SECONDS)
    stack.up(postgres=False)
    return f"{name} {node}"


def _stack(scene: Scene) -> Stack:
    assert scene.stack is not None, "there is no broker that may be killed"
    return scene.stack
