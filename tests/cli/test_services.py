import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from lockgate.cli.main import main
from support.process import LOCKGATE


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command works in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCKGATE_HOME", raising=False)
    return tmp_path


def test_status_before_the_first_up_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 1
    assert "lockgate up" in capsys.readouterr().out
    assert main(["status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["kafka"]["servers"] is None


def test_down_before_the_first_up_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down"]) == 0
    assert "nothing was running" in capsys.readouterr().out


def test_up_without_java_is_refused_with_the_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["up"]) == 2
    told = capsys.readouterr().err
    assert "need Java 17 or newer, and there is none" in told
    assert "fix:   install a Java runtime" in told


def test_up_with_an_old_java_is_refused_with_the_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, 'openjdk version "11.0.22" 2024-01-16')))
    assert main(["up"]) == 2
    told = capsys.readouterr().err
    assert "this is Java 11" in told
    assert "fix:   install a Java runtime" in told


def test_up_on_a_taken_port_is_refused_with_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        assert main(["up", "--kafka-port", str(port)]) == 2
    assert f"Port {port}" in capsys.readouterr().err


def test_doctor_names_what_is_missing_and_the_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, 'java version "1.8.0_392"')))
    monkeypatch.setenv("LOCKGATE_CACHE", str(tmp_path / "empty"))
    assert main(["doctor", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    missing = {finding["name"]: finding["fix"] for finding in report["findings"] if not finding["ok"]}
    assert not report["ok"]
    assert set(missing) == {"Java", "jars"}
    assert "lockgate jars" in missing["jars"]
    assert main(["doctor"]) == 2
    assert "MISSING Java: Spark and Kafka need Java 17 or newer, this is Java 8." in capsys.readouterr().out


@pytest.mark.system
@pytest.mark.process
def test_up_status_and_down_as_a_user_types_them(elsewhere: Path) -> None:
    def lockgate(*words: str) -> "subprocess.CompletedProcess[str]":
        # The services outlive the command that starts them, so nothing may be cleaned up behind it.
        return subprocess.run([*LOCKGATE, *words], cwd=elsewhere, capture_output=True, text=True, check=False)

    try:
        first = lockgate("up", "--no-postgres", "--json")
        assert first.returncode == 0, first.stderr
        facts = json.loads(first.stdout)
        assert facts["root"] == str(elsewhere / ".lockgate" / "services")
        assert facts["kafka"]["running"]
        assert not facts["postgres"]["running"]
        again = lockgate("up", "--no-postgres")
        assert "already up" in again.stderr
        status = lockgate("status")
        assert status.returncode == 0
        assert facts["kafka"]["servers"] in status.stdout
        assert lockgate("doctor").returncode == 0
    finally:
        down = lockgate("down")
    assert down.returncode == 0
    after = lockgate("status", "--json")
    assert after.returncode == 1
    assert json.loads(after.stdout)["kafka"]["servers"] == facts["kafka"]["servers"]


def fake_java(home: Path, says: str) -> Path:
    """A JAVA_HOME whose java only tells its version."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!{os.path.realpath('/bin/sh')}\necho '{says}' >&2\n")
    java.chmod(0o755)
    return home
