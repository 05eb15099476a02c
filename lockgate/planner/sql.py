"""What can be known about a SQL expression without a JVM: its columns, its aggregates, and whether it can be replayed.

Only what sqlglot parses is judged. Before anything runs, Spark's analyser checks what sqlglot cannot read. So a refusal
from here is always right, and silence is not a promise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lockgate.planner.functions import AGGREGATES, CHANGING, STEADY, WINDOWING
from lockgate.planner.sqltext import SqlText, read_text

_CALL = re.compile(r"((?:\w+\s*\.\s*)*)\b(\w+)\s*\(")
_BUILT_IN = re.compile(r"(system\s*\.\s*)?builtin\s*\.\s*", re.IGNORECASE)
# Spark reads these words as moments, and does not keep with an epoch which moments they were.
_MOMENT = re.compile(r"\s*(now|today|tomorrow|yesterday)\b\s*\S*\s*", re.IGNORECASE)
_OF_TIME = re.compile(r"\b(date|timestamp\w*|cast|try_cast|(try_)?to_date|(try_)?to_timestamp\w*)\b|::", re.IGNORECASE)
# With a precision, Spark reads the clock again when an epoch is repeated.
_PRECISE_CLOCK = re.compile(r"\b(current_timestamp|localtimestamp)\s*\(\s*[^\s)]", re.IGNORECASE)
_GENERATOR_CALL = re.compile(
    r"\b(explode|explode_outer|posexplode|posexplode_outer|inline|inline_outer|stack|variant_explode\w*)\s*\(",
    re.IGNORECASE,
)
_OVER = re.compile(r"\)\s*over\s*[(\w]", re.IGNORECASE)
_LIKE_BEFORE = re.compile(r"\bi?like\s*$", re.IGNORECASE)  # `any` and `some` stand there for one of several patterns
# A text that is compared for equality, or is in a list of texts, is mostly a text.
_COMPARED_BEFORE = re.compile(r"(<=>|<>|!=|(?<![<>=!])==?|\bin\s*\(\s*(''\s*,\s*)*)\s*$", re.IGNORECASE)
_COMPARED_BEHIND = re.compile(r"\s*(<=>|<>|!=|==?(?!>))")
# The result of a query may change between an epoch and its replay.
_QUERY = re.compile(r"(?<![.\w`])(select)\b(?!\s*\.)|\(\s*(with|values|table|from)\s+[\w(]", re.IGNORECASE)

# Adding the same event a second time leaves these as they were.
_IDEMPOTENT = frozenset(
    {
        "MAX",
        "MIN",
        "BIT_AND",
        "BIT_OR",
        "BITWISE_AND_AGG",
        "BITWISE_OR_AGG",
        "BOOL_AND",
        "BOOL_OR",
        "EVERY",
        "SOME",
        "ANY",
    }
    | {"LOGICAL_AND", "LOGICAL_OR", "APPROX_COUNT_DISTINCT", "APPROX_DISTINCT", "COLLECT_SET", "ARRAY_UNIQUE_AGG"}
)

# Spark reads these as functions if no column has the name.
_WITHOUT_BRACKETS = re.compile(
    r"(?<![.\w])(?<!\bas )(user|session_user|current_user|current_path|current_time|localtime)\b(?!`?\s*(?:\.|\(|=>))",
    re.IGNORECASE,
)

# These give the time that Spark keeps with an epoch, if a query computes them. A batch of its rows has another time.
_EPOCH_CLOCK = re.compile(
    r"\b(current_timestamp|current_date|curdate|localtimestamp)\b|\bunix_timestamp\s*\(\s*\)", re.IGNORECASE
)

# Words that may stand before a bracket and are in no list of functions: words of the grammar, types, and words of which
# Spark's parser makes other functions.
_GRAMMAR = """
    all as asc both by char character cross dec desc distinct else end escape filter following for from group having
    interval is leading nulls numeric on order over overlay partition placing preceding range rows then timestamp_ltz
    timestamp_ntz timestampadd timestampdiff timediff trailing try_cast using values varchar where with within
