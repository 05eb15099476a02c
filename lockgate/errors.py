"""Every error that Lockgate raises on purpose, as one tree.

An error says what happened, where (the step and the user's own line) and how to mend it. The command line turns the
two halves of the tree into exit codes: what was refused before anything ran is 2, what failed while running is 1.
"""

import re

from lockgate.escaping import escape_lines

_STEP = re.compile(r"(?<!job )'([^']+)', declared at ")


class LockgateError(Exception):
    """Base of every error raised on purpose."""

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(what, where, fix)  # positional: Spark pickles errors between processes
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        what, where, fix = map(escape_lines, (self.what, self.where, self.fix))  # they may quote an event
        return f"{what}\n  where: {where}\n  fix:   {fix}"


def step_in(where: str) -> str | None:
    """The step, source or output that a place names; None where it names none.

    >>> step_in("map 'taxed', declared at orders.py:12"), step_in("job 'orders', declared at orders.py:20")
    ('taxed', None)
    """
    found = _STEP.search(where)
    return None if found is None else found[1]


class Refused(LockgateError):
    """Bad input, found before anything ran; nothing has been read or written."""


class BadJob(Refused):
    """A description that cannot mean anything: no source, a cycle, a name used twice, an unknown column."""


class OverClaim(Refused):
    """A job that declares a stronger guarantee than its parts can give."""


class BadMachine(Refused):
    """The machine lacks something: Java, a package, a free port, the network."""


class Unreachable(Refused):
    """A system that a job needs does not answer; it may later."""


class Failed(LockgateError):
    """Something went wrong while running; what was committed stays, the rest is replayed by the next run."""


class UnparsableValue(Failed):
    """A record of a source does not parse as the type that its job declares."""


class UnusableTime(Failed):
    """An event has no time, or one so far ahead that all windows before it would close."""


class FunctionFailed(Failed):
    """A function of the user's raised, or returned what its schema does not allow."""


class RowRefused(Failed):
    """A sink does not take a row, and would not take it another time."""


class TimeRefused(RowRefused):
    """The time of a record is further from the broker's clock than its topic allows."""


class TooManyLetters(Failed):
    """More events cannot be used than the author allows."""


class ServiceFailed(Failed):
    """A local service did not start, did not answer or did not stop."""


class Fenced(Failed):
    """Another driver of the same job took over; this one must not go on."""


class LedgerMismatch(Failed):
    """What the sink has committed and what the checkpoint says do not fit together; a person has to decide."""


class CheckpointDamaged(Failed):
    """A file of the checkpoint is not as it was written; the next run would find the same."""


class TopicGone(Failed):
    """A topic that the job used does not exist any more, or another topic has its name; an operator has to decide."""


class SourceChanged(Failed):
    """A file that a job has read, or has to read, is not as it was; an operator has to decide."""


class RecordsGone(Failed):
    """A source no longer has records that the job has yet to read; an operator has to decide."""


class EpochTooLong(Failed):
    """An epoch outlived its transaction, again; it has to be made smaller."""


class EpochFailed(Failed):
    """One try of an epoch ended without a decision; nothing of it is visible, and the epoch is repeated."""


class InvariantBroken(LockgateError):
    """Two facts that can never disagree did; stopping is the only safe answer."""
