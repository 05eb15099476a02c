"""The command that proves a job's guarantee with faults: prove."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

from lockgate.cli.job import offer_job
from lockgate.cli.proofrequest import ProofRequest
from lockgate.errors import Refused
from lockgate.escaping import tell
from lockgate.stopping import stoppable


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    prove = subparsers.add_parser(
        "prove",
        help="prove a job's guarantee by killing things",
        description="Run a job over generated events while its processes, its broker and its network are killed, "
        "stopped and cut off, and compare what readers saw with an undisturbed run of the same job. The verdict is "
        "holds, broken (with the counterexample and the command that replays it) or unknown. The proof uses local "
        "services, topics and a checkpoint of its own; an endpoint that cannot be redirected to them is refused.",
    )
    offer_job(prove)
    prove.add_argument(
        "--kills",
        type=int,
        metavar="N",
        default=ProofRequest.kills,
        help=f"how many faults at least; default: {ProofRequest.kills}",
    )
    prove.add_argument(
        "--faults", metavar="KINDS", help="only these, e.g. 'kill driver,kill worker'; default: all that fit"
    )
    prove.add_argument(
        "--points", metavar="POINTS", help="only at these, e.g. MARKER,BEFORE_END; default: all that the job passes"
    )
    prove.add_argument(
        "--events",
        type=int,
        metavar="N",
        default=ProofRequest.events,
        help=f"of a trial; default: {ProofRequest.events:,}",
    )
    prove.add_argument(
        "--rows-per-epoch",
        type=int,
        metavar="N",
        default=ProofRequest.rows_per_epoch,
        help=f"the most rows an epoch takes from a source; default: {ProofRequest.rows_per_epoch}",
    )
    prove.add_argument(
        "--seed",
        type=int,
        metavar="N",
        default=ProofRequest.seed,
        help=f"of events and faults; default: {ProofRequest.seed}",
    )
    prove.add_argument("--trial", type=int, metavar="N", help="only this one, e.g. to repeat a counterexample")
    prove.add_argument("--given", metavar="STREAM=FILE,...", help="events of these streams, one JSON a line")
    prove.add_argument(
        "--brokers",
        type=int,
        choices=(1, 3),
        help="of Kafka; three allow leaders and coordinators to die; default: as many as --faults need",
    )
    prove.add_argument("--cluster", action="store_true", help="on a Spark cluster of two workers instead of local[*]")
    prove.add_argument(
        "--spark-sink",
        action="store_true",
        help="the same job through Spark's own Kafka sink, checked for the same guarantee: why the commit protocol"
        " exists",
    )
    prove.add_argument("--results", metavar="FILE", help="the file that collects trials; in .lockgate/prove/JOB")
    prove.add_argument("--html", metavar="FILE", help="write the page there; default: in .lockgate/prove/JOB")
    prove.add_argument("--json", action="store_true", help="print the facts as JSON")
    prove.set_defaults(run=run_prove)


def run_prove(arguments: argparse.Namespace) -> int:
    """Prove, write the page, and report."""
    from lockgate.cli.proofrun import prove_file
    from lockgate.lab.prove.page import write_page

    request = ProofRequest(
        file=arguments.file,
        parameters=tuple(arguments.parameters),
        kills=arguments.kills,
        faults=_names(arguments.faults),
        points=_names(arguments.points),
        events=arguments.events,
        rows_per_epoch=arguments.rows_per_epoch,
        seed=arguments.seed,
        trial=arguments.trial,
        given=_given(arguments.given),
        brokers=arguments.brokers,
        is_cluster=arguments.cluster,
        through_spark=arguments.spark_sink,
        results=_file(arguments.results, "--results"),
    )
    page = _file(arguments.html, "--html")
    with stoppable() as go_on:
        proven = prove_file(request, tell=tell, go_on=go_on)
    page = page or proven.home / "proof.html"
    page.write_text(write_page(proven.report), encoding="utf-8")
    tell(f"written to {page}")
    if arguments.json:
        print(json.dumps(proven.report.as_json(), indent=2))
    else:
        print(proven.report.as_text(shutil.get_terminal_size(fallback=(120, 24)).columns))
    return 0 if proven.verdict.holds else 1


def _names(given: str | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(name.strip() for name in given.split(","))


def _file(told: str | None, option: str) -> Path | None:
    """An output file, checked before a proof that takes an hour; nothing is written yet."""
    if told is None:
        return None
    path = Path(told)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        reason = "it is a directory" if path.is_dir() else None
        if reason is None and not os.access(path if path.exists() else path.parent, os.W_OK):
            reason = "permission denied"
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise Refused(f"{path} cannot be written: {reason}", where=option, fix="name a file that can be written to")
    return path


def _given(told: str | None) -> dict[str, Path]:
    pairs = [one.partition("=") for one in (told or "").split(",") if one]
    for name, sign, path in pairs:
        if not (name and sign and path):
            raise Refused(f"{name!r} names no file", where="--given", fix="write it as STREAM=FILE,STREAM=FILE")
    return {name: Path(path) for name, _, path in pairs}
