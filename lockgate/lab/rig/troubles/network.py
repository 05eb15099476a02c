"""The network between the job and its systems, through proxies of ours; readers do not use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from lockgate.lab.rig.faults import COMMIT_REPLY, Strike
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.services.kafkaproxy import Api, KafkaProxy
from lockgate.lab.services.postgresproxy import PostgresProxy

_CUT_SECONDS = (2.0, 8.0)
_SLOW_SECONDS = (4.0, 10.0)
_DELAY_SECONDS = (0.02, 0.3)
_REPLY_LIMIT = timedelta(seconds=30)


def cut_network(scene: Scene, strike: Strike) -> str | None:
    """Nothing passes for a while, and no connection is closed."""
    with _healed(scene) as proxies:
        for proxy in proxies:
            proxy.cut()
        scene.pause(_CUT_SECONDS)
    return "all connections"


def reset_network(scene: Scene, strike: Strike) -> str | None:
    """Every connection is reset at both ends."""
    with _healed(scene) as proxies:
        count = sum(proxy.reset() for proxy in proxies)
    return f"{count} connections" if count else None


def delay_network(scene: Scene, strike: Strike) -> str | None:
    """Everything takes longer for a while."""
    by = timedelta(seconds=scene.rng.uniform(*_DELAY_SECONDS))
    with _healed(scene) as proxies:
        for proxy in proxies:
            proxy.delay(by)
        scene.pause(_SLOW_SECONDS)
    return f"all connections, by {by.total_seconds() * 1000:.0f} ms"


def lose_reply(scene: Scene, strike: Strike) -> str | None:
    """A request takes effect, and its reply never comes. One that was not lost in time is not lost later either."""
    with _healed(scene):
        if strike.point == COMMIT_REPLY:
            assert scene.postgres_proxy is not None
            lost = scene.postgres_proxy.lose_reply("COMMIT")
        else:
            assert scene.kafka_proxy is not None
            lost = scene.kafka_proxy.lose_reply(Api[strike.point])
        return f"a reply to {strike.point}" if lost.wait(_REPLY_LIMIT) else None


@contextmanager
def _healed(scene: Scene) -> Iterator[list[KafkaProxy | PostgresProxy]]:
    """The proxies of the job, whole again afterwards."""
    proxies = [proxy for proxy in (scene.kafka_proxy, scene.postgres_proxy) if proxy is not None]
    try:
        yield proxies
    finally:
        for proxy in proxies:
            proxy.heal()
