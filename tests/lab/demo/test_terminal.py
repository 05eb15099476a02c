"""Tables, bars, curves and time lines as they look in a terminal."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from textwrap import dedent

from lockgate.lab.demo import terminal

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_table_has_names_on_the_left_and_numbers_on_the_right() -> None:
    rows = [
        {"team": "otters", "bubbles": 1200, "share": 0.25, "at": NOON},
        {"team": "owls", "bubbles": 7, "share": 12.0, "at": NOON + timedelta(seconds=5)},
    ]
    assert terminal.table(rows) == dedent("""\
        team    bubbles  share  at
        ──────  ───────  ─────  ────────
        otters    1,200    0.2  12:00
        owls          7   12.0  12:00:05""")
    assert terminal.table([]) == "(no rows)"


def test_the_greatest_value_has_the_longest_bar() -> None:
    lines = terminal.bars({"a": 80, "bb": 20, "c": Decimal("1.25"), "none": 0}, unit="cents").splitlines()
    assert lines == [
        f"a     {'█' * 40} 80 cents",
        f"bb    {'█' * 10} 20 cents",
        "c     ▋ 1.25 cents",
        "none   0 cents",
    ]
    assert terminal.bars({"a": 0}) == "a   0"
    assert terminal.bars({}) == "(no rows)"


def test_a_sparkline_goes_from_the_least_to_the_greatest() -> None:
    assert terminal.sparkline([10, 11, 17]) == "▁▂█"
    assert terminal.sparkline([10, 20], floor=0) == "▅█"
    assert terminal.sparkline([3, 3]) == "▁▁"
    assert terminal.sparkline([]) == ""


def test_a_timeline_draws_spans_in_their_lanes() -> None:
    def at(minute: float) -> datetime:
        return NOON + timedelta(minutes=minute)

    lanes = {
        "hall": [(at(1), at(3.5), "h"), (at(3), at(3), "!")],
        "attic": [(at(-5), at(0), "x"), (at(11), at(99), "y")],
    }
    drawn = terminal.timeline(lanes, begin=NOON, end=at(12), step=timedelta(minutes=1))
    assert drawn.splitlines() == ["       12:00     12:10", "hall   ·hh!········", "attic  x··········y"]
