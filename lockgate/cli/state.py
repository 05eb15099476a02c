"""The command about state: show from outside what a step keeps for its keys."""

from __future__ import annotations

import argparse
import json

from lockgate.cli.job import offer_job
from lockgate.errors import Failed
from lockgate.escaping import escape, escape_json


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    state = subparsers.add_parser(
        "state",
        help="show what a step keeps for its keys",
        description="Show what a step of a job keeps for each key, or for one, as of the last committed epoch. The job "
        "may run. With --json each line is a key, in the form that .process(..., initial=FILE) reads.",
    )
    offer_job(state)
    state.add_argument("step", metavar="STEP", help="the name of a step with state, as `lockgate plan` shows it")
    state.add_argument(
        "--key",
        dest="key",
        action="append",
        metavar="VALUE",
        help="one key only; for a key of several columns once for each, in the order of key_by",
    )
    state.add_argument(
        "--checkpoint", metavar="PLACE", help="default: .lockgate/checkpoints/JOB; any Hadoop file system"
    )
    state.add_argument("--epoch", type=int, metavar="N", help="an older epoch, as long as the checkpoint has it")
    state.add_argument("--json", action="store_true", help='print lines of JSON: {"key": [...], "state": {...}}')
    state.set_defaults(run=run_state)


def run_state(arguments: argparse.Namespace) -> int:
    """Show the state of a step, key by key."""
    from lockgate.cli.jobfile import load_job
    from lockgate.operators.statejson import as_json, as_text
    from lockgate.runtime.state import iterate_state

    job = load_job(arguments.file, arguments.parameters)
    found = iterate_state(
        job, arguments.step, checkpoint=arguments.checkpoint, key=arguments.key, epoch=arguments.epoch
    )
    is_empty = True
    for key, state in found:
        is_empty = False
        if arguments.json:
            print(json.dumps({"key": as_json(key), "state": as_json(state)}))
        else:
            name = ", ".join("null" if part is None else as_text(part) for part in key) or "(one for all)"
            print(f"{escape(name)}  {escape_json(json.dumps(as_json(state), ensure_ascii=False))}")
    if is_empty and arguments.key is not None:
        raise Failed(
            f"step {arguments.step!r} keeps nothing for the key {', '.join(arguments.key)}",
            where=f"job {job.name!r}",
            fix="the key had no event up to that epoch, or its state was deleted; without --key all keys are shown",
        )
    return 0
