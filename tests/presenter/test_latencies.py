"""The histogram of latencies: small, and exact to 1 in 100."""

import random

import pytest

from lockgate.presenter.latencies import Latencies


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99, 0.999])
def test_a_quantile_is_exact_to_one_in_a_hundred(share: float) -> None:
    rng = random.Random(5)
    some = sorted(rng.lognormvariate(-5, 2) for _ in range(10_000))
    latencies = Latencies()
    for seconds in some:
        latencies.add(seconds)
    found = latencies.quantile(share)
    assert found == pytest.approx(some[round(share * len(some)) - 1], rel=0.011)
    assert latencies.count == 10_000
    assert len(latencies.counts) < 1000


def test_a_quantile_of_one_is_that_one() -> None:
    latencies = Latencies()
    latencies.add(0.25)
    assert latencies.quantile(0.5) == latencies.quantile(0.999) == pytest.approx(0.25, rel=0.011)


def test_nothing_counted_has_no_quantile() -> None:
    assert Latencies().facts() == {"count": 0, "ms_p50": None, "ms_p99": None, "ms_p999": None}


def test_a_time_below_zero_counts_as_the_least() -> None:
    latencies = Latencies()
    latencies.add(-3.0)
    assert latencies.quantile(0.5) == pytest.approx(1e-6)
