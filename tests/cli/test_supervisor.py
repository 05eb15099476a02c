"""The supervisor with drivers that are small programs: who is started again, who is told, and who outlives whom."""

import json
import os
import signal
import sys
import textwrap
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from support.process import Process, run, running
from support.waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.process

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

SUPERVISE = """
import os, random, sys
from lockgate.cli.supervisor import Supervisor
from lockgate.runtime.metrics.server import address_of, listen
from lockgate.runtime.restarts import Restarts

class Quick(random.Random):
    def uniform(self, a, b):
        return 0.01

def say(text):
    print(text, file=sys.stderr, flush=True)

listening = None
if "--metrics" in sys.argv:
    listening = listen("0")
    with open("address.new", "w") as file:
        file.write(address_of(listening))
    os.rename("address.new", "address")
supervisor = Supervisor([sys.executable, "driver.py"], say=say, restarts=Restarts(rng=Quick()), listening=listening)
sys.exit(supervisor.run())
"""

DRIVER = """
import os, signal, sys, threading, time
from pathlib import Path
from lockgate.errors import *
from lockgate.cli.supervisor import Report

report = Report(stop=lambda: os.kill(os.getpid(), signal.SIGTERM))
with open("starts", "a") as file:
    file.write(f"{os.getpid()} {report.is_again}\\n")
start = len(Path("starts").read_text().splitlines())
"""


def supervised(
    directory: Path, driver: str, supervise: str = SUPERVISE, *, listening: bool = False
) -> AbstractContextManager[Process]:
    """A supervisor over a driver that runs this code."""
    (directory / "driver.py").write_text(DRIVER + textwrap.dedent(driver))
    (directory / "supervise.py").write_text(supervise)
    return running(sys.executable, "supervise.py", *(["--metrics"] if listening else []), cwd=directory)


def starts(directory: Path) -> list[list[str]]:
    try:
        return [line.split() for line in (directory / "starts").read_text().splitlines()]
    except FileNotFoundError:
        return []


def end(process: Process) -> tuple[int, str]:
    return process.end(), process.said


def test_a_driver_that_is_done_is_not_started_again(tmp_path: Path) -> None:
    with supervised(tmp_path, "report.tell('from epoch 1', 1)") as process:
        assert end(process) == (0, "")
    assert len(starts(tmp_path)) == 1


