from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.dataflow.duration import as_duration, as_people_text, as_spark_text
from lockgate.errors import BadJob

HERE = Path(__file__).name


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 seconds", 10),
        ("1 second", 1),
        ("1second", 1),
        ("  2 MINUTES ", 120),
        ("1 hour 30 minutes", 5400),
        ("1 week 1 day", 8 * 86400),
        ("500 milliseconds", 0.5),
        ("250 microseconds", 0.00025),
        ("2 minutes -30 seconds", 90),
        ("5m", 300),
        ("5 min", 300),
        ("5 mins", 300),
        ("1h30m", 5400),
        ("1H 30 Min", 5400),
        ("250ms", 0.25),
        ("250 MS", 0.25),
        ("10us", 0.00001),
        ("30s", 30),
        ("30 sec", 30),
        ("2 hrs", 7200),
        ("2d", 2 * 86400),
        ("1w", 7 * 86400),
    ],
)
def test_a_duration_is_read_in_words_and_short(text: str, seconds: float) -> None:
    assert as_duration(text, of="gap") == timedelta(seconds=seconds)


def test_a_timedelta_is_taken_as_it_is() -> None:
    assert as_duration(timedelta(days=2), of="gap") == timedelta(days=2)


@pytest.mark.parametrize("value", ["", "soon", "10", "10 fortnights", "1.5 seconds", "1 month", 10, None, True, 2.5])
def test_what_is_no_duration_is_refused_by_the_name_of_its_argument(value: object) -> None:
    with pytest.raises(BadJob) as refused:
        as_duration(value, of="the gap")
    assert refused.value.what.startswith(f"the gap is not a duration: {value!r}")
    assert HERE in refused.value.where
    assert '"10 seconds"' in refused.value.fix


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5", "the number has no unit"),
        ("1.5", "the number has no unit"),
        ("5 parsecs", "'parsecs' is not a unit of time"),
        ("1.5 hours", "a duration is whole numbers, each with its unit"),
        ("5M", "'M' can be read as minutes or months: write 'm' or 'minutes'"),
        ("1h30", "a duration is whole numbers, each with its unit"),
    ],
)
def test_a_refused_text_comes_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(BadJob) as refused:
        as_duration(text, of="the gap")
    assert refused.value.what == f"the gap is not a duration: {text!r}: {reason}"


def test_a_duration_that_no_timedelta_can_hold_is_refused() -> None:
    with pytest.raises(BadJob, match="is not a duration"):
        as_duration("99999999999999 weeks", of="gap")


@pytest.mark.parametrize("value", ["0 seconds", "-1 second", timedelta(0), timedelta(seconds=-1)])
def test_a_duration_is_more_than_zero(value: object) -> None:
    with pytest.raises(BadJob, match="the gap must be more than zero") as refused:
        as_duration(value, of="the gap")
    assert HERE in refused.value.where


def test_zero_is_fine_where_it_means_something_and_less_never_is() -> None:
    assert as_duration("0 seconds", of="lateness", is_zero_allowed=True) == timedelta(0)
    with pytest.raises(BadJob, match="zero or more"):
        as_duration("-1 second", of="lateness", is_zero_allowed=True)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0 seconds"),
        (timedelta(minutes=1), "1 minute"),
        (timedelta(seconds=90), "90 seconds"),
        (timedelta(days=14), "2 weeks"),
        (timedelta(hours=36), "36 hours"),
        (timedelta(microseconds=1), "1 microsecond"),
        (timedelta(seconds=1, milliseconds=500), "1500 milliseconds"),
    ],
)
def test_people_read_a_duration_in_its_largest_whole_unit(duration: timedelta, text: str) -> None:
    assert as_people_text(duration) == text


@given(st.timedeltas(min_value=timedelta(microseconds=1)))
def test_no_microsecond_is_lost_on_the_way_to_text_and_back(duration: timedelta) -> None:
    assert as_duration(as_spark_text(duration), of="gap") == duration
    assert as_duration(as_people_text(duration), of="gap") == duration
