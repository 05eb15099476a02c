"""Progress is a bar on a terminal and lines elsewhere."""

import io
import re
import sys

import pytest

from lockgate.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockgate.cli.progress.LINE_EVERY_SECONDS", 0.0)
    monkeypatch.setattr("lockgate.cli.progress.REDRAW_SECONDS", 0.0)


def test_in_a_file_it_is_lines_of_plain_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "20"}.items():
        monkeypatch.setenv(name, value)
    with progress(2000, "schedules") as show:
        show(500)
        show(1000)
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert re.fullmatch(r"  500 of 2,000 schedules, [\d,.]+ a second, about [\d,]+ s to go", first)
    assert second.startswith("  1,000 of 2,000 schedules, ")
    assert out == ""


def test_a_line_only_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("lockgate.cli.progress.LINE_EVERY_SECONDS", 1000.0)
    with progress(10, "jobs") as show:
        for done in range(10):
            show(done)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ends", [True, False], ids=["done", "stopped"])
def test_on_a_terminal_it_is_a_bar_that_leaves_nothing_behind(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    try:
        with progress(10, "jobs") as show:
            show(5)
            if not ends:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    told = terminal.getvalue()
    assert "━" in told
    assert "5 of 10 jobs, " in told
    assert "\x1b[?25h" in told  # the cursor is back
    assert told.endswith("\x1b[2K")  # and the line is erased


def test_a_terminal_that_cannot_draw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "dumb")
    with progress(10, "jobs") as show:
        show(5)
    assert terminal.getvalue().startswith("  5 of 10 jobs, ")
    assert terminal.getvalue().replace("\n", "").isprintable()
