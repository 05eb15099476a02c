"""A job under load whose driver, a Worker and the broker are killed every minute, for half an hour; nobody helps.

    LOCKGATE_MINUTES=3 pytest -m prove tests/kills/test_half_an_hour.py

In the end every event has come out once, with the count and the sum that a batch computes, and memory is as large as
in the beginning: the median of what was measured right before each kill, in the last third of the time against the
first. The checkpoint stays small.
"""

import json
import os
import random
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from kills.kill_endurance import EnduranceRun, Findings, Outsider, judge, make_event, measure, partition_of, thirds
from kills.kill_matrix import Case, cases
from lockgate.lab.rig.faults import Kind
from lockgate.lab.services.spark import SparkCluster
from lockgate.lab.services.stack import Stack

MINUTES = int(os.environ.get("LOCKGATE_MINUTES", "30"))
RATE = 200
KILLS_WITHIN = 20.0
"""Each of them dies once a minute, at a moment of these first seconds that is drawn once. A driver needs 45 seconds on
two cores until an epoch is out."""

GROWTH = {"supervisor": 1.05, "driver": 1.2, "executors": 1.2, "broker": 1.2}
"""By how much the memory of each may be larger in the last third. Each start of a JVM grows to another size; a leak of
a minute would be there ten times and more."""

CHECKPOINT_MIB_MAX = 1.0
"""It keeps a hundred epochs, more than there are in half an hour of this, and each leaves a few KB."""

MINUTES_TO_COMPARE = 15
"""In less time a few epochs more or less, on a busy machine, say nothing."""


