"""Which settings `client=` and `--client` may hold: a setting that is not on a list is refused by name.

Every endpoint that talks to Kafka checks its settings here first, before any client sees them:

    READING      KafkaSource: Spark's connector, with Java's consumer
    WRITING      KafkaSink below exactly-once: Spark's writer, with Java's producer
    CONNECTING   Lockgate's own client: exactly-once sinks, ledger, commands
    PRESENTING   the presenter, with librdkafka and its names

The lists name what is allowed, not what is forbidden: settings make Kafka's clients load classes and libraries, run
commands and read files, and every version brings new ones. A value that switches a check off is refused, too. So is a
login or a certificate without `security.protocol`, because the client would ignore it and send plain text.

No message shows a value that may be secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lockgate.connectors.kafka.jaas import MODULES, find_login
from lockgate.errors import BadJob
from lockgate.secrets import check_reference, guarded, is_reference, reveal

PLACEHOLDER = "${lockgate:"
"""The beginning of a reference in the settings of Java's client (references.py)."""

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
WRITING_NUMBERS = ("batch.size", "delivery.timeout.ms", "max.request.size", "transaction.timeout.ms")
SASL = ("sasl.jaas.config", "sasl.mechanism", "sasl.password", "sasl.username")
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
# Only Java's client can connect with these.
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
        *("buffer.memory", "linger.ms", "max.block.ms", "max.in.flight.requests.per.connection"),
        *("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"),
        *("retries", "retry.backoff.max.ms", "retry.backoff.ms", "send.buffer.bytes"),
    )
)
"""Settings of Java's producer about the writing of records, not about the connection to brokers."""

REFERABLE = frozenset(
    (
        *("sasl.password", "sasl.username"),
        *("ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.password"),
        *("ssl.truststore.certificates", "ssl.truststore.password"),
        *("ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem"),  # of librdkafka
    )
)
"""Settings that may be references: env:NAME, file:PATH, hook:MODULE:FUNCTION."""

_HIDDEN = (REFERABLE - {"sasl.username"}) | {"sasl.jaas.config"}

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

_CLASS = "it names a class that the client would load, and the class would see every record and the login"
_REMOVE = "remove it"
_CODE = "it names code that the client would load or run"
_LOGIN = "set sasl.mechanism=PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, with a user name and a password"
# By name, or by the beginning of names if it ends with a dot: the reason and the fix. The refusal itself does not need
# them: what is not on a list is refused anyway.
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
    "ssl.engine.": (_CODE, "name the trusted issuers with ssl.truststore.*, and our certificate with ssl.keystore.*"),
    "ssl.keymanager.algorithm": (_CODE, _REMOVE),
    "ssl.provider": (_CODE, _REMOVE),
    "ssl.providers": (_CODE, _REMOVE),
    "ssl.secure.random.implementation": (_CODE, _REMOVE),
    "ssl.trustmanager.algorithm": (_CODE, _REMOVE),
    "ssl_engine_callback_data": (_CODE, _REMOVE),
    "value.deserializer": (_CLASS, _REMOVE),
    "value.serializer": (_CLASS, _REMOVE),
}
# Values that switch a check off, in lower case, with the consequence and the fix.
_SWITCHED_OFF = {
    "ssl.endpoint.identification.algorithm": (
        ("", "none"),
        "any server with a trusted certificate could pass for the broker",
        "remove it, and give each broker a certificate with its name in servers= (subjectAltName)",
    ),
    "enable.ssl.certificate.verification": (
        ("", "false", "f", "0"),
        "any server could pass for the broker",
        "remove it, and name the authority of the brokers: ssl.ca.location",
    ),
}


@dataclass(frozen=True)
class Use:
    """A use of Kafka: its allowed settings, and those that Lockgate sets."""

    what: str
    allowed: frozenset[str]
    taken: Mapping[str, str] = field(default_factory=dict)  # with the reason
    is_java: bool = True


def _guarded(*names: str) -> dict[str, str]:
    others = ", ".join(sorted(names))
    return dict.fromkeys(names, f"the guarantee depends on it; Lockgate also sets {others}")


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
    "Lockgate's own client of Kafka",
    frozenset(
        ("client.id", "compression.type", "security.protocol", *CLIENT_NUMBERS, *WRITING_NUMBERS, *SASL, *SSL),
    ),
)
LOOKING = Use("a KafkaSource or a KafkaSink", READING.allowed | WRITING.allowed)
"""For checks of topics, with the settings of either, which were checked at their declaration."""

PRESENTING = Use("the presenter", frozenset(_LIBRDKAFKA), is_java=False)


