"""A password that was typed is on no command line, and in no file, of a process that Lockgate starts."""

import json
import os
import textwrap
from pathlib import Path

import pytest

from lockgate.cli import comparedjob, provenjob
from lockgate.cli.main import main
from lockgate.cli.passwords import PARAMETERS, WORDS, hide, take
from support.process import LOCKGATE, run

CANARY = "c4nary-w0rd"
JOB = """
    import json, os, subprocess, sys
    from pathlib import Path

    def job(dsn: str, out: str):
        seen = {
            "dsn": dsn,
            "command": Path("/proc/self/cmdline").read_text(),
            "below": subprocess.run(["env"], capture_output=True, text=True).stdout,
        }
        Path(out).write_text(json.dumps(seen))
        raise SystemExit("that is all")
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "orders.py"
    file.write_text(textwrap.dedent(JOB))
    return file


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks at processes as Linux shows them")
@pytest.mark.parametrize(
    ("dsn", "is_warned"),
    [(f"postgresql://ada:{CANARY}@db/orders", True), ("env:DSN", False)],
    ids=["text", "reference"],
)
def test_the_driver_gets_the_password_and_no_process_list_shows_it(
    dsn: str, is_warned: bool, job_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "seen.json"
    ended = run(*LOCKGATE, "run", job_file, "-p", f"dsn={dsn}", "-p", f"out={out}", cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    seen = json.loads(out.read_text())
    assert seen["dsn"] == dsn
    assert str(job_file) in seen["command"]
    assert CANARY not in seen["command"] + seen["below"] + ended.stdout + ended.stderr
    assert ("every user of this machine can read" in ended.stderr) is is_warned


@pytest.mark.parametrize("password", [CANARY, f"with blanks {CANARY}", f"with;{CANARY}"])
def test_words_come_back_once_and_only_those_that_were_hidden(password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "orders.py", "-p", f"password={password}"]
    shown, environ = hide(words, WORDS)
    assert CANARY not in str(shown)
    monkeypatch.setenv(WORDS, environ[WORDS])
    assert take(shown, WORDS) == words
    assert WORDS not in os.environ
    assert take(shown, WORDS) == shown


def test_what_a_proof_or_a_comparison_writes_for_its_drivers_holds_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_file = tmp_path / "orders.py"
    job_file.write_text("def job(password: str):\n    raise SystemExit(f'it got {password[::-1]}')\n")
    shown, environ = hide([f"password={CANARY}"], PARAMETERS)
    spec = tmp_path / "spec.json"
    site = {"name": "n", "servers": "s:1", "home": str(tmp_path), "dsn": None}
    rest = {"site": site, "through_spark": False, "name": "n", "servers": "s:1", "topics": {}}
    contender = {"guarantee": "EXACTLY_ONCE", "tracking": "checkpoints"}
    spec.write_text(json.dumps({"file": str(job_file), "parameters": shown, "contender": contender, **rest}))
    assert CANARY not in spec.read_text()
    for module in (provenjob, comparedjob):
        monkeypatch.setattr(module, "Disguise", lambda *given: None, raising=False)
        monkeypatch.setattr(module, "Site", type("Site", (), {"of_json": lambda told: None}), raising=False)
        monkeypatch.setattr(module, "Contender", type("Contender", (), {"of_json": lambda told: None}), raising=False)
        monkeypatch.setenv(PARAMETERS, environ[PARAMETERS])
        with pytest.raises(Exception, match=CANARY[::-1]):
            module.job(spec)


def test_an_unexpected_error_is_kept_without_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*given: object) -> int:
        raise RuntimeError(f"cannot reach postgresql://ada:{CANARY}@db/orders")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("lockgate.cli.services.run_doctor", fail)
    assert main(["doctor"]) == 1
    (kept,) = tmp_path.glob("*.traceback")
    told = capsys.readouterr()
    assert "postgresql://ada:***@db/orders" in kept.read_text()
    assert CANARY not in kept.read_text() + told.out + told.err
