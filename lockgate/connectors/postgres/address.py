"""What a dsn names, and what Lockgate demands of the server that answers there.

    host                                      sslmode       require_auth
    a Unix socket, localhost, 127.*.*.*, ::1  as libpq      as libpq
    any other                                 verify-full   scram-sha-256

Without this, libpq accepts any server that answers, and sends it the password in the way that the server asks for. A
weaker setting counts if it is written: in the dsn, in its service or in a variable of libpq, each setting by itself.
Only `prefer` in a service file does not count, because libpq does not distinguish it from its own default.

No name of a server shows a password. The parser quotes a dsn that it cannot read, so its message is not passed on. It
takes what follows an unescaped @ or / of a password for the host or the database, so such a dsn is refused.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from lockgate.errors import BadJob, BadMachine
from lockgate.secrets import is_reference, masked, resolve, reveal

_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_DEFAULTS = {
    "connect_timeout": "10",
    # A peer that vanished without a word is noticed within about a minute, and not by the kernel in hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_SCHEMES = ("postgresql://", "postgres://")
_LIBPQ_LEAST = 160_000  # the first one with require_auth
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",  # RHEL 6
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # Alpine, macOS
)


def server_of(dsn: str, where: str) -> str:
    """The server and database of a dsn, always written the same way, without passwords; or the reference of the dsn."""
    if is_reference(dsn):
        return f"PostgreSQL at {dsn}"
    try:
        from psycopg.conninfo import make_conninfo
    except ImportError:  # a plan can be drawn without the client library
        return f"PostgreSQL at an address with digest {hashlib.sha256(masked(dsn).encode()).hexdigest()[:12]}"
    facts = _parse(dsn, where)
    return make_conninfo("", **{name: text for name, text in sorted(facts.items()) if name not in _SECRETS})


def conninfo_of(dsn: str, where: str) -> str:
    """What libpq gets: the dsn, resolved now, with what is demanded of the server. It contains the password."""
    from psycopg.conninfo import make_conninfo

    plain = reveal(resolve(dsn, login="dsn", where=where))
    given = _parse(plain, where)
    defaults = {name: value for name, value in _DEFAULTS.items() if name not in given}
    return make_conninfo(plain, **defaults, **_demands(plain, given, where))


def _parse(plain: str, where: str) -> dict[str, Any]:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(plain)
    except (ProgrammingError, UnicodeError):
        raise _unreadable("", where) from None
    if _is_cut_in_password(plain):
        raise _unreadable(": an @ or a / in its password is not written as %40 or %2F", where) from None
    return given


def _is_cut_in_password(plain: str) -> bool:
    """Would libpq take a part of the password for the host or the database?

    >>> _is_cut_in_password("postgresql://ada:wonder@land@db/sales"), _is_cut_in_password("postgresql://ada:w@db/sales")
    (True, False)
    """
    if not plain.startswith(_SCHEMES):
        return False
    rest = plain.partition("://")[2]
    # To libpq a user name and a password end at the first @, if no / comes before it.
    login, _, behind = rest.partition("@")
    return "@" in (rest if "/" in login else behind).partition("?")[0]


def _unreadable(why: str, where: str) -> BadJob:
    return BadJob(
        f"the dsn cannot be read{why}",  # and is not shown: there may be a password in it
        where=where,
        fix='dsn="postgresql://user:password@host:5432/database", special characters as %XX; or as keywords:'
        " dsn=\"host=... dbname=... user=... password='...'\"; or a reference to one of these: env:NAME, file:PATH,"
        " hook:MODULE:FUNCTION",
    )


def _demands(plain: str, given: dict[str, Any], where: str) -> dict[str, str]:
    """The settings to add, so that no unknown server gets the password."""
    from psycopg import pq

    settings = _read_settings(plain, given)
    demands: dict[str, str] = {}

    def demand(name: str, value: str) -> None:
        if not settings[name].is_said:
            demands[name] = value

    if not _is_local(settings["host"].value, settings["hostaddr"].value):
        if pq.version() < _LIBPQ_LEAST:
            raise BadMachine(
                f"The PostgreSQL client is libpq {pq.version() // 10_000}, which cannot insist on SCRAM.",
                where=where,
                fix="pip install 'psycopg[binary]', which brings its own libpq; or install libpq 16 or newer",
            )
        demand("sslmode", "verify-full")
        demand("gssencmode", "disable")  # it would take the place of TLS
        # A server that knows its client by a certificate asks for no password.
        demand("require_auth", "scram-sha-256,none" if settings["sslcert"].is_said else "scram-sha-256")
    mode = demands.get("sslmode", settings["sslmode"].value)
    roots = settings["sslrootcert"].value
    if mode == "verify-full" and (roots == "system" or (not roots and not _own_roots().exists())):
        # libpq itself would turn to `system` alone into verify-full; it does not for the name of a file.
        demands |= {"sslmode": mode, "sslrootcert": _system_roots()}
    return demands


@dataclass(frozen=True)
class _Setting:
    """What libpq would use, and whether the user has set it."""

    value: str
    is_said: bool


def _read_settings(plain: str, given: dict[str, Any]) -> dict[str, _Setting]:
    """What libpq reads from the dsn, the service that it names, and the variables of libpq, in this order."""
    from psycopg import pq
    from psycopg.conninfo import make_conninfo

    # libpq reads all of it, and then refuses the impossible value before it opens a socket. If there is any password
    # here, it does not look for one.
    probe = pq.PGconn.connect_start(make_conninfo(plain, password="-", target_session_attrs="impossible").encode())
    try:
        options = {option.keyword.decode(): option for option in probe.info}
    finally:
        probe.finish()
    read = {}
    for name, option in options.items():
        value = (option.val or b"").decode()
        is_default = value in ("", (option.compiled or b"").decode())
        variable = os.environ.get(option.envvar.decode()) if option.envvar else None
        read[name] = _Setting(value, is_said=bool(given.get(name) or variable or not is_default))
    return read


def _is_local(hosts: str, addresses: str) -> bool:
    """Are all servers on this machine? An address decides where libpq connects to, a host only without one."""
    return all(
        not host or host.startswith(("/", "@")) or host.lower() == "localhost" or _is_loopback(host)
        for host in hosts.split(",")
    ) and all(not address or _is_loopback(address) for address in addresses.split(","))


def _is_loopback(text: str) -> bool:
    try:
        return ip_address(text).is_loopback
    except ValueError:
        return False


def _own_roots() -> Path:
    """The place where libpq looks for the issuers that a user trusts."""
    return Path.home() / ".postgresql" / "root.crt"


def _system_roots() -> str:
    """The issuers that this machine trusts; libpq's own `system` does not find them if OpenSSL came with a wheel."""
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return "system"  # OpenSSL reads these variables wherever it comes from
    return next((path for path in _BUNDLES if Path(path).is_file()), "system")
