import os
import random
import stat
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest

from lockgate.errors import BadMachine
from lockgate.lab.services import ports, postgres
from lockgate.lab.services.postgres import Postgres, choose_user, find_binaries
from lockgate.lab.services.processes import RunAs

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")


def test_the_binaries_are_found_without_running_the_wheels_code() -> None:
    assert {"initdb", "postgres"} <= {path.name for path in find_binaries().iterdir()}


def test_missing_binaries_are_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadMachine, match=r"lockgate\[services\]"):
        find_binaries()


def test_an_ordinary_user_runs_it_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert choose_user(tmp_path, tmp_path) == RunAs()


def test_root_without_any_other_user_is_refused_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(postgres, "_nobody", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))  # no unshare
    with pytest.raises(BadMachine, match=r"refuses to run as root[\s\S]*--no-postgres"):
        choose_user(tmp_path, tmp_path)


@needs_root
@pytest.mark.parametrize("enterable", [True, False])
@pytest.mark.system
def test_root_runs_it_as_another_user_and_its_data_survives(enterable: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        mode = stat.S_IRWXU | (stat.S_IXGRP | stat.S_IXOTH if enterable else 0)
        Path(place).chmod(mode)
        directory = Path(place) / "postgres"
        directory.mkdir()
        (port,) = ports.choose(1, random.Random())
        server = Postgres(directory=directory, port=port, password="s3cret")
        run_as = choose_user(directory, find_binaries())
        if enterable and run_as.uid is None:
            pytest.skip("the binaries are not in a place that nobody may enter")
        try:
            server.start()
            server.wait()
            assert server.daemon.pid is not None
            assert psutil.Process(server.daemon.pid).uids().effective == (run_as.uid or 0)
            with psycopg.connect(server.dsn) as connection:
                connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
            server.stop()
            server.start()
            server.wait()
            with psycopg.connect(server.dsn) as connection:
                assert connection.execute("SELECT one FROM kept").fetchone() == (1,)
        finally:
            server.stop()
