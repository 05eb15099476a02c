"""The command that packages a job for a cluster: package."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lockgate.cli.job import offer_job
from lockgate.escaping import tell


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    package = subparsers.add_parser(
        "package",
        help="package a job for spark-submit on a cluster",
        description="Put a job, the modules beside it, Lockgate, Kafka's connector, the pinned requirements and a "
        "command for each kind of cluster (standalone, YARN, Kubernetes) into a directory. The machines of the cluster "
        "need Spark, of the version that is installed here, and Python; with --environment nothing else. What could "
        "not work there is refused here, with exit status 2.",
    )
    offer_job(package)
    package.add_argument("--out", required=True, metavar="DIR", help="the directory; an earlier package is replaced")
    package.add_argument(
        "--checkpoint",
        metavar="PLACE",
        help="the checkpoint of the job, e.g. hdfs://host:8020/checkpoints/JOB; every machine must reach it",
    )
    package.add_argument(
        "--environment",
        action="store_true",
        help="include the libraries, for machines with the same system, processor and version of Python as this one",
    )
    package.add_argument(
        "--secure",
        action="store_true",
        help="let the job refuse to run if Spark's ports ask for no secret; without this it warns",
    )
    package.add_argument("--json", action="store_true", help="print the facts as JSON")
    package.set_defaults(run=run_package)


def run_package(arguments: argparse.Namespace) -> int:
    """Make a package, and print its contents."""
    from lockgate.cli.jobfile import load_job
    from lockgate.deploy.package import make_package

    made = make_package(
        load_job(arguments.file, arguments.parameters),
        Path(arguments.file).resolve(),
        Path(arguments.out).resolve(),
        parameters=arguments.parameters,
        checkpoint=arguments.checkpoint,
        with_environment=arguments.environment,
        secure=arguments.secure,
        tell=tell,
    )
    for warning in made.warnings:
        tell(f"warning: {warning}")
    if arguments.json:
        print(json.dumps(made.as_json(), indent=2))
        return 0
    print(f"job {made.job} for Spark {made.spark}: {len(made.files)} files in {made.directory}")
    for command in made.commands:
        print(f"  {command}")
    return 0
