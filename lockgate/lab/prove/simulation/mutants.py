"""The protocol with one of its laws switched off: what shows that the checks can fail.

    fencing        each begin gets a producer id of its own, and older writers are not stopped
    claim          a run does not claim the ledger, and does not check which run owns it
    ledger         an epoch is written without checking whether it is committed
    stable-offset  the ledger is read without waiting for the last stable offset
    permits        every attempt of a task may write, and the votes are not compared with permits
    tail           nothing checks that an entry follows directly on what was read of the ledger

The first and the fourth are switched off in the model, the others in the code of the product, while the mutant is
active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from lockgate.commit import protocol
from lockgate.commit.coordinator import Coordinator
from lockgate.commit.ledger import Entry
from lockgate.commit.permits import Permits, Place, Refusal
from lockgate.commit.protocol import Epoch, Step, Vote
from lockgate.connectors.kafka.ledgertopic import LedgerTopic

_decide = protocol.decide


def _decide_without_a_run(entry: Entry | None, epoch: Epoch, *, run: str, where: str, job: str) -> Step:
    if entry is None and epoch.number == 0:
        return Step.WRITE
    return _decide(None if entry is None else replace(entry, run=run), epoch, run=run, where=where, job=job)


def _decide_to_write(*_: object, **__: object) -> Step:
    return Step.WRITE


def _grant(permits: Permits, name: str, *, task: int, attempt: int, places: Sequence[Place]) -> Refusal | None:
    return None


def _count(granted: Mapping[Place, int], votes: Iterable[Vote], *, rows: int, where: str) -> int:
    return sum(vote.records for vote in votes)


def _pass(*_: object, **__: object) -> None:
    """Do nothing."""


_SWAPS: dict[str, tuple[tuple[Any, str, Callable[..., Any]], ...]] = {
    "fencing": (),
    "claim": (
        (Coordinator, "_claim", _pass),
        (protocol, "decide", _decide_without_a_run),
        (protocol, "check_run", _pass),
    ),
    "ledger": ((protocol, "decide", _decide_to_write),),
    "stable-offset": (),
    "permits": ((Permits, "ask", _grant), (protocol, "tally", _count)),
    "tail": ((LedgerTopic, "_check_tail", _pass),),
}

MUTANTS = tuple(_SWAPS)


@contextmanager
def mutated(mutant: str | None) -> Iterator[None]:
    """The product without one of its laws, or as it is."""
    with ExitStack() as swapped:
        for owner, name, replacement in _SWAPS[mutant] if mutant is not None else ():
            swapped.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        yield
