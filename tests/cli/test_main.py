import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lockgate.cli import main as cli
from lockgate.errors import BadMachine, InvariantBroken, LockgateError, ServiceFailed


@pytest.fixture
def run_raising(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a command that ends with the given exception."""

    def run(error: BaseException, *options: str) -> int:
        def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
            def raise_it(arguments: argparse.Namespace) -> int:
                raise error

            subparsers.add_parser("break").set_defaults(run=raise_it)

        monkeypatch.setattr(cli, "GROUPS", (argparse.Namespace(register=register),))
        return cli.main([*options, "break"])

    return run


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadMachine("no Java", "PATH", "install it"), 2),
        (ServiceFailed("no answer", "broker 1", "read the log"), 1),
        (InvariantBroken("two facts disagree", "ledger", "stop"), 1),
    ],
)
def test_an_error_on_purpose_is_one_paragraph_and_a_status(
    run_raising: Callable[..., int], capsys: pytest.CaptureFixture[str], error: LockgateError, status: int
) -> None:
    assert run_raising(error) == status
    assert capsys.readouterr().err == f"{error.what}\n  where: {error.where}\n  fix:   {error.fix}\n"


def test_ctrl_c_ends_without_a_traceback(run_raising: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_raising(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_unexpected_error_is_one_line_and_a_file(
    run_raising: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_raising(ZeroDivisionError("oh")) == 1
    told = capsys.readouterr().err
    (written,) = tmp_path.iterdir()
    assert "ZeroDivisionError: oh" in told
    assert str(written) in told
    assert "Traceback" not in told
    assert "Traceback" in written.read_text()


def test_debug_shows_the_traceback_at_once(run_raising: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_raising(ZeroDivisionError("oh"), "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["up", "--brokers", "2"], ["up", "--kafka-port", "x"]])
def test_a_command_line_that_makes_no_sense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("lockgate 0.")


@pytest.mark.process
def test_help_does_not_wait_for_spark() -> None:
    code = "import sys; import lockgate.cli.main as m; m.make_parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyspark", "pandas", "pyarrow", "kafka", "psycopg", "psutil", "jinja2"} & set(loaded)
