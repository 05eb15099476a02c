"""A second driver on the same checkpoint, as by a supervisor that believes the first one dead: one of them goes on."""

from __future__ import annotations

from lockgate.lab.rig.faults import Strike
from lockgate.lab.rig.troubles.scene import Scene

_LIMIT_SECONDS = 180.0


def start_second_driver(scene: Scene, strike: Strike) -> str | None:
    """Start another one while the first runs, and wait until one of them has given up."""
    first = scene.running
    if first is None or not first.is_up:
        return None
    second = scene.drivers.start({})
    rivals = (first, second)
    scene.wait(
        lambda: any(driver.process.poll() is not None for driver in rivals),
        "the end of one of two drivers",
        seconds=_LIMIT_SECONDS,
    )
    ended = [driver.number for driver in rivals if driver.process.poll() is not None]
    return f"drivers {first.number} and {second.number}; ended: {', '.join(map(str, ended))}"
