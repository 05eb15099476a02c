"""Faults that a process does to itself at a point of the protocol: it leaves a mark, and dies or stands still."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockgate.faultpoints import Fault as Armament
from lockgate.lab.rig.faults import Kind, Strike
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Tell, Trouble

_ACTIONS = {Kind.KILL_DRIVER: "kill", Kind.KILL_WORKER: "kill", Kind.KILL_EXECUTOR: "kill-jvm"}
_STANDS_STILL = "stop"


def armament(one: Strike, directory: Path, number: int, gate: Path) -> Armament:
    """What the process receives that does it; for faults other than its death it stands still."""
    directory.mkdir(parents=True, exist_ok=True)
    mark = str(directory / f"{number}-{one.point}")
    action = _ACTIONS.get(one.kind, _STANDS_STILL)
    return Armament(point=one.point, action=action, hit=one.hit, mark=mark, gate=str(gate))


def victim_of(fault: Armament) -> int | None:
    """The process that has done it; None if it has not happened yet."""
    try:
        text = Path(str(fault.mark)).read_text().strip()
    except FileNotFoundError:
        return None
    return int(text) if text else None


class Armed(Trouble):
    """Processes that die at points, with one gate for all of them; each fault strikes once."""

    directory = "armed"

    def __init__(self, strikes: Sequence[Strike], scene: Scene, tell: Tell) -> None:
        self._scene, self._tell = scene, tell
        directory = scene.drivers.directory / "marks" / self.directory
        self.gates = [directory / "open"]
        self._faults = {  # that have not struck yet
            armament(one, directory, number, self.gates[0]): one for number, one in enumerate(strikes)
        }
        self.faults, self.count = tuple(self._faults), len(strikes)

    def step(self) -> None:
        for fault, one in [*self._faults.items()]:
            victim = victim_of(fault)
            if victim is not None and self.is_ready(victim):
                del self._faults[fault]
                self.struck += 1
                self._tell(self._scene.fact(one, f"process {victim}"))
                self.follow(fault, victim)

    def is_ready(self, victim: int) -> bool:
        """Has the process that left its mark come so far that the fault counts?"""
        return True

    def follow(self, fault: Armament, victim: int) -> None:
        """Do what follows."""
        return
