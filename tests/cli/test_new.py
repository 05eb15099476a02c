"""`lockgate new`: a job file and its test, which pass everything as they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockgate import Guarantee, plan
from lockgate.cli import main as cli
from lockgate.cli.jobfile import load_job
from lockgate.cli.new import TEMPLATES

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a job file makes the modules beside it importable; not for the tests after this one."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_new_job_plans_and_is_told_of(
    template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "warm_rooms", "--to", "jobs/mine", "--template", template]) == 0
    told = capsys.readouterr().out
    job, test = tmp_path / "jobs/mine/warm_rooms.py", tmp_path / "jobs/mine/test_warm_rooms.py"
    assert {*job.parent.iterdir()} == {job, test}
    for command in (
        "lockgate plan jobs/mine/warm_rooms.py",
        "pytest jobs/mine/test_warm_rooms.py",
        "lockgate run jobs",
    ):
        assert command in told

    assert cli.main(["plan", str(job)]) == 0
    loaded = load_job(str(job), [])
    assert loaded.name == "warm-rooms"
    assert plan(loaded).reached is Guarantee.END_TO_END_EXACTLY_ONCE


def test_new_jobs_are_clean(tmp_path: Path) -> None:
    for template in TEMPLATES:
        assert cli.main(["new", f"my_{template}", "--to", str(tmp_path), "--template", template]) == 0
    checks = [
        [
            "ruff",
            "check",
            "--no-cache",
            "--isolated",
            "--target-version=py310",
            "--select",
            "E,F,W,I,B,UP,SIM,RUF,PT,N",
        ],
        ["ruff", "format", "--no-cache", "--isolated", "--check"],
        ["mypy", "--strict", "--config-file=", f"--cache-dir={ROOT / '.mypy_cache'}", "--follow-imports=silent"],
    ]
    for words in checks:
        command = [sys.executable, "-m", *words, "."]
        # mypy does not follow the finder of an editable install, as a checkout has it.
        found = {**os.environ, "MYPYPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=found, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "mended"),
    [
        ("warm-rooms", "warm_rooms"),
        ("warm rooms.py", "warm_rooms"),
        ("class", "job_class"),
        ("7days", "job_7days"),
        ("jobs/warm", "jobs_warm"),
        ("test_warm", "warm"),
        ("wärme", "w_rme"),
        ("?", "my_job"),
        ("_", "my_job"),
        ("___", "my_job"),
        ("json", "job_json"),
        ("test_json", "job_json"),
        ("test", "job_test"),
        ("__main__", "main"),
        ("lockgate", "job_lockgate"),
        ("pytest", "job_pytest"),
        ("kafka", "job_kafka"),
        ("pyspark.py", "job_pyspark"),
        ("google", "job_google"),
        ("conftest", "job_conftest"),
    ],
)
def test_a_name_that_cannot_be_imported_is_refused_with_one_that_can(
    name: str, mended: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", name, "--to", str(tmp_path)]) == 2
    assert f"fix:   lockgate new {mended}\n" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["new", mended, "--to", str(tmp_path)]) == 0


def test_a_directory_of_that_name_hinders_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warm").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["new", "warm"]) == 0


@pytest.mark.parametrize("there", ["warm.py", "test_warm.py"])
def test_nothing_is_overwritten(there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / there).write_text("mine")
    assert cli.main(["new", "warm", "--to", str(tmp_path)]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {there: "mine"}


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["new", "warm", "--to", str(tmp_path / "file" / "deeper")]) == 2
    assert "--to DIR" in capsys.readouterr().err


@pytest.mark.spark
def test_the_tests_of_new_jobs_pass_and_a_job_runs(tmp_path: Path) -> None:
    for template in TEMPLATES:
        assert cli.main(["new", f"my_{template}", "--to", str(tmp_path), "--template", template]) == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environ = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}  # those are ours
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout

    words = ["run", "my_windows.py", "-p", "events=2000", "--until-caught-up", "--no-supervise"]
    environ = {**os.environ, "LOCKGATE_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "lockgate.cli.main", *words],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "averages").glob("**/*.parquet"))