@cases
def test_a_job_that_is_killed_every_minute_delivers_every_event_once_and_does_not_grow(
    case: Case, own_stack: Stack, own_cluster: SparkCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    servers = own_stack.status().kafka.servers
    assert servers is not None
    samples: dict[str, list[float]] = defaultdict(list)
    targets = [kind for kind in Kind if case.has(kind)]
    chance = random.Random(case.seed)
    moments = sorted(((chance.uniform(0, KILLS_WITHIN), target) for target in targets), key=lambda one: one[0])
    site = EnduranceRun(servers, tmp_path / "site", own_cluster)

    def tell(text: str) -> None:
        with capfd.disabled():
            print(text, flush=True)

    with site.running():
        site.sender.send(RATE)
        site.await_rows(RATE)  # it runs: the time begins
        outsider = Outsider(site, own_stack, case.seed)
        try:
            site.sender.start(RATE)
            began = time.monotonic()
            for minute in range(MINUTES):
                for second, target in moments:
                    _look_until(site, began + 60 * minute + second)
                    for name, mib in measure(site, own_stack).items():
                        samples[name].append(mib)
                    while not outsider.strike(target):  # it is just being started
                        site.look()
                        time.sleep(0.1)
                _look_until(site, began + 60 * (minute + 1))
                tell(_line(site, outsider, measure(site, own_stack), minute + 1))
            out = site.look().delivered(site.sender.sent)[0]
            outsider.await_starts()
            wrong = site.finish()
        finally:
            outsider.close()
        restarts = site.restarts
    tell("\n".join(restarts))
    grown = {name: thirds(found) for name, found in samples.items()}
    for name, (first, last) in grown.items():
        tell(f"{name}: {first:.1f} MiB in the first third, {last:.1f} MiB in the last")
    assert not wrong, wrong
    assert site.sender.sent > MINUTES * 60 * RATE / 2, "that was no load"
    assert outsider.kills == dict.fromkeys(targets, MINUTES)
    assert len(restarts) >= MINUTES
    if MINUTES >= MINUTES_TO_COMPARE:
        assert out > site.sender.sent / 2, "it hardly went on between the kills: this machine is too slow, or busy"
        assert not {name: grown[name] for name, most in GROWTH.items() if grown[name][1] > most * grown[name][0]}
        assert max(samples["checkpoint"]) < CHECKPOINT_MIB_MAX


def _look_until(site: EnduranceRun, moment: float) -> None:
    while time.monotonic() < moment:
        site.look()
        time.sleep(0.2)


def _line(site: EnduranceRun, outsider: Outsider, mib: dict[str, float], minute: int) -> str:
    sent = site.sender.sent
    once, twice, missing = site.look().delivered(sent)
    silence, site.silence = site.silence, 0.0
    memory = ", ".join(f"{name} {found:.0f}" for name, found in mib.items())
    return (
        f"minute {minute}: {sent:,} sent, {once:,} delivered once, {twice} more than once, {missing:,} not yet;"
        f" {sum(outsider.kills.values())} kills, {len(site.restarts)} restarts, longest silence {silence:.0f} s;"
        f" MiB: {memory}"
    )


# -- the verdict, shown to catch what is planted ------------------------------------------------------------------

COUNT = 1000


def sent() -> list[tuple[int, int]]:
    """What stands in the input topic: one partition after the other."""
    return sorted((partition_of(number), number) for number in range(COUNT))


def found(numbers: list[int], *, wrong_total: int | None = None) -> Findings:
    """What a reader finds where these events have come out, in order."""
    findings, counts, sums = Findings(), defaultdict[str, int](int), defaultdict[str, int](int)
    for offset, number in enumerate(numbers):
        event = make_event(number)
        counts[event["key"]] += 1
        sums[event["key"]] += event["amount"]
        total = sums[event["key"]] + (number == wrong_total)
        row = {**event, "count": counts[event["key"]], "total": total}
        findings.add(SimpleNamespace(topic="-totals", partition=0, offset=offset, value=json.dumps(row)))
        findings.add(SimpleNamespace(topic="-copies", partition=0, offset=offset, value=json.dumps(event)))
    return findings


def test_all_that_is_once_there_and_was_seen_so_is_right() -> None:
    right = [*range(COUNT)]
    assert judge(sent(), found(right), found(right)) == []
    assert found(right).delivered(COUNT) == (COUNT, 0, 0)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([*range(COUNT - 1)], "1 are lost and 0 are there more than once"),
        ([*range(5), *range(6, COUNT)], "1 are lost and 0 are there more than once"),
        ([*range(COUNT), 7], "0 are lost and 1 are there more than once"),
        ([*range(COUNT), COUNT + 5], "0 are lost and 1 are there more than once"),
    ],
)
def test_what_is_lost_or_doubled_is_found(numbers: list[int], told: str) -> None:
    wrong = judge(sent(), found(numbers), found(numbers))
    assert [line for line in wrong if line.startswith("totals") and told in line], wrong
    assert [line for line in wrong if line.startswith("copies") and told in line], wrong


def test_a_total_that_a_batch_does_not_compute_is_found() -> None:
    numbers = [*range(COUNT)]
    wrong = judge(sent(), found(numbers, wrong_total=500), found(numbers, wrong_total=500))
    assert wrong == ["totals: 1 events have another count or sum than in a batch, e.g. [500]"]


def test_a_reader_that_saw_other_rows_than_are_there_is_found() -> None:
    numbers = [*range(COUNT)]
    for along in ([*numbers[:-1]], [*numbers, 7], [*reversed(numbers)]):
        assert len(judge(sent(), found(along), found(numbers))) == 2


def test_a_sender_that_repeats_itself_says_nothing_of_the_job() -> None:
    numbers = [*range(COUNT)]
    (wrong,) = judge([*sent(), (0, 0)], found(numbers), found(numbers))
    assert "the sender" in wrong


def test_what_grows_is_seen_and_one_peak_is_not() -> None:
    assert thirds([100.0, 101.0, 99.0, 300.0, 100.0, 100.0, 100.0, 900.0, 102.0]) == (100.0, 102.0)
    assert thirds([100.0 + 10 * number for number in range(9)]) == (110.0, 170.0)
