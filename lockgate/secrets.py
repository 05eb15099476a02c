"""Secrets by reference: a login says where its secret is, and it is read when a connection is opened.

    env:NAME               the environment variable NAME
    file:PATH              the file at this absolute path, without the line end at its end
    hook:MODULE:FUNCTION   what a function of the user's returns for the name of the login (hooks.py)
    other text             the value itself

Descriptions, plans, logs, errors and tasks hold the reference. The process that opens a connection resolves it, in the
driver or in a worker, and does not keep the value. A value that is resolved earlier would travel with every task.
Kafka's own client in a JVM does the same (provision/References.java).

A value that is given as text works too. It is a Secret from then on, which does not show itself, and `masked` hides
passwords in what people type before such a text is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from lockgate.errors import BadJob, Refused
from lockgate.hooks import PREFIX as _FROM_HOOK
from lockgate.hooks import NoSecret, ask

_FROM_ENVIRONMENT, _FROM_FILE = "env:", "file:"
_PREFIXES = (_FROM_ENVIRONMENT, _FROM_FILE, _FROM_HOOK)
_HOOK = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_BYTES_MAX = 64 * 1024
_MASK = "***"
# The time that these take is in proportion to the text, which may quote a long event.
_WORD = re.compile(r"\S+")
_BEFORE_PASSWORD = re.compile(r"://[^:@/\s]*:")
_SECRET_NAMES = (
    r"(?:(?:password|passwd|passphrase|pwd|secret|token|api_?key|credential)[\w.-]{0,64}"
    r"|private_?key|scram_(?:client|server)_key|ssl\.keystore\.key|ssl\.key\.pem)"
)
_IN_SETTING = re.compile(
    rf"({_SECRET_NAMES}(?:\s*=\s*|[\"']\s*:\s*(?=[\"'])))"
    # Without quotes it ends at a blank that has no backslash, as in libpq; elsewhere this hides too much.
    r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|(?:[^\s\\]|\\.)+)",
    re.IGNORECASE | re.DOTALL,
)
_SECRET_NAME = re.compile(rf"[\w.-]*{_SECRET_NAMES}", re.IGNORECASE)
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----)(?:[^-]|-(?!----))*")


class Secret(str):
    """Text that does not show itself in `repr`, `str` and formatted text; use `reveal` to read it.

    >>> password = Secret("wonder")
    >>> password, f"password {password}", reveal(password)
    ('***', 'password ***', 'wonder')
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Secret:
        # Of a Secret, too: Python would take what its `str` shows.
        return super().__new__(cls, str.__str__(text))

    def __repr__(self) -> str:
        return f"'{_MASK}'"

    def __str__(self) -> str:
        return _MASK

    def __format__(self, spec: str) -> str:
        return format(_MASK, spec)


def reveal(text: str) -> str:
    """The plain text of a secret; other text is plain."""
    return str.__str__(text)


def as_login(text: str) -> str:
    """A reference as it is, and a value that is given as text as a Secret."""
    return text if is_reference(text) else Secret(text)


