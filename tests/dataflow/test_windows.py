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
    ],
)
def test_a_window_reads_as_people_say_it(window: windows.Window, text: str) -> None:
    assert str(window) == text


def test_a_window_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        windows.tumbling("1 minute").size = MINUTE  # type: ignore[misc]


def test_a_slide_as_long_as_the_window_leaves_no_gap() -> None:
    assert windows.sliding("1 minute", every="1 minute").every == MINUTE


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
    ],
)
def test_a_window_that_makes_no_sense_is_refused_at_its_line(make: Callable[[], object], what: str) -> None:
    with pytest.raises(BadJob) as refused:
        make()
    assert what in refused.value.what
    assert refused.value.where == f"declared at {Path(__file__).name}:{make.__code__.co_firstlineno}"
    assert refused.value.fix
