"""An MQTT broker: amqtt, with one user; sessions live as long as the process.

    mqtt_broker PORT USERS WINDOW [CERTIFICATE KEY ISSUER]

USERS is a file of user:hash; WINDOW the most messages in flight to a client. With a certificate it has TLS, and asks
clients for one of the issuer's.

amqtt 0.12 forgets a message when its receiver goes away or takes over five seconds to acknowledge it, against
[MQTT-4.4.0-1] (its pull request 402 mends that). Here a message with QoS 1 stays until it is acknowledged, and there is
a window, as brokers in production have one.

And where a client comes back before its last connection has ended, amqtt may end the session of the new one with the
old: it is connected then, and never gets a message. Here the end of a connection is no end of a session that has
another one.
"""

import asyncio
import ssl
import sys
from typing import Any

from amqtt.broker import Broker
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.mqtt.puback import PubackPacket
from amqtt.session import OUTGOING, Session

WINDOW = int(sys.argv[3])
receive = BrokerProtocolHandler._handle_qos1_message_flow
attach = BrokerProtocolHandler.attach


async def send_or_receive(self: BrokerProtocolHandler, message) -> None:
    if message.direction != OUTGOING:
        await receive(self, message)
        return
    self.session.inflight_out[message.packet_id] = message
    await fill_window(self)


async def fill_window(self: BrokerProtocolHandler) -> None:
    sent = self.__dict__.setdefault("sent", set())  # over this connection
    for number, message in list(self.session.inflight_out.items())[:WINDOW]:
        if number not in sent:
            sent.add(number)
            message.publish_packet = message.build_publish_packet(dup=message.publish_packet is not None)
            await self._send_packet(message.publish_packet)


async def take_acknowledgement(self: BrokerProtocolHandler, puback: PubackPacket) -> None:
    number = puback.variable_header.packet_id
    self.session.inflight_out.pop(number, None)
    self.__dict__.setdefault("sent", set()).discard(number)
    await fill_window(self)


def attach_connected(self: BrokerProtocolHandler, session: Session, *connection: Any) -> None:
    attach(self, session, *connection)
    if not session.transitions.is_connected():  # the connection before it ended while this one took over
        session.transitions.connect()


async def end_connection(
    self: Broker, session: Session, handler: BrokerProtocolHandler, ended: asyncio.Future[Any]
) -> None:
    if self._get_handler(session) is handler and session.transitions.is_connected():
        session.transitions.disconnect()
    await self._stop_handler(handler)


def with_clients(context: ssl.SSLContext) -> ssl.SSLContext:
    context.verify_mode = ssl.CERT_REQUIRED  # amqtt lets clients without a certificate in, too
    return context


async def main() -> None:
    BrokerProtocolHandler.attach = attach_connected
    Broker._handle_disconnect = end_connection
    BrokerProtocolHandler._handle_qos1_message_flow = send_or_receive
    BrokerProtocolHandler.handle_puback = take_acknowledgement
    listener = {"type": "tcp", "bind": f"127.0.0.1:{sys.argv[1]}"}
    if proof := sys.argv[4:]:
        listener |= {"ssl": True, **dict(zip(("certfile", "keyfile", "cafile"), proof, strict=True))}
        make_context = Broker._create_ssl_context
        Broker._create_ssl_context = staticmethod(lambda listener: with_clients(make_context(listener)))
    config = {
        "listeners": {"default": listener},
        "plugins": {"amqtt.plugins.authentication.FileAuthPlugin": {"password_file": sys.argv[2]}},
    }
    await Broker(config).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
