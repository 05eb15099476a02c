"""The text of a SQL expression, cut as Spark's lexer cuts it: what is code, and what its literals say.

Guarantees depend on which functions an expression calls. So no quote, comment or escape may hide a call: each kind of
text is consumed as a whole, in the order in which Spark's lexer takes the longest match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\r\n]* )
    | (?P<block>   /\* )
    | (?P<raw>     [rR](?: '[^']*' | "[^"]*" ) )
    | (?P<string>  ' (?: [^'\\] | \\. | '' )* ' | " (?: [^"\\] | \\. | "" )* " )
    | (?P<name>    ` (?: [^`] | `` )* ` )
    | (?P<word>    \w+ )
    | (?P<other>   . )
    """,
    re.DOTALL | re.VERBOSE,
)
_BLOCK_EDGE = re.compile(r"/\*|\*/")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_PLAIN_NAME = re.compile(r"\w+")
_CALL_OR_PATH = re.compile(r"\s*[(.]")


@dataclass(frozen=True)
class SqlText:
    """An expression without its literals and comments, and its literals."""

    code: str
    """Each literal is '', and each comment a space. A quoted name that calls or qualifies has no quotes."""
    literals: tuple[str, ...]
    """What the strings say. Spark joins strings that follow each other, so they are joined here."""


@lru_cache(maxsize=4096)
def read_text(sql: str) -> SqlText:
    """Cut an expression.

    >>> read_text("`rand`() || `a'` || 'it''s' -- uuid()")
    SqlText(code="rand() || `_` || ''  ", literals=("it's",))
    >>> read_text(r"concat(r'\\', rand(), '/*')").code
    "concat('', rand(), '')"
    """
    code: list[str] = []
    literals: list[str] = []
    is_behind_literal = False
    at = 0
    while (token := _TOKEN.match(sql, at)) is not None:
        kind, text = str(token.lastgroup), token[0]
        at = token.end()
        if kind == "block":
            at = _end_of_block(sql, at)
        if kind in ("raw", "string"):
            said = text[2:-1] if kind == "raw" else _unescaped(text)
            if is_behind_literal:
                literals[-1] += said
            else:
                literals.append(said)
                code.append("''")
            is_behind_literal = True
            continue
        is_behind_literal = is_behind_literal and (kind in ("comment", "block") or text.isspace())
        if kind == "name":
            plain = text if _PLAIN_NAME.fullmatch(text[1:-1]) else "`_`"
            code.append(plain[1:-1] if _CALL_OR_PATH.match(sql, at) else plain)
        else:
            code.append(" " if kind in ("comment", "block") else text)
    return SqlText("".join(code), tuple(literals))


def _end_of_block(sql: str, at: int) -> int:
    """Where a comment ends; comments can be nested. Spark refuses one that does not end."""
    depth = 1
    while depth and (edge := _BLOCK_EDGE.search(sql, at)) is not None:
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
    return at if depth == 0 else len(sql)


def _unescaped(text: str) -> str:
    quote = text[0]

    def said(found: re.Match[str]) -> str:
        code = found[1] or found[2]
        if code is not None:
            number = int(code, 16)
            return chr(number) if number <= 0x10FFFF else "?"
        return chr(int(found[3], 8)) if found[3] is not None else found[4]

    return _ESCAPE.sub(said, text[1:-1].replace(quote * 2, quote))
