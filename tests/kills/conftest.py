"""What the tests of kills share."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kills.kill_matrix import Case
from kills.kill_trial import KillTrial, Result
from kills.kill_workloads import WORKLOADS
from lockgate.guarantees import Guarantee
from lockgate.lab.prove.report import Report
from lockgate.lab.prove.settings import Settings
from lockgate.lab.prove.verdict import Verdict
from lockgate.lab.rig.faults import Kind
from lockgate.lab.services.stack import Stack

TABLE = Path(__file__).parents[2] / ".lockgate" / "prove-all.json"
COMMAND = "make prove-all"

_results: list[Result] = []


@pytest.fixture(scope="session")
def results() -> list[Result]:
    """The results of all trials so far."""
    return _results


@pytest.fixture
def trial(
    tmp_path: Path, results: list[Result], capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> Callable[..., Result]:
    """Runs the job of a case under its faults, shows the progress, and keeps the result."""
    get = request.getfixturevalue

    def run(case: Case, **more: Any) -> Result:
        def say(text: str) -> None:
            with contextlib.nullcontext() if case.is_("sample") else capfd.disabled():
                print(text, flush=True)

        workload, servers = WORKLOADS[case.workload], get("kafka")
        if case.has(Kind.KILL_BROKER):
            more["stack"] = get("own_stack")
            servers = servers_of(more["stack"])
        if workload.has_second:
            more["second"] = servers_of(get("own_stack"))
        if workload.has_table:  # jobs of other tests must not be in it: a reader looks for what is left open
            more["postgres"] = get("server")
        if case.is_("cluster"):
            more["cluster"] = get("own_cluster")
        made = KillTrial(servers, workload, case, tmp_path / "trial", say=say, **more)
        result = made.run()
        if not made.planted:  # a job that is broken on purpose says nothing about Lockgate
            results.append(result)
        if not case.is_("sample"):  # written after each trial, so that an interrupted run shows what it found
            TABLE.parent.mkdir(parents=True, exist_ok=True)
            TABLE.write_text(json.dumps(report().as_json(), indent=1))
        made.tell(str(result))
        return result

    return run


def servers_of(stack: Stack) -> str:
    servers = stack.status().kafka.servers
    assert servers is not None
    return servers


class AllKills(Settings):
    """What is common to all trials here."""

    def replay(self, seed: int, number: int) -> str:
        return COMMAND


def report() -> Report:
    """All trials so far as one proof."""
    settings = AllKills("Lockgate", Guarantee.END_TO_END_EXACTLY_ONCE, "tests/kills", {}, {}, "", "", {})
    return Report(Verdict(settings, tuple(result.judged for result in _results)), {}, COMMAND)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show all kills as a table."""
    if _results:
        terminalreporter.section("kills")
        terminalreporter.write_line(report().as_text(width=110))
