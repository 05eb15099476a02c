"""Choose the faults that fit a job and the machine, and deal them to trials by the seed.

Every fault at every point is dealt equally often: the seed shuffles them, and the trials get them in turn.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockgate.commit.resource import TransactionSink
from lockgate.dataflow.locations import ServerTable, topics_among
from lockgate.dataflow.steps import Read, Write
from lockgate.faultpoints import FaultPoint
from lockgate.guarantees import Guarantee
from lockgate.lab.rig.faults import ANY_MOMENT, COMMIT_REPLY, THREE_BROKERS, Kind, Strike
from lockgate.planner.logical import is_operator
from lockgate.planner.physical import is_exact
from lockgate.planner.plan import Plan


@dataclass(frozen=True)
class Ground:
    """What a proof stands on: some faults need more than one machine with one broker."""

    brokers: int = 1
    is_cluster: bool = False
    no_tmpfs: str = ""  # why no disk can be made that may be filled; empty where it can


KINDS = tuple(kind for kind in Kind if kind is not Kind.PAUSE_MACHINE)
"""What a proof deals; a paused machine is left to the tests of kills."""

_KAFKA_DRIVER = (
    *("CLAIM", "BEGIN", "RECOVERY", "LEDGER_READ", "VOTES", "MARKER", "BEFORE_END", "AFTER_END"),
    "BEFORE_SPARK_COMMIT",
)
_OTHER_DRIVER = ("RECOVERY", "STAGED", "PUBLISH", "BEFORE_SPARK_COMMIT")
_ONCE = frozenset(("CLAIM", "RECOVERY"))  # what a driver passes once in its life
_KAFKA_TASK = ("RECEIVE", "PERMIT", "ADD", "HALF", "EMIT")
_TAKE_OVER = ("BEGIN", "MARKER", "BEFORE_END", "AFTER_END", "STAGED", "PUBLISH")
_LOST_REPLIES = ("END_TXN", "INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN", "PRODUCE")
_FILES = ("OFFSETS", "COMMITS")


def fitting(
    planned: Plan, kinds: Iterable[Kind], points: Iterable[str] | None = None, ground: Ground | None = None
) -> list[Strike]:
    """All faults of these kinds that can strike a job on this ground, at these points or at all that it passes."""
    ground = ground or Ground()
    places = _places(planned)
    wanted = None if points is None else {*points}
    return [
        Strike(kind, point)
        for kind in dict.fromkeys(kinds)
        if _missing(kind, ground) is None
        for point in places.get(kind, ())
        if wanted is None or point in wanted
    ]


def skipped(planned: Plan, kinds: Iterable[Kind], ground: Ground) -> dict[str, str]:
    """The kinds that could strike this job, but not on this ground, and why."""
    places = _places(planned)
    found = {kind.value: _missing(kind, ground) for kind in dict.fromkeys(kinds) if places.get(kind)}
    return {name: why for name, why in found.items() if why is not None}


def _missing(kind: Kind, ground: Ground) -> str | None:
    """What a kind of fault needs and the ground has not."""
    if kind in THREE_BROKERS and ground.brokers < 3:
        return "needs three brokers: --brokers 3"
    if kind is Kind.KILL_MACHINE and not ground.is_cluster:
        return "needs a cluster: --cluster"
    if kind is Kind.FILL_DISK and ground.no_tmpfs:
        return ground.no_tmpfs
    return None


def _places(planned: Plan) -> dict[Kind, Sequence[str]]:
    """Where each kind of fault can strike a job."""
    graph = planned.logical
    outputs = [node for node in graph.nodes if isinstance(node.step, Write)]
    sinks = [node.step.sink for node in outputs if isinstance(node.step, Write)]
    exact = [node.step.sink for node in outputs if isinstance(node.step, Write) and is_exact(graph, node)]
    is_kafka = any(isinstance(sink, TransactionSink) for sink in exact)
    is_elsewhere = any(not isinstance(sink, TransactionSink) for sink in exact)
    has_postgres = any(isinstance(sink.location, ServerTable) for sink in sinks)
    has_state = any(is_operator(graph, node) for node in graph.nodes)
    is_tracked = planned.job.guarantee is not Guarantee.AT_MOST_ONCE
    driver = list(_KAFKA_DRIVER) if is_kafka else []
    driver += [point for point in _OTHER_DRIVER if is_elsewhere and point not in driver]
    driver += ["SENT"] if len(exact) < len(outputs) else []
    task = list(_KAFKA_TASK) if is_kafka else []
    task += [point for point in ("RECEIVE", "STATE_UPDATE") if has_state and point not in task]
    replies = (*(_LOST_REPLIES if is_kafka else ()), *((COMMIT_REPLY,) if has_postgres else ()))
    sources = [node.step.source for node in graph.nodes if isinstance(node.step, Read)]
    uses_kafka = any(True for _ in topics_among([*sinks, *sources]))
    files = (*_FILES, *(("STATE",) if has_state else ())) if is_tracked else ()
    any_moment = (ANY_MOMENT,)
    return {
        Kind.KILL_DRIVER: (*driver, ANY_MOMENT),
        Kind.KILL_WORKER: (*task, *(any_moment if task else ())),
        Kind.KILL_EXECUTOR: (*task, ANY_MOMENT),
        Kind.KILL_MACHINE: any_moment,
        Kind.KILL_JOB: any_moment,
        Kind.PAUSE_DRIVER: [point for point in driver if point in _TAKE_OVER],
        Kind.PAUSE_WORKER: (*task, *(any_moment if task else ())),
        Kind.PAUSE_EXECUTOR: any_moment,
        Kind.KILL_BROKER: any_moment if uses_kafka else (),
        Kind.KILL_LEADER: any_moment if is_kafka else (),
        Kind.KILL_COORDINATOR: any_moment if is_kafka else (),
        Kind.PAUSE_BROKER: any_moment if uses_kafka else (),
        Kind.KILL_POSTGRES: any_moment if has_postgres else (),
        Kind.PAUSE_POSTGRES: any_moment if has_postgres else (),
        Kind.CUT_NETWORK: any_moment if uses_kafka or has_postgres else (),
        Kind.RESET_NETWORK: any_moment if uses_kafka or has_postgres else (),
        Kind.DELAY_NETWORK: any_moment if uses_kafka or has_postgres else (),
        Kind.LOSE_REPLY: replies,
        Kind.TIME_OUT: ("BEFORE_END",) if is_kafka else (),
        Kind.SECOND_DRIVER: any_moment if exact else (),
        Kind.FILL_DISK: any_moment if is_tracked else (),
        Kind.TRUNCATE_CHECKPOINT: files,
        Kind.FLIP_CHECKPOINT: files,
        Kind.POISON: any_moment if planned.job.dead_letters is not None else (),
    }


def deal(strikes: Sequence[Strike], *, seed: int, number: int, count: int) -> tuple[Strike, ...]:
    """The faults of one trial: the next `count` of all of them, reshuffled whenever all were dealt."""
    dealt = []
    for place in range(number * count, (number + 1) * count):
        turn, index = divmod(place, len(strikes))
        order = [*strikes]
        random.Random(f"{seed} {turn}").shuffle(order)
        one = order[index]
        # An epoch may be its first of a start, or one that follows others.
        is_often = one.is_armed and one.point not in _ONCE
        hit = random.Random(f"{seed} {place} hit").randint(1, 2) if is_often else 1
        dealt.append(Strike(one.kind, one.point, hit))
    return tuple(dealt)


def known_points() -> list[str]:
    """All that can be asked for."""
    return [*(point.name for point in FaultPoint), *_LOST_REPLIES, COMMIT_REPLY, *_FILES, "STATE", ANY_MOMENT]
