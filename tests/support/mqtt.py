"""An MQTT broker of a test's own; the test may stop it, start it again, and take what it published."""

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher
from paho.mqtt.client import Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from lockgate import MqttSource
from lockgate.lab.services import ports
from support.certificates import Authority
from support.process import program, running
from support.waiting import PATIENCE_SECONDS, wait_for

LOGIN = {"username": "meter", "password": "s3cret"}


class Broker:
    """A broker with one user; its sessions end with it."""

    def __init__(self, folder: Path, window: int, authority: Authority | None) -> None:
        self.folder, self.window, self.authority = folder, window, authority
        name, password = LOGIN.values()
        (folder / "users").write_text(f"{name}:{PasswordHasher(time_cost=1, memory_cost=1024).hash(password)}\n")
        (self.port,) = ports.choose(1, random.Random())
        self._process = ExitStack()

    def start(self) -> None:
        words = program("mqtt_broker", self.port, self.folder / "users", self.window, *self._proof())
        process = self._process.enter_context(running(*words, cwd=self.folder, name="broker"))
        process.wait_for("the broker", lambda: process.printed == "ready\n")

    def _proof(self) -> list[Path]:
        """What a broker behind TLS shows, and whose certificates it asks for."""
        return [] if self.authority is None else [*self.authority.issue("localhost"), self.authority.certificate]

    def stop(self) -> None:
        self._process.close()

    def publish(self, topic: str, *payloads: bytes | str | int, qos: int = 1) -> None:
        """Publish, and return when the broker has everything."""
        with self._connected() as client:
            for payload in payloads:
                text = json.dumps({"n": payload}) if isinstance(payload, int) else payload
                client.publish(topic, text, qos=qos).wait_for_publish(PATIENCE_SECONDS)

    def source(self, **changes: Any) -> MqttSource:
        given = {"topic": "plant/#", "host": "127.0.0.1", "port": self.port, "value": "n INT"}
        return MqttSource(**{**given, **LOGIN, **changes})

    @contextmanager
    def _connected(self) -> Iterator[Client]:
        client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv311)
        client.username_pw_set(*LOGIN.values())
        if self.authority is not None:
            client.tls_set(str(self.authority.certificate), *map(str, self.authority.issue("publisher")))
        client.connect("localhost", self.port)
        client.loop_start()
        try:
            wait_for("a connection", client.is_connected)
            yield client
        finally:
            client.disconnect()
            client.loop_stop()


@contextmanager
def running_broker(folder: Path, window: int = 20, authority: Authority | None = None) -> Iterator[Broker]:
    """A broker that runs; it has as many messages in flight as Mosquitto has.

    Args:
        authority: with one, the broker has TLS, and asks clients for a certificate.
    """
    broker = Broker(folder, window, authority)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def say_hello(broker: Broker, has_come: Callable[[], object]) -> Callable[[], bool]:
    """A condition to wait for: a reader has subscribed. Before it has, the broker keeps nothing for it."""
    next_at = 0.0

    def is_there() -> bool:
        nonlocal next_at
        if time.monotonic() >= next_at:  # few: each is a row that the next epochs have to take
            broker.publish("plant/hello", -1)
            next_at = time.monotonic() + 1
        return bool(has_come())

    return is_there
