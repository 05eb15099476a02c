"""Which settings `client=` and `--client` may hold: what is not on a list is refused by name.

Every endpoint that talks to Kafka asks here first, before a client of any kind sees a setting:

    READING      KafkaSource: Spark's connector, with Java's consumer
    WRITING      KafkaSink below exactly-once: Spark's writer, with Java's producer
    CONNECTING   what Lockgate itself says to Kafka: exactly-once sinks, ledger, commands
    PRESENTING   the presenter, with librdkafka and its names

A list of what is allowed, and not of what is forbidden: Kafka's clients load classes and libraries, run commands and
read files that settings name, and every version brings new ones. Whatever switches a check off is refused as well. A
login or a certificate without `security.protocol` is refused, because the client would ignore it and send everything
as plain text.

No value of a setting that may be secret is ever part of a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lockgate.errors import BadJob
from lockgate.kafka.jaas import MODULES, read_login

PROTOCOLS = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL")
_TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")

# Numbers that kafka-python knows by the same name.
CLIENT_NUMBERS = (
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
)
WRITING_NUMBERS = ("batch.size", "delivery.timeout.ms", "transaction.timeout.ms")
SASL = ("sasl.jaas.config", "sasl.mechanism")
SSL = (
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.type",
)
# What Java's client alone can connect with.
_JAVA_SSL = (
    *("ssl.cipher.suites", "ssl.enabled.protocols", "ssl.protocol"),
    *("ssl.keystore.password", "ssl.truststore.password"),
)
_JAVA_CLIENT = (
    *("client.dns.lookup", "client.id", "enable.metrics.push", "security.protocol"),
    *("metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy"),
    *("metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms"),
    *("receive.buffer.bytes", "retry.backoff.max.ms", "retry.backoff.ms", "send.buffer.bytes"),
    *("socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms"),
    *(*CLIENT_NUMBERS, *SASL, *SSL, *_JAVA_SSL),
)
_JAVA_CONSUMER = (
    *("allow.auto.create.topics", "client.rack", "default.api.timeout.ms", "group.id"),
    *("fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "max.partition.fetch.bytes"),
    *("heartbeat.interval.ms", "max.poll.interval.ms", "max.poll.records", "session.timeout.ms"),
)
ABOUT_WRITING = frozenset(
    (
        "compression.type",
        *WRITING_NUMBERS,
        *CLIENT_NUMBERS,
        *("buffer.memory", "linger.ms", "max.block.ms", "max.in.flight.requests.per.connection", "max.request.size"),
        *("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"),
        *("retries", "retry.backoff.max.ms", "retry.backoff.ms", "send.buffer.bytes"),
    )
)
"""Of Java's producer: how records are written, and not how brokers are reached."""

