"""Secrets by reference: a login says where its secret is, and it is read when a connection is opened.

    env:NAME     the environment variable NAME
    file:PATH    the file at this absolute path, without the line end at its end
    other text   the value itself

Descriptions, plans, logs, errors and tasks hold the reference. The process that opens a connection resolves it, in the
driver or in a worker, and does not keep the value. A value that is resolved earlier would travel with every task.

What people type may hold a password all the same. `masked` hides it before such a text is shown.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lockgate.errors import BadJob, Refused

_FROM_ENVIRONMENT, _FROM_FILE = "env:", "file:"
_BYTES_MAX = 64 * 1024
_MASK = "***"
_IN_ADDRESS = re.compile(r"(://[^:@/\s]*:)\S*@")
_IN_SETTING = re.compile(
    r"(\w*(?:password|passwd|secret)\w*\s*=\s*)('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s&;]+)", re.IGNORECASE
)


def is_reference(text: str) -> bool:
    """Does a text say where a value is, and not the value?

    >>> is_reference("env:ORDERS_DSN"), is_reference("postgresql://db.example/orders")
    (True, False)
    """
    return text.startswith((_FROM_ENVIRONMENT, _FROM_FILE))


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


def resolve(text: str, *, where: str) -> str:
    """The value that a reference leads to on this machine now; a text that is no reference is the value."""
    check_reference(text, where=where)
    if text.startswith(_FROM_ENVIRONMENT):
        value = os.environ.get(text.removeprefix(_FROM_ENVIRONMENT), "")
        if not value:
            raise _unresolved(text, "the environment variable is not set, or is empty", where)
    elif text.startswith(_FROM_FILE):
        value = _read(text, where)
    else:
        return text
    if "\0" in value:
        raise _unresolved(text, "it holds a zero byte", where)
    return value


def masked(text: str) -> str:
    """A text that people typed, without the passwords in its addresses and settings.

    >>> masked("postgresql://ada:wonder@db.example/orders?sslpassword=land")
    'postgresql://ada:***@db.example/orders?sslpassword=***'
    >>> masked("host=db.example user=ada password='won der' dbname=orders")
    'host=db.example user=ada password=*** dbname=orders'
    """
    return _IN_SETTING.sub(rf"\1{_MASK}", _IN_ADDRESS.sub(rf"\1{_MASK}@", text))


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
