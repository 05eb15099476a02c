"""A whole proof: from a job file and a request to the report. Commands and users' tests start here."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from lockgate.cli.jobfile import load_answer, load_job
from lockgate.cli.passwords import PARAMETERS, hide
from lockgate.cli.proofrequest import ProofRequest
from lockgate.dataflow.job import Job
from lockgate.dataflow.locations import ServerTable
from lockgate.errors import Refused
from lockgate.lab.prove.answers import batches_of
from lockgate.lab.prove.baseline import through_spark
from lockgate.lab.prove.determinism import find_reasons
from lockgate.lab.prove.places import unread
from lockgate.lab.prove.proving import PREFIX, Proof, default_home, trial_numbers
from lockgate.lab.prove.redirect import Redirected, Site, redirect
from lockgate.lab.prove.report import Report
from lockgate.lab.prove.results import Results
from lockgate.lab.prove.settings import Settings
from lockgate.lab.prove.strikes import KINDS, Ground, fitting, known_points, skipped
from lockgate.lab.prove.trial import Stage
from lockgate.lab.prove.verdict import Verdict
from lockgate.lab.prove.workload import Shape, Workload, make_workload
from lockgate.lab.rig.faults import THREE_BROKERS, Kind, Strike
from lockgate.lab.services.directorylock import locked_directory
from lockgate.lab.services.smalldisk import why_no_small_disk
from lockgate.lab.services.spark import SparkCluster
from lockgate.lab.services.stack import Stack, default_root
from lockgate.planner.plan import Plan, plan

STRIKES_PER_TRIAL = 10
_LANES_MAX = 4
_LANE_BYTES = 3 << 30  # a broker, a JVM, Python workers, and sometimes a second driver


@dataclass(frozen=True)
class Proven:
    """The result of a proof."""

    report: Report
    home: Path

    @property
    def verdict(self) -> Verdict:
        """Holds, broken or unknown."""
        return self.report.verdict


def prove_file(
    request: ProofRequest,
    *,
    tell: Callable[[str], None] = lambda line: None,
    go_on: Callable[[], None] = lambda: None,
    root: Path | None = None,
) -> Proven:
    """Prove the job of a file; Refused if it cannot be proven.

    Args:
        go_on: called many times a second; it raises to end the proof.
        root: of the local services of this directory; the proof starts its own beside them.
    """
    job = load_job(request.file, request.parameters)
    planned = plan(job)
    if (refusal := planned.refusal()) is not None:
        raise refusal
    _refuse_numbers(request)
    home = default_home(root or default_root(), job.name)
    kinds = _kinds(request)
    ground = Ground(
        brokers=request.brokers or (3 if request.faults is not None and THREE_BROKERS & {*kinds} else 1),
        is_cluster=request.is_cluster,
        no_tmpfs=why_no_small_disk(),
    )
    tried = through_spark(job) if request.through_spark else job
    tried_plan = plan(tried)
    moved = redirect(tried, Site(f"{PREFIX}plan", "localhost:1", home / "nowhere", "postgresql://localhost:1/none"))
    for name, reason in unread(moved).items():
        tell(f"output {name!r} is omitted: {reason}")
    workload = make_workload(
        moved, Shape(events=request.events, seed=request.seed, rows_per_epoch=request.rows_per_epoch), request.given
    )
    answer = load_answer(request.file, request.parameters)
    reasons = find_reasons(planned, unsure_count=workload.unsure_count)
    # A job with several possible answers has none that could be computed independently.
    batches = {} if answer is None or reasons else batches_of(answer, moved, workload)
    strikes = _strikes(request, tried_plan, kinds, ground)
    settings = _settings(request, job, workload, ground)
    strikes_per_trial = min(STRIKES_PER_TRIAL, request.kills)
    with ExitStack() as ends:
        ends.enter_context(
            locked_directory(
                home,
                what="another proof of this job runs here",
                fix="wait for it, or set LOCKGATE_HOME to another place",
            )
        )
        shown, environ = hide(request.parameters, PARAMETERS)
        numbers = [request.trial] if request.trial is not None else trial_numbers(request.kills, strikes_per_trial)
        results = Results(request.results or home / f"results-{settings.digest}.jsonl", settings)
        wanted = results.outstanding([(request.seed, number) for number in numbers])
        stages = [
            Stage(
                job=tried,
                source={
                    "file": str(Path(request.file).resolve()),
                    "parameters": shown,
                    "through_spark": request.through_spark,
                },
                environ=environ,
                job_file=Path(__file__).with_name("provenjob.py"),
                workload=workload,
                rows_per_epoch=request.rows_per_epoch,
                stack=ends.enter_context(_services(home / f"lane-{lane}", ground, moved, tell)),
                cluster=ends.enter_context(SparkCluster(home / "cluster")) if ground.is_cluster else None,
                home=home / f"lane-{lane}",
                tell=tell,
                go_on=go_on,
            )
            for lane in range(_lanes(ground, len(wanted)))
        ]
        proof = Proof(
            stages=stages,
            planned=planned,
            moved=moved,
            settings=settings,
            strikes=strikes,
            batches=batches,
            reasons=reasons,
            seed=request.seed,
            strikes_per_trial=strikes_per_trial,
        )
        verdict = proof.prove(results, numbers)
    report = Report(
        verdict,
        _machine(),
        settings.command(request.seed, request.kills),
        skipped(tried_plan, kinds, ground),
        tuple(map(str, reasons)),
    )
    return Proven(report, home)


@contextmanager
def _services(home: Path, ground: Ground, moved: Redirected, tell: Callable[[str], None]) -> Iterator[Stack]:
    """The services of one lane, started here and stopped at the end."""
    stack = Stack(home / f"services-{ground.brokers}", brokers=ground.brokers, is_proxied=True)
    try:
        stack.up(postgres=_needs_postgres(moved), progress=tell)
        yield stack
    finally:
        stack.down(progress=tell)


def _lanes(ground: Ground, trials: int) -> int:
    """How many trials run side by side: one for each core, if memory and the services suffice."""
    if ground.is_cluster or ground.brokers > 1:
        return 1
    fitting_in_memory = int(psutil.virtual_memory().available // _LANE_BYTES)
    return max(1, min(trials, psutil.cpu_count() or 1, fitting_in_memory, _LANES_MAX))


def _refuse_numbers(request: ProofRequest) -> None:
    least = {
        "--kills": (request.kills, 1, "kills prove nothing"),
        "--events": (request.events, 1, "events leave nothing to lose"),
        "--rows-per-epoch": (request.rows_per_epoch, 1, "rows an epoch never end"),
        "--trial": (request.trial or 0, 0, "is no trial: they are counted from 0"),
    }
    for option, (number, minimum, told) in least.items():
        if number < minimum:
            raise Refused(f"{number} {told}", where=option, fix=f"give at least {minimum}")


def _kinds(request: ProofRequest) -> list[Kind]:
    known = {one.value: one for one in KINDS}
    _refuse_unknown(request.faults, list(known), option="--faults")
    _refuse_unknown(request.points, known_points(), option="--points")
    return list(KINDS) if request.faults is None else [known[name] for name in request.faults]


def _strikes(request: ProofRequest, planned: Plan, kinds: Sequence[Kind], ground: Ground) -> list[Strike]:
    strikes = fitting(planned, kinds, request.points, ground)
    if not strikes:
        why = "; ".join(f"{name}: {reason}" for name, reason in skipped(planned, kinds, ground).items())
        raise Refused(
            "no such fault can strike this job" + (f" ({why})" if why else ""),
            where="--faults, --points",
            fix="omit one of them",
        )
    return strikes


def _settings(request: ProofRequest, job: Job, workload: Workload, ground: Ground) -> Settings:
    import pyspark

    options = {"--events": str(request.events), "--rows-per-epoch": str(request.rows_per_epoch)}
    asked = {
        "--faults": ",".join(request.faults or ()),
        "--points": ",".join(request.points or ()),
        "--given": ",".join(f"{name}={path}" for name, path in request.given.items()),
        "--brokers": "" if ground.brokers == 1 else str(ground.brokers),
    }
    options |= {name: text for name, text in asked.items() if text}
    # If the user asked for fewer faults than a trial has, each trial has fewer.
    options |= {"--kills": str(request.kills)} if request.kills < STRIKES_PER_TRIAL else {}
    options |= {"--cluster": ""} if ground.is_cluster else {}
    options |= {"--spark-sink": ""} if request.through_spark else {}
    return Settings(
        job=job.name,
        guarantee=job.guarantee,
        file=request.file,
        parameters=dict(one.split("=", 1) for one in request.parameters),
        options=options,
        workload=f"{len(workload.events):,} events a trial, {workload.origin}",
        job_digest=_digest(Path(request.file)),
        versions={"lockgate": importlib.metadata.version("lockgate"), "pyspark": pyspark.__version__},
    )


def _digest(file: Path) -> str:
    """The digest of the job file and of all imported files beside it: a proof of other code is another proof."""
    home = file.resolve().parent
    loaded = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    beside = {Path(name).resolve() for name in loaded if name}
    files = sorted({file.resolve(), *(one for one in beside if home in one.parents and one.suffix == ".py")})
    mixed = hashlib.sha256()
    for one in files:
        if "site-packages" not in one.parts and one.is_file():
            mixed.update(f"{one.relative_to(home)}\n".encode() + hashlib.sha256(one.read_bytes()).digest())
    return mixed.hexdigest()[:16]


def _refuse_unknown(names: Sequence[str] | None, known: Sequence[str], *, option: str) -> None:
    wrong = next((name for name in names or () if name not in known), None)
    if wrong is not None:
        raise Refused(f"{wrong!r} is none of: {', '.join(known)}", where=option, fix="name one of these, or several")


def _needs_postgres(moved: Redirected) -> bool:
    locations = [*(one.sink.location for one in moved.results), *(one.rows.location for one in moved.tables)]
    return any(isinstance(one, ServerTable) for one in locations)


def _machine() -> dict[str, str]:
    import pyspark

    return {
        "cores": str(psutil.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "Python": platform.python_version(),
        "Spark": pyspark.__version__,
    }
