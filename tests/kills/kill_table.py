"""All kills as a table: for people on the screen, for programs in a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kill_harness import Result

FINDINGS = ("lost", "duplicated", "disordered", "aborted_in_log", "aborted_seen")


def table(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A line for each point, and the total.

    A trial that kills at several points counts its findings at each of them, since nobody knows which one it was; in
    the total each trial counts once. What was only stopped, and woke up, is no kill in the total.
    """
    facts = [result.as_facts() for result in results]
    lines = []
    for point in sorted({point for result in results for point in result.kills}):
        hit = [one for one in facts if point in one["kills"]]
        lines.append({"point": point, "kills": sum(one["kills"][point] for one in hit), **_findings(hit)})
    return [*lines, {"point": "total", "kills": sum(one["kills_total"] for one in facts), **_findings(facts)}]


def _findings(facts: list[dict[str, Any]]) -> dict[str, int]:
    return {name: sum(one[name] for one in facts) for name in FINDINGS}


def as_text(lines: list[dict[str, Any]]) -> list[str]:
    """The table for the screen."""
    head = f"{'point':28}" + "".join(f"{name.replace('_', ' '):>16}" for name in ("kills", *FINDINGS))
    return [
        head,
        *(f"{line['point']:28}" + "".join(f"{line[name]:>16}" for name in ("kills", *FINDINGS)) for line in lines),
    ]


def write(results: Sequence[Result], file: Path) -> None:
    """The table and every trial as JSON; a file is always whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    facts = {"command": "make prove-all", "table": table(results), "trials": [one.as_facts() for one in results]}
    aside = file.with_suffix(".new")
    aside.write_text(json.dumps(facts, indent=1))
    aside.replace(file)
