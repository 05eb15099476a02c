"""Every error that Lockgate raises on purpose, as one tree. docs/ERRORS.md shows it as a table.

An error says what happened, where (the step and the user's own line) and how to fix it. The command line turns the two
halves of the tree into exit codes: 2 if the job was refused before anything ran, 1 if it failed while it ran.
"""

import re

from lockgate.escaping import escape_lines

__all__ = [
    "BadJob",
    "BadMachine",
    "CheckpointDamaged",
    "EpochFailed",
    "EpochTooLong",
    "Failed",
    "Fenced",
    "FunctionFailed",
    "InvariantBroken",
    "LedgerMismatch",
    "LockgateError",
    "Moved",
    "OverClaim",
    "RecordsGone",
    "Refused",
    "RowRefused",
    "ServiceFailed",
    "SourceChanged",
    "TimeRefused",
    "TooManyLetters",
    "TopicGone",
    "UnparsableValue",
    "Unreachable",
    "UnusableTime",
]

_STEP = re.compile(r"(?<!job )'([^']+)', declared at ")


class LockgateError(Exception):
    """Base of every error raised on purpose.

    Args:
        what: what happened.
        where: the step, and the user's own line if there is one.
        fix: what to do.

    >>> try:
    ...     raise BadJob("a job needs an output", where="declared at orders.py:7", fix="end a stream with .to(...)")
    ... except LockgateError as error:
    ...     print(error)
    a job needs an output
      where: declared at orders.py:7
      fix:   end a stream with .to(...)
    """

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(what, where, fix)  # positional: Spark pickles errors between processes
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        what, where, fix = map(escape_lines, (self.what, self.where, self.fix))  # they may quote an event
        return f"{what}\n  where: {where}\n  fix:   {fix}"


def step_in(where: str) -> str | None:
    """Return the step, source or output that a place names; None if it names none.

    >>> step_in("map 'taxed', declared at orders.py:12"), step_in("job 'orders', declared at orders.py:20")
    ('taxed', None)
    """
    found = _STEP.search(where)
    return None if found is None else found[1]


class Refused(LockgateError):
    """Bad input or an unfit machine, found before anything ran. Nothing has been read or written."""


class BadJob(Refused):
    """The job cannot be valid: no source, a cycle, a name used twice, an unknown column, a wrong argument."""


class OverClaim(Refused):
    """The job declares a stronger guarantee than its parts can give."""


class BadMachine(Refused):
    """The machine lacks something: Java, a package, a free port, the network."""


class Unreachable(Refused):
    """A system that the job needs does not answer. It may answer later."""


class Failed(LockgateError):
    """Something went wrong while the job ran. What is committed stays; the next run replays the rest."""


class UnparsableValue(Failed):
    """A record of a source does not parse as the type that the job declares."""


class UnusableTime(Failed):
    """An event has no time, or a time so far ahead that all windows before it would close."""


class FunctionFailed(Failed):
    """A function of the user raised, or returned what its schema does not allow."""


class RowRefused(Failed):
    """A sink does not take a row, and would not take it in another attempt."""


class TimeRefused(RowRefused):
    """The time of a record is further from the broker's clock than its topic allows."""


class TooManyLetters(Failed):
    """More events cannot be used than `DeadLetters(stop_after=...)` allows."""


class ServiceFailed(Failed):
    """A local service did not start, did not answer or did not stop."""


class Fenced(Failed):
    """Another driver of the same job took over. This one must stop."""


class LedgerMismatch(Failed):
    """The ledger of the sink and the checkpoint contradict each other. An operator has to decide."""


class CheckpointDamaged(Failed):
    """A file of the checkpoint is not as it was written. The next run would find the same."""


class TopicGone(Failed):
    """A topic of the job is gone, or another topic has its name. An operator has to decide."""


class SourceChanged(Failed):
    """A file that the job has read, or has yet to read, has changed. An operator has to decide."""


class RecordsGone(Failed):
    """A source no longer has records that the job has yet to read. An operator has to decide."""


class EpochTooLong(Failed):
    """An epoch took longer than its transaction may, twice. It has to be smaller."""


class EpochFailed(Failed):
    """One attempt of an epoch ended without a decision. Nothing of it is visible; the epoch is repeated."""


class Moved(EpochFailed):
    """The ledger changed since it was read: another driver wrote, or an answer came late."""


class InvariantBroken(LockgateError):
    """Two facts that can never disagree do. Stopping is the only safe answer."""
