"""A package: a directory with everything that Spark's own submit needs to run a job on a cluster.

    main.py                          what spark-submit starts
    lockgate.zip, lockgate-job.zip   this package; the job file and the modules beside it
    jars/                            Kafka's connector, where the job needs it
    requirements.txt                 the libraries, pinned
    lockgate-environment.tar.gz      those libraries, where they are to travel too
    submit-*.sh                      the command for each kind of cluster

The law: what cannot work is refused here and not by a container on another machine, and a directory is replaced whole
or not at all, and only where an earlier package is all that is in it.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Read
from lockgate.deploy import requirements
from lockgate.deploy.environment import pack_environment
from lockgate.deploy.submitting import COMMANDS, ENTRY, ENVIRONMENT_ARCHIVE, JARS, Submission, commands, entry
from lockgate.errors import Refused
from lockgate.guarantees import Guarantee
from lockgate.planner.plan import Plan, plan
from lockgate.runtime.libraries import extras_of
from lockgate.runtime.run import uses_kafka
from lockgate.spark.jars import connector_jars
from lockgate.spark.shipping import ENVIRONMENT, JOB_ARCHIVE, PACKAGE_ARCHIVE, pack_modules, pack_package

REQUIREMENTS = "requirements.txt"
_MARK = ".lockgate-package"
_PARTS = {
    *(_MARK, ENTRY, PACKAGE_ARCHIVE, JOB_ARCHIVE, JARS, REQUIREMENTS, ENVIRONMENT_ARCHIVE, *COMMANDS),
    *(ENVIRONMENT, f"{ENVIRONMENT}.new"),  # which a command has unpacked
}
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Package:
    """What was made."""

    job: str
    directory: str
    spark: str  # the version that the cluster must have
    checkpoint: str | None
    files: tuple[str, ...]
    commands: tuple[str, ...]
    requirements: dict[str, str]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return asdict(self)


def make_package(
    job: Job,
    job_file: Path,
    out: Path,
    *,
    parameters: Sequence[str],
    checkpoint: str | None,
    with_environment: bool,
    tell: Callable[[str], None],
) -> Package:
    """Make a package of a job, or refuse what would not work on a cluster."""
    planned = plan(job)
    refusal = planned.refusal()
    if refusal is not None:
        raise refusal
    warnings = [*_look_at_checkpoint(job, checkpoint), *_look_at_places(planned)]
    _require_ours(out)
    pinned = requirements.pin(job_file, extras_of(planned))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as aside:
        made = Path(aside) / "package"
        made.mkdir()
        pack_package(made)
        pack_modules(job_file, made, with_job=True)
        jars = connector_jars(tell) if uses_kafka(planned) else []
        (made / JARS).mkdir()
        for jar in jars:
            shutil.copyfile(jar, made / JARS / jar.name)
        if with_environment:
            tell(f"packing {len(pinned)} libraries ...")
            pack_environment(pinned, made / ENVIRONMENT_ARCHIVE)
        submission = Submission(
            job=job.name,
            version=importlib.metadata.version("lockgate"),
            spark=importlib.metadata.version("pyspark"),
            jars=[jar.name for jar in jars],
            has_environment=with_environment,
        )
        (made / REQUIREMENTS).write_text(requirements.as_text(pinned, job=job.name, spark=submission.spark))
        words = [word for text in parameters for word in ("-p", text)]
        words += ["--checkpoint", checkpoint] if checkpoint is not None else []
        (made / ENTRY).write_text(entry(submission, job_file=job_file.name, words=words))
        for name, text in commands(submission).items():
            (made / name).write_text(text)
            (made / name).chmod(0o755)
        (made / _MARK).touch()
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
    return Package(
        job=job.name,
        directory=str(out),
        spark=submission.spark,
        checkpoint=checkpoint,
        files=tuple(sorted(str(file.relative_to(out)) for file in out.rglob("*") if _is_shown(file))),
        commands=tuple(str(out / name) for name in commands(submission)),
        requirements=pinned,
        warnings=tuple(warnings),
    )


def _is_shown(file: Path) -> bool:
    return file.is_file() and file.name != _MARK


def _look_at_checkpoint(job: Job, checkpoint: str | None) -> list[str]:
    """Refuse a checkpoint that the next driver would not find; what may be wrong with one that it might."""
    where = f"job {job.name!r}, declared at {job.origin}"
    if job.guarantee is Guarantee.AT_MOST_ONCE:
        if checkpoint is not None:
            raise Refused("an at-most-once job keeps no checkpoint", where, "leave --checkpoint away")
        return []
    if checkpoint is None:
        raise Refused(
            "no checkpoint is named, and on a cluster there is no place that is always there",
            where=where,
            fix="name one that every machine reaches: --checkpoint hdfs://host:8020/checkpoints/" + job.name,
        )
    parsed = urlparse(checkpoint)
    if not parsed.scheme:
        raise Refused(
            f"the checkpoint {checkpoint!r} is a directory of whichever machine looks at it",
            where=where,
            fix="say which file system: hdfs://host:8020/directory; or file:///directory where all machines, also the "
            "next one that the driver is started on, have mounted the same one",
        )
    if parsed.scheme == "file":
        return [f"{checkpoint} must be the same mounted directory on every machine, also after a restart elsewhere"]
    return []


def _look_at_places(planned: Plan) -> list[str]:
    """What works on one machine and does not on several."""
    warnings = []
    for node in planned.logical.nodes:
        end = node.step.source if isinstance(node.step, Read) else getattr(node.step, "sink", None)
        path, servers = getattr(end, "path", None), getattr(end, "servers", None)
        kind = type(end).__name__
        if path is not None and not urlparse(str(path)).scheme:
            warnings.append(f"{kind} {node.name!r}: {path} is a directory of whichever machine looks at it")
        if isinstance(servers, str) and any(host in servers for host in _LOCAL_HOSTS):
            warnings.append(f"{kind} {node.name!r}: {servers} means another broker on every machine")
    return warnings


def _require_ours(out: Path) -> None:
    """Refuse to replace anything but an earlier package, whole and with nothing beside it."""
    if not out.exists():
        return
    names = {file.name for file in out.iterdir()} if out.is_dir() else {out.name}
    if names and _MARK not in names:
        raise Refused(
            f"{out} is there already, and is no package that could be replaced",
            where="--out",
            fix="name a directory that does not exist yet, or an empty one",
        )
    if others := sorted(names - _PARTS):
        raise Refused(
            f"{out} has {', '.join(others[:3])} in it beside an earlier package, which would be lost with it",
            where="--out",
            fix="move that elsewhere, or name another directory",
        )
