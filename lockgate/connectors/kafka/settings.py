"""A job's `client=`, which has the names of Java's client, for our own Python client.

Spark's connector gets these settings too (references.py). Lockgate's own client needs the same ones, and this module
translates them. A reference is resolved when a connection is opened, in the process that opens it. The law: no setting
is dropped in silence. A setting that is unknown, or that would have no effect, is refused by name. Otherwise a job
would run with less safety, or less speed, than its user declared.

    read_settings(...)                   to write: every name must be known
    read_settings(..., is_lookup=True)   to look up topics: only Spark uses settings that are not about the connection
    is_java_only(...)                    only Java's client can connect with these: we cannot look anything up

allowlist.py decides before which settings are allowed at all. No message and no `repr` shows a password.
"""

from __future__ import annotations

import os
import platform
import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockgate.connectors.kafka.allowlist import (
    ABOUT_WRITING,
    CLIENT_NUMBERS,
    CONNECTING,
    LOOKING,
    PROTOCOLS,
    SSL,
    WRITING_NUMBERS,
    check_client,
)
from lockgate.connectors.kafka.client import open_client
from lockgate.connectors.kafka.jaas import MODULES, find_login
from lockgate.errors import BadJob, BadMachine
from lockgate.secrets import Secret, as_login, is_reference, resolve, reveal
from lockgate.tls import new_context

BATCH_BYTES = 1_000_000  # Java's 16 KiB suit records that come one by one; ours come in epochs
REQUEST_TIMEOUT_MS = 30_000
DELIVERY_TIMEOUT_MS = 120_000
BOOTSTRAP_TIMEOUT_MS = 10_000
_NUMBER_MAX = 2**31 - 1

_USER, _PASSWORD = "sasl_plain_username", "sasl_plain_password"
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_CONNECTING = ("client.id", "security.protocol", *CLIENT_NUMBERS)
_TO_PKCS12 = "keytool -importkeystore -srckeystore my.jks -destkeystore my.p12 -deststoretype PKCS12"
_PEM = {
    "ssl.truststore.certificates": "CERTIFICATE",
    "ssl.keystore.certificate.chain": "CERTIFICATE",
    "ssl.keystore.key": "PRIVATE KEY",
}


@dataclass(frozen=True)
class TlsSettings:
    """Trusted certificates and our own: as PEM text, as references to it, or as paths on the machine that connects."""

    trusted: str | None = None
    trusted_file: str | None = None
    chain: str | None = None
    key: str | None = field(default=None, repr=False)
    identity_file: str | None = None
    key_password: str = field(default="", repr=False)

    def context(self, servers: str, where: str) -> ssl.SSLContext:
        """The context for Python's sockets; if the job names no trusted certificates, those of the machine count."""
        context = new_context()
        if self.trusted is None and self.trusted_file is None:
            context.load_default_certs()
        else:
            # As in Java, every certificate in the store is trusted, even if another authority signed it.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            self._load_trusted(context, servers, where)
        password = _resolved("ssl.key.password", self.key_password, servers, where)
        if self.identity_file is not None:
            self._load_identity(context, self.identity_file, "ssl.keystore.location", password)
        elif self.chain is not None and self.key is not None:
            chain = _pem("ssl.keystore.certificate.chain", self.chain, servers, where)
            key = _pem("ssl.keystore.key", self.key, servers, where)
            with _in_memory(f"{key}\n{chain}") as file:
                self._load_identity(context, file, "ssl.keystore.key", password)
        return context

    def _load_trusted(self, context: ssl.SSLContext, servers: str, where: str) -> None:
        setting = "ssl.truststore.certificates" if self.trusted_file is None else "ssl.truststore.location"
        try:
            if self.trusted_file is not None:
                text = _tidy_pem(Path(self.trusted_file).read_text())
            else:
                text = _pem(setting, self.trusted or "", servers, where)
            context.load_verify_locations(cadata=text)
        except (OSError, ValueError) as error:  # OpenSSL's errors are OSErrors, too
            raise _unusable(setting, self.trusted_file, error) from None

    def _load_identity(self, context: ssl.SSLContext, file: str, setting: str, password: str) -> None:
        try:
            # Without a password OpenSSL would ask for one at the terminal, and wait.
            context.load_cert_chain(certfile=file, password=password)
        except (OSError, ValueError) as error:
            raise _unusable(setting, self.identity_file, error) from None


