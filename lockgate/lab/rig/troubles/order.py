"""In which order the faults of a trial strike.

First those that processes do to themselves, all of them armed together; then processes that stand still, one after the
other; then crashes of PostgreSQL at points; then what comes from outside. A poisoned event is no trouble: it is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lockgate.lab.rig.faults import Kind, Strike
from lockgate.lab.rig.troubles.armed import Armed
from lockgate.lab.rig.troubles.databases import Crashes
from lockgate.lab.rig.troubles.outside import Outside
from lockgate.lab.rig.troubles.pauses import Pauses
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Tell, Trouble


def troubles_of(
    strikes: Sequence[Strike], scene: Scene, tell: Tell, *, stays_away: Collection[str] = ()
) -> list[Trouble]:
    """The troubles of these faults; `stays_away` is for crashes."""
    armed = [one for one in strikes if one.is_armed]
    pauses = [one for one in strikes if one.is_pause]
    crashes = [one for one in strikes if one.is_crash]
    others = [one for one in strikes if one.kind is not Kind.POISON and one not in (*armed, *pauses, *crashes)]
    troubles: list[Trouble] = [Armed(armed, scene, tell)] if armed else []
    troubles += [Pauses(pauses, scene, tell)] if pauses else []
    troubles += [Crashes(crashes, scene, tell, stays_away=stays_away)] if crashes else []
    troubles += [Outside(others, scene, tell)] if others else []
    for one in troubles:
        one.of_all = [fault for other in troubles for fault in other.faults]
    return troubles
