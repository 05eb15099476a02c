"""A login in Java's form, `sasl.jaas.config`: parsed strictly, because it names a class that the JVM loads.

    MODULE required username="..." password="...";

It has one module, one of Kafka's own two (PLAIN and SCRAM), and the two options, each once. Anything else is refused:
another module is foreign code, and a text that only resembles this form may mean something else to Java.

No error shows any part of the text, because it may contain a password. For Java, Lockgate writes the text again from
the parsed login (references.py). If the password is a reference, Java gets the reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lockgate.errors import BadJob
from lockgate.secrets import as_login, check_reference

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_SHADED = "kafkashaded."  # one vendor's Spark names the same classes with this prefix
MODULES = {"PLAIN": _PLAIN, "SCRAM-SHA-256": _SCRAM, "SCRAM-SHA-512": _SCRAM}
"""The login module of each mechanism."""

# Kafka reads a login with Java's StreamTokenizer: quotes of both kinds, and backslashes as in C.
_TOKEN = re.compile(
    r"""\s*(?: "(?P<double>(?:\\.|[^"\\\r\n])*)" | '(?P<single>(?:\\.|[^'\\\r\n])*)'
          | (?P<word>[A-Za-z_$][\w$.-]*) | (?P<sign>[=;]) )\s*""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|.)", re.DOTALL)
_CONTROL = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True)
class Login:
    """A user and a password; each of them may be a reference."""

    user: str
    password: str = field(repr=False)
    module: str = ""


def find_login(given: Mapping[str, str], where: str) -> Login | None:
    """The login in settings, from sasl.username and sasl.password or from sasl.jaas.config; None if there is none.

    >>> find_login({"sasl.mechanism": "PLAIN", "sasl.username": "bob", "sasl.password": "env:WORD"}, "here")
    Login(user='bob', module='org.apache.kafka.common.security.plain.PlainLoginModule')
    """
    apart = [name for name in ("sasl.username", "sasl.password") if name in given]
    if "sasl.jaas.config" in given:
        if apart:
            raise BadJob(
                f"sasl.jaas.config and {apart[0]} say the same thing twice", where=where, fix="keep one of them"
            )
        return read_login(given["sasl.jaas.config"], given["sasl.mechanism"], where)
    if not apart:
        return None
    if len(apart) == 1 or not all(given[name] for name in apart):
        raise BadJob(
            "sasl.username and sasl.password belong together, but one of them is missing or empty",
            where=where,
            fix='"sasl.username": "...", "sasl.password": "env:NAME"',
        )
    return Login(given["sasl.username"], as_login(given["sasl.password"]), MODULES[given["sasl.mechanism"]])


def read_login(text: str, mechanism: str, where: str) -> Login:
    """The login in a text; BadJob if it is not one of the two modules with exactly its two options.

    >>> module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    >>> read_login(f"{module} required username=bob password='s3cret';", "PLAIN", "here")
    Login(user='bob', module='org.apache.kafka.common.security.plain.PlainLoginModule')
    """
    module, options = _parse(text, where)
    expected = MODULES[mechanism]
    pattern = f'{expected} required username="..." password="...";'
    if module not in (expected, _SHADED + expected):
        is_ours = module.removeprefix(_SHADED) in MODULES.values()
        raise BadJob(
            f"sasl.jaas.config names the login module {module}, which is not for sasl.mechanism={mechanism}"
            if is_ours
            else f"sasl.jaas.config names the login module {module}: the JVM would load that class, and give it the"
            " password",
            where=where,
            fix=f"{pattern} or another sasl.mechanism" if is_ours else f"use Kafka's own: {pattern}",
        )
    names = [name for name, _ in options]
    other = [name for name in names if name not in ("username", "password")]
    if other:
        what = f"sasl.jaas.config has the option {other[0]!r}, which is not known here"
    elif sorted(names) != ["password", "username"]:
        what = "sasl.jaas.config does not hold username and password once each"
    else:
        found = dict(options)
        for value in found.values():
            check_reference(value, where=where)
        return Login(found["username"], as_login(found["password"]), module)
    raise BadJob(what, where=where, fix=pattern)


def write_login(module: str, user: str, password: str) -> str:
    """The text that Java reads as this login; both values come from `quoted`."""
    return f'{module} required username="{user}" password="{password}";'


def quoted(value: str) -> str:
    """A value as it is written between double quotes.

    >>> print(quoted('say "hi"'))
    say \\"hi\\"
    """
    return "".join(
        f"\\{character}" if character in '"\\' else f"\\{ord(character):03o}" if character < " " else character
        for character in value
    )


def _parse(text: str, where: str) -> tuple[str, list[tuple[str, str]]]:
    """The module and the options of `module flag name=value ... ;`."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(text) and (match := _TOKEN.match(text, at)):
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind] if kind in ("word", "sign") else _ESCAPED.sub(_unescape, match[kind])))
        at = match.end()
    words, last = tokens[:-1], tokens[-1:]
    names, signs, values = words[2::3], words[3::3], words[4::3]
    is_well_formed = (
        at == len(text)
        and last == [("sign", ";")]
        and [kind for kind, _ in words[:2]] == ["word", "word"]
        and len(names) == len(values)
        and all(kind == "word" for kind, _ in names)
        and all(sign == ("sign", "=") for sign in signs)
        and all(kind != "sign" for kind, _ in values)
        and words[1][1].lower() in ("required", "requisite", "sufficient", "optional")
    )
    if not is_well_formed:
        raise BadJob(
            "sasl.jaas.config is not one login module in Java's form (it is not shown: it contains a password)",
            where=where,
            fix='module required username="..." password="..."; with a backslash before each quote and backslash '
            "inside of a value, and a semicolon at the end",
        )
    return words[0][1], [(name, value) for (_, name), (_, value) in zip(names, values, strict=True)]


def _unescape(match: re.Match[str]) -> str:
    text = match[1]
    return chr(int(text, base=8)) if text[0] in "01234567" else _CONTROL.get(text, text)
