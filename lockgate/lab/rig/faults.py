"""The faults for a running job, and the points where they strike.

    kill driver            the Python process of the driver
    kill worker            the Python worker of a task
    kill executor          the JVM in which tasks run: without a cluster, the driver's own
    kill machine           a Worker of the cluster with everything that it runs; another one takes its place
    kill job               driver, JVM and workers at once, as when a machine loses its power
    pause driver           stopped, itself or in a worker; another driver takes over and goes on, then the first one
                           wakes up
    pause worker, executor stopped for a while
    pause machine          a machine of the cluster stands still with all its processes; the job goes on elsewhere
    kill broker            a Kafka broker, which is started again
    kill leader            of three brokers, the one that leads a partition of an output
    kill coordinator       of three brokers, the one that coordinates the job's transactions
    pause broker           stopped for a while
    kill, pause postgres   the database server
    cut network            nothing passes between the job and its systems for a while, and no connection is closed
    reset network          all connections of the job to its systems are reset
    delay network          everything takes longer for a while
    lose reply             a request of the job takes effect, and its reply never comes
    time out transaction   the driver is stopped until the broker aborts its transaction, and wakes up
    second driver          on the same checkpoint, while the first one runs
    fill disk              no byte is free for the checkpoint
    truncate, flip checkpoint    the newest file of a kind loses its second half, or a bit of it changes
    poison event           a value that cannot be read, among the others

A fault strikes at a point: a named step of the commit protocol, a request whose reply is lost, or any moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ANY_MOMENT = "any moment"
COMMIT_REPLY = "COMMIT"
"""The reply of PostgreSQL to a commit."""


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
    PAUSE_MACHINE = "pause machine"
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
"""What needs proxies between the job and its systems."""

_ASLEEP = frozenset((Kind.PAUSE_DRIVER, Kind.PAUSE_WORKER, Kind.PAUSE_MACHINE, Kind.TIME_OUT))

THREE_BROKERS = frozenset((Kind.KILL_LEADER, Kind.KILL_COORDINATOR))
"""What needs a broker to take over."""


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
    def is_pause(self) -> bool:
        """Does a process of the job stop itself at a point?"""
        return self.point != ANY_MOMENT and self.kind in _ASLEEP

    @property
    def is_crash(self) -> bool:
        """Does PostgreSQL die while a process of the job stands still at a point?"""
        return self.point != ANY_MOMENT and self.kind is Kind.KILL_POSTGRES
