"""Faults from outside, one after the other, each when the job has done some epochs since the last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lockgate.lab.rig.faults import Kind, Strike
from lockgate.lab.rig.troubles import brokers, databases, disks, network, processes
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Tell, Trouble

_EPOCHS_BETWEEN = (1, 2)
_INSIDE_SECONDS = (0.0, 0.5)

Deed = Callable[[Scene, Strike], str | None]
"""Does it; says what was hit, or None if there is nothing to hit yet."""

DEEDS: Mapping[Kind, Deed] = {
    Kind.KILL_DRIVER: processes.kill_driver,
    Kind.KILL_JOB: processes.kill_job,
    Kind.KILL_WORKER: processes.kill_worker,
    Kind.PAUSE_WORKER: processes.pause_worker,
    Kind.KILL_EXECUTOR: processes.kill_executor,
    Kind.PAUSE_EXECUTOR: processes.pause_executor,
    Kind.KILL_MACHINE: processes.kill_machine,
    Kind.KILL_BROKER: brokers.kill_broker,
    Kind.PAUSE_BROKER: brokers.pause_broker,
    Kind.KILL_LEADER: brokers.kill_leader,
    Kind.KILL_COORDINATOR: brokers.kill_coordinator,
    Kind.KILL_POSTGRES: databases.kill_postgres,
    Kind.PAUSE_POSTGRES: databases.pause_postgres,
    Kind.CUT_NETWORK: network.cut_network,
    Kind.RESET_NETWORK: network.reset_network,
    Kind.DELAY_NETWORK: network.delay_network,
    Kind.LOSE_REPLY: network.lose_reply,
    Kind.SECOND_DRIVER: processes.start_second_driver,
    Kind.FILL_DISK: disks.fill_disk,
    Kind.TRUNCATE_CHECKPOINT: disks.truncate_checkpoint,
    Kind.FLIP_CHECKPOINT: disks.flip_checkpoint,
}


class Outside(Trouble):
    """Faults that the processes of the job do not do to themselves."""

    def __init__(self, strikes: Sequence[Strike], scene: Scene, tell: Tell) -> None:
        self._left, self.count = list(strikes), len(strikes)
        self._scene, self._tell = scene, tell
        self._due = scene.drivers.epochs() + scene.rng.randint(*_EPOCHS_BETWEEN)

    def step(self) -> None:
        drivers = self._scene.drivers
        if not self._left or drivers.epochs() < self._due:
            return
        self._scene.pause(_INSIDE_SECONDS)  # anywhere in an epoch, not right behind one
        one = self._left[0]
        began = self._scene.fact(one, "")
        hit = DEEDS[one.kind](self._scene, one)
        if hit is not None:
            self._left.pop(0)
            self.struck += 1
            self._tell(replace(began, process=hit))
            self._due = drivers.epochs() + self._scene.rng.randint(*_EPOCHS_BETWEEN)
