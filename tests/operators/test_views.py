"""What is kept for a key is shown in words, and shown as what the operator would say of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from lockgate.operators.aggregatefolds import Avg, Count, Sum
from lockgate.operators.contract import Clock, Operator
from lockgate.operators.countwindows import CountWindows, UntilWindows
from lockgate.operators.evaluation import Aggregate, Folds, Whole
from lockgate.operators.patternmatching import Detect, Skip, Stage
from lockgate.operators.rolling import Rolled, RollingOperator
from lockgate.operators.views import show_state
from lockgate.operators.windows import Aligned, TimeWindows

KEY = ("a",)
CLOCK = Clock(before=0, now=0, wall=0)
FOLDS = Folds((Aggregate("`the total` BIGINT", Sum(), "v"), Aggregate("n BIGINT", Count(), None)))


def moment(at_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)


def shown(operator: Operator, rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    return show_state(operator, KEY, operator.step(KEY, None, rows, CLOCK).state, CLOCK)


def test_rolling_aggregates_are_shown_as_results() -> None:
    operator = RollingOperator([Rolled("total", "BIGINT", "v", Sum()), Rolled("mean", "DOUBLE", "v", Avg())])
    assert shown(operator, [(0, 1, 1), (1, 3, 3)]) == {"total": 4, "mean": 2.0}


def test_every_open_window_is_shown_with_its_aggregates() -> None:
    rows = [(0, 12, 5), (1, 17, 6), (2, 31, 7)]
    assert shown(TimeWindows("time", Aligned(20, 10), FOLDS), rows)["windows"] == [
        {"window_start": moment(start), "window_end": moment(start + 20), "told": 0, "the total": total, "n": count}
        for start, total, count in ((0, 11, 2), (10, 11, 2), (20, 7, 1), (30, 7, 1))
    ]


def test_rows_that_wait_for_a_whole_window_are_shown() -> None:
    operator = TimeWindows("time", Aligned(20, 20), Whole(lambda key, rows: rows, ("v",), ("v INT",), "place"))
    rows = [(0, 2, 5, "b"), (1, 2, 6, "a"), (2, 1, 7, "c")]
    assert [window["rows"] for window in shown(operator, rows)["windows"]] == [[[7], [6], [5]]]
    unplaced = CountWindows("time", 4, 4, Whole(lambda key, rows: rows, ("v",), ("v INT",)))
    assert shown(unplaced, [row[:3] for row in rows])["rows"] == [[5], [6], [7]]


def test_windows_by_count_and_by_condition_show_what_came_since() -> None:
    span = {"window_start": moment(1), "window_end": moment(2), "the total": 11, "n": 2}
    assert shown(CountWindows("time", 4, 4, FOLDS), [(0, 1, 5), (1, 2, 6)]) == {"events": 2, **span}
    assert shown(UntilWindows("time", "c", FOLDS), [(0, 1, 5, False), (1, 2, 6, None)]) == span


def test_a_pattern_shows_what_waits_and_what_has_begun() -> None:
    stages = [Stage("hot"), Stage("smoke")]
    operator = Detect(stages, shows={"v": "INT"}, within_us=100, skip=Skip.PAST_LAST, has_event_time=True)
    state = operator.step(KEY, None, [(0, 10, "a", 1, 65), (1, 30, "b", 2, 66)], Clock(before=0, now=20, wall=0)).state
    assert show_state(operator, KEY, state, CLOCK) == {
        "waiting": [{"at": moment(30), "event": [66]}],
        "partial_matches": [
            {
                "match_start": moment(10),
                "reached": "hot",
                "events": [{"stage": "hot", "at": moment(10), "event": [65]}],
            }
        ],
    }
