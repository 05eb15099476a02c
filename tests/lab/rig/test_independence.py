"""Readers and judges share no code with the job."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "lockgate"
JUDGES = ("history", "judge")
READERS = ("readers",)
ALLOWED = {"lockgate.errors", "lockgate.guarantees"}
HOW_TEXT_LOOKS = {"lockgate.columns", "lockgate.escaping"}


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
    ours = {f"lockgate.lab.prove.{one}" for one in ("counterexample", "verdict", "settings")}
    found = imported_by(PACKAGE / "lab" / "prove" / f"{name}.py") - ALLOWED - HOW_TEXT_LOOKS - ours
    assert [one for one in found if not is_of(one, *JUDGES)] == []
