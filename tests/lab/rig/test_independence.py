"""Readers and judges share no code with the job, and a running job never imports the lab."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "lockgate"
JUDGES = ("history", "judge")
READERS = ("readers",)
ALLOWED = {"lockgate.errors", "lockgate.guarantees"}


def modules_of(*parts: str) -> list[Path]:
    rig = PACKAGE / "lab" / "rig"
    return [path for part in parts for path in sorted([*rig.glob(f"{part}.py"), *(rig / part).glob("*.py")])]


def imported_by(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    found = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name for name in found if name.startswith("lockgate")}


def is_of(name: str, *parts: str) -> bool:
    return any(name == f"lockgate.lab.rig.{part}" or name.startswith(f"lockgate.lab.rig.{part}.") for part in parts)


@pytest.mark.parametrize("path", modules_of(*JUDGES), ids=lambda path: path.stem)
def test_a_judge_shares_no_code_with_the_job(path: Path) -> None:
    assert [name for name in imported_by(path) - ALLOWED if not is_of(name, *JUDGES)] == []


@pytest.mark.parametrize("path", modules_of(*READERS), ids=lambda path: path.stem)
def test_a_reader_shares_no_code_with_the_job(path: Path) -> None:
    allowed = (*READERS, "history", "judge.promises")
    assert [name for name in imported_by(path) - ALLOWED if not is_of(name, *allowed)] == []


@pytest.mark.parametrize("name", ["counterexample", "verdict"])
def test_a_verdict_shares_no_code_with_the_job(name: str) -> None:
    ours = {f"lockgate.proof.{one}" for one in ("counterexample", "verdict", "settings")}
    found = imported_by(PACKAGE / "proof" / f"{name}.py") - ALLOWED - ours
    assert [one for one in found if not is_of(one, *JUDGES)] == []


@pytest.mark.process
def test_a_job_that_runs_imports_nothing_of_the_lab() -> None:
    example = PACKAGE.parent / "examples" / "payments.py"
    loads = (
        "import lockgate, lockgate.cli.main, lockgate.cli.job, lockgate.cli.jobfile, lockgate.runtime.run, runpy, sys"
    )
    code = f"{loads}; runpy.run_path({str(example)!r}); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "lockgate.runtime.run" in found
    assert [name for name in found if name.startswith("lockgate.lab")] == []
