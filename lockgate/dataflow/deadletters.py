"""DeadLetters: where events go that cannot be used, so that they neither stop the job nor are lost.

A letter is a row like any other: it goes to a sink of the author's choice, in the commit of the rows of its epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.dataflow.endpoints import Sink
from lockgate.errors import BadJob

NAME = "dead-letters"
"""What the output of letters is called in a plan."""

LETTER = (
    "id STRING, job STRING, life STRING, epoch BIGINT, step STRING, reason STRING, attempts INT, hindered STRING,"
    " source STRING, part STRING, at BIGINT, child STRING, shown STRING, key BINARY, value BINARY, headers STRING,"
    " timestamp TIMESTAMP"
)
"""A letter: why and where the event failed, its place in its source, and what the source gave.

`life` is the query's id in the checkpoint, so a job that began anew has letters of its own. `hindered` says who had the
event already when it failed, so that it must not come again. `child` tells apart what an
event was split into, `shown` is the row as the step saw it, `headers` are a JSON array of {key, value in base64}.
"""


@dataclass(frozen=True)
class DeadLetters:
    """A sink for events that cannot be used.

    With `stop_after` the job stops instead of sending everything there: at more than so many letters (an int), or at
    more than this share of all events (a float below 1, looked at from the hundredth event on), since the run began.
    """

    sink: Sink
    stop_after: int | float | None = None

    def check(self, where: str) -> None:
        """Refuse what is no sink, and no limit."""
        if not isinstance(self.sink, Sink):
            raise BadJob(
                f"dead_letters= takes a sink, not {self.sink!r}",
                where=where,
                fix='dead_letters=KafkaSink(topic="letters", servers=...), or DeadLetters(sink, stop_after=...)',
            )
        limit = self.stop_after
        is_count = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
        is_share = isinstance(limit, float) and 0 < limit < 1
        if limit is not None and not is_count and not is_share:
            raise BadJob(
                f"stop_after={limit!r} is neither a number of letters nor a share of the events",
                where=where,
                fix="stop_after=1000 for more than a thousand letters, stop_after=0.01 for more than one in a hundred",
            )
