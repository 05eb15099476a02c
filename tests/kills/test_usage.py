"""The system-usage example under each of its promises, killed with SIGKILL in mid-stream and started again.

    acks           every transaction is counted, also one that failed once; one that failed may count twice
    checkpoints    every transaction is counted once: 1..n for each customer; rows may come twice
    exactly-once   the same, and every row comes once

Malformed events are letters under all three. LOCKGATE_KILL_SEED chooses another sample.
"""

import json
import random
import runpy
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kills.kill_matrix import Case, cases
from kills.kill_trial import KillTrial, require
from kills.kill_workloads import DEAD_LETTERS, PARTITIONS, Event, Workload
from lockgate.lab.rig.history import Read, Reader

EXAMPLE = Path(__file__).parents[2] / "examples" / "system_usage.py"
GUARANTEES = {
    "acks": "AT_LEAST_ONCE",
    "checkpoints": "EXACTLY_ONCE",
    "exactly-once": "END_TO_END_EXACTLY_ONCE",
}
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
            yield DEAD_LETTERS, None, {"event": event["id"], "step": "map", "reason": MALFORMED}
        else:
            counts[customer] += 1
            yield "", customer, {"customer": customer, "id": event["id"], "transactions": counts[customer]}


@dataclass(frozen=True)
class Usage(Workload):
    """The example's own file in one mode, and its own events."""

    mode: str = "exactly-once"

    def source(self) -> str:
        return EXAMPLE.read_text()

    def parameters(self, *, servers: str, name: str, read: str, write: str) -> dict[str, str]:
        topics = {"events": read, "usage": write, "letters": write + DEAD_LETTERS}
        return {"servers": servers, **topics, "mode": self.mode, "name": name}

    def compared(self, row: Event) -> bytes:
        """If events change their order, a row is known by its event and not by its count."""
        if self.mode == "acks" and "transactions" in row:
            row = {"id": row["id"]}
        return super().compared(row)

    def make_events(self, rng: random.Random) -> Iterator[Event]:
        events: Iterator[Event] = runpy.run_path(str(EXAMPLE))["make_calls"](count=10**9, seed=rng.randrange(10**6))
        return events

    def partition(self, event: Event) -> int:
        return int(event["customer"].rpartition("-")[2]) % PARTITIONS

    def record(self, event: Event) -> tuple[bytes, bytes]:
        return event["customer"].encode(), json.dumps(event).encode()


def usage(mode: str) -> Usage:
    return Usage(
        name=f"usage, {mode}",
        body="",
        outputs={"": "counted"},
        expect=expect,
        is_ordered=mode == "exactly-once",
        guarantee=GUARANTEES[mode],
        settings=DEAD_LETTERS,
        mode=mode,
    )


@cases
def test_usage_keeps_the_promise_of_its_mode_when_it_is_killed(case: Case, kafka: str, tmp_path: Path) -> None:
    mode = case.workload.removeprefix("usage, ")
    (tmp_path / "failed").mkdir()
    planted = PLANTED.format(failed=tmp_path / "failed") if mode == "acks" else ""
    made = KillTrial(kafka, usage(mode), case, tmp_path / "trial", planted=planted)
    result = made.run()
    print(result)
    require(result)
    assert not result.judged.count("foreign"), "a row that no event has"
    rows, letters = (result.history.read_by(Reader.AFTER, output) for output in ("out", f"out{DEAD_LETTERS}"))
    assert len(rows) > 100
    assert letters
    if mode == "acks":
        check_acks(made.sent, rows)


def check_acks(sent: list[Event], rows: Sequence[Read]) -> None:
    """Nothing is lost; an event that never failed counts once, one that failed once or twice."""
    assert {json.loads(row.value or b"")["id"] for row in rows} == {
        event["id"] for event in sent if not is_malformed(event)
    }
    good = Counter(event["customer"] for event in sent if not is_malformed(event))
    failed = Counter(event["customer"] for event in sent if not is_malformed(event) and event["id"] % 5 == 0)
    assert failed
    for customer, counts in counts_of(rows).items():
        assert good[customer] <= counts[-1] <= good[customer] + failed[customer], customer
        assert set(counts) >= {*range(1, counts[-1] + 1)}, "a count was left out"


def counts_of(rows: Sequence[Read]) -> dict[str, list[int]]:
    """The counts of each customer, in the order in which they stand in the topic."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.place):
        value: dict[str, Any] = json.loads(row.value or b"")
        found[value["customer"]].append(value["transactions"])
    return dict(found)


# -- the check, shown to catch what is planted -----------------------------------------------------------------------

SENT = [
    {"id": number, "customer": "ab"[number % 2], "call": "GET" if number == 7 else "GET /x"} for number in range(40)
]


def rows_of(sent: list[Event]) -> list[Read]:
    texts = (json.dumps(row).encode() for suffix, _, row in expect(sent) if not suffix)
    return [Read(Reader.AFTER, "out", 0, place, None, text, None, None, 1.0) for place, text in enumerate(texts)]


def test_with_acks_an_event_that_failed_may_count_twice_and_nothing_else() -> None:
    right = rows_of(SENT)
    check_acks(SENT, right)
    check_acks(SENT, [*right, *(replace(row, offset=100 + row.offset) for row in right[-3:])])
    check_acks(SENT, rows_of([*SENT, SENT[10]]))
    for wrong in (right[:-3] + right[-2:], rows_of([*SENT, *[SENT[11]] * 9])):
        with pytest.raises(AssertionError):
            check_acks(SENT, wrong)
