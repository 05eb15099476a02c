"""One step of every kind that keeps state, with the rows of some epochs.

The fixtures of older formats of state hold what these steps kept after the rows of `before`. So a change of these rows
needs the fixtures to be written again, with the version of Lockgate that wrote them.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from lockgate.dataflow import patterns
from lockgate.dataflow.state import Context, StatefulFunction, Timer, list_of, make_operator, map_of, value
from lockgate.operators import patternmatching
from lockgate.operators.aggregatefolds import Avg, Combine, Count, First, History, Last, Max, Min, Sum
from lockgate.operators.contract import Key, Operator, Values
from lockgate.operators.countwindows import CountWindows, UntilWindows
from lockgate.operators.epoch import run_epoch
from lockgate.operators.evaluation import Aggregate, Folds, Whole
from lockgate.operators.openwindows import Triggers
from lockgate.operators.page import Found, Groups
from lockgate.operators.pagestore import PageStore
from lockgate.operators.rolling import Rolled, RollingOperator
from lockgate.operators.sketches import Distinct, Quantiles, Sample, Top
from lockgate.operators.windows import Aligned, Sessions, TimeWindows

SECOND = 1_000_000
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * SECOND
KEYS: Sequence[Key] = [
    ("one", 1),
    (None, -1),
    (Decimal("1.50"), NOON),
    (date(2026, 7, 1), b"\x00\xff"),
    ({"name": "n", "tags": ["a", None]}, 2.5),
    (float("nan"), True),
]


@dataclass(frozen=True)
class Kind:
    """A step, and the rows of its epochs, the same for every key; some values have the number of the key in them."""

    operator: Operator
    before: Sequence[Sequence[Callable[[int], Values]]]
    after: Sequence[Sequence[Callable[[int], Values]]]


def run_epochs(
    kind: Kind, pages: Callable[[], PageStore], *, first: int, rows: Sequence[Sequence[Any]]
) -> Iterator[Found]:
    """What epochs give; the watermark and the clock move by a minute with each."""
    for epoch, made in enumerate(rows, first):
        groups = Groups.of(
            (number * 1000, key, [(at, *one(number)) for at, one in enumerate(made)]) for number, key in enumerate(KEYS)
        )
        told = NOON_US + epoch * 60 * SECOND
        yield run_epoch(kind.operator, pages(), groups, watermark=told, wall=told)


class Everything(StatefulFunction):
    """A state of every type, with and without a time to live, and timers of both times."""

    schema = "seen STRING"
    text = value("STRING")
    whole = value("BIGINT", ttl="1 hour")
    decimal = value("DECIMAL(10, 2)")
    time = value("TIMESTAMP")
    day = value("DATE")
    raw = value("BINARY")
    flag = value("BOOLEAN")
    number = value("DOUBLE")
    struct = value("STRUCT<name: STRING, tags: ARRAY<STRING>, at: TIMESTAMP>")
    recent = list_of("DECIMAL(10, 2)")
    expiring = list_of("TIMESTAMP", ttl="90 seconds")
    by_name = map_of("STRING", "BIGINT")
    by_day = map_of("DATE", "ARRAY<INT>", ttl="1 hour")
    by_number = map_of("BIGINT", "MAP<STRING, DOUBLE>")

    def process(self, row: Any, context: Context) -> Iterator[Any]:
        at = NOON + timedelta(seconds=row.x)
        self.text.set(f"text {row.x} ü")
        self.whole.set((self.whole.get() or 0) + row.x)
        self.decimal.set(Decimal(row.x) / 4)
        self.time.set(at)
        self.day.set(at.date())
        self.raw.set(bytes([row.x]))
        self.flag.set(row.x % 2 == 0)
        self.number.set(row.x / 3)
        self.struct.set({"name": "n", "tags": ["a", None, "a"], "at": at})
        self.recent.extend([Decimal(row.x), None])
        self.expiring.append(at)
        self.by_name.set(f"name {row.x % 3}", row.x)
        self.by_day.set(at.date(), [row.x, row.x])
        self.by_number.set(row.x, {"a": 1.5, "b": float("inf")})
        context.at(at + timedelta(seconds=90), "event")
        context.at(at + timedelta(seconds=150))
        context.after("3 minutes", "processing")
        yield {"seen": self._shown()}

    def on_timer(self, timer: Timer, context: Context) -> Iterator[Any]:
        yield {"seen": f"{timer} {self._shown()}"}

    def _shown(self) -> str:
        return repr(self.get_state())


def _process() -> Operator:
    return make_operator(Everything(), keys=("k", "n"), columns=("x",), event_time="__time")


def _timed(x: int) -> Callable[[int], Values]:
    return lambda number: (x + number, NOON_US + x * SECOND)


def _rolling() -> RollingOperator:
    folds = {
        "sum": Sum(),
        "sum of decimals": Sum(),
        "count": Count(),
        "min": Min(),
        "max": Max(),
        "first": First(),
        "last": Last(),
        "average": Avg(),
        "average of decimals": Avg(scale=4),
        "history": History(statistics.median),
        "combine": Combine(max),
        "sample": Sample(3),
        "top": Top(2),
        "distinct": Distinct(),
        "quantiles": Quantiles((0.5, 0.9)),
    }
    return RollingOperator(
        [Rolled(name, "STRING", f"c{place}", fold) for place, (name, fold) in enumerate(folds.items())], "identity"
    )


def _rolled(x: int) -> Callable[[int], Values]:
    def row(number: int) -> Values:
        wide = (2**62) * x + number  # the average of these needs more than 64 bits
        day = date(2026, 7, 1 + x)
        values = (x, Decimal(x) / 4, "counted", x + 0.5, f"text {x}", {"at": NOON, "n": [x]}, day, wide, Decimal(x))
        return (*values, x * number, x, f"sampled {x}", day, f"value {x}", x / 7, x * 10 + number)

    return row


FOLDS = Folds(
    (Aggregate("n BIGINT", Count(), None), Aggregate("mean DOUBLE", Avg(), "v"), Aggregate("m INT", Max(), "v"))
)
WHOLE = Whole(lambda key, rows: [(repr(rows),)], ("v", "more"), ("rows STRING",), "place")
UNPLACED = Whole(lambda key, rows: [(repr(rows),)], ("v", "more"), ("rows STRING",))


def _folded(x: int) -> Callable[[int], Values]:
    return lambda number: (NOON_US + x * SECOND, x + number)


def _whole(x: int) -> Callable[[int], Values]:
    return lambda number: (NOON_US + x * SECOND, x + number, {"at": NOON, "tags": ["t", x]}, f"place {x:03}")


def _until(x: int) -> Callable[[int], Values]:
    return lambda number: (NOON_US + x * SECOND, x + number, {"tags": ["t", x]}, x % 5 == 0)


def _detect() -> Operator:
    described = patterns.checked(
        patterns.begin("a", "true").then("b", "true").times(2, 3).then("c", "true").within(timedelta(minutes=10))
    )
    return patternmatching.Detect(
        described.stages,
        shows={"x": "INT", "tags": "ARRAY<STRING>"},
        within_us=600 * SECOND,
        skip=patternmatching.Skip.TO_NEXT,
        has_event_time=True,
    )


def _fitting(x: int) -> Callable[[int], Values]:
    return lambda number: (NOON_US + x * SECOND, f"events\0p\0{x:019}", 1 << x % 3, x + number, ["t", None])


def _rows(make: Callable[[int], Any], *epochs: Sequence[int]) -> Sequence[Sequence[Any]]:
    return [[make(x) for x in epoch] for epoch in epochs]


_BEFORE, _AFTER = ((1, 2, 3), (), (61, 64, 67)), ((122, 125), (183, 186, 189), (), (), ())


def _kind(operator: Operator, make: Callable[[int], Any]) -> Kind:
    return Kind(operator, _rows(make, *_BEFORE), _rows(make, *_AFTER))


KINDS: Mapping[str, Kind] = {
    "a function with state": _kind(_process(), _timed),
    "rolling aggregates": Kind(_rolling(), _rows(_rolled, (1, 2, 3), (4,)), _rows(_rolled, (5, 6), (7,))),
    "tumbling windows": _kind(
        TimeWindows("at", Aligned(300 * SECOND, 300 * SECOND), FOLDS, Triggers(early_every=60 * SECOND)), _folded
    ),
    "sliding windows with their rows": _kind(TimeWindows("at", Aligned(120 * SECOND, 60 * SECOND), WHOLE), _whole),
    "sessions": _kind(TimeWindows("at", Sessions(120 * SECOND), FOLDS, Triggers(allowed=60 * SECOND)), _folded),
    "windows of a number of events": _kind(CountWindows("at", 6, 4, FOLDS), _folded),
    "windows until an event": _kind(UntilWindows("at", "ends", UNPLACED), _until),
    "a pattern": _kind(_detect(), _fitting),
}
