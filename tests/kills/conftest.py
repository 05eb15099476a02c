"""What the tests of kills share; the modules beside this file are found by their names."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import kill_table
from kill_harness import Result, Trial, Trouble
from kill_workloads import WORKLOADS

from lockgate.services.spark import SparkCluster
from lockgate.services.stack import Stack

TABLE = Path(__file__).parents[2] / ".lockgate" / "prove-all.json"

_results: list[Result] = []


@pytest.fixture(scope="session")
def results() -> list[Result]:
    """The results of all trials so far."""
    return _results


@pytest.fixture(scope="session")
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A broker that may be killed without disturbing other tests."""
    stack = Stack(tmp_path_factory.mktemp("services"), brokers=1)
    try:
        stack.up(postgres=False)
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A Master and two Workers, each with an executor of its own."""
    with SparkCluster(tmp_path_factory.mktemp("spark") / "cluster", workers=2) as cluster:
        yield cluster


@pytest.fixture
def trial(
    tmp_path: Path, results: list[Result], capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> Callable[..., Result]:
    """Runs a job under a trouble, tells how it goes and keeps what came of it."""
    is_long = request.node.get_closest_marker("prove") is not None

    def run(
        servers: str, workload: str, trouble: Trouble, *, seed: int, kind: type[Trial] = Trial, **more: Any
    ) -> Result:
        def say(text: str) -> None:
            with capfd.disabled() if is_long else contextlib.nullcontext():
                print(text, flush=True)

        made = kind(servers, WORKLOADS[workload], trouble, tmp_path / "trial", seed, say=say, **more)
        result = made.run()
        if not more.get("planted"):  # what is broken on purpose says nothing about Lockgate
            results.append(result)
        if is_long:  # written after each one: a run that is broken off has told what it found
            kill_table.write(results, TABLE)
        made.tell(f"{result.kills_total} kills in {result.seconds:.0f} s: {result.verdict}")
        return result

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table of all kills."""
    if _results:
        terminalreporter.section("kills")
        for line in kill_table.as_text(kill_table.table(_results)):
            terminalreporter.write_line(line)
