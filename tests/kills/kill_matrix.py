"""The cases of all tests here, from matrix.txt: a job, and the faults that strike it.

LOCKGATE_KILL_SEED chooses other events, and draws other points for the samples.
"""

import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockgate.faultpoints import FaultPoint
from lockgate.guarantees import Guarantee
from lockgate.lab.rig.faults import ANY_MOMENT, Kind, Strike

MATRIX = Path(__file__).with_name("matrix.txt")
SAMPLE_SEED = 7
SEED = int(os.environ.get("LOCKGATE_KILL_SEED", SAMPLE_SEED))
STEPS = ("receive", "update state", "emit")

# STATE_UPDATE is passed only if a Python function keeps the state, ASIDE if there are dead letters, and SENT by an
# output without a transaction.
TASK = [point.name for point in FaultPoint if point.is_in_task and point is not FaultPoint.STATE_UPDATE]
_SOME = (FaultPoint.SENT, FaultPoint.ASIDE)
DRIVER = [point.name for point in FaultPoint if not point.is_in_task and point not in _SOME]
_ONCE = ("CLAIM", "RECOVERY")  # passed once by a driver that lives
_FAULT = re.compile(r"([\w-]+)/(\d+)(?:x(\d+))?")


@dataclass(frozen=True)
class Case:
    """A job, and the faults that strike it."""

    title: str
    workload: str
    strikes: tuple[Strike, ...]
    seed: int = 0  # of the events
    special: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.title}: {self.workload}"

    def has(self, kind: Kind) -> bool:
        """Is this one of its faults?"""
        return any(one.kind is kind for one in self.strikes)

    def is_(self, what: str) -> bool:
        """Is this special about it?"""
        return what in self.special

    @property
    def kills(self) -> int:
        """How many faults kill something; what is only stopped wakes up."""
        return sum(one.kind.value.startswith("kill") for one in self.strikes)

    @property
    def stays_away(self) -> set[str]:
        """The points at which PostgreSQL is back only when the driver waits for it."""
        return {name.removeprefix("away-at-") for name in self.special if name.startswith("away-at-")}


def read_cases(lines: Iterable[str], seed: int = SAMPLE_SEED) -> dict[str, list[Case]]:
    """The cases by test."""
    found: dict[str, list[Case]] = {}
    heads: list[list[str]] = []  # of the case, and below it its faults
    for line in [*(line for line in lines if line.strip() and not line.startswith("#")), "end"]:
        if not line.startswith(" " * 8) and heads:
            found[[*found][-1]] += _cases(heads[0], heads[1:], seed)
            heads = []
        if not line.startswith(" "):
            found[line.strip()] = []
        else:
            heads.append(re.split(r"\s*[|:]\s*", line.strip()))
    del found["end"]
    return found


def _cases(head: list[str], faults: list[list[str]], seed: int) -> Iterator[Case]:
    title, jobs, own_seed, special = head
    strikes = [strike for kind, text in faults for strike in _strikes(Kind(kind), text)]
    rng = random.Random(f"{seed} {title} {jobs}")
    if "drawn" in special.split() and seed != SAMPLE_SEED:
        strikes = [_drawn(one, rng) for one in strikes]
    rng.shuffle(strikes)
    for job in jobs.split(" + "):
        yield Case(title, job, tuple(strikes), int(own_seed) + seed - SAMPLE_SEED, frozenset(special.split()))


def _strikes(kind: Kind, text: str) -> Iterator[Strike]:
    if text.endswith(ANY_MOMENT):
        yield from [Strike(kind, ANY_MOMENT)] * int(text.split()[0])
    for point, hit, times in _FAULT.findall(text):
        yield from [Strike(kind, point, int(hit))] * int(times or 1)


def _drawn(one: Strike, rng: random.Random) -> Strike:
    points = DRIVER if one.kind is Kind.KILL_DRIVER else [one.point] if one.point == "STATE_UPDATE" else TASK
    point = rng.choice(points)
    return Strike(one.kind, point, 1 if point in _ONCE else rng.randrange(2, 5))


def fail(step: str, guarantee: Guarantee) -> Strike:
    """The task stands still at a step, then every process of the job is killed."""
    sent = "EMIT" if guarantee is Guarantee.END_TO_END_EXACTLY_ONCE else "SENT"
    return Strike(Kind.KILL_JOB, {"receive": "RECEIVE", "update state": "STATE_UPDATE", "emit": sent}[step])


CASES = read_cases(MATRIX.read_text().splitlines(), SEED)


def cases(test: Callable[..., None]) -> Any:
    """Decorate a test with its cases."""
    params = [pytest.param(one, id=str(one), marks=list(_marks(one))) for one in CASES[test.__name__]]
    return pytest.mark.parametrize("case", params)(test)


def _marks(case: Case) -> Iterator[pytest.MarkDecorator]:
    yield pytest.mark.system if case.is_("sample") else pytest.mark.prove
    if case.is_("smoke"):
        yield pytest.mark.smoke
