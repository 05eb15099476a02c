"""What is done to a job under proof, and where: all that fits the job and the machine, dealt out to trials by a seed.

    kill driver            Python's process of the driver
    kill worker            the Python worker of a task
    kill executor          the JVM in which tasks run: without a cluster, the driver's own
    kill machine           a Worker of the cluster with all that it runs; another one takes its place
    kill job               driver, JVM and workers at once, as a machine that loses its power
    pause driver           stopped; another driver takes over and goes on, then the first one wakes up
    pause worker, executor stopped for a while
    kill broker            a Kafka broker, which is started again
    kill leader            of three brokers the one that leads a partition of an output
    kill coordinator       of three brokers the one that coordinates the job's transactions
    pause broker           stopped for a while
    kill, pause postgres   the database server
    cut network            nothing passes between the job and its systems for a while, and nobody is told
    reset network          all connections of the job to its systems are reset
    delay network          everything takes longer for a while
    lose reply             a request of the job takes effect, and its reply never comes
    time out transaction   the driver is stopped until the broker gives its transaction up, and wakes up
    second driver          on the same checkpoint, while the first one runs
    fill disk              no byte is free for the checkpoint
    truncate, flip checkpoint    the newest file of a kind loses its second half, or a bit of it changes
    poison event           a value that cannot be read, among the others

Every fault at every point is as frequent as every other one: they are shuffled by the seed and dealt out in turn.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from lockgate.dataflow.steps import Read, Write
from lockgate.faultpoints import FaultPoint
from lockgate.guarantees import Guarantee
from lockgate.planner.logical import is_operator
from lockgate.planner.physical import is_exact
from lockgate.planner.plan import Plan
from lockgate.sinks.kafka import KafkaSink
from lockgate.sinks.postgres import PostgresSink
from lockgate.sources.kafka import KafkaSource

ANY_MOMENT = "any moment"


class Kind(Enum):
    """What is done."""

    KILL_DRIVER = "kill driver"
    KILL_WORKER = "kill worker"
    KILL_EXECUTOR = "kill executor"
    KILL_MACHINE = "kill machine"
    KILL_JOB = "kill job"
    PAUSE_DRIVER = "pause driver"
    PAUSE_WORKER = "pause worker"
    PAUSE_EXECUTOR = "pause executor"
    KILL_BROKER = "kill broker"
    KILL_LEADER = "kill leader"
    KILL_COORDINATOR = "kill coordinator"
    PAUSE_BROKER = "pause broker"
    KILL_POSTGRES = "kill postgres"
    PAUSE_POSTGRES = "pause postgres"
    CUT_NETWORK = "cut network"
    RESET_NETWORK = "reset network"
    DELAY_NETWORK = "delay network"
    LOSE_REPLY = "lose reply"
    TIME_OUT = "time out transaction"
    SECOND_DRIVER = "second driver"
    FILL_DISK = "fill disk"
    TRUNCATE_CHECKPOINT = "truncate checkpoint"
    FLIP_CHECKPOINT = "flip checkpoint"
    POISON = "poison event"


NETWORK = frozenset((Kind.CUT_NETWORK, Kind.RESET_NETWORK, Kind.DELAY_NETWORK, Kind.LOSE_REPLY))
"""What is done through proxies."""

_ASLEEP = frozenset((Kind.PAUSE_DRIVER, Kind.PAUSE_WORKER, Kind.TIME_OUT))

THREE_BROKERS = frozenset((Kind.KILL_LEADER, Kind.KILL_COORDINATOR))
"""What leaves nobody behind where there is one broker."""


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

    @property
    def is_armed(self) -> bool:
        """Does a process of the job kill itself at a point?"""
        return self.point != ANY_MOMENT and self.kind in (Kind.KILL_DRIVER, Kind.KILL_WORKER, Kind.KILL_EXECUTOR)

    @property
    def is_asleep(self) -> bool:
        """Does a process of the job stop itself at a point?"""
        return self.point != ANY_MOMENT and self.kind in _ASLEEP


@dataclass(frozen=True)
class Ground:
    """What a proof stands on: some faults need more than one machine with one broker."""

    brokers: int = 1
    is_cluster: bool = False
    no_tmpfs: str = ""  # why no disk can be made that may be filled; empty where it can


COMMIT_REPLY = "COMMIT"
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
    is_kafka = any(isinstance(sink, KafkaSink) for sink in exact)
    is_elsewhere = any(not isinstance(sink, KafkaSink) for sink in exact)
    has_postgres = any(isinstance(sink, PostgresSink) for sink in sinks)
    has_state = any(is_operator(graph, node) for node in graph.nodes)
    is_tracked = planned.job.guarantee is not Guarantee.AT_MOST_ONCE
    driver = list(_KAFKA_DRIVER) if is_kafka else []
    driver += [point for point in _OTHER_DRIVER if is_elsewhere and point not in driver]
    driver += ["SENT"] if len(exact) < len(outputs) else []
    task = list(_KAFKA_TASK) if is_kafka else []
    task += [point for point in ("RECEIVE", "STATE_UPDATE") if has_state and point not in task]
    replies = (*(_LOST_REPLIES if is_kafka else ()), *((COMMIT_REPLY,) if has_postgres else ()))
    uses_kafka = any(isinstance(sink, KafkaSink) for sink in sinks) or _reads_kafka(planned)
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


def _reads_kafka(planned: Plan) -> bool:
    return any(
        isinstance(node.step, Read) and isinstance(node.step.source, KafkaSource) for node in planned.logical.nodes
    )


def deal(strikes: Sequence[Strike], *, seed: int, number: int, count: int) -> tuple[Strike, ...]:
    """The faults of one trial: the next `count` of all of them, shuffled anew whenever all were dealt out."""
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
