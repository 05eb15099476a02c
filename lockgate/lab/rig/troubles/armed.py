"""Faults at points of the protocol that a process does to itself: it leaves a mark, and dies or is stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockgate.faultpoints import Fault as Armament
from lockgate.lab.rig.faults import Kind, Strike
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Tell, Trouble

_ACTIONS = {
    Kind.KILL_DRIVER: "kill",
    Kind.KILL_WORKER: "kill",
    Kind.KILL_EXECUTOR: "kill-jvm",
    Kind.PAUSE_DRIVER: "stop",
    Kind.PAUSE_WORKER: "stop",
    Kind.TIME_OUT: "stop",
}


def armament(one: Strike, directory: Path, number: int, gate: Path) -> Armament:
    """What the process is told that does it."""
    directory.mkdir(parents=True, exist_ok=True)
    mark = str(directory / f"{number}-{one.point}")
    return Armament(point=one.point, action=_ACTIONS[one.kind], hit=one.hit, mark=mark, gate=str(gate))


def victim_of(fault: Armament) -> int | None:
    """The process that has done it; None where it has not happened yet."""
    try:
        text = Path(str(fault.mark)).read_text().strip()
    except FileNotFoundError:
        return None
    return int(text) if text else None


class Armed(Trouble):
    """Processes that die at points, one gate for all of them; each fault strikes once."""

    def __init__(self, strikes: Sequence[Strike], scene: Scene, tell: Tell) -> None:
        self._scene, self._tell = scene, tell
        directory = scene.marks / "armed"
        self.gates = [directory / "open"]
        self._faults = {armament(one, directory, number, self.gates[0]): one for number, one in enumerate(strikes)}
        self.faults = tuple(self._faults)
        self._told: set[Armament] = set()

    def step(self) -> None:
        for fault, one in self._faults.items():
            if fault not in self._told and (victim := victim_of(fault)) is not None:
                self._told.add(fault)
                self._tell(self._scene.fact(one, f"process {victim}"))

    @property
    def struck(self) -> int:
        return len(self._told)

    @property
    def count(self) -> int:
        return len(self._faults)
