"""Make texts that a regular expression matches: read the expression, make a text, and try it.

This reads the syntax that Python and Java share: characters, classes, groups, alternatives, repetitions, anchors. For
anything else, and for an expression that does not match its text, there are no samples.
"""

from __future__ import annotations

import random
import re

SAMPLES = 6

_CLASSES = {"w": "abcxyz019", "d": "0123456789", "s": " ", "S": "abcxyz", "D": "abcxyz", "W": "-.!"}
_NOTHING = frozenset("bBAzZG")  # places, which have no characters
_SIGNS = {"n": "\n", "t": "\t", "r": "\r"}
_ANY = "abcdefxyz0123456789"
_SPECIAL = re.compile(r"[\\\[(|*+?{^$]")
_NAME = re.compile(r"P?<\w+>")
_SPAN = re.compile(r"-([^\]\\])")
_SPAN_MAX = 200
_REPEATED = re.compile(r"(\*|\+|\?|\{(\d+)(,?)(\d*)\})[?+]?")
_MORE = 3  # so many beyond the fewest, where there is no end


def is_expression(text: str) -> bool:
    """Does it say more than its own characters?"""
    return _SPECIAL.search(text) is not None and bool(samples(text))


def samples(expression: str) -> tuple[str, ...]:
    """Some texts in which it finds something, one of them twice; always the same ones."""
    try:
        known = re.compile(expression)
        maker = _Maker(expression, random.Random(expression))
        made = [maker.text() for _ in range(SAMPLES)]
    except (re.error, _Unreadable, OverflowError):
        return ()
    return tuple(dict.fromkeys(one for one in (*made, " ".join(made[:2])) if known.search(one)))


class _Unreadable(Exception):
    """Something that is not read here."""


class _Maker:
    """Makes texts while it reads the expression."""

    def __init__(self, expression: str, rng: random.Random) -> None:
        self._expression, self._rng, self._at = expression, rng, 0

    def text(self) -> str:
        self._at = 0
        made = self._choice()
        if self._at < len(self._expression):
            raise _Unreadable
        return made

    def _choice(self) -> str:
        ways = [self._row()]
        while self._next("|"):
            ways.append(self._row())
        return self._rng.choice(ways)

    def _row(self) -> str:
        made = ""
        while self._at < len(self._expression) and self._expression[self._at] not in "|)":
            begin = self._at
            one = self._one()
            behind = self._at
            fewest, most = self._repeated()
            end = self._at
            count = self._rng.randint(fewest, most)
            if count == 0:
                one = ""
            for _ in range(count - 1):
                self._at = begin
                one += self._one()
                assert self._at == behind
            self._at = end
            made += one
        return made

    def _one(self) -> str:
        sign = self._take()
        if sign in "^$":
            return ""
        if sign == ".":
            return self._rng.choice(_ANY)
        if sign == "(":
            if self._next("?"):
                self._head()
            made = self._choice()
            if not self._next(")"):
                raise _Unreadable
            return made
        if sign == "[":
            return self._rng.choice(self._class())
        if sign == "\\":
            return self._escaped()
        if sign in "*+?{":
            raise _Unreadable
        return sign

    def _head(self) -> None:
        """The beginning of a group that only groups, or has a name."""
        if self._next(":"):
            return
        named = _NAME.match(self._expression, self._at)
        if named is None:
            raise _Unreadable
        self._at = named.end()

    def _escaped(self) -> str:
        sign = self._take()
        if sign in _NOTHING:
            return ""
        if sign in _CLASSES:
            return self._rng.choice(_CLASSES[sign])
        if sign.isalnum() and sign not in _SIGNS:
            raise _Unreadable
        return _SIGNS.get(sign, sign)

    def _class(self) -> str:
        is_negated = self._next("^")
        inside = ""
        while not (inside and self._next("]")):
            sign = self._take()
            span = _SPAN.match(self._expression, self._at)
            if sign == "\\":
                sign = self._take()
                inside += _CLASSES.get(sign, _SIGNS.get(sign, sign))
            elif span is not None:
                self._at = span.end()
                inside += "".join(map(chr, range(ord(sign), min(ord(span[1]), ord(sign) + _SPAN_MAX) + 1)))
            else:
                inside += sign
        allowed = "".join(one for one in f"{_ANY} -.#" if one not in inside) if is_negated else inside
        if not allowed:
            raise _Unreadable
        return allowed

    def _repeated(self) -> tuple[int, int]:
        told = _REPEATED.match(self._expression, self._at)
        if told is None:
            return 1, 1
        self._at = told.end()
        if told[2] is None:
            return {"*": (0, _MORE), "+": (1, 1 + _MORE), "?": (0, 1)}[told[1]]
        fewest = int(told[2])
        most = int(told[4]) if told[4] else fewest + _MORE if told[3] else fewest
        return fewest, min(most, fewest + _MORE)

    def _take(self) -> str:
        if self._at >= len(self._expression):
            raise _Unreadable
        self._at += 1
        return self._expression[self._at - 1]

    def _next(self, sign: str) -> bool:
        is_there = self._expression.startswith(sign, self._at)
        self._at += is_there
        return is_there
