from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from pathlib import Path

import pytest

from lockgate.dataflow import windows
from lockgate.errors import BadJob

MINUTE = timedelta(minutes=1)


def test_windows_take_timedeltas_and_text_alike() -> None:
    assert windows.tumbling("1 minute") == windows.tumbling(MINUTE)
    assert windows.sliding("1 minute", every="10 seconds") == windows.sliding(MINUTE, every=timedelta(seconds=10))
    assert windows.session(gap="1 minute") == windows.session(gap=MINUTE)


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (windows.tumbling("60 seconds"), "tumbling 1 minute"),
        (windows.sliding("1 hour", every="90 seconds"), "sliding 1 hour every 90 seconds"),
        (windows.session(gap="5 minutes"), "session, gap 5 minutes"),
        (windows.tumbling_count(1), "tumbling 1 event"),
        (windows.tumbling_count(100), "tumbling 100 events"),
        (windows.sliding_count(100, every=10), "sliding 100 events every 10"),
        (windows.until("status = 'done'"), "until status = 'done'"),
    ],
)
def test_a_window_reads_as_people_say_it(window: windows.Window, text: str) -> None:
    assert str(window) == text


def test_a_window_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        windows.tumbling("1 minute").size = MINUTE  # type: ignore[misc]


def test_a_slide_as_long_as_the_window_leaves_no_gap() -> None:
    assert windows.sliding("1 minute", every="1 minute").every == MINUTE
    assert windows.sliding_count(3, every=3) == windows.tumbling_count(3)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: windows.tumbling("0 seconds"), "the size of a tumbling window must be more than zero"),
        (lambda: windows.tumbling(60), "the size of a tumbling window is not a duration: 60"),
        (
            lambda: windows.sliding("1 minute", every="0 seconds"),
            "the slide of a sliding window must be more than zero",
        ),
        (lambda: windows.sliding("1 minute", every="2 minutes"), "events in between would be in no window"),
        (lambda: windows.session(gap="often"), "the gap of a session window is not a duration: 'often'"),
        (lambda: windows.session(gap="0 seconds"), "the gap of a session window must be more than zero"),
        (lambda: windows.session(gap=timedelta(seconds=-5)), "the gap of a session window must be more than zero"),
        (lambda: windows.session(gap="-5 seconds"), "the gap of a session window must be more than zero"),
        (lambda: windows.tumbling_count(0), "a whole number of events above zero, but is 0"),
        (lambda: windows.tumbling_count(2.5), "a whole number of events above zero, but is 2.5"),
        (lambda: windows.tumbling_count(True), "a whole number of events above zero, but is True"),
        (lambda: windows.sliding_count("10", every=1), "the size of a sliding_count window must be a whole number"),
        (lambda: windows.sliding_count(10, every=-1), "the slide of a sliding_count window must be a whole number"),
        (lambda: windows.sliding_count(2, every=3), "(3 events) is longer than its size (2 events)"),
        (lambda: windows.until(" "), "until takes a SQL condition, not ' '"),
        (lambda: windows.until(lambda row: True), "until takes a SQL condition, not <function"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused_at_its_line(make: Callable[[], object], what: str) -> None:
    with pytest.raises(BadJob) as refused:
        make()
    assert what in refused.value.what
    assert refused.value.where == f"declared at {Path(__file__).name}:{make.__code__.co_firstlineno}"
    assert refused.value.fix
