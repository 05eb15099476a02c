"""A job's `client=`, in the names of Java's client, as our own Python client takes it.

Spark's connector gets these settings as they are. What Lockgate says to Kafka itself needs the same ones, translated
here. The law: no setting is dropped in silence. One that is unknown, or that would have no effect, is refused by name;
otherwise a job would run with less safety, or less speed, than its author wrote down.

    read_settings(...)                   for writing: every name must be known
    read_settings(..., is_lookup=True)   for looking up topics: what does not concern connecting is Spark's business
    is_java_only(...)                    Java's client could connect with these, ours cannot: nothing to look up with

What may be given at all is decided before, in allowlist.py. No password is ever part of a message or of a `repr`.
"""

from __future__ import annotations

import platform
import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockgate.errors import BadJob, BadMachine
from lockgate.kafka.allowlist import (
    ABOUT_WRITING,
    CLIENT_NUMBERS,
    CONNECTING,
    LOOKING,
    PROTOCOLS,
    SASL,
    SSL,
    WRITING_NUMBERS,
    check_client,
)
from lockgate.kafka.client import open_client
from lockgate.kafka.jaas import MODULES, read_login

BATCH_BYTES = 1_000_000  # a bound, not a habit: Java's 16 KiB are for records that trickle in, ours come by the epoch
REQUEST_TIMEOUT_MS = 30_000
DELIVERY_TIMEOUT_MS = 120_000
BOOTSTRAP_TIMEOUT_MS = 10_000
_NUMBER_MAX = 2**31 - 1

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_CONNECTING = ("client.id", "security.protocol", *CLIENT_NUMBERS)
_TO_PKCS12 = "keytool -importkeystore -srckeystore my.jks -destkeystore my.p12 -deststoretype PKCS12"
_CERTIFICATE, _PRIVATE_KEY = "CERTIFICATE", "PRIVATE KEY"


class _Secret(str):
    """Text that does not show itself: kafka-python logs all its arguments when it is asked to debug."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class _TidySocket(ssl.SSLSocket):
    """Closes itself when the handshake fails, which kafka-python leaves to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError:
            self.close()
            raise


