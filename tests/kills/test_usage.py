"""The system-usage example under each of its promises, killed with SIGKILL in mid-stream and started again.

    acks           every transaction is counted, also one that failed once; one that failed may count twice
    checkpoints    every transaction is counted once: 1..n for each customer; rows may come twice
    exactly-once   the same, and every row comes once

Malformed events are letters under all three. LOCKGATE_KILL_SEED chooses another sample.
"""

import json
import os
import random
import runpy
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kill_checker import Content, Row
from kill_harness import Random, Trial
from kill_workloads import LETTERS, PARTITIONS, Event, Workload

EXAMPLE = Path(__file__).parents[2] / "examples" / "system_usage.py"
SEED = int(os.environ.get("LOCKGATE_KILL_SEED", "7"))
MALFORMED = "ValueError: not enough values to unpack (expected 2, got 1)"

PLANTED = """

_as_transaction = as_transaction


def as_transaction(row):
    import os

    if row.id % 5 == 0:
        try:
            os.close(os.open(f"{failed}/{{row.id}}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return _as_transaction(row)
        raise OSError("the service is away")
    return _as_transaction(row)
"""
"""Every fifth event fails the first time that it is tried, and never again."""


def is_malformed(event: Event) -> bool:
    return " " not in event["call"]


def expect(sent: list[Event]) -> Iterator[tuple[str, str | None, Event]]:
    """The rows of a state that counts each transaction once, in order, and the letters."""
    counts: Counter[str] = Counter()
    for event in sent:
        customer = event["customer"]
        if is_malformed(event):
            yield LETTERS, None, {"event": event["id"], "step": "map", "reason": MALFORMED}
        else:
            counts[customer] += 1
            yield "", customer, {"customer": customer, "id": event["id"], "transactions": counts[customer]}


@dataclass(frozen=True)
class Usage(Workload):
    """The example's own file, and its own events."""

    def source(self) -> str:
        return EXAMPLE.read_text()

    def make_events(self, rng: random.Random) -> Iterator[Event]:
        events: Iterator[Event] = runpy.run_path(str(EXAMPLE))["make_calls"](count=10**9, seed=rng.randrange(10**6))
        return events

    def partition(self, event: Event) -> int:
        return int(event["customer"].rpartition("-")[2]) % PARTITIONS

    def record(self, event: Event) -> tuple[bytes, bytes]:
        return event["customer"].encode(), json.dumps(event).encode()


@dataclass
class UsageTrial(Trial):
    """The example in one mode."""

    mode: str = "exactly-once"

    def command(self, *words: str) -> list[str]:
        parameters = {
            "servers": self.servers,
            "events": self.read,
            "usage": self.write,
            "letters": self.write + LETTERS,
        }
        parameters |= {"mode": self.mode, "name": self.name}
        named = [part for item in parameters.items() for part in ("-p", "=".join(item))]
        return [sys.executable, "-m", "lockgate.cli.main", *words, *named]

    def _missing(self) -> Counter[Content]:
        """Where events change their order, a row is known by its event and not by its count."""
        if self.mode != "acks":
            return super()._missing()
        there = {known(row.content) for row in self.seen()}
        return Counter(one for one in self.expected() if known(one) not in there)


def known(content: Content) -> tuple[str, int]:
    """The topic and the event of a row or letter."""
    topic, _, text = content
    value = json.loads(text)
    return topic, value["event"] if topic.endswith(LETTERS) else value["id"]


def trial_of(mode: str, servers: str, place: Path, kills: dict[str, int]) -> UsageTrial:
    failed = place / "failed"
    failed.mkdir()
    return UsageTrial(
        servers,
        Usage(
            name=f"usage, {mode}", body="", outputs={"": "counted"}, expect=expect, is_ordered=False, settings=LETTERS
        ),
        Random("any moment", kills, SEED, pause=(0.2, 1)),
        place / "trial",
        SEED,
        planted=PLANTED.format(failed=failed) if mode == "acks" else "",
        mode=mode,
    )


def require_promise(trial: UsageTrial, kills: int) -> None:
    """Run a trial, and hold what came out against what its mode promises."""
    result = trial.run()
    verdict = result.verdict
    assert not result.gave_up, result.gave_up
    assert result.kills_total == kills
    assert not verdict.unknown, verdict
    rows = [row for row in trial.seen() if row.topic == trial.write]
    letters = [row for row in trial.seen() if row.topic == trial.write + LETTERS]
    assert len(rows) > 100
    assert letters
    check = {"acks": check_acks, "checkpoints": check_checkpoints, "exactly-once": check_exactly_once}[trial.mode]
    check(trial.sent, rows, [json.loads(row.value)["event"] for row in letters])
    if trial.mode != "acks":
        assert set(verdict.duplicated) <= set(trial.expected()), "a row that no event has"
    if trial.mode == "exactly-once":
        assert verdict.holds, verdict


