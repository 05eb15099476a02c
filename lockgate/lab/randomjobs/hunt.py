"""Hunt: draw one job after the other, and compare it with the model, or with the model and a run.

Job `number` of seed S is drawn from the seed S + number, so a job that shows something is replayed as the only job of
its own seed. With several processes each has a Spark session of its own; results are counted in the order of the seeds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing.connection import wait
from random import Random

from lockgate.lab.randomjobs.check import Comparison, compare
from lockgate.lab.randomjobs.draw import draw
from lockgate.lab.randomjobs.outcome import FINDINGS, Outcome
from lockgate.lab.randomjobs.shrink import shrink
from lockgate.lab.randomjobs.spec import Spec
from lockgate.lab.randomjobs.tally import Finding, Seen, Tally

RunTrial = Callable[[Spec, int], Outcome]

_SHRINKING_RUNS_MAX = 150
"""A run takes seconds: with so many a job is small enough."""

_PLANS_AT_ONCE = 100
"""So many jobs a process takes at a time if none of them runs."""


def hunt(first_seed: int, jobs: int, run_trial: RunTrial | None = None, *, processes: int = 1) -> Generator[Tally]:
    """The tally after every job; the last one holds the first finding, shrunk, if there is one."""
    tally = Tally()
    seeds = range(first_seed, first_seed + jobs)
    size = 1 if run_trial is not None else _PLANS_AT_ONCE
    pieces = [seeds[start : start + size] for start in range(0, jobs, size)]
    one = partial(_look, run_trial=run_trial)
    found = map(one, pieces) if min(processes, len(pieces)) < 2 else _on_processes(one, pieces, processes)
    for piece in found:
        for seen in piece:
            tally.add(seen)
            yield tally
            if tally.finding is not None:
                return


def _look(seeds: range, run_trial: RunTrial | None) -> list[Seen]:
    """What the jobs of these seeds show, up to the first finding."""
    seen: list[Seen] = []
    for seed in seeds:
        seen.append(look(draw(Random(seed)), seed, run_trial))
        if seen[-1].finding is not None:
            break
    return seen


def look(spec: Spec, seed: int, run_trial: RunTrial | None = None) -> Seen:
    """What one job shows: the plan beside the model, then a run if the plan accepts the job."""
    compared = compare(spec)
    if compared.violations:
        return Seen.of(spec, seed, compared, None, Finding(seed, compared.violations, shrink(spec, _violates)))
    if run_trial is None or compared.planned.is_refused:
        return Seen.of(spec, seed, compared)
    outcome = run_trial(spec, seed)
    finding = None
    if outcome.verdict in FINDINGS:
        finding = Finding(seed, outcome.what, _shrunk_by_runs(spec, seed, outcome.kind, run_trial), outcome.verdict)
    return Seen.of(spec, seed, compared, outcome, finding)


def _violates(spec: Spec) -> bool:
    return bool(compare(spec).violations)


def _shrunk_by_runs(spec: Spec, seed: int, kind: str, run_trial: RunTrial) -> Spec:
    """A job is only made smaller as far as the plan still accepts it and a run shows the same kind of finding."""
    runs_left = _SHRINKING_RUNS_MAX

    def shows(smaller: Spec) -> bool:
        nonlocal runs_left
        compared: Comparison = compare(smaller)
        if compared.planned.is_refused or compared.violations or runs_left == 0:
            return False
        runs_left -= 1
        return run_trial(smaller, seed).kind == kind

    return shrink(spec, shows)


def _follow() -> None:
    """Let this process end with its parent, however that ends; the executor alone leaves it waiting for more work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops this process after its job
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)  # its Spark ends with it: the JVM notices the end of its standard input


def _on_processes(one: Callable[[range], list[Seen]], pieces: Iterable[range], processes: int) -> Iterator[list[Seen]]:
    """The results of all pieces, in order. If the caller stops, all processes stop, each after its job."""
    context = multiprocessing.get_context("spawn")
    waiting: deque[Future[list[Seen]]] = deque()
    rest = iter(pieces)
    executor = ProcessPoolExecutor(processes, context, _follow)
    try:
        waiting.extend(executor.submit(one, piece) for piece in islice(rest, 2 * processes))
        while waiting:
            piece = waiting.popleft().result()
            waiting.extend(executor.submit(one, following) for following in islice(rest, 1))
            yield piece
    finally:
        executor.shutdown(cancel_futures=True)