"""
_OF_THE_GRAMMAR = frozenset(_GRAMMAR.split())


@dataclass(frozen=True)
class Facts:
    """What an expression uses."""

    columns: frozenset[str]
    functions: frozenset[str]
    is_aggregate: bool
    is_distinct: bool  # an aggregate over distinct values, which Spark does not have in a stream


@lru_cache(maxsize=2048)
def read_expression(sql: str) -> Facts | None:
    """The facts of an expression, or None if only Spark can find them."""
    tree = parse_sql(sql)
    if tree is None or any(isinstance(node, exp.Query | exp.Star) and not _is_count_star(node) for node in tree.walk()):
        return None
    bound = {parameter.name.lower() for node in tree.find_all(exp.Lambda) for parameter in node.expressions}
    # `a.b` is field b of column a: what must exist is the first part.
    columns = {node.parts[0].name for node in tree.find_all(exp.Column) if not _is_no_column(node)}
    free = {name for name in columns if name.lower() not in bound}
    return Facts(
        columns=frozenset(free - find_bare(sql)),
        functions=frozenset(_function_name(node) for node in tree.find_all(exp.Func, exp.Any)),
        is_aggregate=any(_is_aggregate(node) for node in tree.walk()),
        is_distinct=tree.find(exp.Distinct) is not None,
    )


def find_bare(sql: str) -> frozenset[str]:
    """The names in an expression that Spark reads as functions if no column has them.

    >>> find_bare("user = struct(current_user() AS user, a.user)"), find_bare("to_json(struct(*, current_time))")
    (frozenset({'user'}), frozenset({'current_time'}))
    """
    code = read_text(sql).code
    return frozenset() if _QUERY.search(code) else frozenset(found[1] for found in _WITHOUT_BRACKETS.finditer(code))


def reads_epoch_clock(sql: str) -> bool:
    """Does the expression ask for the time that Spark keeps with an epoch?

    >>> reads_epoch_clock("at < current_timestamp()"), reads_epoch_clock("unix_timestamp(at)")
    (True, False)
    """
    return _EPOCH_CLOCK.search(read_text(sql).code) is not None


@lru_cache(maxsize=2048)
def find_nondeterministic(sql: str) -> str | None:
    """What gives another result in a replay, if the expression has such a thing: a function by its name, or a moment.

    A guarantee depends on it. So the text itself is searched, without the names that a parser gives. Doubt counts as
    not deterministic. A function that Spark does not have is the user's own, and could be anything. Text that may be a
    moment is one, unless it is compared with something: Spark's analyser knows the types (`find_changing`).

    >>> find_nondeterministic("price * rand()"), find_nondeterministic("DATE'today'"), find_nondeterministic("max(n)")
    ('RAND', "'today'", None)
    """
    if (found := find_changing(sql)) is not None:
        return found
    text = read_text(sql)
    if (query := _QUERY.search(text.code)) is not None:
        return str(query[1] or query[2]).upper()
    if (moment := next(_moments(text), None)) is not None:
        return moment
    known = STEADY | _OF_THE_GRAMMAR
    for call in _CALL.finditer(text.code):
        is_ours = not call[1] or _BUILT_IN.fullmatch(call[1]) is not None
        if not is_ours or call[2].lower() not in known:
            return call[2].upper()
    return None


def find_changing(sql: str) -> str | None:
    """A built-in function that is not steady, or a moment, in an expression with all casts written out.

    >>> find_changing("localtime(3)"), find_changing("at < CAST('now' AS TIMESTAMP)"), find_changing("name < 'now'")
    ('LOCALTIME', "'now'", None)
    """
    text = read_text(sql)
    called = (call[2].lower() for call in _CALL.finditer(text.code))
    if (changing := next((name.upper() for name in called if name in CHANGING), None)) is not None:
        return changing
    if (clock := _PRECISE_CLOCK.search(text.code)) is not None:
        return clock[1].upper()
    moments = (one for one in text.literals if _MOMENT.fullmatch(one))
    return next((f"'{one}'" for one in moments if _OF_TIME.search(text.code)), None)


def _moments(text: SqlText) -> Iterator[str]:
    """The literals that Spark would read as a moment, if it had to."""
    places = re.finditer("''", text.code)
    for place, literal in zip(places, text.literals, strict=True):
        before, behind = text.code[: place.start()], text.code[place.end() :]
        if _MOMENT.fullmatch(literal) and not (_COMPARED_BEFORE.search(before) or _COMPARED_BEHIND.match(behind)):
            yield f"'{literal}'"


def find_over_rows(sql: str) -> str | None:
    """A function that looks at several rows, in an expression: an aggregate, or one `OVER` a window; None if none does.

    >>> find_over_rows("1 + count(*)"), find_over_rows("row_number() OVER (ORDER BY at)"), find_over_rows("f(x) over w")
    ('COUNT', 'ROW_NUMBER', 'OVER')
    >>> find_over_rows("greatest(a, b)"), find_over_rows("name LIKE ANY ('a%', 'b%')")
    (None, None)
    """
    code = read_text(sql).code
    if _QUERY.search(code):
        return None  # its rows are others
    for call in _CALL.finditer(code):
        name, is_ours = call[2].lower(), not call[1] or _BUILT_IN.fullmatch(call[1]) is not None
        if is_ours and name in AGGREGATES | WINDOWING and not _LIKE_BEFORE.search(code[: call.start()]):
            return name.upper()
    return "OVER" if _OVER.search(code) else None


def makes_rows(sql: str) -> bool:
    """Does an expression make several rows of one?

    >>> makes_rows("explode(parts)"), makes_rows("concat('explode(', k)")
    (True, False)
    """
    return _GENERATOR_CALL.search(read_text(sql).code) is not None


@lru_cache(maxsize=2048)
def is_idempotent_aggregate(sql: str) -> bool:
    """Is every aggregate of the expression one that a repeated event does not change?

    >>> is_idempotent_aggregate("max(temperature)"), is_idempotent_aggregate("max(a) + count(*)")
    (True, False)
    """
    tree = parse_sql(sql)
    # A function that sqlglot does not know could be anything.
    if tree is None or not all(_is_aggregate(node) for node in tree.find_all(exp.Anonymous)):
        return False
    aggregates = [_function_name(node) for node in tree.walk() if _is_aggregate(node)]
    return bool(aggregates) and set(aggregates) <= _IDEMPOTENT


@dataclass(frozen=True)
class Fold:
    """A rolling aggregate: a function folded over the values of an expression."""

    function: str  # sum, min, max, avg or count
    argument: str | None  # None for count(*)


_FOLDS: dict[type[exp.Expr], str] = {
    exp.Sum: "sum",
    exp.Min: "min",
    exp.Max: "max",
    exp.Avg: "avg",
    exp.Count: "count",
}


@lru_cache(maxsize=2048)
def read_fold(sql: str) -> Fold | None:
    """The fold of a rolling aggregate, or None if it is none of sum, min, max, avg and count."""
    tree = parse_sql(sql)
    name = _FOLDS.get(type(tree)) if tree is not None else None
    if tree is None or name is None:
        return None
    inner = tree.this
    if isinstance(inner, exp.Distinct) or tree.expressions or (inner and inner.find(exp.AggFunc)):
        return None
    if inner is None or isinstance(inner, exp.Star):
        return Fold(function=name, argument=None) if name == "count" else None
    # The user's own text: a rendering could mean something else to Spark.
    return Fold(function=name, argument=sql[sql.index("(") + 1 : sql.rindex(")")].strip())


def parse_sql(sql: str) -> exp.Expr | None:
    """The tree of an expression, or None if only Spark can read it."""
    try:
        return sqlglot.parse_one(sql, read="spark")
    except SqlglotError:
        return None


def _function_name(node: exp.Expr) -> str:
    if isinstance(node, exp.Any):
        return "ANY"
    return (node.name if isinstance(node, exp.Anonymous) else node.sql_name()).upper()  # type: ignore[attr-defined]


def _is_aggregate(node: exp.Expr) -> bool:
    # `any(x)` is an aggregate, `like any (...)` is none.
    is_quantifier = isinstance(node.parent, exp.Binary) and node.arg_key == "expression"
    if isinstance(node, exp.Any | exp.Anonymous):
        return _function_name(node) in _IDEMPOTENT and not is_quantifier
    return isinstance(node, exp.AggFunc)


def _is_no_column(node: exp.Column) -> bool:
    if isinstance(node.this, exp.Star):
        return True
    # timediff(HOUR, a, b): the first word is a unit. sqlglot knows that only for the other functions of this kind.
    call = node.parent
    return isinstance(call, exp.Anonymous) and call.name.upper() == "TIMEDIFF" and call.expressions[0] is node


def _is_count_star(node: exp.Expr) -> bool:
    return isinstance(node, exp.Star) and isinstance(node.parent, exp.Count)
