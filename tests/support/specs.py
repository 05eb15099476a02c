"""What tests of random jobs write their jobs with: one source of events, and its usual columns."""

from lockgate.lab.randomjobs.spec import Call, Column, Event, EventTime, Made

COLUMNS = (Column("id", "BIGINT"), Column("k", "STRING"), Column("v", "BIGINT"), Column("at", "TIMESTAMP"))
COUNT = Made("n", Call("count"))
TIMED = EventTime("t", "s", "at", lateness_seconds=0)


def event(epoch: int, id: int, key: str | None, number: int | None, at: int | None) -> Event:
    """An event with these values, in the order of the columns."""
    return Event(epoch, 0, (id, key, number, at))
