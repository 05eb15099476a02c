"""What the page of the examples shows, and a run that is killed, for tests that run them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lockgate.faultpoints import Fault, as_environment

PATIENCE = 600.0
PAGE = Path(__file__).parents[2] / "docs" / "EXAMPLES.md"


def section_of(name: str) -> str:
    """The part of the page that is about an example: its heading names the file."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (found,) = (one for one in sections if f"(`{name}.py`)" in one.partition("\n")[0])
    return found


@pytest.fixture
def shown() -> Callable[[str], str]:
    """The printed result of an example, as its section of the page shows it."""

    def shown(name: str) -> str:
        (block,) = re.findall(r"```text\n(.*?)```", section_of(name), re.DOTALL)
        return block

    return shown


@pytest.fixture
def run_killed(tmp_path: Path) -> Callable[[Path, Mapping[str, str], int], None]:
    """Runs a job file with parameters, and so many rows an epoch, to the end; its driver is killed twice before."""

    def run_killed(file: Path, parameters: Mapping[str, str], rows_per_epoch: int) -> None:
        command = [sys.executable, "-m", "lockgate.cli.main", "run", str(file)]
        command += [word for name, value in parameters.items() for word in ("-p", f"{name}={value}")]
        command += ["--checkpoint", str(tmp_path / "checkpoint"), "--rows-per-epoch", str(rows_per_epoch)]
        command += ["--until-caught-up", "--no-supervise"]
        # Rows of the third epoch are staged, and none of them is out; then they are out, and Spark does not know it.
        for fault in (Fault("STAGED", "kill", hit=3), Fault("BEFORE_SPARK_COMMIT", "kill"), None):
            environ = {**os.environ, **as_environment([] if fault is None else [fault])}
            with (tmp_path / "out").open("w") as out:
                done = subprocess.run(
                    command, cwd=tmp_path, env=environ, stdout=out, stderr=out, timeout=PATIENCE, check=False
                )
            assert done.returncode == (0 if fault is None else -signal.SIGKILL), (tmp_path / "out").read_text()

    return run_killed
