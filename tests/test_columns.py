"""Columns line up whatever they hold, keep every value whole, and take nothing in it for an order to the terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from lockgate.columns import AFTER_FIRST, columns, wrap
from lockgate.escaping import escape

EVIL = "\x1b[31m[red]all is lost[/red] :boom: [link=file:///etc/passwd]\x07\r\nsecond line\u202e"


def test_a_table_lines_up() -> None:
    rows = [["side", "a", "b"], ["one", "10", "1"]]
    assert columns(rows, right=AFTER_FIRST) == ["side   a  b", "one   10  1"]
    assert columns(rows, right=(1,), indent=2) == ["  side   a  b", "  one   10  1"]
    assert columns([]) == []


def test_wide_characters_and_accents_fill_the_columns_that_a_terminal_gives_them() -> None:
    lines = columns([("大きい", "|"), ("e\u0301", "|"), ("plain", "|")])
    assert {cell_len(line[: line.index("|")]) for line in lines} == {8}


def test_no_value_is_cut_or_wrapped_without_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert columns([("x" * 5000, "y " * 2500)]) == [f"{'x' * 5000}  {'y ' * 2500}".rstrip()]


def test_markup_stays_what_it_is_and_control_characters_are_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for width in (None, 300):
        (line,) = columns([("a", EVIL)], width=width)
        assert line == f"a  {escape(EVIL)}"
        assert line.isprintable()
        assert "[red]all is lost[/red] :boom: [link=" in line


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), min_size=1))
def test_any_text_makes_one_printable_line_for_each_row(rows: list[tuple[str, str, str]]) -> None:
    lines = columns(rows, right=(1,))
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert escape(line) == line
        assert all(escape(cell).strip() in line for cell in row)


def test_the_last_column_is_wrapped_below_itself() -> None:
    lines = columns([("1", "one two three four five six"), ("10", "")], right=(0,), indent=2, width=26)
    assert lines == ["   1  one two three four", "      five six", "  10"]


def test_a_head_that_leaves_no_room_makes_lines_longer_and_loses_nothing() -> None:
    lines = wrap("every word of it stays here", 10, "a long head  ")
    assert lines == ["a long head  every word of it", "             stays here"]
