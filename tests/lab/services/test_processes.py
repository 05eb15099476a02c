import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from lockgate.lab.services.processes import Daemon, working_in

LIMIT = timedelta(seconds=10)


def test_without_a_pid_file_nothing_runs(tmp_path: Path) -> None:
    assert Daemon("server", tmp_path).pid is None


@pytest.mark.parametrize("text", ["", "12", "{}", '{"pid": "x", "began": 1}', "[]"])
def test_a_damaged_pid_file_names_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.pid").write_text(text)
    assert Daemon("server", tmp_path).pid is None


def test_a_pid_that_now_belongs_to_another_process_is_never_signalled(tmp_path: Path) -> None:
    began = psutil.Process(os.getpid()).create_time() - 60
    (tmp_path / "server.pid").write_text(json.dumps({"pid": os.getpid(), "began": began}))
    daemon = Daemon("server", tmp_path)
    assert daemon.pid is None
    assert not daemon.stop(signal.SIGKILL, LIMIT)  # else this test would not live to say so


@pytest.mark.system
def test_a_process_is_known_to_others_by_its_pid_file_and_logs_to_its_file(tmp_path: Path) -> None:
    code = "import signal; print('ready', flush=True); signal.pause()"
    pid = Daemon("server", tmp_path).start([sys.executable, "-c", code])
    other = Daemon("server", tmp_path)
    try:
        assert other.pid == pid
        assert os.getsid(pid) == pid, "Ctrl-C in our terminal must not reach it"
        assert pid in working_in(tmp_path)
    finally:
        assert other.stop(signal.SIGTERM, LIMIT)
    assert other.pid is None
    assert not other.stop(signal.SIGTERM, LIMIT)


@pytest.mark.system
def test_a_process_that_ignores_the_request_is_made_to_end(tmp_path: Path) -> None:
    daemon = Daemon("server", tmp_path)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf', 'w'); signal.pause()"
    pid = daemon.start([sys.executable, "-c", code])
    while not (tmp_path / "deaf").exists():
        assert daemon.pid == pid
    assert daemon.stop(signal.SIGTERM, timedelta(milliseconds=200))
    assert not psutil.pid_exists(pid)


@pytest.mark.system
def test_the_end_of_the_log_explains_a_process_that_died(tmp_path: Path) -> None:
    daemon = Daemon("server", tmp_path)
    daemon.start([sys.executable, "-c", "raise SystemExit('no such luck')"])
    assert daemon.wait_for_end(LIMIT)
    assert daemon.log_tail() == "no such luck"
