"""Bounded synopses: answers about many events from little state.

    count, sum                      exact
    sample                          uniform over the events
    top, distinct, quantiles        within the error that `operators/sketches.py` states

All of them give the same answer when an epoch is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockgate.dataflow.aggregates import Aggregate, require_sql
from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob
from lockgate.operators.aggregatefolds import Count, Sum
from lockgate.operators.sketches import Distinct, Quantiles, Sample, Top

__all__ = ["count", "distinct", "quantiles", "sample", "sum", "top"]


def count() -> Aggregate:
    """Count the events: a BIGINT, exact.

    >>> print(count())
    count(*)
    """
    return Aggregate(fold=Count(), argument=None, label="count(*)", type="BIGINT", typed_by="count(*)", is_native=True)


def sum(argument: str) -> Aggregate:
    """Add the values up, exactly, with the type of SQL's sum.

    Args:
        argument: SQL for the value of an event.

    >>> print(sum("amount"))
    sum(amount)
    """
    require_sql(argument, of="sum", example='synopses.sum("amount")')
    text = f"sum({argument})"
    return Aggregate(fold=Sum(), argument=argument, label=text, typed_by=text, is_native=True)


def sample(argument: str, *, size: int) -> Aggregate:
    """Take an array of the values of some events, each event as likely as any other.

    Args:
        argument: SQL for the value of an event.
        size: how many values; all of them if there are fewer.

    >>> print(sample("amount", size=100))
    sample(amount, size=100)
    """
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
    """Find the most frequent values: an array of (value, count), the most frequent first.

    A count is never too high. It is exact up to 256 different values (8 * k if k is above 32). Beyond that it is too
    low by at most a 257th of the number of all events.

    Args:
        argument: SQL for the value of an event.
        k: how many values.

    >>> print(top("url", k=10))
    top(url, k=10)
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
    """Count the different values: a BIGINT, exact below 1,024, then with a standard error of 3.1 %.

    Args:
        argument: SQL for the value of an event.

    >>> print(distinct("ip"))
    distinct(ip)
    """
    require_sql(argument, of="distinct", example='synopses.distinct("user")')
    return Aggregate(fold=Distinct(), argument=argument, label=f"distinct({argument})", type="BIGINT")


def quantiles(argument: str, *, at: Sequence[float]) -> Aggregate:
    """Find quantiles: for each share, the smallest value with at least this share of all values up to it.

    The result is an array of DOUBLEs. It is exact up to 1,024 different values. Beyond that it is off by at most 0.4 %
    if the largest value is 256 times the smallest, and by 1.6 % if it is a thousand million times the smallest.

    Args:
        argument: SQL for the value of an event.
        at: the shares, from 0 to 1.

    >>> print(quantiles("latency", at=(0.5, 0.99)))
    quantiles(latency, at=0.5, 0.99)
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
