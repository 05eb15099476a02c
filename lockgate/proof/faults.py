"""What is done to a job under proof, and where: all that fits the job, dealt out to trials by a seed.

    kill driver       Python's process of the driver, at a point of the protocol or at any moment
    kill worker       the Python worker of a task
    kill jvm          the JVM that a task runs in: where there is no cluster, the driver's own
    kill job          driver, JVM and workers at once, as a machine that loses its power
    pause driver      stopped at a point; another driver takes over and goes on, then the first one wakes up
    kill broker       the Kafka broker, which is started again
    cut network       nothing passes between the job and Kafka for a while, and nobody is told
    reset network     all connections of the job to Kafka are reset
    lose reply        a request of the job takes effect, and its reply never comes

Every fault at every point is as frequent as every other one: they are shuffled by the seed and dealt out in turn.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from lockgate.dataflow.steps import Write
from lockgate.faultpoints import FaultPoint
from lockgate.planner.logical import is_operator
from lockgate.planner.physical import is_exact
from lockgate.planner.plan import Plan
from lockgate.sinks.kafka import KafkaSink

ANY_MOMENT = "any moment"


class Kind(Enum):
    """What is done."""

    KILL_DRIVER = "kill driver"
    KILL_WORKER = "kill worker"
    KILL_JVM = "kill jvm"
    KILL_JOB = "kill job"
    PAUSE_DRIVER = "pause driver"
    KILL_BROKER = "kill broker"
    CUT_NETWORK = "cut network"
    RESET_NETWORK = "reset network"
    LOSE_REPLY = "lose reply"

    @property
    def is_armed(self) -> bool:
        """Does a process of the job do it to itself, at a point?"""
        return self in (Kind.KILL_DRIVER, Kind.KILL_WORKER, Kind.KILL_JVM)


@dataclass(frozen=True)
class Strike:
    """One fault at one point."""

    kind: Kind
    point: str  # the name of a FaultPoint, ANY_MOMENT, or the request whose reply is lost
    hit: int = 1  # at which passing of the point

    @property
    def named(self) -> tuple[str, str]:
        """As a history names it."""
        return self.kind.value, self.point


_KAFKA_DRIVER = ("CLAIM", "BEGIN", "LEDGER_READ", "VOTES", "MARKER", "BEFORE_END", "AFTER_END", "BEFORE_SPARK_COMMIT")
_KAFKA_TASK = ("RECEIVE", "PERMIT", "ADD", "HALF", "EMIT")
_LOST_REPLIES = ("END_TXN", "INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN", "PRODUCE")


def fitting(planned: Plan, kinds: Iterable[Kind], points: Iterable[str] | None = None) -> list[Strike]:
    """All faults of these kinds that can strike a job, at these points or at all that it passes."""
    graph = planned.logical
    outputs = [node for node in graph.nodes if isinstance(node.step, Write)]
    exact = [node for node in outputs if is_exact(graph, node)]
    is_kafka = any(isinstance(node.step, Write) and isinstance(node.step.sink, KafkaSink) for node in exact)
    driver = list(_KAFKA_DRIVER) if is_kafka else []
    task = list(_KAFKA_TASK) if is_kafka else []
    if len(exact) < len(outputs):
        driver.append("SENT")
    if any(is_operator(graph, node) for node in graph.nodes):
        task += [point for point in ("RECEIVE", "STATE_UPDATE") if point not in task]
    places: dict[Kind, Sequence[str]] = {
        Kind.KILL_DRIVER: (*driver, ANY_MOMENT),
        Kind.KILL_WORKER: (*task, ANY_MOMENT),
        Kind.KILL_JVM: task,
        Kind.KILL_JOB: (ANY_MOMENT,),
        Kind.PAUSE_DRIVER: [point for point in driver if point in ("BEGIN", "MARKER", "BEFORE_END", "AFTER_END")],
        Kind.KILL_BROKER: (ANY_MOMENT,),
        Kind.CUT_NETWORK: (ANY_MOMENT,),
        Kind.RESET_NETWORK: (ANY_MOMENT,),
        Kind.LOSE_REPLY: _LOST_REPLIES if is_kafka else (),
    }
    wanted = None if points is None else {*points}
    return [
        Strike(kind, point)
        for kind in dict.fromkeys(kinds)
        for point in places[kind]
        if wanted is None or point in wanted
    ]


def deal(strikes: Sequence[Strike], *, seed: int, number: int, count: int) -> tuple[Strike, ...]:
    """The faults of one trial: the next `count` of all of them, shuffled anew whenever all were dealt out."""
    dealt = []
    for place in range(number * count, (number + 1) * count):
        turn, index = divmod(place, len(strikes))
        order = [*strikes]
        random.Random(f"{seed} {turn}").shuffle(order)
        one = order[index]
        # An epoch may be its first of a start, or one that follows others.
        hit = random.Random(f"{seed} {place} hit").randint(1, 2) if one.kind.is_armed else 1
        dealt.append(Strike(one.kind, one.point, hit))
    return tuple(dealt)


def known_points() -> list[str]:
    """All that can be asked for."""
    return [*(point.name for point in FaultPoint), *_LOST_REPLIES, ANY_MOMENT]