def check_acks(sent: list[Event], rows: list[Row], letters: list[int]) -> None:
    """Nothing is lost; an event that never failed counts once, one that failed once or twice."""
    assert {json.loads(row.value)["id"] for row in rows} == {event["id"] for event in sent if not is_malformed(event)}
    assert set(letters) == {event["id"] for event in sent if is_malformed(event)}
    good = Counter(event["customer"] for event in sent if not is_malformed(event))
    failed = Counter(event["customer"] for event in sent if not is_malformed(event) and event["id"] % 5 == 0)
    assert failed
    for customer, counts in counts_of(rows).items():
        assert good[customer] <= counts[-1] <= good[customer] + failed[customer], customer
        assert set(counts) >= {*range(1, counts[-1] + 1)}, "a count was left out"


def check_checkpoints(sent: list[Event], rows: list[Row], letters: list[int]) -> None:
    """Nothing is lost, and the state counts every transaction once, however often rows came."""
    assert {(row.key, row.value) for row in rows} == {(row[1], row[2]) for row in as_contents(sent)}
    assert set(letters) == {event["id"] for event in sent if is_malformed(event)}
    good = Counter(event["customer"] for event in sent if not is_malformed(event))
    assert {customer: counts[-1] for customer, counts in counts_of(rows).items()} == good


def check_exactly_once(sent: list[Event], rows: list[Row], letters: list[int]) -> None:
    """Every row and letter once, and in order: 1..n for each customer."""
    check_checkpoints(sent, rows, letters)
    good = Counter(event["customer"] for event in sent if not is_malformed(event))
    assert counts_of(rows) == {customer: [*range(1, number + 1)] for customer, number in good.items()}
    assert len(letters) == len(set(letters))


def as_contents(sent: list[Event]) -> list[Content]:
    workload = Usage(name="usage", body="", outputs={"": "counted"}, expect=expect)
    return [content for content in workload.expected(sent, "") if not content[0]]


def counts_of(rows: list[Row]) -> dict[str, list[int]]:
    """The counts of each customer, in the order in which they stand in the topic."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.place):
        value: dict[str, Any] = json.loads(row.value)
        found[value["customer"]].append(value["transactions"])
    return dict(found)


@pytest.mark.prove
def test_usage_with_acks_keeps_its_promise_when_all_of_it_is_killed(kafka: str, tmp_path: Path) -> None:
    require_promise(trial_of("acks", kafka, tmp_path, {"job": 1}), kills=1)


@pytest.mark.prove
@pytest.mark.parametrize("mode", ["acks", "checkpoints", "exactly-once"])
def test_usage_keeps_the_promise_of_each_mode_when_it_is_killed_again_and_again(
    mode: str, kafka: str, tmp_path: Path
) -> None:
    require_promise(trial_of(mode, kafka, tmp_path, {"job": 2, "driver": 1, "worker": 1}), kills=4)


# -- the checks, shown to catch what is planted ---------------------------------------------------------------------

SENT = [
    {"id": number, "customer": "ab"[number % 2], "call": "GET" if number == 7 else "GET /x"} for number in range(40)
]


def rows_of(sent: list[Event]) -> list[Row]:
    return [Row("", 0, place, key, value) for place, (_, key, value) in enumerate(as_contents(sent))]


def test_each_check_takes_what_its_mode_allows_and_no_more() -> None:
    right = rows_of(SENT)
    again = [*right, *(row._replace(offset=100 + row.offset) for row in right[-3:])]
    lost = right[:-3] + right[-2:]
    counted_twice = rows_of([*SENT, SENT[10]])
    for check in (check_acks, check_checkpoints, check_exactly_once):
        check(SENT, right, [7])
        for rows, letters in ((lost, [7]), (right, [])):
            with pytest.raises(AssertionError):
                check(SENT, rows, letters)
    check_acks(SENT, again, [7, 7])
    check_checkpoints(SENT, again, [7, 7])
    for rows, letters in ((again, [7]), (right, [7, 7])):
        with pytest.raises(AssertionError):
            check_exactly_once(SENT, rows, letters)
    check_acks(SENT, counted_twice, [7])
    with pytest.raises(AssertionError):
        check_checkpoints(SENT, counted_twice, [7])
    with pytest.raises(AssertionError):
        check_acks(SENT, rows_of([*SENT, *[SENT[11]] * 9]), [7])
