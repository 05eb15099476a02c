"""The four delivery guarantees, their order, and what each asks of the parts of a job.

They are ordered by what they promise, so that the weakest part of a path can decide for the path:

    guarantee                 source        state                        sink
    AT_MOST_ONCE              any           any                          any
    AT_LEAST_ONCE             replayable*   kept or rebuilt              any
    EXACTLY_ONCE (state)      replayable    checkpointed or idempotent   any; rows may be written twice
    END_TO_END_EXACTLY_ONCE   replayable    checkpointed or idempotent   transactional, or idempotent and fenced

* or acknowledged when an epoch is complete, by a sender that sends the rest again

Nothing in Lockgate assumes a guarantee: a job always declares its own, and the planner derives what is reached.
"""

from enum import Enum, IntEnum


class Guarantee(IntEnum):
    """How often an event takes effect although parts of the system fail. A greater member promises more.

    >>> Guarantee.AT_LEAST_ONCE < Guarantee.END_TO_END_EXACTLY_ONCE
    True
    """

    AT_MOST_ONCE = 1
    AT_LEAST_ONCE = 2
    EXACTLY_ONCE = 3
    END_TO_END_EXACTLY_ONCE = 4

    @property
    def label(self) -> str:
        """The guarantee as people write it.

        >>> Guarantee.END_TO_END_EXACTLY_ONCE.label
        'end-to-end exactly-once'
        """
        return _LABELS[self]


_LABELS = {
    Guarantee.AT_MOST_ONCE: "at-most-once",
    Guarantee.AT_LEAST_ONCE: "at-least-once",
    Guarantee.EXACTLY_ONCE: "exactly-once (state)",
    Guarantee.END_TO_END_EXACTLY_ONCE: "end-to-end exactly-once",
}


class Mode(Enum):
    """How Spark drives the query: epoch by epoch, or row by row with epochs as checkpoints only.

    >>> Mode("real-time") is Mode.REAL_TIME
    True
    """

    MICRO_BATCH = "micro-batch"
    REAL_TIME = "real-time"


class Delivery(Enum):
    """What a sink does with an epoch that reaches it a second time."""

    TRANSACTIONAL = "transactional"  # the epoch becomes visible once, as a whole, or not at all
    IDEMPOTENT = "idempotent by key"  # the second copy of a row replaces the first
    PLAIN = "plain"  # the second copy stands beside the first
