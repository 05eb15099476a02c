"""The exceptions of a JVM as they are: the class, Spark's own name and the message of each, outermost first.

The text of an exception quotes events. So a search in it may find text of an event, and an event could then choose
which advice an operator gets. The class of an exception, the name of an error and the order of the causes come from
Spark and Java alone. If a message must be read, it is that of one class, from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_CAUSES_MAX = 50


@dataclass(frozen=True)
class Throwable:
    """One exception of a JVM."""

    kind: str  # the name of its class
    message: str = ""
    condition: str = ""  # Spark's name of the error: "KAFKA_DATA_LOSS.PARTITIONS_DELETED"


def throwables(error: BaseException | None) -> tuple[Throwable, ...]:
    """The exceptions of the JVM behind one of Python; none if there are none, or if the JVM is gone."""
    for _ in range(_CAUSES_MAX):
        if error is None:
            return ()
        # Of py4j's own error, and of those that PySpark makes of it.
        java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        if java is not None:
            return throwables_of(java)
        error = error.__cause__
    return ()


def throwables_of(java: Any) -> tuple[Throwable, ...]:
    """An exception of the JVM, as py4j shows it, and its causes."""
    return tuple(_chain(java))


def _chain(java: Any) -> Iterator[Throwable]:
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):  # the JVM is gone
        for _ in range(_CAUSES_MAX):
            if java is None:
                return
            condition = None
            with suppress(Py4JError):  # not one of Spark's
                condition = java.getCondition()
            yield Throwable(str(java.getClass().getName()), str(java.getMessage() or ""), str(condition or ""))
            java = java.getCause()