@dataclass(frozen=True)
class ClientSettings:
    """How to reach a cluster, and how to write to it: small, picklable, and a key for caches of connections.

    It travels to workers, with the reference to a password, or with the password if that is given as text. Files are
    named by path only: they must exist on every machine that connects, or the job gives their text
    (`ssl.truststore.certificates`, `ssl.keystore.key`).
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
        """The user of a login with a password, as the job gives it: maybe a reference."""
        name: str | None = dict(self.arguments).get(_USER)
        return name

    def client_arguments(self, *, where: str) -> dict[str, Any]:
        """The arguments of `KafkaAdminClient(**...)`, with the values of references.

        With a wrong password or certificate, this client raises the broker's error at once, instead of retrying until
        time runs out. If it cannot start, it leaves no thread behind.

        Raises:
            BadMachine: a certificate or a key cannot be used here.
            Refused: a reference leads to no value here.
        """
        arguments: dict[str, Any] = {
            "bootstrap_servers": [server.strip() for server in self.servers.split(",") if server.strip()],
            "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
            "request_timeout_ms": self.request_timeout_ms,
            "kafka_client": open_client,
            **dict(self.arguments),
        }
        if self.user is not None:
            user = reveal(_resolved("sasl.username", self.user, self.servers, where))
            # These two characters are special in SCRAM's messages, and kafka-python does not escape names.
            is_scram = arguments["sasl_mechanism"] != "PLAIN"
            arguments[_USER] = user.replace("=", "=3D").replace(",", "=2C") if is_scram else user
            # It stays a Secret: kafka-python logs its arguments in debug mode.
            arguments[_PASSWORD] = _resolved("sasl.password", arguments[_PASSWORD], self.servers, where)
        if self.tls is not None:
            arguments["ssl_context"] = self.tls.context(self.servers, where)
        return arguments


def read_settings(servers: str, client: Mapping[str, str], *, where: str, is_lookup: bool = False) -> ClientSettings:
    """Translate the settings of a job; BadJob for a setting that is unknown, has no effect or is not valid.

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
    """Can only Java's client connect with these? JKS stores, for example, and all that is not translated."""
    return any(_java_only({name.removeprefix("kafka."): str(value).strip() for name, value in client.items()}))


def login_name(servers: str, setting: str) -> str:
    """The name of a login at Kafka, which a hook gets.

    >>> login_name("b1:9092,b2:9092", "sasl.password")
    'kafka://b1:9092,b2:9092/sasl.password'
    """
    return f"kafka://{servers}/{setting}"


def about_connecting(client: Mapping[str, str]) -> dict[str, str]:
    """The settings that are about the connection to brokers."""
    return {name: text for name, text in client.items() if name in _CONNECTING or name.startswith(("sasl.", "ssl."))}


def is_about_writing(name: str) -> bool:
    """Is a setting about the writing of records, and not about the connection to brokers?"""
    return name.removeprefix("kafka.") in ABOUT_WRITING


