"""The table of kills counts each kill once and hides no finding."""

import json
from pathlib import Path

from kill_checker import Row, Verdict
from kill_harness import Result
from kill_table import as_text, table, write


def result(kills: dict[str, int], verdict: Verdict, stops: int = 0) -> Result:
    return Result(
        workload="keyed",
        place="local",
        trouble="workers",
        seed=1,
        kills=kills,
        stops=stops,
        starts=1,
        gave_up=[],
        epochs=9,
        seconds=1.0,
        verdict=verdict,
    )


def test_findings_of_a_trial_stand_at_all_its_points_and_once_in_the_total(tmp_path: Path) -> None:
    lost = Verdict(rows=3, lost=[("out", "a", "1")], aborted=[Row("out", 0, 1, "a", "2")], aborted_in_log=4)
    trials = [result({"HALF": 2, "EMIT": 1}, lost), result({"HALF": 1}, Verdict(rows=3))]
    lines = {line["point"]: line for line in table(trials)}
    assert {point: (line["kills"], line["lost"], line["aborted_seen"]) for point, line in lines.items()} == {
        "HALF": (3, 1, 1),
        "EMIT": (1, 1, 1),
        "total": (4, 1, 1),
    }
    assert len(as_text(table(trials))) == 4
    write(trials, tmp_path / "table.json")
    told = json.loads((tmp_path / "table.json").read_text())
    assert [trial["holds"] for trial in told["trials"]] == [False, True]


def test_what_was_only_stopped_is_no_kill_in_the_total() -> None:
    trials = [result({"ADD, stopped": 2}, Verdict(rows=1), stops=2), result({"ADD": 5}, Verdict(rows=1))]
    assert table(trials)[-1]["kills"] == 5
