"""The jobs of the README and of EXAMPLES.md plan as printed, and the job of the README runs as printed."""

import re
from pathlib import Path

import pytest

from lockgate import Guarantee, plan
from lockgate.cli.jobfile import load_job
from support.process import LOCKGATE, run

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/EXAMPLES.md")
SNIPPETS = dict(
    found
    for page in PAGES
    for found in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
)


def write(name: str, directory: Path) -> Path:
    path = directory / name
    path.write_text(SNIPPETS[name])
    return path


def test_the_pages_have_their_two_jobs() -> None:
    assert list(SNIPPETS) == ["hottest.py", "requests_per_ip.py"]
    assert len(SNIPPETS["hottest.py"].strip().splitlines()) <= 12


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_job_of_the_pages_reaches_what_it_declares(name: str, tmp_path: Path) -> None:
    planned = plan(load_job(str(write(name, tmp_path)), []))
    assert planned.refusal() is None
    assert planned.reached >= Guarantee.AT_LEAST_ONCE


@pytest.mark.system
@pytest.mark.process
def test_the_first_job_of_the_readme_runs_as_it_is_written_there(tmp_path: Path) -> None:
    write("hottest.py", tmp_path)
    (line,) = re.findall(r"lockgate (run hottest\.py .*)", (ROOT / "README.md").read_text())
    done = run(*LOCKGATE, *line.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # 5 sensors speak 400 times each: six whole minutes of 60 readings are closed, less what disorder moved over.
    closed = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("sensor-")]
    assert {row[0] for row in closed} == {f"sensor-{number}" for number in range(5)}
    assert all(int(row[-1]) <= 70 and float(row[-2]) > 10 for row in closed)
    assert "done: 2,000 events" in done.stdout
