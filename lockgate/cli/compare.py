"""The command that puts a job's guarantees side by side: compare."""

from __future__ import annotations

import argparse
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

from lockgate.cli.job import offer_job
from lockgate.errors import Refused
from lockgate.escaping import tell
from lockgate.guarantees import Guarantee
from lockgate.stopping import stoppable

_NAMES = {one.name.lower().replace("_", "-"): one for one in Guarantee}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    compare = subparsers.add_parser(
        "compare",
        help="one job under all its guarantees, with the same faults",
        description="Run a job under each of the four guarantees that it reaches, over the same events, and kill its "
        "driver, JVM and workers with SIGKILL at the same places. Report for each how many rows were lost and "
        "duplicated, the latency of events, the duration of epochs, throughput, the time of a restart, and what it "
        "requires from the user; for guarantees that the planner refuses report its reason. A job with "
        "tracking=acks(...) runs at-least-once twice, by acknowledgement and by checkpoint. The job's sources must be "
        "KafkaSource and its sinks KafkaSink with a topic. It runs on the local Kafka (started if none runs, and then "
        "stopped again) in topics of its own; the job's own topics are only read, to copy events. Expect two minutes "
        "for each guarantee.",
    )
    offer_job(compare)
    compare.add_argument("--events", type=int, metavar="N", help="how many, at most; default: 20,000")
    compare.add_argument(
        "--generate",
        action="store_true",
        help="generate the events from the schemas of the sources instead of copying them from the job's own topics",
    )
    compare.add_argument("--seed", type=int, metavar="N", help="of generated events; default: 1")
    compare.add_argument(
        "--guarantee",
        dest="guarantees",
        action="append",
        choices=_NAMES,
        help="only this one (both ways of at-least-once, if there are two); may be given several times",
    )
    compare.add_argument("--kills", type=int, metavar="N", help="how often each run is killed; default: 2")
    compare.add_argument("--seconds", type=float, metavar="S", help="over which the events are sent; default: 40")
    compare.add_argument("--out", metavar="DIRECTORY", help="for the page and the plot; default: .lockgate/compare/JOB")
    compare.add_argument("--json", action="store_true", help="print the facts as JSON")
    compare.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare, write the page, and report."""
    from lockgate.cli.jobfile import load_job
    from lockgate.cli.passwords import PARAMETERS, hide
    from lockgate.lab.compare.comparison import EVENTS, KILLS, SECONDS, SEED, Setting, compare
    from lockgate.lab.compare.events import copy_events, make_events
    from lockgate.lab.compare.renamed import find_endpoints
    from lockgate.lab.services.stack import Stack, default_root

    events = _given(arguments.events, EVENTS, least=1, option="--events")
    kills = _given(arguments.kills, KILLS, least=0, option="--kills")
    seconds = _given(arguments.seconds, SECONDS, least=1, option="--seconds")
    if events < 20 * (kills + 1):
        raise Refused(
            f"{events} events are too few for {kills} kills", where="--events", fix=f"at least {20 * (kills + 1)}"
        )
    job = load_job(arguments.file, arguments.parameters)
    endpoints = find_endpoints(job)
    chosen = [_NAMES[name] for name in arguments.guarantees] if arguments.guarantees else list(Guarantee)
    if arguments.generate:
        seed = SEED if arguments.seed is None else arguments.seed
        taken = make_events(endpoints.sources, count=int(events), seed=seed)
    else:
        taken = copy_events(endpoints.sources, count=int(events))
    shown, environ = hide(arguments.parameters, PARAMETERS)
    setting = Setting(
        job=job,
        endpoints=endpoints,
        job_file=Path(__file__).with_name("comparedjob.py"),
        source={"file": str(Path(arguments.file).resolve()), "parameters": shown},
        environ=environ,
        events=taken,
        guarantees=sorted(set(chosen)),
        kills=int(kills),
        seconds=seconds,
    )
    home = default_root().parent / "compare" / job.name
    with stoppable() as go_on:
        report = compare(Stack(default_root()), home, setting, now=datetime.now(UTC), tell=tell, go_on=go_on)
    facts = json.dumps(report.as_json(), indent=2)
    _write(
        Path(arguments.out or home),
        {"compare.html": report.page(), "compare.svg": report.plot() + "\n", "compare.json": facts + "\n"},
    )
    if arguments.json:
        print(facts)
    else:
        print("", *report.lines(shutil.get_terminal_size(fallback=(120, 24)).columns), sep="\n")
    return 0


def _given(value: float | None, default: float, *, least: float, option: str) -> float:
    if value is not None and value < least:
        raise Refused(f"{option} {value:g} is too small", where="command line", fix=f"give at least {least:g}")
    return default if value is None else value


def _write(directory: Path, texts: dict[str, str]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(
            f"{directory} cannot be written: {error.strerror}", where="--out", fix="name a directory that can"
        ) from None
    tell(f"written to {directory}: {', '.join(texts)}")