def _java_only(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The settings with which only Java's client can connect, each as a problem and its fix."""
    protocol = given.get("security.protocol", "").upper()
    if protocol.startswith("SASL"):
        is_login = "sasl.jaas.config" in given or {"sasl.username", "sasl.password"} <= {*given}
        for name, is_set in (("sasl.mechanism", "sasl.mechanism" in given), ("sasl.password", is_login)):
            if not is_set:
                yield (
                    f"{name} is not set, and only Java's client finds a login elsewhere",
                    f"set sasl.mechanism to {', '.join(MODULES)}, and sasl.username and sasl.password",
                )
    if protocol.endswith("SSL"):
        yield from _java_only_stores(given)
        for name in given:
            if name.startswith("ssl.") and name not in SSL:
                yield (
                    f"the client's setting {name!r} is not known to Lockgate's own client of Kafka",
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
            unless = "" if f"ssl.{store}.type" in given else ", the default type,"
            yield (
                f"ssl.{store}.type={kind}{unless} is known to Java's client only",
                f"set ssl.{store}.type=PEM; this converts a file of another type: {command}",
            )
        elif f"ssl.{store}.password" in given:
            yield f"ssl.{store}.password: a store of type PEM has none", "remove it; a key's is ssl.key.password"


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
            f"{name}={text!r} is not a number that this setting accepts",
            where=where,
            fix=f"use a whole number from 1 to {_NUMBER_MAX}",
        )
    return int(text)


def _login(given: Mapping[str, str], where: str) -> dict[str, str]:
    """The arguments for SASL, if no setting is for Java only; references are not resolved yet."""
    login = find_login(given, where)
    assert login is not None
    return {"sasl_mechanism": given["sasl.mechanism"], _USER: login.user, _PASSWORD: login.password}


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
    for name in _PEM:
        if name in given and not is_reference(given[name]):
            _check_pem(name, _tidy_pem(given[name]), where)
    return TlsSettings(
        trusted=given.get("ssl.truststore.certificates"),
        trusted_file=given.get("ssl.truststore.location"),
        chain=chain,
        key=None if key is None else as_login(key),
        identity_file=given.get("ssl.keystore.location"),
        key_password=as_login(password or ""),
    )


def _resolved(setting: str, text: str, servers: str, where: str) -> Secret:
    return resolve(text, login=login_name(servers, setting), where=f"{setting}, {where}")


def _pem(name: str, text: str, servers: str, where: str) -> str:
    """The PEM text that a setting contains or refers to, without any text around its blocks."""
    found = _tidy_pem(reveal(_resolved(name, text, servers, where)))
    _check_pem(name, found, where)
    return found


def _check_pem(name: str, text: str, where: str) -> None:
    label = _PEM[name]
    if f"{label}-----" not in text:
        raise BadJob(
            f"{name} contains no {label.lower()} as PEM text",
            where=where,
            fix=f"pass the text itself, with its lines -----BEGIN {label}----- and -----END {label}-----",
        )


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """The path of a file with a text: OpenSSL reads a key only from a file. On Linux the file is never on a disk."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("lockgate"), "w") as memory:
            memory.write(text)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    # Only its owner can read it (mode 0600), and it is removed at once.
    with tempfile.NamedTemporaryFile(mode="w", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name


def _tidy_pem(text: str) -> str:
    """The blocks of a PEM text in lines of 64: OpenSSL needs them, Java also accepts one long line."""
    blocks = []
    for label, body in re.findall(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", text, flags=re.DOTALL):
        if ":" not in body:  # old encrypted keys have headers in separate lines
            joined = "".join(body.split())
            body = "\n".join(["", *(joined[at : at + 64] for at in range(0, len(joined), 64)), ""])
        blocks.append(f"-----BEGIN {label}-----{body}-----END {label}-----\n")
    return "".join(blocks)


def _unusable(setting: str, file: str | None, error: Exception) -> BadMachine:
    cause = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    if isinstance(error, ssl.SSLError) and getattr(error, "reason", None):
        cause = error.reason.lower().replace("_", " ")
    return BadMachine(
        f"the file or text of {setting} cannot be used: {cause}",
        where=f"{file or 'inline PEM text'}, on machine {platform.node()}",
        fix="the file must be PEM and exist on every machine that connects, or be given inline; "
        "an encrypted key needs the right ssl.key.password",
    )
