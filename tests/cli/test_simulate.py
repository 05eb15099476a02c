"""`lockgate simulate`: the verdict as exit status, a time line and a replay for what is broken."""

import json
from pathlib import Path

import pytest

from lockgate.cli import main as cli


def simulate(*arguments: str) -> int:
    return cli.main(["simulate", "--processes", "1", *arguments])


def test_schedules_that_hold_end_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--schedules", "20", "--seed", "100") == 0
    told = capsys.readouterr().out
    assert told.startswith("20 schedules, ")
    assert "holds: every row once" in told


def test_a_schedule_that_is_broken_ends_with_1_its_time_line_and_how_to_replay_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate("--schedules", "1000", "--mutant", "permits") == 1
    told = capsys.readouterr().out
    assert "driver 1               starts at epoch 0" in told
    broken = told[told.index("broken by seed") :].splitlines()
    again = broken[-1].split("lockgate simulate ")[1].split()
    assert simulate(*again) == 1
    assert broken[0] in capsys.readouterr().out


def test_the_facts_as_json_have_the_whole_time_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--schedules", "1000", "--mutant", "ledger", "--json") == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["verdict"], facts["mutant"]) == ("broken", "ledger")
    assert facts["schedules"] == facts["failure"]["seed"] + 1
    assert "starts at epoch 0" in facts["failure"]["time_line"][0]


def test_what_is_broken_is_kept_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "seeds.json"
    for _ in range(2):
        assert simulate("--schedules", "1000", "--mutant", "ledger", "--keep", str(file)) == 1
    (kept,) = json.loads(file.read_text())
    assert kept["mutant"] == "ledger"
    assert kept["broken"] in capsys.readouterr().out


def test_a_file_that_keeps_something_else_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "seeds.json"
    file.write_text("no JSON")
    assert simulate("--schedules", "1000", "--mutant", "ledger", "--keep", str(file)) == 2
    assert "cannot be kept" in capsys.readouterr().err
    assert file.read_text() == "no JSON"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--mutant", "none"], "there is no mutant 'none'"),
        (["--schedules", "0"], "--schedules 0 is too small"),
        (["--processes", "-1"], "--processes -1 is too small"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_processes_find_the_same_schedule_and_tell_how_far_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.cli.progress.LINE_EVERY_SECONDS", 0.0)
    seeds = []
    for processes in ("1", "2"):
        arguments = ["--schedules", "1000", "--mutant", "stable-offset", "--json", "--processes", processes]
        assert cli.main(["simulate", *arguments]) == 1
        out, err = capsys.readouterr()
        seeds.append(json.loads(out)["failure"]["seed"])
        assert "of 1,000 schedules" in err
    assert seeds[0] == seeds[1]
