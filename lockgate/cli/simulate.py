"""The command that runs the commit protocol through schedules of faults: simulate."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.cli.progress import progress
from lockgate.errors import Refused

if TYPE_CHECKING:
    from lockgate.lab.prove.simulation.runs import Failure

_SCHEDULES = 10_000
_SHOWN_LINES = 400


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    simulate = subparsers.add_parser(
        "simulate",
        help="the commit protocol under schedules of crashes, delays and rivals",
        description="Run the real coordinator, ledger and permits against a model of broker, checkpoint and tasks, in "
        "schedules that are generated from a seed each: processes die anywhere, requests are lost, delayed and "
        "repeated, transactions time out, zombies write late, further drivers start on the same checkpoint. After each "
        "schedule, and whenever readers see something new, check that every row is visible once, in whole epochs, in "
        "order, and that the job continues after the faults. Needs neither Java nor services. docs/SIMULATION.md.",
        epilog="Exit status: 0 every schedule or job holds, 1 one is broken or none could be judged, 2 nothing ran. "
        "A million schedules: lockgate simulate --schedules 1000000. "
        "A thousand random jobs, planned only: lockgate simulate --jobs 1000 --plan-only",
    )
    simulate.add_argument("--schedules", type=int, metavar="N", help=f"how many; default: {_SCHEDULES}")
    simulate.add_argument("--seed", type=int, default=0, metavar="S", help="of the first one; default: %(default)s")
    simulate.add_argument(
        "--mutant",
        metavar="NAME",
        help="disable one law of the protocol, to see that the checks notice: fencing, claim, ledger, stable-offset,"
        " permits, tail",
    )
    simulate.add_argument("--processes", type=int, metavar="N", help="default: one per core")
    simulate.add_argument("--keep", metavar="FILE", help="add the seed of a broken schedule to this JSON file")
    simulate.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="draw N random jobs instead, and compare what the planner says of them with a model of the guarantees and"
        " with their results in a run that crashes",
    )
    simulate.add_argument(
        "--plan-only", action="store_true", help="with --jobs: compare with the model only, and run no job"
    )
    simulate.add_argument("--json", action="store_true", help="print the facts as JSON")
    simulate.set_defaults(run=run_simulate)


def run_simulate(arguments: argparse.Namespace) -> int:
    """Run the schedules, or draw the jobs, and report."""
    if arguments.jobs is not None:
        from lockgate.cli.simulatejobs import simulate_jobs

        return simulate_jobs(arguments)
    if arguments.plan_only:
        raise Refused("--plan-only says how random jobs are checked", where="command line", fix="add --jobs N")
    if arguments.schedules is None:
        arguments.schedules = _SCHEDULES
    from lockgate.lab.prove.simulation.mutants import MUTANTS
    from lockgate.lab.prove.simulation.runs import live_on_all_cores

    _check(arguments, MUTANTS)
    seeds = range(arguments.seed, arguments.seed + arguments.schedules)
    processes = arguments.processes or os.cpu_count() or 1
    began = time.monotonic()
    schedules = steps = 0
    failure: Failure | None = None
    with progress(len(seeds), "schedules") as show:
        for piece in live_on_all_cores(seeds, mutant=arguments.mutant, processes=processes):
            schedules, steps, failure = schedules + piece.schedules, steps + piece.steps, piece.failure
            show(schedules)
    seconds = time.monotonic() - began
    if failure is not None and arguments.keep:
        keep(Path(arguments.keep), failure.seed, arguments.mutant, failure.told)
    if arguments.json:
        print(json.dumps(_facts(arguments, schedules, steps, seconds, failure), indent=2))
    else:
        _print(arguments, schedules, steps, seconds, failure)
    return 0 if failure is None else 1


def keep(file: Path, seed: int, mutant: str | None, broken: str) -> None:
    """Add a schedule to the kept ones."""
    try:
        kept: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        facts = {"seed": seed, "mutant": mutant, "broken": broken}
        if facts not in kept:
            file.write_text(json.dumps([*kept, facts], indent=2) + "\n", encoding="utf-8")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise Refused(
            f"the seed {seed} cannot be kept in {file}: {error}", where="--keep", fix="name a file of kept seeds"
        ) from None


def _check(arguments: argparse.Namespace, mutants: tuple[str, ...]) -> None:
    if arguments.mutant is not None and arguments.mutant not in mutants:
        raise Refused(f"there is no mutant {arguments.mutant!r}", where="--mutant", fix=f"one of {', '.join(mutants)}")
    for option, value in (("--schedules", arguments.schedules), ("--processes", arguments.processes)):
        if value is not None and value < 1:
            raise Refused(f"{option} {value} is too small", where="command line", fix="give at least 1")


def _replay(failure: Failure, mutant: str | None) -> str:
    return f"lockgate simulate --seed {failure.seed} --schedules 1" + (f" --mutant {mutant}" if mutant else "")


def _facts(
    arguments: argparse.Namespace, schedules: int, steps: int, seconds: float, failure: Failure | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "verdict": "holds" if failure is None else "broken",
        "mutant": arguments.mutant,
        "first_seed": arguments.seed,
        "schedules": schedules,
        "steps": steps,
        "seconds": round(seconds, 2),
        "schedules_per_second": round(schedules / seconds, 1),
    }
    if failure is not None:
        from lockgate.lab.prove.simulation.runs import time_line

        lines, _ = time_line(failure.seed, mutant=arguments.mutant)
        facts["failure"] = {
            "seed": failure.seed,
            "broken": failure.told,
            "replay": _replay(failure, arguments.mutant),
            "time_line": lines,
        }
    return facts


def _print(arguments: argparse.Namespace, schedules: int, steps: int, seconds: float, failure: Failure | None) -> None:
    rate = schedules / seconds
    print(f"{schedules:,} schedules, {steps:,} steps, {seconds:.1f} s ({rate:,.0f} schedules a second)")
    if failure is None:
        print("holds: every row once, whole epochs in order, nothing left open, and every job finished")
        return
    from lockgate.lab.prove.simulation.runs import time_line

    lines, _ = time_line(failure.seed, mutant=arguments.mutant)
    if len(lines) > _SHOWN_LINES:
        half = _SHOWN_LINES // 2
        lines = [*lines[:half], f"  ... {len(lines) - 2 * half} lines, all of them with --json ...", *lines[-half:]]
    print("", " step      clock   process                what", *lines, "", sep="\n")
    print(f"broken by seed {failure.seed}: {failure.told}")
    print(f"  again: {_replay(failure, arguments.mutant)}")