def check_client(client: Mapping[str, object], use: Use, *, where: str) -> dict[str, str]:
    """The settings as text, by their names without Spark's prefix `kafka.`; BadJob for one that is not allowed.

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
        given[name] = (reveal(value) if isinstance(value, str) else str(value)).strip()
    _check_protocol(given, where)
    for name, text in given.items():
        _check_value(name, text, where)
    _check_login(given, use, where)
    return given


def hidden(client: Mapping[str, str]) -> Mapping[str, str]:
    """The settings as an endpoint keeps them: a secret that is given as text is not shown."""
    if not isinstance(client, Mapping):
        return client
    texts = [name for name, text in client.items() if isinstance(text, str)]
    return guarded(client, {name for name in texts if name.removeprefix("kafka.") in _HIDDEN})


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
        f"the client's setting {name!r} is not known for {use.what}: it would have no effect, or an unchecked one",
        where=where,
        fix=f"remove it; known are {', '.join(sorted(use.allowed))}",
    )


def _check_protocol(given: Mapping[str, str], where: str) -> None:
    """Refuse a login or a certificate that the protocol does not use."""
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
            unsafe = "" if protocol == "SASL_PLAINTEXT" or protocol == "SSL" else ": the client would send plain text"
            raise BadJob(
                f"the client's setting {idle[0]!r} has no effect {told}{unsafe}",
                where=where,
                fix=f"set security.protocol to {others}, or remove {', '.join(map(repr, idle))}",
            )


def _check_value(name: str, text: str, where: str) -> None:
    """Refuse values that switch a check off, and references that no client would resolve."""
    if name in REFERABLE:
        check_reference(text, where=where)
    elif name == "sasl.jaas.config" and is_reference(text):
        raise BadJob(
            "sasl.jaas.config is a reference, so Lockgate could not check which class it names",
            where=where,
            fix='make only the password a reference: "sasl.username": "...", "sasl.password": "env:NAME"',
        )
    if PLACEHOLDER in text:
        raise BadJob(
            f"{name} contains {PLACEHOLDER}...}}, Lockgate's own form of a reference for Java",
            where=where,
            fix="write env:NAME, file:/path or hook:module:function",
        )
    values, meaning, fix = _SWITCHED_OFF.get(name, ((), "", ""))
    if text.lower() in values:
        raise BadJob(f"{name}={text!r} switches a check off: {meaning}", where=where, fix=fix)
    if name == "ssl.endpoint.identification.algorithm" and text.lower() != "https":
        raise BadJob(f"{name}={text!r} is not known", where=where, fix="remove it: https is the default")
    if name in ("ssl.enabled.protocols", "ssl.protocol"):
        weak = [one for one in _listed(text) if one not in _TLS_VERSIONS]
        if weak or not text:
            raise BadJob(
                f"{name} allows {', '.join(weak) or 'nothing'}, which is no longer safe or not known",
                where=where,
                fix=f"use {' and '.join(_TLS_VERSIONS)}, or remove it",
            )
    if name == "ssl.cipher.suites":
        weak = [one for one in _listed(text) if re.search("NULL|ANON|EXPORT|SECLEVEL=0", one.upper())]
        if weak:
            raise BadJob(
                f"{name} allows {', '.join(weak)}, which does not encrypt, or does not prove the broker's identity",
                where=where,
                fix="remove these suites",
            )


def _check_login(given: Mapping[str, str], use: Use, where: str) -> None:
    """Refuse any login except a user name and a password for PLAIN and SCRAM.

    Without mechanism and login, Java's client would take a delegation token of Spark. Lockgate's own client checks the
    topics of every job and writes with exactly-once, and cannot log in with such a token.
    """
    is_login_wanted = given.get("security.protocol", "").upper().startswith("SASL")
    if "sasl.mechanism" in given and "sasl.mechanisms" in given:  # librdkafka takes the one that it reads last
        raise BadJob(
            "sasl.mechanism and sasl.mechanisms are one setting by two names", where=where, fix="remove one of them"
        )
    mechanism = given.get("sasl.mechanism", None if use.is_java else given.get("sasl.mechanisms"))
    if mechanism is None:
        if is_login_wanted or (use.is_java and any(name in given for name in SASL)):
            raise BadJob(
                "sasl.mechanism is not set, so Kafka's client would take GSSAPI (Kerberos) or a delegation token of"
                " Spark, and Lockgate's own client can use neither",
                where=where,
                fix=_LOGIN,
            )
    elif mechanism not in MODULES:
        raise BadJob(
            f"sasl.mechanism={mechanism!r} is not supported: its settings name commands to run, files to read or"
            " addresses to ask",
            where=where,
            fix=_LOGIN,
        )
    elif use.is_java:
        find_login(given, where)


def _listed(text: str) -> list[str]:
    return [one.strip() for one in re.split("[,:]", text) if one.strip()]