@dataclass(frozen=True)
class TlsSettings:
    """Whom to trust and who we are, as PEM text or as paths; files must exist wherever `context` is called."""

    trusted: str | None = None
    trusted_file: str | None = None
    chain: str | None = None
    key: str | None = field(default=None, repr=False)
    identity_file: str | None = None
    key_password: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """What Python's sockets take; without trusted certificates of the job's own, those of the machine count."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.sslsocket_class = _TidySocket
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.trusted is None and self.trusted_file is None:
            context.load_default_certs()
        else:
            # As in Java: whatever is in the store is trusted, also where it was signed by somebody else.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            self._load_trusted(context)
        if self.identity_file is not None:
            self._load_identity(context, self.identity_file, "ssl.keystore.location")
        elif self.chain is not None and self.key is not None:
            # OpenSSL reads a key from a file only. This one is its owner's alone (mode 0600) and gone in a moment.
            with tempfile.NamedTemporaryFile(mode="w", suffix=".pem") as file:
                file.write(f"{self.key}\n{self.chain}")
                file.flush()
                self._load_identity(context, file.name, "ssl.keystore.key")
        return context

    def _load_trusted(self, context: ssl.SSLContext) -> None:
        setting = "ssl.truststore.certificates" if self.trusted_file is None else "ssl.truststore.location"
        try:
            text = self.trusted if self.trusted_file is None else _tidy_pem(Path(self.trusted_file).read_text())
            context.load_verify_locations(cadata=text)
        except (OSError, ValueError) as error:  # what OpenSSL raises is an OSError too
            raise _unusable(setting, self.trusted_file, error) from None

    def _load_identity(self, context: ssl.SSLContext, file: str, setting: str) -> None:
        try:
            # Without a password at all OpenSSL would ask for one at the terminal, and wait.
            context.load_cert_chain(certfile=file, password=self.key_password)
        except (OSError, ValueError) as error:
            raise _unusable(setting, self.identity_file, error) from None


@dataclass(frozen=True)
class ClientSettings:
    """How to reach a cluster, and how to write to it: small, picklable, and a key for caches of connections.

    It travels to workers, with the password. Files are named by path only: they must exist on every machine that
    connects, or their text is given inline (`ssl.truststore.certificates`, `ssl.keystore.key`).
    """

    servers: str
    arguments: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    tls: TlsSettings | None = None
    codec: str = "none"
    batch_bytes: int = BATCH_BYTES
    transaction_timeout_ms: int | None = None
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS

    @property
    def user(self) -> str | None:
        """Who logs in with a name and a password."""
        given = dict(self.arguments)
        name: str | None = given.get("sasl_plain_username")
        if name is None or given["sasl_mechanism"] == "PLAIN":
            return name
        return name.replace("=2C", ",").replace("=3D", "=")

    def client_arguments(self) -> dict[str, Any]:
        """What `KafkaAdminClient(**...)` takes; BadMachine where a certificate or key cannot be used here.

        Such a client raises what the broker says to a wrong password or certificate at once, instead of trying again
        until it may only say that time ran out; and when it cannot start, it leaves no thread behind.
        """
        arguments: dict[str, Any] = {
            "bootstrap_servers": [server.strip() for server in self.servers.split(",") if server.strip()],
            "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
            "request_timeout_ms": self.request_timeout_ms,
            "kafka_client": open_client,
            **dict(self.arguments),
        }
        if self.tls is not None:
            arguments["ssl_context"] = self.tls.context()
        return arguments


def read_settings(servers: str, client: Mapping[str, str], *, where: str, is_lookup: bool = False) -> ClientSettings:
    """Translate the settings of a job; BadJob for what is unknown, has no effect or cannot mean anything.

    >>> read_settings("host:9092", {"compression.type": "zstd"}, where="sink 'counts'").codec
    'zstd'
    """
    given = check_client(client, LOOKING if is_lookup else CONNECTING, where=where)
    if is_lookup:
        given = about_connecting(given)
    for what, fix in _java_only(given):
        raise BadJob(what, where=where, fix=fix)
    protocol = _choice(given, "security.protocol", PROTOCOLS, "PLAINTEXT", where)
    numbers = {name: _number(given, name, where) for name in (*CLIENT_NUMBERS, *WRITING_NUMBERS) if name in given}
    arguments: dict[str, Any] = {"security_protocol": protocol}
    if "client.id" in given:
        arguments["client_id"] = given["client.id"]
    arguments |= {name.replace(".", "_"): numbers[name] for name in CLIENT_NUMBERS if name in numbers}
    if protocol.startswith("SASL"):
        arguments |= _login(given, where)
    request_ms = numbers.get("request.timeout.ms") or REQUEST_TIMEOUT_MS
    delivery_ms = numbers.get("delivery.timeout.ms") or max(DELIVERY_TIMEOUT_MS, request_ms)
    if delivery_ms < request_ms:
        raise BadJob(
            f"delivery.timeout.ms={delivery_ms} is shorter than one request may take, request.timeout.ms={request_ms}",
            where=where,
            fix="raise delivery.timeout.ms, or lower request.timeout.ms",
        )
    return ClientSettings(
        servers=servers,
        arguments=tuple(sorted(arguments.items())),
        tls=_tls(given, where) if protocol.endswith("SSL") else None,
        codec=_choice(given, "compression.type", _CODECS, "none", where),
        batch_bytes=numbers.get("batch.size") or BATCH_BYTES,
        transaction_timeout_ms=numbers.get("transaction.timeout.ms"),
        request_timeout_ms=request_ms,
        delivery_timeout_ms=delivery_ms,
    )


def is_java_only(client: Mapping[str, str]) -> bool:
    """Whether only Java's client can connect with these: JKS stores, Kerberos, and whatever else is not translated."""
    return any(_java_only({name.removeprefix("kafka."): str(value).strip() for name, value in client.items()}))


def about_connecting(client: Mapping[str, str]) -> dict[str, str]:
    """Those of the settings that say how brokers are reached."""
    return {name: text for name, text in client.items() if name in _CONNECTING or name.startswith(("sasl.", "ssl."))}


def is_about_writing(name: str) -> bool:
    """Is a setting about how records are written, and not about how brokers are reached or who else is told?"""
    return name.removeprefix("kafka.") in ABOUT_WRITING


def _java_only(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What stands against connecting with anything but Java's client, each with its cure."""
    protocol = given.get("security.protocol", "").upper()
    if protocol.startswith("SASL"):
        for name in SASL:
            if name not in given:
                yield (
                    f"{name} is not set, and only Java's client finds a login elsewhere",
                    f"set sasl.mechanism to {', '.join(MODULES)}, with a user name and a password in sasl.jaas.config",
                )
    if protocol.endswith("SSL"):
        yield from _java_only_stores(given)
        for name in given:
            if name.startswith("ssl.") and name not in SSL:
                yield (
                    f"the client's setting {name!r} is not known to what Lockgate itself says to Kafka",
                    f"remove it; known are {', '.join(SSL)}",
                )


def _java_only_stores(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for store, parts, command in (
        ("truststore", ("certificates",), "keytool -list -rfc -keystore trust.jks > trust.pem"),
        (
            "keystore",
            ("certificate.chain", "key"),
            f"{_TO_PKCS12}; openssl pkcs12 -in my.p12 -nodes -out my.pem",
        ),
    ):
        kind = given.get(f"ssl.{store}.type", "JKS")
        is_given = any(f"ssl.{store}.{part}" in given for part in ("type", "location", *parts))
        if is_given and kind != "PEM":
            unless = "" if f"ssl.{store}.type" in given else ", the type where none is set,"
            yield (
                f"ssl.{store}.type={kind}{unless} is known to Java's client only",
                f"set ssl.{store}.type=PEM; a file of another type is converted by: {command}",
            )
        elif f"ssl.{store}.password" in given:
            yield f"ssl.{store}.password: a store of type PEM has none", "leave it away; a key's is ssl.key.password"


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...], default: str, where: str) -> str:
    text = given.get(name, default)
    found = text.upper() if name == "security.protocol" else text  # Java reads this one in any case
    if found not in choices:
        raise BadJob(f"{name}={text!r} is not known", where=where, fix=f"use one of {', '.join(choices)}")
    return found


