"""TLS to an MQTT broker: which issuers to trust, and our own certificate. The broker's certificate is always checked.

    tls=True                                        the issuers that this machine trusts
    tls={"ca_certs": "/etc/mqtt/ca.pem"}            only these issuers
    tls={..., "certfile": "/etc/mqtt/job.pem",      and our own certificate (mutual TLS); a key may be encrypted, and
         "keyfile": "/etc/mqtt/job.key",            its password a reference
         "keyfile_password": "env:KEY"}

The names are those of Python's MQTT client. The client sends the login only after the broker has proven its identity.
Only the driver connects, so the files must be on its machine. No setting switches a check off: such a setting is
refused by name.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from lockgate.errors import BadJob, BadMachine
from lockgate.secrets import check_reference, guarded, resolve, reveal
from lockgate.tls import new_context

NAMES = ("ca_certs", "certfile", "keyfile", "keyfile_password")
_NO_CHECK = "it switches a check off, so any server could pass for the broker and get the password"
_NO_CHOICE = "it could make the connection unsafe; TLS 1.2 and 1.3 are used, with the safe suites of this machine"
_REASONS = {
    **dict.fromkeys(("cert_reqs", "check_hostname", "insecure", "tls_insecure", "tls_insecure_set"), _NO_CHECK),
    **dict.fromkeys(("verify", "verify_hostname", "verify_mode", "reject_unauthorized"), _NO_CHECK),
    **dict.fromkeys(("ciphers", "tls_version", "ssl_version", "minimum_version"), _NO_CHOICE),
}
_DISTRUST = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "WRONG_VERSION_NUMBER", "PROTOCOL")


def check_tls(tls: bool | Mapping[str, str], where: str) -> None:
    """Refuse unknown settings, settings that switch a check off, and a key without its certificate."""
    if isinstance(tls, bool):
        return
    if not isinstance(tls, Mapping):
        raise BadJob(
            f"tls= is {type(tls).__name__}", where=where, fix='tls=True, or tls={"ca_certs": "/path/to/issuer.pem"}'
        )
    for name, value in tls.items():
        if name not in NAMES:
            why = f"is refused: {_REASONS[name]}" if name in _REASONS else "is not known"
            raise BadJob(
                f"the setting {name!r} of tls= {why}", where=where, fix=f"remove it; known are {', '.join(NAMES)}"
            )
        if not isinstance(value, str) or not value:
            raise BadJob(f"the setting {name!r} of tls= is not a text", where=where, fix=f'"{name}": "..."')
    if "certfile" not in tls and ("keyfile" in tls or "keyfile_password" in tls):
        raise BadJob("tls= names a key without its certificate", where=where, fix='add "certfile": "/path/to/it.pem"')
    check_reference(tls.get("keyfile_password", ""), where=where)


def hidden(tls: bool | Mapping[str, str]) -> bool | Mapping[str, str]:
    """The settings as a source keeps them: a password that is given as text is not shown."""
    is_text = isinstance(tls, Mapping) and isinstance(tls.get("keyfile_password"), str)
    return guarded(tls, ("keyfile_password",)) if isinstance(tls, Mapping) and is_text else tls


def make_context(tls: bool | Mapping[str, str], *, login: str, where: str) -> ssl.SSLContext:
    """The context for the client's socket.

    Args:
        login: the name of the login, for a hook.

    Raises:
        BadMachine: a file cannot be used on this machine.
    """
    given = {} if isinstance(tls, bool) else tls
    context = new_context()
    if (issuers := given.get("ca_certs")) is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cafile=issuers)
        except (OSError, ValueError) as error:
            raise _unusable("ca_certs", issuers, error, where) from None
    if (certificate := given.get("certfile")) is not None:
        password = resolve(given.get("keyfile_password", ""), login=login, where=f"keyfile_password, {where}")
        try:
            # Without a password OpenSSL would ask for one at the terminal, and wait.
            context.load_cert_chain(certificate, given.get("keyfile"), password=reveal(password))
        except (OSError, ValueError) as error:
            raise _unusable("certfile", certificate, error, where) from None
    return context


def why_distrusted(error: BaseException | None) -> str | None:
    """Why the two sides do not trust each other; None if the error means something else."""
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return reason.lower().replace("_", " ") if any(mark in reason for mark in _DISTRUST) else None


def _unusable(name: str, file: str, error: Exception, where: str) -> BadMachine:
    cause = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    if isinstance(error, ssl.SSLError) and error.reason:
        cause = error.reason.lower().replace("_", " ")
    return BadMachine(
        f"the file of {name} in tls= cannot be used: {cause}",
        where=f"{file}, {where}",
        fix="the file must be PEM and on the machine of the driver; an encrypted key needs its keyfile_password",
    )