def guarded(settings: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """A copy of settings in which those of these names do not show a value."""
    return {name: as_login(text) if name in names else text for name, text in settings.items()}


def is_reference(text: str) -> bool:
    """Does a text say where a value is, and not the value?

    >>> is_reference("env:ORDERS_DSN"), is_reference("postgresql://db.example/orders")
    (True, False)
    """
    return text.startswith(_PREFIXES)


def check_reference(text: str, *, where: str) -> None:
    """Refuse a reference that names nothing, or not the same thing on every machine; other text passes."""
    if text == _FROM_ENVIRONMENT:
        raise BadJob("env: names no environment variable", where=where, fix="write env:NAME")
    if text.startswith(_FROM_FILE) and not text.removeprefix(_FROM_FILE).startswith("/"):
        raise BadJob(
            f"{text!r} is no absolute path, and workers run in other directories than the driver",
            where=where,
            fix="write file:/the/whole/path",
        )
    if text.startswith(_FROM_HOOK) and not _HOOK.fullmatch(text.removeprefix(_FROM_HOOK)):
        raise BadJob(
            f"{text!r} names no function of a module",
            where=where,
            fix="write hook:module:function, for a function(login: str) -> str of a module that the job can import",
        )


def resolve(text: str, *, login: str, where: str) -> Secret:
    """The value that a reference leads to on this machine now; a text that is no reference is the value.

    Args:
        login: what the secret is for; a hook gets it.
    """
    check_reference(text, where=where)
    if text.startswith(_FROM_ENVIRONMENT):
        value = os.environ.get(text.removeprefix(_FROM_ENVIRONMENT), "")
        if not value:
            raise _unresolved(text, "the environment variable is not set, or is empty", where)
    elif text.startswith(_FROM_FILE):
        value = _read(text, where)
    elif text.startswith(_FROM_HOOK):
        try:
            value = reveal(ask(text, login))
        except NoSecret as error:
            raise _unresolved(text, str(error), where) from None
        if not value:
            raise _unresolved(text, "the function returned an empty text", where)
    else:
        return Secret(text)
    if "\0" in value:
        raise _unresolved(text, "it holds a zero byte", where)
    return Secret(value)


def masked(text: str) -> str:
    """A text that people typed, without the passwords in its addresses and settings; references stay.

    >>> masked("postgresql://ada:wonder@db.example/orders?sslpassword=land")
    'postgresql://ada:***@db.example/orders?sslpassword=***'
    >>> masked("host=db.example user=ada password='won der' dbname=orders")
    'host=db.example user=ada password=*** dbname=orders'
    >>> masked("sasl.password=env:ORDERS_PASSWORD")
    'sasl.password=env:ORDERS_PASSWORD'
    """
    without_keys = _PRIVATE_KEY.sub(rf"\1{_MASK}", reveal(text))
    return _IN_SETTING.sub(_mask, _WORD.sub(_mask_address, without_keys))


def masked_word(word: str) -> str:
    """A word of a command, maybe NAME=VALUE, without its passwords: all of the value if its name is that of a secret.

    >>> masked_word("password=three short words"), masked_word("dsn=host=db.example password=wonder")
    ('password=***', 'dsn=host=db.example password=***')
    """
    name, equals, value = reveal(word).partition("=")
    if equals and _SECRET_NAME.fullmatch(name):
        return f"{name}={masked_value(name, value)}"
    # A word may hold another one, as in --client=sasl.password=wonder.
    return f"{name}={masked_word(value)}" if equals and name.startswith("-") else masked(word)


def masked_value(name: str, value: str) -> str:
    """The value of a setting without its passwords: nothing of it if the name is that of a secret.

    >>> masked_value("password", "three short words"), masked_value("dsn", "host=db.example password=wonder")
    ('***', 'host=db.example password=***')
    """
    if not _SECRET_NAME.fullmatch(name):
        return masked(value)
    return value if is_reference(value.strip("'\"")) else _MASK


def _mask_address(found: re.Match[str]) -> str:
    """An address, in which all from the first colon behind the user to the last @ is the password."""
    head, at, rest = found[0].rpartition("@")
    before = _BEFORE_PASSWORD.search(head)
    return f"{head[: before.end()]}{_MASK}{at}{rest}" if at and before else found[0]


def _mask(found: re.Match[str]) -> str:
    return found[0] if is_reference(found[2].strip("'\"")) else f"{found[1]}{_MASK}"


def _read(reference: str, where: str) -> str:
    try:
        with Path(reference.removeprefix(_FROM_FILE)).open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise _unresolved(reference, f"the file cannot be read: {error.strerror}", where) from None
    if len(content) > _BYTES_MAX:
        raise _unresolved(reference, f"the file has more than {_BYTES_MAX // 1024} kB, so it is no secret", where)
    try:
        value = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _unresolved(reference, "the file is not UTF-8", where) from None
    if not value:
        raise _unresolved(reference, "the file is empty", where)
    return value


def _unresolved(reference: str, why: str, where: str) -> Refused:
    return Refused(
        f"{reference} leads to no value on this machine: {why}",
        where=where,
        fix="provide it wherever the job opens connections: on the machine of the driver and on those of the workers",
    )
