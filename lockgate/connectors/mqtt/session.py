"""The connection to an MQTT broker: one session that outlives connections, and one check of the broker before a run.

    at least once   QoS 1, a session that the broker keeps, under a fixed client id; `mqttinbox` acknowledges
    at most once    QoS 0, a session that ends with its connection: the broker sends nothing twice

Network traffic has a thread of its own. If the broker does not answer, the session retries forever, at growing
intervals: the job waits. Two clients with one id would disconnect each other forever. A lock prevents this on one
machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lockgate.connectors.mqtt.inbox import Inbox, Message
from lockgate.connectors.mqtt.tls import make_context, why_distrusted
from lockgate.errors import BadMachine, Failed, LockgateError, Refused, Unreachable
from lockgate.private import own_temporary
from lockgate.secrets import resolve, reveal

if TYPE_CHECKING:
    from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 20.0
_RETRY_SECONDS_MAX = 15
_PREDECESSOR_SECONDS = 60.0  # how long the reader of a stopped query may take to end


@dataclass(frozen=True)
class Link:
    """The address of a broker, the session, and the login."""

    host: str
    port: int
    topic: str
    client_id: str
    username: str | None
    password: str | None = field(repr=False)
    is_kept: bool  # is the session kept, and are messages acknowledged?
    room: int  # how many messages of QoS 0 are held; MQTT itself limits those that are acknowledged
    where: str
    tls: bool | Mapping[str, str] = False

    @property
    def qos(self) -> int:
        return 1 if self.is_kept else 0

    @property
    def broker(self) -> str:
        return f"{self.host}:{self.port}"


def _new_client(link: Link, *, client_id: str, is_kept: bool) -> Client:
    try:
        from paho.mqtt.client import Client, MQTTv311
        from paho.mqtt.enums import CallbackAPIVersion
    except ImportError:
        raise BadMachine(
            "the MQTT client library is not installed", where=link.where, fix="pip install 'lockgate[mqtt]'"
        ) from None
    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        clean_session=not is_kept,
        protocol=MQTTv311,
        manual_ack=True,
    )
    if link.tls is not False:
        name = f"mqtt://{link.broker}/keyfile_password"
        client.tls_set_context(make_context(link.tls, login=name, where=link.where))
    if link.username is not None:
        client.username_pw_set(_login(link, "username", link.username), _login(link, "password", link.password))
    return client


def _login(link: Link, name: str, text: str | None) -> str | None:
    """The value of a login, read now: it may be a reference."""
    if text is None:
        return None
    return reveal(resolve(text, login=f"mqtt://{link.broker}/{name}", where=f"{name}, {link.where}"))


class Session:
    """An open session; one thread calls it, and the network has another."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._inbox = Inbox()
        self._guard = threading.Lock()
        self._failure: LockgateError | None = None
        self._is_subscribed = False
        self._is_away = False
        self._has_warned = False
        self._dropped_count = 0
        self._lock = _lock_out_others(link) if link.is_kept else None
        self._client = _new_client(link, client_id=link.client_id, is_kept=link.is_kept)
        self._client.reconnect_delay_set(min_delay=1, max_delay=_RETRY_SECONDS_MAX)
        self._client.on_connect = self._connected
        self._client.on_connect_fail = self._not_connected
        self._client.on_disconnect = self._disconnected
        self._client.on_subscribe = self._subscribed
        self._client.on_message = self._received
        self._client.connect_async(link.host, link.port)
        self._client.loop_start()

    def number(self, start: int, count_max: int) -> int:
        """Put arrived messages into the next epoch, and return the number after its last message."""
        with self._guard:
            if self._failure is not None:
                raise self._failure
            dropped, self._dropped_count = self._dropped_count, 0
            end = self._inbox.number(start, count_max)
        if dropped:
            log.warning("%s: %d messages dropped: they came faster than epochs", self._link.where, dropped)
        return end

    def numbered(self, start: int, end: int) -> list[tuple[int, Message]]:
        """The messages of an epoch."""
        with self._guard:
            return self._inbox.numbered(start, end)

    def complete(self, end: int) -> None:
        """Acknowledge the messages of complete epochs."""
        with self._guard:
            self._acknowledge(self._inbox.complete(end))

    def close(self) -> None:
        """Disconnect; the broker keeps the session and what is not acknowledged."""
        self._client.disconnect()
        self._client.loop_stop()
        if self._lock is not None:
            os.close(self._lock)

    # On the network's thread

    def _connected(
        self, client: Client, userdata: Any, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            self._report_lost_connection(str(reason))
            return
        with self._guard:
            self._inbox.connect(is_session_kept=flags.session_present)
        # Once in every run, even if the broker knows the session: an earlier run may have died before this call.
        # Not at every connection: the broker would send its retained messages again.
        if not (self._is_subscribed and flags.session_present):
            client.subscribe(self._link.topic, qos=self._link.qos)
        if self._is_away:
            kept = "kept" if flags.session_present else "lost"
            log.warning(
                "%s: connected to %s again, which has %s the session", self._link.where, self._link.broker, kept
            )
        self._is_away = False

    def _not_connected(self, client: Client, userdata: Any) -> None:
        why = why_distrusted(sys.exc_info()[1])  # the client calls this while it handles the error
        if why is None:
            self._report_lost_connection("no connection")
            return
        refusal = _distrust(self._link, why)
        with self._guard:
            self._failure = Failed(refusal.what, where=refusal.where, fix=refusal.fix)

    def _disconnected(
        self, client: Client, userdata: Any, flags: DisconnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            self._report_lost_connection(str(reason))

    def _report_lost_connection(self, reason: str) -> None:
        if not self._is_away:
            log.warning("%s: broker %s does not answer (%s); waiting", self._link.where, self._link.broker, reason)
        self._is_away = True

    def _subscribed(
        self, client: Client, userdata: Any, mid: int, reasons: list[ReasonCode], properties: Properties | None
    ) -> None:
        refusal = _refusal(self._link, reasons)
        with self._guard:
            self._is_subscribed = refusal is None
            if refusal is not None:
                self._failure = Failed(refusal.what, where=refusal.where, fix=refusal.fix)

    def _received(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            with self._guard:
                self._failure = Failed(
                    f"the broker {self._link.broker} sent a message whose topic is not UTF-8",
                    where=self._link.where,
                    fix="find its publisher, and publish it under another topic",
                )
            return
        if message.retain and not self._link.is_kept:
            return  # it comes again with every connection, and at most once promises only new messages
        taken = Message(
            topic=topic,
            payload=bytes(message.payload),
            at_ms=int(time.time() * 1000),
            is_retained=message.retain,
            mid=message.mid if message.qos else 0,
        )
        if self._link.is_kept and not message.qos and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: a message on %s was published with QoS 0: it is not sent again after a failure, and may be lost",
                self._link.where,
                topic,
            )
        with self._guard:
            if not message.qos and len(self._inbox.waiting) >= self._link.room:
                self._dropped_count += 1
                return
            self._acknowledge(self._inbox.receive(taken, is_repeated=message.dup))

    def _acknowledge(self, mids: list[int]) -> None:
        for mid in mids:
            self._client.ack(mid, 1)


def _lock_out_others(link: Link) -> int:
    """Take the lock of the session on this machine; it ends with the process, however that ends."""
    key = hashlib.sha256(f"{link.broker} {link.client_id}".encode()).hexdigest()[:16]
    lock = os.open(own_temporary() / f"mqtt-{key}", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + _PREDECESSOR_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(lock)
                raise Failed(
                    f"the session {link.client_id} at {link.broker} already has another reader on this machine",
                    where=link.where,
                    fix="stop the other run of this job, or give this one a client_id= of its own",
                ) from None
            time.sleep(0.2)


def probe(link: Link) -> None:
    """Connect and subscribe once, under a new id, so that the job's own session is not touched."""
    client = _new_client(link, client_id=f"lockgate{uuid4().hex[:15]}", is_kept=False)
    answers: list[Refused | None] = []

    def connected(
        client: Client, userdata: Any, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            answers.append(
                Refused(
                    f"the MQTT broker at {link.broker} refuses the connection: {reason}",
                    where=link.where,
                    fix="check username= and password=, and the rights of this user at the broker",
                )
            )
        else:
            client.subscribe(link.topic, qos=link.qos)

    def subscribed(
        client: Client, userdata: Any, mid: int, reasons: list[ReasonCode], properties: Properties | None
    ) -> None:
        answers.append(_refusal(link, reasons))

    client.on_connect = connected
    client.on_subscribe = subscribed
    why = f"no answer in {_ANSWER_SECONDS:.0f} seconds"
    try:
        client.connect(link.host, link.port)
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not answers and time.monotonic() < deadline:
            if client.loop(timeout=0.1) and not answers:
                why = "it ended the connection before it answered"
                break
    except (OSError, ValueError) as error:
        if (distrust := why_distrusted(error)) is not None:
            raise _distrust(link, distrust) from None
        why = str(error)
    finally:
        client.disconnect()
    if not answers:
        raise Unreachable(
            f"no MQTT broker answers at {link.broker} ({why})",
            where=link.where,
            fix="start the broker, or correct host= and port="
            + (
                ""
                if link.tls is False
                else "; MQTT over TLS usually has port 8883, and a broker that asks for a client certificate needs"
                " certfile and keyfile in tls="
            ),
        )
    if answers[0] is not None:
        raise answers[0]


def _distrust(link: Link, why: str) -> Refused:
    return Refused(
        f"the MQTT broker at {link.broker} is not trusted, and got no password: {why}",
        where=link.where,
        fix="name its issuer in tls={'ca_certs': ...}, and connect by a name of its certificate; do not switch TLS off"
        " on a network that others use",
    )


def _refusal(link: Link, reasons: list[ReasonCode]) -> Refused | None:
    """Why what the broker granted is not enough."""
    if any(reason.is_failure for reason in reasons):
        return Refused(
            f"the MQTT broker at {link.broker} refuses the subscription to {link.topic!r}",
            where=link.where,
            fix="correct topic=, or allow this user to read it",
        )
    if any(reason.value < link.qos for reason in reasons):
        return Refused(
            f"the MQTT broker at {link.broker} grants only QoS 0 for {link.topic!r}, and keeps nothing for the job",
            where=link.where,
            fix="allow QoS 1 at the broker, or declare Guarantee.AT_MOST_ONCE",
        )
    return None
