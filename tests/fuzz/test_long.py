"""Every decoder is fed for its share of ten minutes, guided by which lines are reached: the long form of the fuzzing.

What is found stays: copy it from the path in the failure to `crashes/TARGET/`, and `test_decoders.py` feeds it always.

    LOCKGATE_FUZZ_SECONDS=3600 pytest -m prove tests/fuzz/test_long.py
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.targets import TARGETS

TESTS = Path(__file__).parents[1]
SECONDS = float(os.environ.get("LOCKGATE_FUZZ_SECONDS", "600"))
START_SECONDS = 900  # to import everything with its lines counted, on a machine that is busy

pytestmark = [
    pytest.mark.prove,
    pytest.mark.process,
    pytest.mark.skipif(
        importlib.util.find_spec("atheris") is None,
        reason="Atheris is not installed: it has wheels for Linux on x86-64 only",
    ),
]


def drive(place: Path, seconds: float, *names: str) -> list[str]:
    """Feed targets for so many seconds each; those in which a fault was found."""
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.drive", str(seconds), str(place), *names],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=START_SECONDS + 2 * seconds * len(names) + 10 * len(names),
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr[-4000:]
    return done.stdout.split()


def told(place: Path, name: str) -> str:
    """What was said of a target, from the first error on."""
    log = (place / name / "log").read_text(errors="replace")
    kept = [str(file) for file in (place / name).glob("*-*")]
    return f"{name}: {kept}\n{log[max(0, log.find('Uncaught')) :][:3000]}"


def test_nothing_is_found_in_ten_minutes(tmp_path: Path) -> None:
    names = [target.name for target in TARGETS]
    found = drive(tmp_path, SECONDS / len(names), *names)
    assert not found, "\n\n".join(told(tmp_path, name) for name in found)
    fed = {name: re.search(r"executed_units: (\d+)", (tmp_path / name / "log").read_text()) for name in names}
    assert [name for name, count in fed.items() if count is None or int(count[1]) < 10] == []


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    assert drive(tmp_path, 60, "planted") == ["planted"]
    (kept,) = (tmp_path / "planted").glob("crash-*")
    assert kept.read_bytes()[:4] == b"BAD!"
