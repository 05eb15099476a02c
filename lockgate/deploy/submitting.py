"""The files of a package that people and Spark read: the entry, and a command for each kind of cluster.

A command takes what depends on the cluster from environment variables, and names a missing one. Its arguments go to the
job; SPARK_OPTIONS goes to Spark, before the entry.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from lockgate.spark.authentication import AUTHENTICATION, REFERENCE, SECRET_VARIABLE
from lockgate.spark.shipping import ENVIRONMENT

ENTRY = "main.py"
ENVIRONMENT_ARCHIVE = f"{ENVIRONMENT}.tar.gz"
JARS = "jars"
_AUTHENTICATION = [f"--conf {name}={value}" for name, value in AUTHENTICATION.items()]
"""For clusters that make the secret. They make it before they start the driver, which is too late to ask for it."""

COMMANDS = ("submit-standalone.sh", "submit-yarn.sh", "submit-kubernetes.sh")


@dataclass(frozen=True)
class Submission:
    """The facts that all commands need."""

    job: str  # its name
    version: str  # of this package
    spark: str  # the version that the cluster must have
    archives: Sequence[str]  # their names, as of the jars
    jars: Sequence[str]
    has_environment: bool


def entry(submission: Submission, *, job_file: str, words: Sequence[str]) -> str:
    """The program that spark-submit starts: `lockgate run` without a supervisor, because the cluster is one."""
    return f'''"""Entry of job {submission.job!r} for spark-submit; made by `lockgate package` {submission.version}."""

import sys
from pathlib import Path

# The cluster, or the submit command, has unpacked the libraries here; without them these directories do not exist.
for place in (Path.cwd(), Path(__file__).resolve().parent):
    sys.path.append(str(place / "{ENVIRONMENT}"))

from lockgate.cli.submitted import main

sys.exit(main({job_file!r}, {[*words]!r}, sys.argv[1:]))
'''


def commands(submission: Submission) -> dict[str, str]:
    """The commands, by the names of their files."""
    return dict(zip(COMMANDS, (_standalone(submission), _yarn(submission), _kubernetes(submission)), strict=True))


def _standalone(submission: Submission) -> str:
    about = [
        "MASTER=spark://host:7077 ./submit-standalone.sh",
        "The driver runs here: Spark has no other way for Python on such a cluster. If it ends with a failure, start",
        "it again: it continues from its checkpoint. `lockgate run --master` restarts it automatically.",
        f"The secret of the cluster is read from {SECRET_VARIABLE}, from the place that {REFERENCE} names, or from",
        "spark-defaults.conf. Do not give it as an option: every user of this machine could read it.",
    ]
    unpack = [
        f"if [ ! -d {ENVIRONMENT} ]; then",
        f"  mkdir {ENVIRONMENT}.new && tar -xzf {ENVIRONMENT_ARCHIVE} -C {ENVIRONMENT}.new",
        f"  mv {ENVIRONMENT}.new {ENVIRONMENT}",
        "fi",
    ]
    return _script(
        submission,
        about,
        '--master "${MASTER:?name the cluster: MASTER=spark://host:7077}"',
        ["--deploy-mode client"],
        before=unpack if submission.has_environment else (),
    )


def _yarn(submission: Submission) -> str:
    about = [
        "./submit-yarn.sh, if HADOOP_CONF_DIR or YARN_CONF_DIR names the cluster's settings",
        "The driver runs in the cluster, which restarts it when it fails: ten times within an hour, if the cluster's",
        "own limit (yarn.resourcemanager.am.max-attempts) allows so many.",
    ]
    return _script(
        submission,
        about,
        "--master yarn",
        [
            "--deploy-mode cluster",
            "--conf spark.yarn.maxAppAttempts=10",
            "--conf spark.yarn.am.attemptFailuresValidityInterval=1h",
            *_AUTHENTICATION,
        ],
    )


def _kubernetes(submission: Submission) -> str:
    about = [
        "MASTER=k8s://https://host:6443 IMAGE=registry/spark-python:tag UPLOAD=hdfs://host/directory \\",
        "  ./submit-kubernetes.sh",
        "The image has Spark and Python, and requirements.txt unless the environment is sent along. The files of this",
        "directory are put below UPLOAD, which the pods read. Kubernetes does not restart such a driver:",
        "docs/DEPLOYING.md of Lockgate has a manifest that does.",
    ]
    return _script(
        submission,
        about,
        '--master "${MASTER:?name the cluster: MASTER=k8s://https://host:6443}"',
        [
            "--deploy-mode cluster",
            '--conf spark.kubernetes.container.image="${IMAGE:?name an image of Spark with Python: IMAGE=...}"',
            '--conf spark.kubernetes.namespace="${NAMESPACE:-default}"',
            '--conf spark.kubernetes.authenticate.driver.serviceAccountName="${SERVICE_ACCOUNT:-spark}"',
            '--conf spark.kubernetes.file.upload.path="${UPLOAD:?name a place that pods can read: UPLOAD=hdfs://...}"',
            *_AUTHENTICATION,
        ],
    )


def _script(
    submission: Submission, about: Sequence[str], master: str, options: Sequence[str], *, before: Sequence[str] = ()
) -> str:
    jars = ",".join(f"{JARS}/{name}" for name in submission.jars)
    words = [
        '"${SPARK_SUBMIT:-spark-submit}"',
        master,
        *options,
        f"--name {shlex.quote(f'lockgate {submission.job}')}",
        f"--py-files {','.join(submission.archives)}",
        *([f"--jars {jars}"] if jars else []),
        *([f"--archives {ENVIRONMENT_ARCHIVE}#{ENVIRONMENT}"] if submission.has_environment else []),
        '--conf spark.pyspark.python="${PYSPARK_PYTHON:-python3}"',
        "${SPARK_OPTIONS:-}",
        ENTRY,
        '"$@"',
    ]
    lines = [
        "#!/bin/sh",
        f"# Submit job {submission.job}; made by `lockgate package` {submission.version} for Spark {submission.spark}.",
        *(f"#   {line}" for line in about),
        'set -eu; cd "$(dirname "$0")"',
        *before,
        "exec " + " \\\n  ".join(words),
        "",
    ]
    return "\n".join(lines)