def test_a_driver_that_was_killed_is_started_again_where_it_was(tmp_path: Path) -> None:
    driver = """
    report.tell(f"from epoch {start}", start)
    if start < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with supervised(tmp_path, driver) as process:
        status, told = end(process)
    assert status == 0
    first, second = told.splitlines()
    assert first.startswith("restart 1, from epoch 1, in 0.0 s: the driver was killed by SIGKILL")
    assert second.startswith("restart 2, from epoch 2, in 0.0 s: the driver was killed by SIGKILL")
    assert [one[1] for one in starts(tmp_path)] == ["False", "True", "True"]


def test_an_error_is_reported_in_a_line_and_tried_again(tmp_path: Path) -> None:
    driver = """
    if start < 2:
        report.tell("from epoch 7", 0)
        report.send_error(Failed("the broker is away", "there", "wait"))
        sys.exit(1)
    """
    with supervised(tmp_path, driver) as process:
        assert end(process) == (0, "restart 1, from epoch 7, in 0.0 s: the broker is away\n")


def test_what_does_not_answer_is_waited_for_after_the_job_has_run_and_its_place_is_remembered(tmp_path: Path) -> None:
    driver = """
    from lockgate.connectors.kafka.wire import NoBroker
    if start == 1:
        report.tell("from epoch 7", 3)
        report.send_error(EpochFailed("the broker went away", "there", "wait"))
        sys.exit(1)
    if start < 4:
        report.send_error(NoBroker("no broker answers", "there", "wait"))
        sys.exit(2)
    """
    with supervised(tmp_path, driver) as process:
        status, told = end(process)
    assert status == 0
    assert told.splitlines() == [
        "restart 1, from epoch 7, in 0.0 s: the broker went away",
        "restart 2, from epoch 7, in 0.0 s: no broker answers",
        "restart 3, from epoch 7, in 0.0 s: no broker answers",
    ]


def test_what_does_not_answer_is_waited_for_where_the_job_has_a_past(tmp_path: Path) -> None:
    driver = """
    from lockgate.connectors.kafka.wire import NoBroker
    report.send_past()
    if start < 3:
        report.send_error(NoBroker("no broker answers", "there", "wait"))
        sys.exit(2)
    report.tell("from epoch 7", 1)
    if start == 3:
        report.send_error(Refused("another job's checkpoint", "there", "so"))
        sys.exit(2)
    """
    with supervised(tmp_path, driver) as process:
        status, told = end(process)
    assert status == 2
    assert told.splitlines() == [
        "restart 1, in 0.0 s: no broker answers",
        "restart 2, in 0.0 s: no broker answers",
        "not started again: a person has to decide",
    ]
    assert [one[1] for one in starts(tmp_path)] == ["False"] * 3


@pytest.mark.parametrize("status", [1, 2])
def test_one_that_ends_before_it_ever_ran_and_says_nothing_is_not_started_again(tmp_path: Path, status: int) -> None:
    with supervised(tmp_path, f"sys.exit({status})") as process:
        assert end(process) == (status, "")
    assert len(starts(tmp_path)) == 1


def test_one_that_may_not_continue_is_not_started_again_when_it_is_killed(tmp_path: Path) -> None:
    driver = """
    report.tell("with what comes next", 2, final="it would repeat events")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    with supervised(tmp_path, driver) as process:
        assert end(process) == (1, "not started again: it would repeat events\n")


def test_something_unforeseen_is_reported_in_a_line(tmp_path: Path) -> None:
    driver = """
    report.tell("from epoch 7", 3)
    if start == 1:
        report.send_unexpected(RuntimeError("one line" + chr(10) + "and another"))
        sys.exit(1)
    """
    with supervised(tmp_path, driver) as process:
        assert end(process) == (0, "restart 1, from epoch 7, in 0.0 s: RuntimeError: one line\n")


def test_a_supervisor_that_cannot_say_anything_keeps_the_job_running(tmp_path: Path) -> None:
    driver = """
    report.tell("from epoch 0", 0)
    if start < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    Path("done").touch()
    """
    full = SUPERVISE.replace("def say(text):", "sys.stderr = open('/dev/full', 'w')\n\ndef say(text):")
    with supervised(tmp_path, driver, full) as process:
        end(process)
    assert (tmp_path / "done").exists()
    assert len(starts(tmp_path)) == 3


def test_a_driver_that_hangs_while_it_starts_is_killed_and_started_again(tmp_path: Path) -> None:
    driver = """
    report.greet()
    if start == 1:
        time.sleep(1000)
    report.tell("from epoch 7", 3)
    time.sleep(8)
    """
    hasty = SUPERVISE.replace("listening=listening)", "listening=listening, start_seconds=5.0)")
    with supervised(tmp_path, driver, hasty) as process:
        assert end(process) == (0, "restart 1, in 0.0 s: the driver did not start within 5 s, and was killed\n")
    assert len(starts(tmp_path)) == 2


