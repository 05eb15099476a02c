"""The folds of aggregates: the five of SQL, first and last, and two for functions of the user.

They mean what Spark means by the same words, so a rolling total and a batch query over the same events agree:

    nulls are skipped; of no value a count is 0 and every other result is null
    NaN is greater than every other number
    a sum of whole numbers is a BIGINT, a sum of decimals has at most 38 digits; a larger one stops the job
    an average is kept as its sum and its count; that sum is exact for whole numbers, however large

A user's function that raises stops the job too. The caller of a fold adds which row it was.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, Inexact
from typing import Any

from lockgate.operators.contract import StepFailed
from lockgate.operators.fold import Fold

BIGINT_MIN = -(2**63)
BIGINT_MAX = 2**63 - 1

# Python's own context would silently round at 28 digits.
_EXACT = Context(prec=38, traps=[Inexact])
_DIVISION = Context(prec=76, rounding=ROUND_HALF_UP)
_DECIMAL_SCALE = re.compile(r"\s*(?:decimal|dec|numeric)\s*\(\s*\d+\s*(?:,\s*(\d+)\s*)?\)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Count(Fold):
    """How many values there are."""

    def empty(self) -> Any:
        return 0

    def add(self, kept: Any, value: Any, identity: int) -> Any:
        return kept if value is None else kept + 1

    def merge(self, one: Any, two: Any) -> Any:
        return one + two

    def result(self, kept: Any) -> Any:
        return kept


class _One(Fold):
    """A fold that keeps one value, which is the result; None while there is none."""

    def empty(self) -> Any:
        return None

    def add(self, kept: Any, value: Any, identity: int) -> Any:
        if value is None:
            return kept
        return value if kept is None else self.choose(kept, value)

    def merge(self, one: Any, two: Any) -> Any:
        return self.add(one, two, 0)

    def result(self, kept: Any) -> Any:
        return kept

    @abstractmethod
    def choose(self, kept: Any, value: Any) -> Any:
        """The one value that represents both."""


@dataclass(frozen=True)
class Sum(_One):
    """All values together."""

    def choose(self, kept: Any, value: Any) -> Any:
        total = _plus(kept, value)
        if isinstance(total, int) and not BIGINT_MIN <= total <= BIGINT_MAX:
            raise StepFailed("the sum is too large for a BIGINT")
        return total


@dataclass(frozen=True)
class Min(_One):
    """The smallest value."""

    def choose(self, kept: Any, value: Any) -> Any:
        return value if value < kept or kept != kept else kept


@dataclass(frozen=True)
class Max(_One):
    """The largest value."""

    def choose(self, kept: Any, value: Any) -> Any:
        return value if value > kept or value != value else kept


@dataclass(frozen=True)
class First(_One):
    """The first value, in the order of the source."""

    def choose(self, kept: Any, value: Any) -> Any:
        return kept


@dataclass(frozen=True)
class Last(_One):
    """The last value, in the order of the source."""

    def choose(self, kept: Any, value: Any) -> Any:
        return value


@dataclass(frozen=True)
class Avg(Fold):
    """The mean; of decimals it is rounded to `scale` decimal places, half up, as Spark does it."""

    scale: int | None = None

    def empty(self) -> Any:
        return [None, 0]

    def add(self, kept: Any, value: Any, identity: int) -> Any:
        if value is None:
            return kept
        total, count = kept
        return [_plus(total, value) if count else value, count + 1]

    def merge(self, one: Any, two: Any) -> Any:
        if not (one[1] and two[1]):
            return one if one[1] else two
        return [_plus(one[0], two[0]), one[1] + two[1]]

    def result(self, kept: Any) -> Any:
        total, count = kept
        if not count:
            return None
        if not isinstance(total, Decimal):
            return total / count
        mean = _DIVISION.divide(total, Decimal(count))
        return mean if self.scale is None else mean.quantize(Decimal(1).scaleb(-self.scale), context=_DIVISION)


@dataclass(frozen=True)
class Combine(_One):
    """What a user's function makes of two values, of that and the next one, and so on.

    The function must be associative and commutative, and must not change its arguments.
    """

    function: Callable[[Any, Any], Any]

    def choose(self, kept: Any, value: Any) -> Any:
        made = _call(self.function, kept, value)
        if made is None:
            # None stands for "no value yet": all that came before would be forgotten.
            raise StepFailed(f"the function gave None for {kept!r} and {value!r}")
        return made


@dataclass(frozen=True)
class History(Fold):
    """What a user's function makes of the list of all values; all of them are kept."""

    function: Callable[[list[Any]], Any]

    is_bounded = False

    def empty(self) -> Any:
        return []

    def add(self, kept: Any, value: Any, identity: int) -> Any:
        if value is None:
            return kept
        # Runs of falling length, joined as soon as one is no longer than the next. A single list would be copied with
        # every value, which takes seconds for a window of 100,000 values.
        run: list[Any] = [value]
        end = len(kept)
        while end and len(kept[end - 1]) <= len(run):
            end -= 1
            run = [*kept[end], *run]
        return [*kept[:end], run]

    def merge(self, one: Any, two: Any) -> Any:
        return [*one, *two]

    def result(self, kept: Any) -> Any:
        return _call(self.function, [value for run in kept for value in run]) if kept else None


_FOLDS: dict[str, type[Fold]] = {"sum": Sum, "min": Min, "max": Max, "count": Count}


def fold_of(function: str, result_type: str) -> Fold:
    """The fold of one of SQL's five functions, if Spark says that its result has this type.

    >>> fold_of("sum", "bigint"), fold_of("avg", "decimal(14,6)")
    (Sum(), Avg(scale=6))
    """
    if function != "avg":
        return _FOLDS[function]()
    scale = _DECIMAL_SCALE.fullmatch(result_type)
    return Avg(scale=int(scale[1] or 0) if scale else None)


def _plus(one: Any, two: Any) -> Any:
    if not isinstance(one, Decimal):
        return one + two
    try:
        return _EXACT.add(one, two)
    except Inexact:
        raise StepFailed("the sum is too large for a DECIMAL, which has 38 digits") from None


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except BaseException as error:  # sys.exit raises one that is no Exception
        raise StepFailed(f"{type(error).__name__}: {error}") from error
