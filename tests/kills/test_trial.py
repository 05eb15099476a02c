"""The verdict on a job of these tests catches what is planted: rows and promises meet in the form that is compared."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kills.kill_matrix import Case
from kills.kill_trial import KillTrial
from kills.kill_workloads import WORKLOADS
from lockgate.lab.rig.faults import Kind, Strike
from lockgate.lab.rig.history import Committed, End, Fact, Fault, History, Ledger, Read, Reader, ReadToEnd, Standing

CASE = Case("planted", "rolling", (Strike(Kind.KILL_DRIVER, "VOTES"),))
WRONG = json.dumps({"id": 3, "name": "key-1", "amount": 0, "total": -1, "count": 1}).encode()


def observed(made: KillTrial) -> list[Fact]:
    """What is observed when every row comes once, in order and in one epoch."""
    list(islice(made._events(), 60))
    ends = tuple(End("in", part, len(events)) for part, events in enumerate(made._in_topic))
    facts: list[Fact] = [Fault("kill driver", "VOTES", "driver 0", 0.5, epoch=0), Committed(0, None, ends, 1.0)]
    offsets = [0] * len(made._in_topic)
    for _, key, row in made.workload.expect(made.sent):
        part = made.workload.partition(row)
        place = "out", part, offsets[part], (key or "").encode(), json.dumps(row).encode()
        facts += [Read(reader, *place, trace=None, epoch=None, at_seconds=2.0) for reader in Reader]
        offsets[part] += 1
    facts += [Standing("out", part, 0, end, end, 3.0) for part, end in enumerate(offsets)]
    return [*facts, Ledger((), "", 3.0), *(ReadToEnd(reader, 3.0) for reader in Reader)]


def rows(facts: list[Fact], *readers: Reader) -> list[Read]:
    """The first row of a partition, as these readers saw it."""
    reads = [fact for fact in facts if isinstance(fact, Read) and fact.reader in (readers or Reader)]
    return [read for read in reads if (read.partition, read.offset) == (1, 0)]


def without(facts: list[Fact], *readers: Reader) -> list[Fact]:
    return [fact for fact in facts if fact not in rows(facts, *readers)]


def again(facts: list[Fact], *readers: Reader, **changed: Any) -> list[Fact]:
    return [replace(row, **changed) for row in rows(facts, *readers)]


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lambda facts: facts, set()),
        (lambda facts: without(facts), {"lost"}),
        (lambda facts: facts + again(facts, offset=99), {"duplicated", "split epochs"}),
        (lambda facts: without(facts) + again(facts, value=WRONG), {"lost", "foreign"}),
        (lambda facts: without(facts) + again(facts, offset=98), {"disordered", "split epochs"}),
        (lambda facts: facts + again(facts, Reader.ALONG, offset=97), {"aborted seen"}),
        (lambda facts: without(facts, Reader.ALONG), {"aborted seen"}),
    ],
    ids=["nothing", "lost", "doubled", "changed", "disordered", "aborted", "missed"],
)
def test_what_is_planted_is_found(plant: Callable[[list[Fact]], list[Fact]], found: set[str], tmp_path: Path) -> None:
    made = KillTrial("h:1", WORKLOADS["rolling"], CASE, tmp_path)
    judged = made.judge(History(tuple(plant(observed(made)))), seconds=1.0)
    assert {name for name, one in judged.checks.items() if one.reason} == found
    assert (judged.outcome.value == "holds") == (not found)
