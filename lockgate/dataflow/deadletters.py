"""DeadLetters: a sink for events that cannot be used, so that they neither stop the job nor are lost.

A dead letter is a row like any other: it goes to a sink that the user chooses, in the commit of the rows of its epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.dataflow.endpoints import Sink
from lockgate.errors import BadJob

NAME = "dead-letters"
"""The name of the output of dead letters in a plan."""

LETTER = (
    "id STRING, job STRING, life STRING, epoch BIGINT, step STRING, reason STRING, attempts INT, hindered STRING,"
    " source STRING, part STRING, at BIGINT, child STRING, shown STRING, key BINARY, value BINARY, headers STRING,"
    " timestamp TIMESTAMP"
)
"""A dead letter: why and where the event failed, its place in its source, and what the source gave.

`life` is the query's id in the checkpoint, so a job after a reset has dead letters of its own. `hindered` says what
already had the event when it failed, so that it must not come again. `child` distinguishes the rows that were made of
one event, `shown` is the row as the step saw it, `headers` are a JSON array of {key, value in base64}.
"""


@dataclass(frozen=True)
class DeadLetters:
    """A sink for events that cannot be used, with a limit.

    Args:
        sink: where the dead letters go.
        stop_after: stop the job at more than this many dead letters of the run (an int), or at more than this share of
            its events (a float below 1, from the hundredth event on). None: never.

    >>> letters = DeadLetters(FileSink("letters"), stop_after=0.01)
    >>> job = Job("orders", orders.to("out", FileSink("out")), guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=letters)
    """

    sink: Sink
    stop_after: int | float | None = None

    def check(self, where: str) -> None:
        """Refuse a value that is not a sink, and a limit that cannot be valid. `Job` calls this.

        Args:
            where: the job, for the error.

        >>> DeadLetters(FileSink("letters"), stop_after=100).check("job 'orders'")
        """
        if not isinstance(self.sink, Sink):
            raise BadJob(
                f"dead_letters= takes a sink, not {self.sink!r}",
                where=where,
                fix='dead_letters=KafkaSink(topic="dead-letters", servers=...), or DeadLetters(sink, stop_after=...)',
            )
        limit = self.stop_after
        is_count = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
        is_share = isinstance(limit, float) and 0 < limit < 1
        if limit is not None and not is_count and not is_share:
            raise BadJob(
                f"stop_after={limit!r} is neither a number of dead letters nor a share of the events",
                where=where,
                fix="stop_after=1000 for more than a thousand, stop_after=0.01 for more than one in a hundred",
            )
