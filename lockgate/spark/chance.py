"""What Spark's own plan shows of chance: expressions that may give other values when an epoch is repeated.

The planner cannot look into a `transform`. Spark can, as soon as the frame is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lockgate.planner.sql import find_changing_call

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TEXT_MAX = 100
_MARK = "lockgate step "


def find_chance(frame: DataFrame, before: DataFrame) -> str | None:
    """An expression that is not deterministic and stands between two frames, as SQL; None where there is none."""
    known = Counter(text for text, _ in _expressions(before))
    for text, is_steady in _expressions(frame):
        if known[text] > 0:
            known[text] -= 1
        elif not is_steady or find_changing_call(text) is not None:
            return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."
    return None


def mark(frame: DataFrame, step: str) -> DataFrame:
    """The same rows; Spark's plan shows of which step they are, and how often it has them."""
    return frame.alias(f"{_MARK}{step}")


def count_marks(frame: DataFrame) -> Counter[str]:
    """How often the marked steps are in the plan of a frame."""
    found: Counter[str] = Counter()
    for node in _nodes(frame):
        if node.getClass().getSimpleName() == "SubqueryAlias" and (name := str(node.alias())).startswith(_MARK):
            found[name.removeprefix(_MARK)] += 1
    return found


def _expressions(frame: DataFrame) -> Iterator[tuple[str, bool]]:
    """All expressions of a frame as SQL, and whether Spark calls them deterministic."""
    for node in _nodes(frame):
        yield from ((str(one.sql()), bool(one.deterministic())) for one in _items(node.expressions()))


def _nodes(frame: DataFrame) -> Iterator[Any]:
    """Spark's plan of a frame, node by node."""
    waiting: list[Any] = [frame._jdf.queryExecution().analyzed()]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _items(node.children())


def _items(found: Any) -> list[Any]:
    return [found.apply(index) for index in range(found.size())]
