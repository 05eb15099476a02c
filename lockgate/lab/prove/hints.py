"""Hints: what the job itself says about the values of its columns, so that made-up events can meet its conditions.

    SQL          what a column is compared with, patterns that it has to be like, `IS NULL`
    functions    the numbers and texts that are written in a function that reads the column; of texts, which a function
                 may split, look for or match, values are put together

A hint is a value, or None for a column that may be null. A condition may still not hold: a job whose
answer is empty proves nothing, and the proof says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.steps import FlatMap, Map, Part, Process, Step, Where, WindowApply
from lockgate.lab.prove.samples import is_expression, samples

_COMPARED = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between, exp.Is)
_ALIKE = (exp.Like, exp.ILike)
_EXPRESSIONS = (exp.RegexpLike, exp.RegexpILike, exp.RegexpExtract)
_TEXT_MAX = 40  # a longer one is a message rather than something to look for
_PIECES_MAX = 8


def hints_in_sql(sql: str) -> Iterator[tuple[str, Any]]:
    """The columns of an expression, in lower case, with values at which it may turn."""
    try:
        tree = sqlglot.parse_one(sql, read="spark")
    except SqlglotError:
        return
    for node in tree.find_all(*_COMPARED, *_ALIKE, *_EXPRESSIONS):
        sides = [one for one in node.iter_expressions() if isinstance(one, exp.Expression)]
        for column in (one for one in sides if isinstance(one, exp.Column)):
            for one in sides:
                for value in _values(node, one):
                    yield column.name.lower(), value


def _values(node: object, side: exp.Expression) -> Sequence[Any]:
    if isinstance(side, exp.Null):
        return (None,)
    if isinstance(side, exp.Neg) and isinstance(side.this, exp.Literal) and not side.this.is_string:
        return (-float(side.this.name),)
    if not isinstance(side, exp.Literal):
        return ()
    if not side.is_string:
        return () if isinstance(node, _EXPRESSIONS) else (float(side.name),)
    if isinstance(node, _EXPRESSIONS):
        return samples(side.name)
    if isinstance(node, _ALIKE):
        return tuple(side.name.replace("_", "x").replace("%", filler) for filler in ("", "ab", " 7 "))
    return (side.name,)


def hints_in_functions(step: Step, columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Those of the columns, in lower case, that a function of the step reads, with what is written in it."""
    for function in _functions(step):
        codes = [*_codes(function, set())]
        names = {name for code in codes for name in code.co_names}
        written = [one for code in codes for one in _flat(code.co_consts)]
        numbers = [float(one) for one in written if isinstance(one, int | float) and not isinstance(one, bool)]
        read = [name for name in columns if name in {str(one).lower() for one in (*names, *written)}]
        texts = [one for one in written if isinstance(one, str) and 0 < len(one) <= _TEXT_MAX]
        pieces = [*dict.fromkeys(one for one in texts if one.lower() not in columns)][:_PIECES_MAX]
        for name in read:
            for value in (*dict.fromkeys(numbers), *put_together(pieces, name)):
                yield name, value


def put_together(pieces: Sequence[str], word: str) -> Iterator[str]:
    """Texts that could be split at each piece, looked for in it, or matched by it."""
    for piece in pieces:
        yield piece
        yield f"{word}-00{piece}{word}-01"
        yield from (f"{other}{piece}{word}-02" for other in pieces if other != piece)
        if is_expression(piece):
            yield from samples(piece)


def _functions(step: Step) -> Iterator[FunctionType]:
    if isinstance(step, Map | FlatMap | WindowApply) and isinstance(step.function, FunctionType):
        yield step.function
    elif isinstance(step, FanOut):
        yield from (one for one in step.functions.values() if isinstance(one, FunctionType))
    elif isinstance(step, Where | Part) and isinstance(step.condition, FunctionType):
        yield step.condition
    elif isinstance(step, Process):
        yield from (one for one in vars(type(step.function)).values() if isinstance(one, FunctionType))


def _codes(function: FunctionType, seen: set[int]) -> Iterator[CodeType]:
    """The code of a function, of those inside of it, and of those of its module that it calls."""
    if id(function) in seen:
        return
    seen.add(id(function))
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        yield code.replace(co_consts=tuple(one for one in code.co_consts if not _is_docstring(one, function)))
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
        for name in code.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and called.__module__ == function.__module__:
                yield from _codes(called, seen)


def _is_docstring(constant: object, function: FunctionType) -> bool:
    return isinstance(constant, str) and constant == function.__doc__


def _flat(constants: Sequence[Any]) -> Iterator[Any]:
    for one in constants:
        if isinstance(one, tuple | frozenset):
            yield from _flat(tuple(sorted(one, key=repr)) if isinstance(one, frozenset) else one)
        else:
            yield one
