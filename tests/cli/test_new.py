"""`lockgate new`: a job file and its test, which pass everything as they are."""

import errno
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

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


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs of a virtual environment, `.venv` below a directory of which we are in."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("lockgate", "python", "pytest"):
        (programs / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(sys, "argv", [str(programs / "lockgate")])
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    return programs


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_new_job_plans_and_is_announced(
    template: str, tmp_path: Path, environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def next_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The commands that are told of after a job was written, without what they are for."""
    assert cli.main(["new", "warm", *words]) == 0
    _, _, told = capsys.readouterr().out.partition("next:\n")
    return [line.strip().partition("      ")[0] for line in told.splitlines()]


def test_the_next_commands_work_where_the_programs_are_not_on_the_path(
    environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = "run warm.py -p events=2000 --until-caught-up"
    assert next_of(capsys) == ["lockgate plan warm.py", "pytest test_warm.py", f"lockgate {run}"]

    monkeypatch.setenv("PATH", "/nowhere")
    Path("warm.py").unlink()
    Path("test_warm.py").unlink()
    beside = [".venv/bin/lockgate plan warm.py", ".venv/bin/python -m pytest test_warm.py", f".venv/bin/lockgate {run}"]
    assert next_of(capsys) == beside

    Path("deeper").mkdir()
    monkeypatch.chdir("deeper")
    monkeypatch.setattr(sys, "argv", ["main.py"])
    as_a_module = f"{environment / 'python'} -m lockgate.cli.main"
    assert next_of(capsys)[0] == f"{as_a_module} plan warm.py"

    monkeypatch.chdir(environment)
    assert next_of(capsys)[1] == f"{environment / 'python'} -m pytest test_warm.py", (
        "a bare name is not looked for here"
    )


def test_the_next_commands_are_quoted(environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for template in TEMPLATES:
        told = next_of(capsys, "--to", f"my {template}", "--template", template)
        assert told[0] == f"lockgate plan 'my {template}/warm.py'"
        assert told[1] == f"pytest 'my {template}/test_warm.py'"
        assert told[-1].startswith(f"lockgate run 'my {template}/warm.py' ")


def test_a_first_record_for_the_topic_is_reported(environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    up, send, run = next_of(capsys, "--template", "topics")[2:]
    assert (up, run) == ("lockgate up", "lockgate run warm.py -p servers=HOST:PORT")
    echo, _, producer = send.partition(" | ")
    assert producer == "python -m kafka.producer -b HOST:PORT -t payments"
    payment = json.loads(echo.removeprefix("echo '").removesuffix("'"))
    columns = runpy.run_path("warm.py")["PAYMENT"].split(", ")
    assert [*payment] == [column.partition(" ")[0] for column in columns]

    assert f"{echo} |\n        {producer}\n" in Path("warm.py").read_text(), "and in the file"


def test_new_jobs_are_clean(tmp_path: Path) -> None:
    for template in TEMPLATES:
        assert cli.main(["new", f"my_{template}", "--to", str(tmp_path), "--template", template]) == 0
    checks = [
        [
            "ruff",
            "check",
            "--no-cache",
            "--isolated",
            "--target-version=py311",
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
        ("__init__", "init"),
        ("setup", "job_setup"),
        ("sitecustomize", "job_sitecustomize"),
        ("x" * 201, "x" * 100),
        ("x" * 300, "x" * 100),
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
    assert f" new {mended} --to {tmp_path}\n" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["new", mended, "--to", str(tmp_path)]) == 0


def test_a_suggested_command_keeps_the_options_that_were_given(
    environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", "warm-rooms"]) == 2
    assert capsys.readouterr().err.endswith("fix:   lockgate new warm_rooms\n")
    assert cli.main(["new", "warm-rooms", "--to", "my jobs", "--template", "topics"]) == 2
    assert capsys.readouterr().err.endswith("fix:   lockgate new warm_rooms --to 'my jobs' --template topics\n")


def test_the_longest_name_of_a_job_is_one_of_a_file_too(tmp_path: Path) -> None:
    assert cli.main(["new", "x" * 200, "--to", str(tmp_path)]) == 0
    assert cli.main(["plan", str(tmp_path / f"{'x' * 200}.py")]) == 0


def test_a_directory_of_that_name_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("there", ["warm.py", "test_warm.py"])
def test_a_link_to_nothing_is_not_written_through(there: str, tmp_path: Path) -> None:
    (tmp_path / there).symlink_to(tmp_path / "nothing")
    assert cli.main(["new", "warm", "--to", str(tmp_path)]) == 2
    assert [file.name for file in tmp_path.iterdir()] == [there]


@pytest.mark.parametrize("place", ["file/deeper", "x" * 300])
def test_a_place_that_cannot_be_written_to_is_refused(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["new", "warm", "--to", str(tmp_path / place)]) == 2
    assert "--to DIR" in capsys.readouterr().err


def test_a_place_that_cannot_be_looked_into_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Path.open

    def refuse_here(path: Path, *words: Any, **options: Any) -> Any:
        if path.parent == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *words, **options)

    monkeypatch.setattr(Path, "open", refuse_here)  # root may look everywhere
    assert cli.main(["new", "warm", "--to", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("the files cannot be written: Permission denied\n")


def test_a_job_file_without_its_test_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def fail_at_the_test(path: Path, *words: Any, **options: Any) -> Any:
        if path.name == "test_warm.py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return opened(path, *words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail_at_the_test)
        assert cli.main(["new", "warm", "--to", str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["new", "warm", "--to", str(tmp_path)]) == 0


PYTEST = str(Path(sys.executable).with_name("pytest"))


def run_pytest(place: Path, command: list[str]) -> str:
    environ = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}  # those are ours
    command = [*command, "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("command", "mode", "is_package"),
    [
        ([PYTEST], "importlib", False),
        ([PYTEST], "prepend", True),
        ([sys.executable, "-m", "pytest"], "importlib", True),
    ],
    ids=["as in the checkout", "in a package", "as a module"],
)
def test_a_new_test_finds_its_job_however_pytest_is_called(
    command: list[str], mode: str, is_package: bool, tmp_path: Path
) -> None:
    place = tmp_path / "jobs"
    for template in TEMPLATES:
        assert cli.main(["new", f"my_{template}", "--to", str(place), "--template", template]) == 0
    if is_package:
        (place / "__init__.py").touch()
    told = run_pytest(tmp_path, [*command, "--collect-only", f"--import-mode={mode}"])
    assert "2 tests collected" in told


@pytest.mark.slow
@pytest.mark.spark
def test_the_tests_of_new_jobs_pass_and_a_job_runs(tmp_path: Path) -> None:
    for template in TEMPLATES:
        assert cli.main(["new", f"my_{template}", "--to", str(tmp_path), "--template", template]) == 0
    # With the settings of the checkout, where whoever has cloned it begins.
    assert "2 passed" in run_pytest(tmp_path, [PYTEST, "-c", str(ROOT / "pyproject.toml")])

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