def _number(given: Mapping[str, str], name: str, where: str) -> int:
    text = given[name]
    if not re.fullmatch("[0-9]{1,10}", text) or not 1 <= int(text) <= _NUMBER_MAX:
        raise BadJob(
            f"{name}={text!r} is not a number that this setting takes",
            where=where,
            fix=f"use a whole number from 1 to {_NUMBER_MAX}",
        )
    return int(text)


def _login(given: Mapping[str, str], where: str) -> dict[str, str]:
    """The arguments for SASL, where nothing in the settings is for Java only."""
    mechanism = given["sasl.mechanism"]
    login = read_login(given["sasl.jaas.config"], mechanism, where)
    user = login.user
    if mechanism != "PLAIN":  # these two mean something in SCRAM's messages, and kafka-python sends names as they are
        user = user.replace("=", "=3D").replace(",", "=2C")
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": _Secret(login.password),
    }


def _tls(given: Mapping[str, str], where: str) -> TlsSettings:
    chain, key = given.get("ssl.keystore.certificate.chain"), given.get("ssl.keystore.key")
    for first, second in (
        ("ssl.truststore.location", "ssl.truststore.certificates"),
        ("ssl.keystore.location", "ssl.keystore.key"),
        ("ssl.keystore.location", "ssl.keystore.certificate.chain"),
    ):
        if first in given and second in given:
            raise BadJob(f"{first} and {second} say the same thing twice", where=where, fix="keep one of them")
    if (chain is None) != (key is None):
        raise BadJob(
            "a certificate and its key belong together, but one of them is missing",
            where=where,
            fix="set both ssl.keystore.certificate.chain and ssl.keystore.key, or ssl.keystore.location",
        )
    password = given.get("ssl.key.password")
    if password is not None and key is None and "ssl.keystore.location" not in given:
        raise BadJob(
            "ssl.key.password has no effect without a key",
            where=where,
            fix="set ssl.keystore.location, or ssl.keystore.key and ssl.keystore.certificate.chain",
        )
    key_text = _inline(given, "ssl.keystore.key", _PRIVATE_KEY, where)
    return TlsSettings(
        trusted=_inline(given, "ssl.truststore.certificates", _CERTIFICATE, where),
        trusted_file=given.get("ssl.truststore.location"),
        chain=_inline(given, "ssl.keystore.certificate.chain", _CERTIFICATE, where),
        key=None if key_text is None else _Secret(key_text),
        identity_file=given.get("ssl.keystore.location"),
        key_password=_Secret(password or ""),
    )


def _inline(given: Mapping[str, str], name: str, label: str, where: str) -> str | None:
    """The PEM text of a setting, without whatever stands around its blocks."""
    if name not in given:
        return None
    text = _tidy_pem(given[name])
    if f"{label}-----" not in text:
        raise BadJob(
            f"{name} holds no {label.lower()} as PEM text",
            where=where,
            fix=f"pass the text itself, with its lines -----BEGIN {label}----- and -----END {label}-----",
        )
    return text


def _tidy_pem(text: str) -> str:
    """The blocks of a PEM text in lines of 64: OpenSSL wants them, Java also takes a text that is all one line."""
    blocks = []
    for label, body in re.findall(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", text, flags=re.DOTALL):
        if ":" not in body:  # headers, as old encrypted keys have them, are lines of their own
            joined = "".join(body.split())
            body = "\n".join(["", *(joined[at : at + 64] for at in range(0, len(joined), 64)), ""])
        blocks.append(f"-----BEGIN {label}-----{body}-----END {label}-----\n")
    return "".join(blocks)


def _unusable(setting: str, file: str | None, error: Exception) -> BadMachine:
    cause = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    if isinstance(error, ssl.SSLError) and getattr(error, "reason", None):
        cause = error.reason.lower().replace("_", " ")
    return BadMachine(
        f"what {setting} names cannot be used: {cause}",
        where=f"{file or 'inline PEM text'}, on machine {platform.node()}",
        fix="the file must be PEM and exist on every machine that connects, or be given inline; "
        "an encrypted key needs the right ssl.key.password",
    )
