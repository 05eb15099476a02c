"""What the page of the examples shows, and a run that is killed, for tests that run them."""

import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lockgate.faultpoints import Fault, as_environment
from support.process import LOCKGATE, parameters, run

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

    def run_killed(file: Path, given: Mapping[str, str], rows_per_epoch: int) -> None:
        words = ["run", str(file), *parameters(**given), "--checkpoint", str(tmp_path / "checkpoint")]
        words += ["--rows-per-epoch", str(rows_per_epoch), "--until-caught-up", "--no-supervise"]
        # Rows of the third epoch are staged, and none of them is out; then they are out, and Spark does not know it.
        for fault in (Fault("STAGED", "kill", hit=3), Fault("BEFORE_SPARK_COMMIT", "kill"), None):
            done = run(*LOCKGATE, *words, cwd=tmp_path, environ=as_environment([] if fault is None else [fault]))
            assert done.returncode == (0 if fault is None else -signal.SIGKILL), done.stderr

    return run_killed
