"""Job: a name, a declared guarantee, and the outputs that make the graph.

A job is a noun: it describes. The verbs `plan`, `explain` and `run` take one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.deadletters import DeadLetters
from lockgate.dataflow.duration import Duration, as_duration
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.origin import Origin, caller
from lockgate.dataflow.stream import Output
from lockgate.dataflow.tracking import Acks
from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee, Mode

# The name goes into topic names, transactional ids and directories; all of them take these characters.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def is_job_name(name: object) -> bool:
    """Can a job, and everything that is named after it, have this name?"""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@explain_wrong_calls('Job("orders", output, guarantee=Guarantee.AT_LEAST_ONCE), or another guarantee: none is assumed')
@dataclass(frozen=True, init=False, eq=False)
class Job:
    """What runs, and what it promises.

    Args:
        name: the name of the job. Its checkpoint, ledger and transactions have it too.
        outputs: streams that end in a sink, made with `.to(...)`.
        guarantee: what the job promises. There is no default.
        epoch: how often results become visible.
        mode: micro-batch or real-time.
        tracking: `acks(...)`, to try events again one by one.
        dead_letters: a sink, or `DeadLetters(...)`, for events that cannot be used. Without it they stop the job.

    Raises:
        BadJob: an argument cannot be valid.

    >>> job = Job("orders", orders.to("out", FileSink("out")), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, epoch="10s")
    >>> plan(job).reached.label
    'end-to-end exactly-once'
    """

    name: str
    outputs: tuple[Output, ...]
    guarantee: Guarantee
    epoch: timedelta
    mode: Mode
    tracking: Acks | None
    dead_letters: DeadLetters | None
    origin: Origin

    def __init__(
        self,
        name: str,
        *outputs: Output,
        guarantee: Guarantee,
        epoch: Duration = timedelta(seconds=1),
        mode: Mode = Mode.MICRO_BATCH,
        tracking: Acks | None = None,
        dead_letters: Sink | DeadLetters | None = None,
    ) -> None:
        origin = caller()
        where = f"job {name!r}, declared at {origin}"
        if not is_job_name(name):
            raise BadJob(
                f"a job cannot be named {name!r}",
                where=where,
                fix="use letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 200",
            )
        if not isinstance(guarantee, Guarantee):
            raise BadJob(
                f"job {name!r} declares no guarantee: {guarantee!r} is not one",
                where=where,
                fix="guarantee=Guarantee.AT_LEAST_ONCE (or AT_MOST_ONCE, EXACTLY_ONCE, END_TO_END_EXACTLY_ONCE)",
            )
        if not isinstance(mode, Mode):
            raise BadJob(f"mode= takes a Mode, not {mode!r}", where=where, fix="mode=Mode.MICRO_BATCH")
        if tracking is not None and not isinstance(tracking, Acks):
            raise BadJob(
                f"tracking= takes acks(...), not {tracking!r}", where=where, fix="tracking=acks(max_attempts=3)"
            )
        letters = dead_letters
        if letters is not None:
            letters = letters if isinstance(letters, DeadLetters) else DeadLetters(letters)
            letters.check(where)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "outputs", outputs)
        object.__setattr__(self, "guarantee", guarantee)
        object.__setattr__(self, "epoch", as_duration(epoch, of="epoch"))
        object.__setattr__(self, "mode", mode)
        object.__setattr__(self, "tracking", tracking)
        object.__setattr__(self, "dead_letters", letters)
        object.__setattr__(self, "origin", origin)
