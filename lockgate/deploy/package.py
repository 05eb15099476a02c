"""Make a package: a directory with everything that Spark's own submit needs to run a job on a cluster.

    main.py                          what spark-submit starts
    lockgate-TOKEN.zip               this package
    lockgate-job-TOKEN.zip           the job file and the modules beside it
    jars/                            Kafka's connector, if the job needs it
    requirements.txt                 the libraries, pinned, with the hashes of their files
    lockgate-environment.tar.gz      those libraries, if the package includes them
    submit-*.sh                      the command for each kind of cluster

The law: a job that cannot work is refused here, and not by a container on another machine. A directory is replaced as a
whole or not at all, and only if it contains nothing but an earlier package.
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
from lockgate.deploy.locked import hashes_of
from lockgate.deploy.submitting import COMMANDS, ENTRY, ENVIRONMENT_ARCHIVE, JARS, Submission, commands, entry
from lockgate.errors import Refused
from lockgate.guarantees import Guarantee
from lockgate.planner.plan import Plan, plan
from lockgate.provision.kafkajars import kafka_jars
from lockgate.runtime.libraries import extras_of, uses_kafka
from lockgate.secrets import masked_word
from lockgate.spark.shipping import ENVIRONMENT, is_archive, pack_modules, pack_package

REQUIREMENTS = "requirements.txt"
_MARK = ".lockgate-package"
_PARTS = {
    *(_MARK, ENTRY, JARS, REQUIREMENTS, ENVIRONMENT_ARCHIVE, *COMMANDS),
    *(ENVIRONMENT, f"{ENVIRONMENT}.new"),  # a command unpacks these
}
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Package:
    """The facts about a package."""

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
    secure: bool,
    tell: Callable[[str], None],
) -> Package:
    """Make a package of a job, or refuse a job that would not work on a cluster."""
    planned = plan(job)
    refusal = planned.refusal()
    if refusal is not None:
        raise refusal
    _refuse_passwords(parameters)
    warnings = [*_look_at_checkpoint(job, checkpoint), *_look_at_places(planned)]
    _require_ours(out)
    pinned = requirements.pin(job_file, extras_of(planned))
    hashes = hashes_of(pinned)
    if unknown := [name for name in pinned if name not in hashes]:
        warnings.append(
            f"{REQUIREMENTS} has no hashes, because pip finds no file of {', '.join(unknown)} in its index: an"
            " installation from it takes what the index has then"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as aside:
        made = Path(aside) / "package"
        made.mkdir()
        archives = filter(None, (pack_package(made), pack_modules(job_file, made, with_job=True)))
        jars = kafka_jars(tell) if uses_kafka(planned) else []
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
            archives=[archive.name for archive in archives],
            jars=[jar.name for jar in jars],
            has_environment=with_environment,
        )
        (made / REQUIREMENTS).write_text(
            requirements.as_text(pinned, job=job.name, spark=submission.spark, hashes=hashes)
        )
        words = [word for text in parameters for word in ("-p", text)]
        words += ["--checkpoint", checkpoint] if checkpoint is not None else []
        words += ["--secure"] if secure else []
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
    """Refuse a checkpoint that the next driver would not find, and return warnings about one that it may not find."""
    where = f"job {job.name!r}, declared at {job.origin}"
    if job.guarantee is Guarantee.AT_MOST_ONCE:
        if checkpoint is not None:
            raise Refused("an at-most-once job keeps no checkpoint", where, "omit --checkpoint")
        return []
    if checkpoint is None:
        raise Refused(
            "no checkpoint is named, and a cluster has no default place for it",
            where=where,
            fix="name one that every machine reaches: --checkpoint hdfs://host:8020/checkpoints/" + job.name,
        )
    parsed = urlparse(checkpoint)
    if not parsed.scheme:
        raise Refused(
            f"the checkpoint {checkpoint!r} is a different directory on each machine",
            where=where,
            fix="name the file system: hdfs://host:8020/directory; or file:///directory if all machines, also the next"
            " machine of the driver, have mounted the same directory",
        )
    if parsed.scheme == "file":
        return [f"{checkpoint} must be the same mounted directory on every machine, also after a restart elsewhere"]
    return []


def _look_at_places(planned: Plan) -> list[str]:
    """Warnings about places that work on one machine and not on several."""
    warnings = []
    for node in planned.logical.nodes:
        end = node.step.source if isinstance(node.step, Read) else getattr(node.step, "sink", None)
        path, servers = getattr(end, "path", None), getattr(end, "servers", None)
        kind = type(end).__name__
        if path is not None and not urlparse(str(path)).scheme:
            warnings.append(f"{kind} {node.name!r}: {path} is a different directory on each machine")
        if isinstance(servers, str) and any(host in servers for host in _LOCAL_HOSTS):
            warnings.append(f"{kind} {node.name!r}: {servers} is a different broker on each machine")
    return warnings


def _refuse_passwords(parameters: Sequence[str]) -> None:
    """Refuse a parameter that is a password: every reader of the package could read it."""
    typed = next((text for text in parameters if masked_word(text) != text), None)
    if typed is not None:
        raise Refused(
            f"parameter {typed.partition('=')[0]!r} contains a password, and a package has many readers",
            where="-p",
            fix="give a reference, which is read where the job runs: env:NAME, file:/path or hook:module:function",
        )


def _require_ours(out: Path) -> None:
    """Refuse to replace anything except an earlier package, whole and with nothing else beside it."""
    if not out.exists():
        return
    names = {file.name for file in out.iterdir()} if out.is_dir() else {out.name}
    if names and _MARK not in names:
        raise Refused(
            f"{out} exists already, and is not a package that could be replaced",
            where="--out",
            fix="name a directory that does not exist yet, or an empty one",
        )
    if others := sorted(name for name in names - _PARTS if not is_archive(name)):
        raise Refused(
            f"{out} also contains {', '.join(others[:3])}, which would be lost with the earlier package in it",
            where="--out",
            fix="move that elsewhere, or name another directory",
        )
