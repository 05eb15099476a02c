"""The command that proves a job's guarantee by breaking things: prove."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.cli.job import offer_job
from lockgate.cli.stopping import stoppable
from lockgate.errors import Refused

if TYPE_CHECKING:
    from lockgate.planner.plan import Plan


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    prove = subparsers.add_parser(
        "prove",
        help="prove a job's guarantee by killing things",
        description="Run a job over made events while its processes, its broker and its network are killed, stopped "
        "and cut off, and hold what readers saw against the same job undisturbed. The verdict is holds, broken (with "
        "the counterexample and the command that replays it) or unknown. All of it happens on local services of its "
        "own, in topics and with a checkpoint of its own; an endpoint that cannot be put elsewhere is refused.",
    )
    offer_job(prove)
    prove.add_argument("--kills", type=int, metavar="N", default=12, help="how many faults at least; default: 12")
    prove.add_argument(
        "--faults", metavar="KINDS", help="only these, e.g. 'kill driver,kill worker'; default: all that fit"
    )
    prove.add_argument(
        "--points", metavar="POINTS", help="only at these, e.g. MARKER,BEFORE_END; default: all it passes"
    )
    prove.add_argument("--events", type=int, metavar="N", default=2000, help="of a trial; default: 2,000")
    prove.add_argument("--rows-per-epoch", type=int, metavar="N", default=50, help="default: 50")
    prove.add_argument("--seed", type=int, metavar="N", default=1, help="of events and faults; default: 1")
    prove.add_argument("--trial", type=int, metavar="N", help="only this one, e.g. to see a counterexample again")
    prove.add_argument("--given", metavar="STREAM=FILE,...", help="events of these streams, one JSON a line")
    prove.add_argument("--results", metavar="FILE", help="where trials are added up; default: in .lockgate/prove/JOB")
    prove.add_argument("--html", metavar="FILE", help="write the page there; default: in .lockgate/prove/JOB")
    prove.add_argument("--json", action="store_true", help="print the facts as JSON")
    prove.set_defaults(run=run_prove)


def run_prove(arguments: argparse.Namespace) -> int:
    """Prove, write the page, and tell."""
    import pyspark

    from lockgate.cli.jobfile import load_job
    from lockgate.planner.plan import plan
    from lockgate.proof.determinism import find_reasons
    from lockgate.proof.faults import Kind, fitting, known_points
    from lockgate.proof.page import write_page
    from lockgate.proof.proving import PREFIX, Proof, default_home
    from lockgate.proof.redirect import Site, redirect
    from lockgate.proof.report import Report
    from lockgate.proof.results import Results
    from lockgate.proof.settings import Settings
    from lockgate.proof.trial import Stage
    from lockgate.proof.workload import Shape, make_workload
    from lockgate.services.stack import Stack, default_root

    kinds = {one.value: one for one in Kind}
    faults = _chosen(arguments.faults, list(kinds), option="--faults")
    points = _chosen(arguments.points, known_points(), option="--points")
    job = load_job(arguments.file, arguments.parameters)
    planned = plan(job)
    refusal = planned.refusal()
    if refusal is not None:
        raise refusal
    if arguments.kills < 1:
        raise Refused(f"--kills {arguments.kills} kills nothing", where="command line", fix="give at least 1")
    home = default_home(default_root(), job.name)
    _refuse_what_is_not_proven_yet(planned)
    moved = redirect(job, Site(f"{PREFIX}plan", "localhost:1", home / "nowhere"))
    shape = Shape(events=arguments.events, seed=arguments.seed, rows_per_epoch=arguments.rows_per_epoch)
    given = dict(one.split("=", 1) for one in (arguments.given or "").split(",") if "=" in one)
    workload = make_workload(moved, shape, {name: Path(path) for name, path in given.items()})
    strikes = fitting(planned, list(Kind) if faults is None else [kinds[name] for name in faults], points)
    if not strikes:
        raise Refused("no such fault can strike this job", where="--faults, --points", fix="leave one of them away")
    settings = Settings(
        job=job.name,
        guarantee=job.guarantee,
        file=arguments.file,
        parameters=dict(one.split("=", 1) for one in arguments.parameters),
        options=_options(arguments),
        workload=f"{len(workload.events):,} events a trial, {workload.origin}",
        job_digest=hashlib.sha256(Path(arguments.file).read_bytes()).hexdigest()[:16],
        versions={"lockgate": importlib.metadata.version("lockgate"), "pyspark": pyspark.__version__},
    )
    command = shlex.join(["lockgate", *sys.argv[1:]])
    with stoppable() as go_on:
        stack = Stack(home / "services", is_proxied=True)
        stack.up(postgres=False, progress=_tell)
        try:
            stage = Stage(
                job=job,
                source={"file": str(Path(arguments.file).resolve()), "parameters": arguments.parameters},
                job_file=Path(__file__).with_name("proven.py"),
                workload=workload,
                rows_per_epoch=arguments.rows_per_epoch,
                stack=stack,
                home=home,
                tell=_tell,
                go_on=go_on,
            )
            proof = Proof(
                stage=stage,
                planned=planned,
                moved=moved,
                settings=settings,
                strikes=strikes,
                reasons=find_reasons(planned, unsure_count=workload.unsure_count),
                seed=arguments.seed,
                strikes_per_trial=min(6, arguments.kills),
            )
            numbers = [arguments.trial] if arguments.trial is not None else proof.trial_numbers(arguments.kills)
            file = Path(arguments.results or home / f"results-{settings.digest}.jsonl")
            verdict = proof.prove(Results(file, settings), numbers)
        finally:
            stack.down(progress=_tell)
    report = Report(verdict, _machine(), command)
    page = Path(arguments.html or home / "proof.html")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(write_page(report), encoding="utf-8")
    print(f"written to {page}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print(report.as_text(shutil.get_terminal_size(fallback=(120, 24)).columns))
    return 0 if verdict.holds else 1


def _machine() -> dict[str, str]:
    import platform

    import psutil
    import pyspark

    return {
        "cores": str(psutil.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "Python": platform.python_version(),
        "Spark": pyspark.__version__,
    }


def _chosen(given: str | None, known: Sequence[str], *, option: str) -> list[str] | None:
    """What is asked for, by names; None where nothing is."""
    if given is None:
        return None
    names = [name.strip() for name in given.split(",")]
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None:
        raise Refused(f"{wrong!r} is none of: {', '.join(known)}", where=option, fix="name one of these, or several")
    return names


def _refuse_what_is_not_proven_yet(planned: Plan) -> None:
    from lockgate.dataflow.steps import Write
    from lockgate.guarantees import Guarantee
    from lockgate.sinks.kafka import KafkaSink

    if planned.job.guarantee is Guarantee.AT_MOST_ONCE:
        raise Refused(
            "an at-most-once job keeps no checkpoint by which a proof could follow it",
            where=f"job {planned.job.name!r}, declared at {planned.job.origin}",
            fix="`lockgate compare` shows what it loses, and that nothing comes twice",
        )
    for node in planned.logical.nodes:
        if isinstance(node.step, Write) and not isinstance(node.step.sink, KafkaSink):
            kind = type(node.step.sink).__name__
            raise Refused(
                f"output {node.name!r} goes into a {kind}, and a proof reads topics alone",
                where=node.where,
                fix="prove the job with this output in a topic: KafkaSink(...)",
            )


def _options(arguments: argparse.Namespace) -> dict[str, str]:
    """What makes a trial the one that it is, beside its seed and number."""
    options = {"--events": str(arguments.events), "--rows-per-epoch": str(arguments.rows_per_epoch)}
    asked = {"--faults": arguments.faults, "--points": arguments.points, "--given": arguments.given}
    return {**options, **{name: text for name, text in asked.items() if text}}


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
