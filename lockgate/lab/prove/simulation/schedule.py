"""What may go wrong in one schedule, and how often: all of it drawn from one seed.

Not every kind of fault is in every schedule. A schedule in which only replies are lost gets much further than one in
which everything fails at once, and finds what the other never reaches.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """What befalls a request, or the one that sends it."""

    CRASH_BEFORE = "the process dies before it sends the request"
    CRASH_AFTER = "the process dies when the request has taken effect"
    LOST_REQUEST = "the request is lost"
    LOST_REPLY = "the request takes effect, the reply is lost"
    DELAY = "no reply comes, and the request takes effect at any later time"
    DUPLICATE = "the request takes effect now, and once more at any later time"
    PAUSE = "the process stands still for longer than a transaction may last"
    OUTAGE = "the broker restarts, and does not answer for a while"
    RIVAL = "a second driver starts on the same checkpoint"
    FORSAKEN = "Spark takes a task attempt for dead and starts another one, and it goes on"
    DEPOSED = "a broker that does not lead the ledger any more shows how it was"


@dataclass(frozen=True)
class Schedule:
    """The frame of one schedule; its choices continue with the same random numbers."""

    seed: int
    epochs: int
    partitions: int
    can_repeat: bool  # else rows come out of state, and the query restarts from its checkpoint
    is_alike: bool  # are rows partitioned alike in source and sink? Else they have to be exchanged first
    is_lax: bool  # see the broker
    faults: tuple[Fault, ...]
    rate: float  # of faults, per request
    switching: float  # how often another driver has the turn
    storm: int  # steps after which nothing goes wrong any more


def draw(seed: int) -> tuple[Schedule, random.Random]:
    """The schedule of a seed, and the numbers for the choices in it."""
    rng = random.Random(seed)
    schedule = Schedule(
        seed=seed,
        epochs=rng.randint(2, 3),
        partitions=rng.randint(1, 3),
        can_repeat=rng.random() < 0.7,
        is_alike=rng.random() < 0.8,
        is_lax=rng.random() < 0.3,
        faults=tuple(fault for fault in Fault if rng.random() < 0.5),
        rate=rng.choice((0.01, 0.04, 0.1)),
        switching=rng.choice((0.01, 0.05, 0.2)),
        storm=rng.randint(20, 250),
    )
    return schedule, rng