_LIBRDKAFKA = (
    *("security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.password", "sasl.username"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.crl.location"),
    *("ssl.key.location", "ssl.key.password", "ssl.key.pem", "ssl.keystore.location", "ssl.keystore.password"),
    *("ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list", "ssl.endpoint.identification.algorithm"),
    *("enable.ssl.certificate.verification",),
    *("allow.auto.create.topics", "broker.address.family", "broker.address.ttl", "client.dns.lookup", "client.id"),
    *("client.rack", "connections.max.idle.ms", "debug", "enable.metrics.push", "log_level", "log.connection.close"),
    *("max.in.flight", "max.in.flight.requests.per.connection", "message.copy.max.bytes", "message.max.bytes"),
    *("metadata.max.age.ms", "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy"),
    *("topic.metadata.propagation.max.ms", "topic.metadata.refresh.fast.interval.ms"),
    *("topic.metadata.refresh.interval.ms", "topic.metadata.refresh.sparse", "receive.message.max.bytes"),
    *("reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.max.ms", "retry.backoff.ms"),
    *("socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.max.fails"),
    *("socket.nagle.disable", "socket.receive.buffer.bytes", "socket.send.buffer.bytes", "socket.timeout.ms"),
    *("fetch.error.backoff.ms", "fetch.max.bytes", "fetch.message.max.bytes", "fetch.min.bytes"),
    *("fetch.queue.backoff.ms", "fetch.wait.max.ms", "max.partition.fetch.bytes", "max.poll.interval.ms"),
    *("queued.max.messages.kbytes", "queued.min.messages", "check.crcs", "session.timeout.ms"),
    *("acks", "request.required.acks", "batch.num.messages", "batch.size", "compression.codec", "compression.level"),
    *("compression.type", "delivery.timeout.ms", "message.timeout.ms", "message.send.max.retries", "retries"),
    *("queue.buffering.backpressure.threshold", "queue.buffering.max.kbytes", "queue.buffering.max.messages"),
    *("request.timeout.ms", "sticky.partitioning.linger.ms"),
)

_CLASS = "it names a class that the client would load, and a class sees every record and the login"
_REMOVE = "remove it"
_CODE = "it names code that the client would load or run"
_LOGIN = "set sasl.mechanism=PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, with a user name and a password"
# By name, or by the beginning of names where a dot or an underscore stands at the end: the reason and the fix. Not
# needed for the refusal itself: what is not on a list is refused anyway.
_REASONS: dict[str, tuple[str, str]] = {
    "auto.include.jmx.reporter": (_CLASS, _REMOVE),
    "check.crcs": ("it switches off the checksums of records", _REMOVE),
    "config.providers": ("it names a class that the client would load, and reads files and variables", _REMOVE),
    "config.providers.": ("it configures a class that the client would load", _REMOVE),
    "interceptor.classes": (_CLASS, "remove it; the metrics of `lockgate run` count what is read and written"),
    "key.deserializer": (_CLASS, _REMOVE),
    "key.serializer": (_CLASS, _REMOVE),
    "metric.reporters": (_CLASS, "remove it; `lockgate run` has metrics of its own"),
    "partition.assignment.strategy": (_CLASS, _REMOVE),
    "partitioner.class": (_CLASS, "partition=... of the sink chooses partitions by a column"),
    "partitioner.": ("it changes the partition of a key, on which all readers depend", _REMOVE),
    "plugin.library.paths": ("it names libraries that the client would load", _REMOVE),
    "sasl.client.callback.handler.class": (_CLASS, _LOGIN),
    "sasl.kerberos.": ("Kerberos is not supported, and its settings name commands and files", _LOGIN),
    "sasl.login.": ("it belongs to a login module that is not supported, or names its class", _LOGIN),
    "sasl.oauthbearer.": ("OAUTHBEARER is not supported, and its settings name files and addresses to ask", _LOGIN),
    "security.providers": (_CLASS, _REMOVE),
    "ssl.engine.": (_CODE, "ssl.truststore.* and ssl.keystore.* say whom to trust and who we are"),
    "ssl.keymanager.algorithm": (_CODE, _REMOVE),
    "ssl.provider": (_CODE, _REMOVE),
    "ssl.providers": (_CODE, _REMOVE),
    "ssl.secure.random.implementation": (_CODE, _REMOVE),
    "ssl.trustmanager.algorithm": (_CODE, _REMOVE),
    "ssl_engine_callback_data": (_CODE, _REMOVE),
    "value.deserializer": (_CLASS, _REMOVE),
    "value.serializer": (_CLASS, _REMOVE),
}
# Values that switch a check off, in lower case, with what that means and the fix.
_SWITCHED_OFF = {
    "ssl.endpoint.identification.algorithm": (
        ("", "none"),
        "any server with a certificate that we trust could pass for the broker",
        "remove it, and let the certificate of each broker hold its name in servers= (subjectAltName)",
    ),
    "enable.ssl.certificate.verification": (
        ("", "false", "f", "0"),
        "any server could pass for the broker",
        "remove it, and name the authority of the brokers: ssl.ca.location",
    ),
}


@dataclass(frozen=True)
class Use:
    """What settings are for: which are allowed, and which belong to Lockgate."""

    what: str
    allowed: frozenset[str]
    taken: Mapping[str, str] = field(default_factory=dict)  # with the reason
    is_java: bool = True


def _guarded(*names: str) -> dict[str, str]:
    others = ", ".join(sorted(names))
    return dict.fromkeys(names, f"the guarantee hangs on it; Lockgate also sets {others}")


READING = Use(
    "a KafkaSource",
    frozenset((*_JAVA_CLIENT, *_JAVA_CONSUMER)),
    _guarded("auto.offset.reset", "bootstrap.servers", "enable.auto.commit", "isolation.level", "key.deserializer"),
)
WRITING = Use(
    "a KafkaSink",
    frozenset((*_JAVA_CLIENT, *ABOUT_WRITING)),
    _guarded(
        *("acks", "bootstrap.servers", "enable.idempotence", "key.serializer", "transactional.id", "value.serializer")
    ),
)
CONNECTING = Use(
    "what Lockgate itself says to Kafka",
    frozenset(
        ("client.id", "compression.type", "security.protocol", *CLIENT_NUMBERS, *WRITING_NUMBERS, *SASL, *SSL),
    ),
)
LOOKING = Use("a KafkaSource or a KafkaSink", READING.allowed | WRITING.allowed)
"""For looks at topics, with the settings of either, which were checked where they were declared."""

PRESENTING = Use("the presenter", frozenset(_LIBRDKAFKA), is_java=False)


def check_client(client: Mapping[str, object], use: Use, *, where: str) -> dict[str, str]:
    """The settings by their names without Spark's prefix `kafka.`, as text; BadJob for one that must not be there.

    >>> check_client({"kafka.client.id": "orders"}, READING, where="source 'orders'")
    {'client.id': 'orders'}
    """
    given: dict[str, str] = {}
    for full, value in client.items():
        name = full.removeprefix("kafka.") if use.is_java else full
        if name in given:
            raise BadJob(
                f"the client's setting {name!r} is given twice",
                where=where,
                fix=f"keep one of {name!r} and {'kafka.' + name!r}",
            )
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise BadJob(
                f"the client's setting {full!r} is neither text nor a whole number", where=where, fix=f'{full!r}: "..."'
            )
        _check_name(name, use, where)
        given[name] = str(value).strip()
    _check_protocol(given, where)
    for name, text in given.items():
        _check_value(name, text, where)
    _check_login(given, use, where)
    return given


def _check_name(name: str, use: Use, where: str) -> None:
    if name in use.taken:
        raise BadJob(
            f"the client's setting {name!r} is set by Lockgate: {use.taken[name]}", where=where, fix=f"remove {name!r}"
        )
    if name in use.allowed:
        return
    told = next(
        (told for key, told in _REASONS.items() if name == key or (key[-1] == "." and name.startswith(key))), None
    )
    if told is not None:
        reason, fix = told
        raise BadJob(f"the client's setting {name!r} is refused: {reason}", where=where, fix=fix)
    raise BadJob(
        f"the client's setting {name!r} is not known for {use.what}, and would have no effect or an unchecked one",
        where=where,
        fix=f"remove it; known are {', '.join(sorted(use.allowed))}",
    )


def _check_protocol(given: Mapping[str, str], where: str) -> None:
    """Refuse a login or a certificate that the protocol would leave unused."""
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise BadJob(
            f"security.protocol={given['security.protocol']!r} is not known",
            where=where,
            fix=f"use one of {', '.join(PROTOCOLS)}",
        )
    for prefix, is_used, others in (
        ("sasl.", protocol.startswith("SASL"), "SASL_SSL"),
        ("ssl.", protocol.endswith("SSL"), "SSL or SASL_SSL"),
    ):
        idle = sorted(name for name in given if name.startswith(prefix))
        if idle and not is_used:
            told = f"with security.protocol={protocol}" if "security.protocol" in given else "without security.protocol"
            unsafe = "" if protocol == "SASL_PLAINTEXT" or protocol == "SSL" else ": the client would talk plain text"
            raise BadJob(
                f"the client's setting {idle[0]!r} has no effect {told}{unsafe}",
                where=where,
                fix=f"set security.protocol to {others}, or remove {', '.join(map(repr, idle))}",
            )


def _check_value(name: str, text: str, where: str) -> None:
    """Refuse values that switch a check off."""
    values, meaning, fix = _SWITCHED_OFF.get(name, ((), "", ""))
    if text.lower() in values:
        raise BadJob(f"{name}={text!r} switches a check off: {meaning}", where=where, fix=fix)
    if name == "ssl.endpoint.identification.algorithm" and text.lower() != "https":
        raise BadJob(f"{name}={text!r} is not known", where=where, fix="remove it: https is the default")
    if name in ("ssl.enabled.protocols", "ssl.protocol"):
        weak = [one for one in _listed(text) if one not in _TLS_VERSIONS]
        if weak or not text:
            raise BadJob(
                f"{name} allows {', '.join(weak) or 'nothing'}, which is not safe any more or not known",
                where=where,
                fix=f"use {' and '.join(_TLS_VERSIONS)}, or remove it",
            )
    if name == "ssl.cipher.suites":
        weak = [one for one in _listed(text) if re.search("NULL|ANON|EXPORT|SECLEVEL=0", one.upper())]
        if weak:
            raise BadJob(
                f"{name} allows {', '.join(weak)}, which proves nothing or hides nothing",
                where=where,
                fix="remove these suites",
            )


def _check_login(given: Mapping[str, str], use: Use, where: str) -> None:
    """Refuse any login but a user name and a password for PLAIN and SCRAM.

    Java's client without mechanism and login is let through: Spark gives it the delegation token of the cluster.
    """
    is_login_wanted = given.get("security.protocol", "").upper().startswith("SASL")
    mechanism = given.get("sasl.mechanism", None if use.is_java else given.get("sasl.mechanisms"))
    if mechanism is None:
        if "sasl.jaas.config" in given or (is_login_wanted and not use.is_java):
            raise BadJob(
                "sasl.mechanism is not set, and Kafka's client takes GSSAPI (Kerberos) then", where=where, fix=_LOGIN
            )
    elif mechanism not in MODULES:
        raise BadJob(
            f"sasl.mechanism={mechanism!r} is not supported: its logins run commands, read files or ask addresses that"
            " settings name",
            where=where,
            fix=_LOGIN,
        )
    elif "sasl.jaas.config" in given:
        read_login(given["sasl.jaas.config"], mechanism, where)


def _listed(text: str) -> list[str]:
    return [one.strip() for one in re.split("[,:]", text) if one.strip()]
