"""The trials of a proof in a file, so that a proof of a thousand kills can be done in pieces.

The first line holds the settings, every other one a trial. A trial that was run again counts once:

    broken    stays broken: to try until it holds is no proof
    holds     takes the place of unknown
    unknown   takes the place of nothing

A line is whole or it is not there: one that was being written when the prover died is cut off, and its trial run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from lockgate.errors import Refused
from lockgate.lab.prove.settings import Settings
from lockgate.lab.prove.verdict import Trial, Verdict
from lockgate.lab.rig.judge.findings import Outcome

_RANKS = (Outcome.UNKNOWN, Outcome.HOLDS, Outcome.BROKEN)


class Results:
    """A file of results under these settings; made where there is none.

    Raises:
        Refused: it holds trials of another job or under other settings, or is no file of results.
    """

    def __init__(self, file: Path, settings: Settings) -> None:
        self.file = file
        self._settings = settings
        self._trials: dict[tuple[int, int], Trial] = {}
        content = file.read_bytes() if file.exists() else b""
        if content:
            whole = content[: content.rfind(b"\n") + 1]
            self._read(whole.decode("utf-8", "replace").splitlines())
            os.truncate(file, len(whole))  # only now: a file that is not ours is left as it is
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._append(json.dumps({"digest": settings.digest, "settings": settings.as_json()}))

    def add(self, trial: Trial) -> None:
        """Keep a trial; it is on disk when this returns."""
        self._append(json.dumps(trial.as_json()))
        self._take(trial)

    def outstanding(self, wanted: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of the wanted trials, by (seed, number), of which nothing is known yet."""
        known = {name for name, trial in self._trials.items() if trial.outcome is not Outcome.UNKNOWN}
        return [name for name in wanted if name not in known]

    def verdict(self) -> Verdict:
        """All of them added up."""
        return Verdict(self._settings, tuple(trial for _, trial in sorted(self._trials.items())))

    def _read(self, lines: list[str]) -> None:
        try:
            head = json.loads(lines[0])
            digest, before = head["digest"], Settings.of_json(head["settings"])
            trials = [Trial.of_json(json.loads(line)) for line in lines[1:]]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise Refused(
                f"This is no file of results of a proof: {error!r}.",
                where=str(self.file),
                fix="name another file, or move this one away",
            ) from None
        if digest != self._settings.digest:
            raise Refused(
                f"These results are of another proof: {_difference(before, self._settings)}.",
                where=str(self.file),
                fix="prove with the settings it began with, or begin a new file",
            )
        for trial in trials:
            self._take(trial)

    def _take(self, trial: Trial) -> None:
        name = trial.seed, trial.number
        before = self._trials.get(name)
        if before is None or _RANKS.index(trial.outcome) > _RANKS.index(before.outcome):
            self._trials[name] = trial

    def _append(self, line: str) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


def _difference(before: Settings, now: Settings) -> str:
    """The settings that changed, in words."""
    old, new = before.identity(), now.identity()
    changed = [f"{name.replace('_', ' ')} was {old[name]}, is {new[name]}" for name in old if old[name] != new[name]]
    return "; ".join(changed) or "its digest does not fit its settings"
