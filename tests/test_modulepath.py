"""A child process in another directory finds what this process finds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockgate.modulepath import module_path


@pytest.mark.process
@pytest.mark.parametrize("entry", ["", "."])
def test_a_child_elsewhere_finds_modules_beside_the_parent_and_this_package(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "rates.py").write_text("VAT = 19\n")
    monkeypatch.chdir(tmp_path / "beside")
    monkeypatch.setattr(sys, "path", [entry])
    code = "import lockgate.modulepath, rates; print(rates.VAT)"
    environ = {**os.environ, "PYTHONPATH": module_path()}
    child = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert child.stdout == "19\n"


def test_no_place_is_named_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(Path(__file__).parents[1])
    monkeypatch.setattr(sys, "path", [home, "/elsewhere"])
    assert module_path() == os.pathsep.join([home, "/elsewhere"])
