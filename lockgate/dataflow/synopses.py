"""Bounded synopses: what can be said of many events while little is kept.

    count, sum                      exact
    sample                          uniform over the events
    top, distinct, quantiles        within the error that `operators/sketches.py` states

All of them give the same again when an epoch is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockgate.dataflow.aggregates import Aggregate, require_sql
from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob
from lockgate.operators.folds import Count, Sum
from lockgate.operators.sketches import Distinct, Quantiles, Sample, Top


def count() -> Aggregate:
    """How many events there are: a BIGINT."""
    return Aggregate(fold=Count(), argument=None, label="count(*)", type="BIGINT", typed_by="count(*)", is_native=True)


def sum(argument: str) -> Aggregate:
    """All values together, of the type that SQL's sum has."""
    require_sql(argument, of="sum", example='synopses.sum("amount")')
    text = f"sum({argument})"
    return Aggregate(fold=Sum(), argument=argument, label=text, typed_by=text, is_native=True)


def sample(argument: str, *, size: int) -> Aggregate:
    """An array of the values of `size` events, each event as likely as any other; of all where there are fewer."""
    example = 'synopses.sample("amount", size=100)'
    require_sql(argument, of="sample", example=example)
    _require_number(size, of="the size of a sample", example=example)
    return Aggregate(
        fold=Sample(size=size),
        argument=argument,
        label=f"sample({argument}, size={size})",
        typed_by=f"collect_list({argument})",
    )


def top(argument: str, *, k: int) -> Aggregate:
    """The `k` most frequent values, an array of (value, count), the most frequent first.

    A count is never too high. It is exact up to 256 different values, and beyond that too low by at most a 257th of
    the number of all events; above k=32 it is 8 * k instead of 256.
    """
    example = 'synopses.top("url", k=10)'
    require_sql(argument, of="top", example=example)
    _require_number(k, of="the k of a top", example=example)
    return Aggregate(
        fold=Top(k=k),
        argument=argument,
        label=f"top({argument}, k={k})",
        typed_by=f"collect_list(named_struct('value', {argument}, 'count', 0L))",
    )


def distinct(argument: str) -> Aggregate:
    """How many different values there are, a BIGINT: exact below 1,024, then with a standard error of 3.1 %."""
    require_sql(argument, of="distinct", example='synopses.distinct("user")')
    return Aggregate(fold=Distinct(), argument=argument, label=f"distinct({argument})", type="BIGINT")


def quantiles(argument: str, *, at: Sequence[float]) -> Aggregate:
    """An array of DOUBLEs: for each share in `at`, the smallest value with at least this share of all up to it.

    Exact up to 1,024 different values. Beyond that off by at most 0.4 % where the largest value is 256 times the
    smallest, by 1.6 % where it is a thousand million times. `synopses.quantiles("latency", at=(0.5, 0.99))`
    """
    example = 'synopses.quantiles("latency", at=(0.5, 0.99))'
    require_sql(argument, of="quantiles", example=example)
    if not (isinstance(at, tuple | list) and at and all(_is_share(share) for share in at)):
        raise BadJob(
            f"at= takes shares from 0 to 1, at least one, not {at!r}", where=f"declared at {caller()}", fix=example
        )
    shares = tuple(float(share) for share in at)
    return Aggregate(
        fold=Quantiles(at=shares),
        argument=argument,
        label=f"quantiles({argument}, at={', '.join(map(str, shares))})",
        type="ARRAY<DOUBLE>",
        takes="DOUBLE",
    )


def _is_share(share: object) -> bool:
    return isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1


def _require_number(number: object, of: str, example: str) -> None:
    if not (isinstance(number, int) and not isinstance(number, bool) and number > 0):
        raise BadJob(f"{of} is a whole number above zero, not {number!r}", where=f"declared at {caller()}", fix=example)