@pytest.mark.parametrize("has_run", [True, False])
def test_a_driver_that_does_not_start_is_tried_again_once_the_job_has_run(tmp_path: Path, has_run: bool) -> None:
    driver = """
    report.tell("from epoch 7", 3)
    os.remove("python")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    if has_run:
        # No link: a Python that is called by another path does not find what is installed beside it.
        (tmp_path / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (tmp_path / "python").chmod(0o755)
    without = SUPERVISE.replace("[sys.executable,", "['./python',")
    with supervised(tmp_path, driver, without) as process:
        status, told = end(process)
    assert status == 1
    if has_run:
        told_first, told_then, *_, told_last = told.splitlines()
        assert told_first.startswith("restart 1, from epoch 7, in 0.0 s: the driver was killed by SIGKILL")
        assert told_then.startswith("restart 2, from epoch 7, in 0.0 s: the driver does not start: [Errno 2]")
        assert told_last == "not started again: it failed in the same way 30 times in a row"
    else:
        assert "FileNotFoundError" in told
        assert "restart 1" not in told


def test_a_child_of_the_driver_that_lives_on_does_not_hold_the_next_start_up(tmp_path: Path) -> None:
    driver = """
    report.tell("from epoch 1", 1)
    if start == 1:
        child = os.fork()
        if child == 0:
            while not Path("over").exists():
                time.sleep(0.05)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    Path("over").touch()
    """
    with supervised(tmp_path, driver) as process:
        assert end(process)[0] == 0
    assert len(starts(tmp_path)) == 2


def test_a_driver_that_crashes_while_it_stops_is_no_clean_end(tmp_path: Path) -> None:
    driver = """
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(os.getpid(), signal.SIGKILL))
    report.tell("from epoch 0", 0)
    Path("ready").touch()
    while True:
        time.sleep(0.05)
    """
    with supervised(tmp_path, driver) as process:
        process.wait_for("the driver", (tmp_path / "ready").exists)
        assert (process.end(signal.SIGTERM), process.said) == (1, "")


@pytest.mark.parametrize(
    ("kind", "status", "place"),
    [("Fenced", 1, "from epoch 7"), ("LedgerMismatch", 1, "from epoch 7"), ("Refused", 2, None)],
)
def test_what_a_person_has_to_decide_does_not_loop(tmp_path: Path, kind: str, status: int, place: str | None) -> None:
    driver = f"""
    if {place!r}:
        report.tell({place!r}, 0)
    report.send_error({kind}("no", "there", "so"))
    sys.exit({status})
    """
    with supervised(tmp_path, driver) as process:
        told = "" if place is None else "not started again: a person has to decide\n"
        assert end(process) == (status, told)
    assert len(starts(tmp_path)) == 1


def test_events_that_the_code_fails_on_end_the_job_after_a_few_tries(tmp_path: Path) -> None:
    driver = """
    report.tell("from epoch 7", 0)
    report.send_error(FunctionFailed("division by zero", "there", "so"))
    sys.exit(1)
    """
    with supervised(tmp_path, driver) as process:
        status, told = end(process)
    assert (status, len(starts(tmp_path))) == (1, 3)
    assert told.endswith("not started again: it failed on its events 3 times in a row\n")


def test_a_driver_that_dies_during_an_action_that_runs_once_is_not_restarted(tmp_path: Path) -> None:
    driver = """
    report.tell(final="the driver died during a restart")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    with supervised(tmp_path, driver) as process:
        status, told = end(process)
    assert status == 1
    assert told.startswith("not started again: the driver died during a restart")
    assert len(starts(tmp_path)) == 1


def test_a_driver_that_dies_before_that_does_it_in_the_next_start(tmp_path: Path) -> None:
    driver = """
    if start == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    report.tell(final="the driver died during a restart")
    report.tell("from epoch 0", 0)
    if start == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with supervised(tmp_path, driver) as process:
        assert end(process)[0] == 0
    assert [one[1] for one in starts(tmp_path)] == ["False", "False", "True"]


STAYS = """
def stop(number, frame):
    Path("asked").write_text(signal.Signals(number).name)
    sys.exit(0)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, stop)
report.tell("from epoch 0", 0)
Path("ready").touch()
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_goes_to_the_driver(tmp_path: Path, number: signal.Signals) -> None:
    with supervised(tmp_path, STAYS) as process:
        process.wait_for("the driver", (tmp_path / "ready").exists)
        assert (process.end(number), process.said) == (0, "")
    assert (tmp_path / "asked").read_text() == number.name
    assert len(starts(tmp_path)) == 1


