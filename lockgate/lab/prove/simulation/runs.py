"""Many schedules, one seed each, on all cores; the first one that breaks a promise is reported with its time line."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from lockgate.lab.prove.simulation.checks import Broken
from lockgate.lab.prove.simulation.mutants import mutated
from lockgate.lab.prove.simulation.world import World

CHUNK = 200
"""So many schedules a process takes at a time."""


@dataclass(frozen=True)
class Failure:
    """A schedule that broke a promise."""

    seed: int
    told: str


@dataclass(frozen=True)
class Lived:
    """Some schedules: how many, their steps, and the first one that broke a promise."""

    schedules: int
    steps: int
    failure: Failure | None


def live(seeds: range, *, mutant: str | None = None) -> Lived:
    """Live through these schedules, in their order, up to the first that breaks a promise."""
    steps = 0
    with mutated(mutant), _silent():
        for count, seed in enumerate(seeds, start=1):
            world = World(seed, mutant=mutant)
            try:
                world.run()
            except Broken as broken:
                return Lived(count, steps + world.steps, Failure(seed, str(broken)))
            steps += world.steps
    return Lived(len(seeds), steps, None)


def live_on_all_cores(seeds: range, *, mutant: str | None, processes: int) -> Iterator[Lived]:
    """The same in pieces, as they are done, in the order of the seeds; ends with the first that has a failure."""
    pieces = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    one = partial(live, mutant=mutant)
    if min(processes, len(pieces)) < 2:
        yield from _until_broken(map(one, pieces))
        return
    context = multiprocessing.get_context("spawn")
    # Ctrl-C stops this process, which ends the others.
    with context.Pool(min(processes, len(pieces)), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from _until_broken(pool.imap(one, pieces))


def time_line(seed: int, *, mutant: str | None = None) -> tuple[list[str], str | None]:
    """What happens in a schedule, step by step, and what it breaks."""
    world = World(seed, mutant=mutant, is_told=True)
    assert world.told is not None
    with mutated(mutant), _silent():
        try:
            world.run()
        except Broken as broken:
            return world.told, str(broken)
    return world.told, None


def _until_broken(pieces: Iterator[Lived]) -> Iterator[Lived]:
    for piece in pieces:
        yield piece
        if piece.failure is not None:
            return


@contextmanager
def _silent() -> Iterator[None]:
    """The coordinator warns of each try that fails, and here that is every second one."""
    logger = logging.getLogger("lockgate.commit")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
