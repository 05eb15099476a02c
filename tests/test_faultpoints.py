"""Faults are armed by name, happen once where that is asked for, and do nothing otherwise."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from lockgate import faultpoints
from lockgate.faultpoints import Fault, FaultPoint, arm, armed, as_environment, reach
from support.process import Process, running

IN_ORDER = [
    "from lockgate.faultpoints import FaultPoint, reach",
    "for turn in range(5):",
    "    print('before', turn, flush=True)",
    "    reach(FaultPoint.BEFORE_END)",
    "    print('after', turn, flush=True)",
]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    arm([])


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(faultpoints.os, "kill", lambda process, how: sent.append((process, how)))
    monkeypatch.setattr(faultpoints.signal, "pthread_kill", lambda thread, how: sent.append((os.getpid(), how)))
    return sent


def starting(place: Path, faults: list[Fault], lines: list[str] = IN_ORDER) -> AbstractContextManager[Process]:
    return running(sys.executable, "-c", "\n".join(lines), cwd=place, environ=as_environment(faults))


def test_nothing_happens_until_a_fault_is_armed(deaths: list[tuple[int, int]]) -> None:
    for point in FaultPoint:
        reach(point)
    assert deaths == []
    assert armed() == ()


@pytest.mark.parametrize("point", FaultPoint, ids=lambda point: str(point.name))
def test_a_fault_happens_at_its_point_and_at_no_other(point: FaultPoint, deaths: list[tuple[int, int]]) -> None:
    arm([Fault(point.name, "kill")])
    for other in FaultPoint:
        if other is not point:
            reach(other)
    assert deaths == []
    reach(point)
    assert deaths == [(os.getpid(), signal.SIGKILL)]


def test_the_first_word_of_a_point_says_which_side_passes_it() -> None:
    assert {point.value.partition(":")[0] for point in FaultPoint} == {"driver", "task"}
    in_tasks = {point.name for point in FaultPoint if point.is_in_task}
    assert in_tasks == {"RECEIVE", "STATE_UPDATE", "PERMIT", "ADD", "HALF", "EMIT"}


def test_a_fault_happens_at_the_passing_it_names_and_only_then(deaths: list[tuple[int, int]]) -> None:
    arm([Fault("ADD", "kill", hit=3)])
    died_at = []
    for turn in range(1, 7):
        reach(FaultPoint.ADD)
        if deaths:
            died_at.append(turn)
            deaths.clear()
    assert died_at == [3]


def test_arming_the_same_again_keeps_the_count_and_other_faults_replace_it(deaths: list[tuple[int, int]]) -> None:
    fault = Fault("ADD", "kill", hit=2)
    arm([fault])
    reach(FaultPoint.ADD)
    arm([fault])  # every task of an epoch arms what travels with it
    reach(FaultPoint.ADD)
    assert len(deaths) == 1
    arm([Fault("HALF", "kill", hit=2)])
    arm([fault])
    reach(FaultPoint.ADD)
    assert len(deaths) == 1
    assert armed() == (fault,)


def test_while_its_gate_is_shut_a_fault_does_not_happen_and_no_passing_counts(
    deaths: list[tuple[int, int]], tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    arm([Fault("ADD", "kill", hit=2, gate=str(gate))])
    for _ in range(5):
        reach(FaultPoint.ADD)
    gate.touch()
    reach(FaultPoint.ADD)
    assert not deaths
    reach(FaultPoint.ADD)
    assert len(deaths) == 1


def test_two_faults_at_one_point_are_both_armed(deaths: list[tuple[int, int]]) -> None:
    faults = (Fault("ADD", "stop", hit=1), Fault("ADD", "kill", hit=2))
    arm(faults)
    assert armed() == faults
    reach(FaultPoint.ADD)
    reach(FaultPoint.ADD)
    assert [how for _, how in deaths] == [signal.SIGSTOP, signal.SIGKILL]


def test_a_mark_makes_it_happen_once_in_all_processes_together(deaths: list[tuple[int, int]], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    arm([Fault("ADD", "kill", mark=str(mark))])
    reach(FaultPoint.ADD)
    assert mark.read_text() == f"{os.getpid()}\n"
    arm([])
    arm([Fault("ADD", "kill", mark=str(mark))])
    reach(FaultPoint.ADD)
    assert len(deaths) == 1


def test_a_point_or_an_action_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        arm([Fault("NOWHERE", "kill")])
    arm([Fault("ADD", "explode")])
    with pytest.raises(ValueError, match="explode"):
        reach(FaultPoint.ADD)


@pytest.mark.process
def test_a_process_that_is_started_armed_dies_at_its_point(tmp_path: Path) -> None:
    with starting(tmp_path, [Fault("BEFORE_END", "kill", hit=2)]) as child:
        assert child.end() == -signal.SIGKILL
    assert child.printed.splitlines()[-1] == "before 1"


@pytest.mark.process
def test_a_stopped_process_wakes_up_and_continues(tmp_path: Path) -> None:
    with starting(tmp_path, [Fault("BEFORE_END", "stop")]) as child:
        child.wait_for("the stop", lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
        assert child.end(signal.SIGCONT) == 0
    assert child.printed.splitlines()[-1] == "after 4"


@pytest.mark.process
def test_a_thread_that_stops_its_process_does_not_continue_past_the_point(tmp_path: Path) -> None:
    """Epochs are committed in a thread of their own; a signal for the process would often stop it a little later."""
    code = [
        "import os, signal, threading",
        "from lockgate.faultpoints import Fault, FaultPoint, arm, reach",
        "arm([Fault('BEFORE_END', 'stop')])",
        "def pass_by():",
        "    reach(FaultPoint.BEFORE_END)",
        "    os.write(ours, b'x')",
        "for _ in range(100):",
        "    theirs, ours = os.pipe()",
        "    child = os.fork()",
        "    if not child:",
        "        thread = threading.Thread(target=pass_by)",
        "        thread.start()",
        "        thread.join()",
        "        os._exit(0)",
        "    os.waitpid(child, os.WUNTRACED)",
        "    os.set_blocking(theirs, False)",
        "    try:",
        "        print('went on', os.read(theirs, 1))",
        "    except BlockingIOError:",
        "        pass",
        "    os.kill(child, signal.SIGCONT)",
        "    os.waitpid(child, 0)",
    ]
    with starting(tmp_path, [], code) as child:
        assert (child.end(), child.text) == (0, "")


@pytest.mark.process
def test_the_process_above_the_parent_dies_with_the_worker(tmp_path: Path) -> None:
    """worker <- daemon <- JVM, with a Python process in the place of the JVM."""
    code = "; ".join(
        [
            "import os, time",
            "from lockgate.faultpoints import Fault, FaultPoint, arm, reach",
            "arm([Fault('HALF', 'kill-jvm')])",
            "daemon = os.fork()",
            "worker = os.fork() if daemon == 0 else -1",
            "reach(FaultPoint.HALF) if worker == 0 else time.sleep(2 if daemon == 0 else 60)",
        ]
    )
    with starting(tmp_path, [], [code]) as top:
        assert top.end() == -signal.SIGKILL