def test_a_request_to_stop_while_no_driver_runs_takes_effect_at_once(tmp_path: Path) -> None:
    driver = """
    report.tell("from epoch 0", 0)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    with supervised(tmp_path, driver, SUPERVISE.replace("return 0.01", "return 1000.0")) as process:
        process.wait_for("a restart", lambda: process.said.startswith("restart 1"))
        assert process.end(signal.SIGTERM) == 0


def test_a_driver_does_not_outlive_its_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path, STAYS) as process:
        process.wait_for("the driver", (tmp_path / "ready").exists)
        driver = psutil.Process(int(starts(tmp_path)[0][0]))
        process.end(signal.SIGKILL)
        wait_for("the end of the driver", lambda: has_ended(driver))
    assert (tmp_path / "asked").read_text() == "SIGTERM"


def has_ended(driver: psutil.Process) -> bool:
    return not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE


def test_a_driver_ends_with_its_supervisor_although_no_process_reads_its_output(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER + STAYS)
    (tmp_path / "supervise.py").write_text(SUPERVISE)
    unread = '"$0" supervise.py 2>&1 | true'
    with running("sh", "-c", unread, sys.executable, cwd=tmp_path) as process:
        process.wait_for("the driver", (tmp_path / "ready").exists)
        driver = psutil.Process(int(starts(tmp_path)[0][0]))
        driver.parent().kill()
        wait_for("the end of the driver", lambda: has_ended(driver))
    assert (tmp_path / "asked").read_text() == "SIGTERM"


def test_a_driver_without_a_supervisor_sends_no_report(tmp_path: Path) -> None:
    code = """
    from lockgate.cli.supervisor import Report
    from lockgate.errors import Failed
    report = Report(stop=lambda: print("stopped"))
    report.tell("from epoch 0", 0)
    report.send_error(Failed("a", "b", "c"))
    """
    done = run(sys.executable, "-c", textwrap.dedent(code), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_a_driver_starts_has_no_part_in_the_conversation(tmp_path: Path) -> None:
    driver = """
    import json, subprocess
    report.tell("from epoch 0", 0)
    look = "import json, os; print(json.dumps([name for name in os.environ if name.startswith('LOCKGATE_')]))"
    Path("seen").write_text(subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout)
    """
    with supervised(tmp_path, driver) as process:
        assert end(process)[0] == 0
    assert not {"LOCKGATE_SUPERVISOR", "LOCKGATE_AGAIN"} & {*json.loads((tmp_path / "seen").read_text())}


def test_the_supervisor_answers_for_a_driver_that_is_not_there_and_the_port_stays(tmp_path: Path) -> None:
    driver = """
        from lockgate.runtime.metrics.health import Verdict
        from lockgate.runtime.metrics.server import Pages, Server

        while not Path(f"begin-{start}").exists():
            time.sleep(0.02)
        told = Verdict(True, True, f"driver {start}, restarts {report.restarts}")
        server = Server(report.listening, Pages(lambda: told))
        report.greet()
        report.tell("from epoch 7", 1)
        while True:
            time.sleep(0.02)
    """
    with supervised(tmp_path, driver, listening=True) as process:
        process.wait_for("an address", (tmp_path / "address").exists)
        address = (tmp_path / "address").read_text()

        def status() -> str:
            with _DIRECT.open(f"{address}/health", timeout=PATIENCE_SECONDS) as answer:
                return str(json.load(answer)["status"])

        assert status() == "starting"
        (tmp_path / "begin-1").touch()
        process.wait_for("the first driver", lambda: status() == "driver 1, restarts 0")
        os.kill(int(starts(tmp_path)[0][0]), signal.SIGKILL)
        process.wait_for("its end", lambda: status() == "restarting")
        (tmp_path / "begin-2").touch()
        process.wait_for("the second driver", lambda: status() == "driver 2, restarts 1")
        assert process.end(signal.SIGTERM) == 1  # this driver knows nothing of a clean end
