"""The catalogue: every function and expression that a random job may use.

Each entry has the text that goes into the job (`text`: SQL, or a Python expression over `row`, with `{0}`, `{1}` for
its columns) and, independently, its `meaning` in plain Python on the values of those columns. An entry that is not
deterministic has no meaning: it may give any value of its type (a condition: true or false).

SQL null rules: an entry whose `meaning` gets None for any column gives None, unless `takes_null`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ANY = "ANY"
"""A column type that a parameter may have: each of the four."""


@dataclass(frozen=True)
class Entry:
    """One expression: what the job says, and what it means."""

    text: str
    takes: tuple[str, ...]  # the types of its columns
    type: str  # what it gives
    meaning: Callable[..., Any] | None
    takes_null: bool = False
    can_raise: bool = False  # ZeroDivisionError, in the job as in the meaning
    is_of_epoch: bool = False  # may give any value, but the same if its epoch is repeated
    weight: int = 1  # how often it is drawn, beside the others of its table

    @property
    def is_deterministic(self) -> bool:
        """Does it give the same again for the same values, in an epoch that is repeated?"""
        return self.meaning is not None or self.is_of_epoch

    def of(self, *values: Any) -> Any:
        """What it means for these values of its columns, by the rules for null."""
        assert self.meaning is not None
        return None if not self.takes_null and None in values else self.meaning(*values)


B, S, T, BOOL, D = "BIGINT", "STRING", "TIMESTAMP", "BOOLEAN", "DOUBLE"


def rounded(value: float) -> float:
    """A fraction as far as it counts: sums of them are rounded, and the order of addition may differ."""
    return float(f"{value:.9g}")


SQL: dict[str, Entry] = {
    "one": Entry("CAST(1 AS BIGINT)", (), B, lambda: 1),
    "twice": Entry("{0} * 2", (B,), B, lambda a: a + a),
    "plus_one": Entry("{0} + 1", (B,), B, lambda a: a + 1),
    "bucket": Entry("pmod({0}, 3)", (B,), B, lambda a: a % 3),
    "sum_of": Entry("{0} + {1}", (B, B), B, lambda a, b: a + b),
    "or_zero": Entry("coalesce({0}, CAST(0 AS BIGINT))", (B,), B, lambda a: 0 if a is None else a, takes_null=True),
    "upper": Entry("upper({0})", (S,), S, lambda a: a.upper()),
    "label": Entry("concat({0}, '-', CAST({1} AS STRING))", (S, B), S, lambda a, b: f"{a}-{b}"),
    "is_even": Entry("{0} % 2 = 0", (B,), BOOL, lambda a: a % 2 == 0),
    "epoch_time": Entry("current_timestamp()", (), T, None, is_of_epoch=True),
    # Not deterministic
    "noise": Entry("CAST(rand() * 1000000 AS BIGINT)", (), B, None),
    "jitter": Entry("CAST({0} * (1 + randn()) AS BIGINT)", (B,), B, None),
    "fresh_id": Entry("uuid()", (), S, None),
    "row_number": Entry("monotonically_increasing_id()", (), B, None),
    "place": Entry("CAST(spark_partition_id() AS BIGINT)", (), B, None),
    "sealed": Entry("hex(aes_encrypt({0}, '0123456789abcdef'))", (S,), S, None, weight=3),
    "clock": Entry("CAST(current_time AS STRING)", (), S, None, weight=3),
}
"""Values in SQL."""

CONDITIONS: dict[str, Entry] = {
    "small": Entry("{0} < 5", (B,), BOOL, lambda a: a < 5),
    "large": Entry("{0} >= 5", (B,), BOOL, lambda a: a >= 5),
    "even": Entry("{0} % 2 = 0", (B,), BOOL, lambda a: a % 2 == 0),
    "not_c": Entry("{0} <> 'c'", (S,), BOOL, lambda a: a != "c"),
    "present": Entry("{0} IS NOT NULL", (ANY,), BOOL, lambda a: a is not None, takes_null=True),
    "absent": Entry("{0} IS NULL", (ANY,), BOOL, lambda a: a is None, takes_null=True),
    # Not deterministic
    "coin": Entry("rand() < 0.5", (), BOOL, None),
    "coin_above": Entry("{0} + rand() * 10 > 8", (B,), BOOL, None),
    "coin_by_id": Entry("uuid() < '8'", (), BOOL, None),
}
"""Conditions in SQL."""

PYTHON: dict[str, Entry] = {
    "py_one": Entry("1", (), B, lambda: 1),
    "py_twice": Entry("None if row.{0} is None else row.{0} * 2", (B,), B, lambda a: a + a),
    "py_bucket": Entry("None if row.{0} is None else row.{0} % 3", (B,), B, lambda a: a % 3),
    "py_or_zero": Entry("row.{0} or 0", (B,), B, lambda a: 0 if a is None else a, takes_null=True),
    "py_lower": Entry("None if row.{0} is None else row.{0}.lower()", (S,), S, lambda a: a.lower()),
    "py_label": Entry(
        "None if None in (row.{0}, row.{1}) else row.{0} + '-' + str(row.{1})", (S, B), S, lambda a, b: f"{a}-{b}"
    ),
    "py_share": Entry(
        "None if row.{0} is None else 12 // (row.{0} - 7)", (B,), B, lambda a: 12 // (a - 7), can_raise=True
    ),
    # Not deterministic
    "py_noise": Entry("random.randrange(1000000)", (), B, None),
    "py_fresh_id": Entry("str(uuid.uuid4())", (), S, None),
}
"""Values in Python, for `Map` and `FanOut`."""

PYTHON_CONDITIONS: dict[str, Entry] = {
    "py_small": Entry("row.{0} is not None and row.{0} < 5", (B,), BOOL, lambda a: a < 5),
    "py_large": Entry("row.{0} is not None and row.{0} >= 5", (B,), BOOL, lambda a: a >= 5),
    "py_has_share": Entry(
        "row.{0} is not None and 12 // (row.{0} - 7) > 0", (B,), BOOL, lambda a: 12 // (a - 7) > 0, can_raise=True
    ),
    # Not deterministic
    "py_coin": Entry("random.random() < 0.5", (), BOOL, None),
}
"""Conditions in Python."""

LISTS: dict[str, Entry] = {
    "both": Entry("[row.{0}, None if row.{0} is None else row.{0} + 100]", (B,), B,
                  lambda a: [a, None if a is None else a + 100], takes_null=True),
    "up_to": Entry("list(range((row.{0} or 0) % 3))", (B,), B, lambda a: [*range((a or 0) % 3)], takes_null=True),
    # Not deterministic
    "maybe": Entry("[row.{0}] * random.randrange(3)", (B,), B, None),
}  # fmt: skip
"""Lists in Python, for `FlatMap`; the type is that of an item."""


def _skipping_null(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def of(values: list[Any]) -> Any:
        given = [value for value in values if value is not None]
        return function(given) if given else None

    return of


AGGREGATES: dict[str, Entry] = {
    "count": Entry("count(*)", (), B, lambda rows: len(rows)),
    "count_of": Entry("count({0})", (ANY,), B, lambda values: sum(value is not None for value in values)),
    "sum": Entry("sum({0})", (B,), B, _skipping_null(sum)),
    "min": Entry("min({0})", (B,), B, _skipping_null(min)),
    "max": Entry("max({0})", (B,), B, _skipping_null(max)),
    "avg": Entry("avg({0})", (B,), D, _skipping_null(lambda given: rounded(sum(given) / len(given)))),
    "sum_of_thirds": Entry("sum({0} / 3)", (B,), D, _skipping_null(lambda given: rounded(sum(a / 3 for a in given)))),
    # Not deterministic
    "first": Entry("first({0})", (B,), B, None),
    "any_value": Entry("any_value({0})", (B,), B, None),
    "sum_of_noise": Entry("sum(CAST({0} * rand() AS BIGINT))", (B,), B, None),
}
"""Aggregates in SQL. The meaning gets the list of the values of its column (for `count`: of the rows)."""

NATIVE_AGGREGATES: dict[str, Entry] = {
    **AGGREGATES,
    # Not deterministic
    "quantiles": Entry("hex(kll_sketch_agg_bigint({0}))", (B,), S, None, weight=3),
    "histogram": Entry("CAST(histogram_numeric({0}, 3) AS STRING)", (B,), S, None, weight=3),
    "collected": Entry("array_join(collect_list({0}), ' ')", (B,), S, None),
}
"""Aggregates that Spark computes itself, for windows by time with one result."""

IDEMPOTENT_AGGREGATES = ("min", "max")
"""Those that take the same event twice without a difference."""

OF_FRACTIONS = ("sum_of_thirds",)
"""Those that add fractions, so that the order of addition shows."""

OVER_ROWS: dict[str, Entry] = {
    "spread": Entry(
        "max((row.{0} or 0) for row in rows) - min((row.{0} or 0) for row in rows)",
        (B,),
        B,
        lambda values: max(value or 0 for value in values) - min(value or 0 for value in values),
        takes_null=True,
    ),
    "listed": Entry(
        "' '.join(str(row.{0}) for row in rows)",
        (B,),
        S,
        lambda values: " ".join(map(str, values)),
        takes_null=True,
    ),
    # Not deterministic
    "drawn": Entry("random.choice(rows).{0}", (B,), B, None),
}
"""Python over all rows of a window, for `WindowApply`. The meaning gets the values of its column, in their order."""


@dataclass(frozen=True)
class Function:
    """A function with state.

    `state` declares what it keeps, as text of the class body. `body` is the body of `process(self, row, context)`, with
    `{0}` for its column; it sets `out`, the list of the resulting values, a row for each. `meaning` is a function
    of (kept, value): (what is kept for the key, None at first; the value of its column) -> (what is kept
    then, the list of the results, each of the type `type`). It gets every event of a key in arrival order
    (docs/WINDOWS.md, "In which order events are taken"); no event is late for it.
    """

    column: str  # what its own column is called
    takes: tuple[str, ...]
    type: str
    state: str
    body: str
    meaning: Callable[[Any, Any], tuple[Any, list[Any]]] | None
    can_raise: bool = False
    timer: str = ""  # the body of `on_timer`, which sets `out`; it rings once for a key, when all input was read
    ring: Callable[[Any], list[Any]] | None = None  # its meaning: what is kept for the key -> the results

    @property
    def is_deterministic(self) -> bool:
        """Does it give the same again for the same events?"""
        return self.meaning is not None


FUNCTIONS: dict[str, Function] = {
    "numbered": Function(
        "number", (B,), B, "count = value('BIGINT')",
        "number = (self.count.get() or 0) + 1\nself.count.set(number)\nout = [number]",
        lambda kept, value: ((kept or 0) + 1, [(kept or 0) + 1]),
    ),
    "difference": Function(
        "difference", (B,), B, "last = value('BIGINT')",
        "last = self.last.get() or 0\nself.last.set(row.{0} or 0)\nout = [(row.{0} or 0) - last]",
        lambda kept, value: (value or 0, [(value or 0) - (kept or 0)]),
    ),
    "every_third": Function(
        "total", (B,), B, "seen = list_of('BIGINT')",
        "self.seen.append(row.{0} or 0)\nout = []\nif len(self.seen) == 3:\n"
        "    out = [sum(self.seen.get())]\n    self.seen.clear()",
        lambda kept, value: (
            ([], [sum(kept) + (value or 0)]) if len(kept or []) == 2 else ([*(kept or []), value or 0], [])
        ),
    ),
    "shares": Function(
        "shares", (B,), B, "count = value('BIGINT')",
        "number = (self.count.get() or 0) + 12 // ((row.{0} or 0) - 7)\nself.count.set(number)\nout = [number]",
        lambda kept, value: ((kept or 0) + 12 // ((value or 0) - 7), [(kept or 0) + 12 // ((value or 0) - 7)]),
        can_raise=True,
    ),
    "rings": Function(
        "number", (B,), B, "count = value('BIGINT')",
        "self.count.set((self.count.get() or 0) + 1)\ncontext.after('1 hour', 'end')\nout = []",
        lambda kept, value: ((kept or 0) + 1, []),
        timer="out = [self.count.get()]",
        ring=lambda kept: [kept],
    ),
    # Not deterministic
    "lottery": Function(
        "ticket", (B,), B, "count = value('BIGINT')",
        "ticket = random.randrange(1000000)\nself.count.set(ticket)\nout = [ticket]", None,
    ),
}  # fmt: skip
"""Functions with state, for `Process`."""

TABLE = (("a", "Ann"), ("a", "Abe"), ("b", "Ben"))
"""The rows of the table that a job may join with: `k`, and the column that the step names."""


@dataclass(frozen=True)
class Stage:
    """A stage of a pattern; `how` is begin, then, next or not_followed_by."""

    how: str
    name: str
    condition: str  # of CONDITIONS, about the column of the pattern
    times: int | None = None


@dataclass(frozen=True)
class Pattern:
    """A pattern (docs/PATTERNS.md): stages, a bound, and what follows a match (PAST_LAST or TO_NEXT)."""

    takes: tuple[str, ...]
    stages: tuple[Stage, ...]
    within_seconds: int | None
    skip: str = "PAST_LAST"


PATTERNS: dict[str, Pattern] = {
    "rise": Pattern((B,), (Stage("begin", "low", "small"), Stage("then", "high", "large")), 20),
    "rises": Pattern((B,), (Stage("begin", "low", "small"), Stage("then", "high", "large")), 20, "TO_NEXT"),
    "jump": Pattern((B,), (Stage("begin", "low", "small"), Stage("next", "high", "large")), None),
    "stays": Pattern((B,), (Stage("begin", "low", "small"), Stage("not_followed_by", "high", "large")), 10),
    "thrice": Pattern((B,), (Stage("begin", "low", "small", times=2), Stage("then", "high", "large")), 30),
}
"""Patterns, for `Detect`."""


def entry(name: str) -> Entry:
    """The expression of this name."""
    for table in (SQL, CONDITIONS, PYTHON, PYTHON_CONDITIONS, LISTS, NATIVE_AGGREGATES, OVER_ROWS):
        if name in table:
            return table[name]
    raise KeyError(name)
