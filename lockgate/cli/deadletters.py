"""The commands about dead letters: list, show and replay."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from lockgate.cli.job import offer_job
from lockgate.columns import columns
from lockgate.errors import Refused
from lockgate.escaping import escape, escape_json

if TYPE_CHECKING:
    from lockgate.runtime.deadletters import DeadLetterStore, Letter

_REASON_MAX = 90


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    group = subparsers.add_parser(
        "dead-letters",
        help="events that a job could not use: list, show, send back",
        description="Events that a job with dead_letters= could not use. Neither Spark nor a stopped job is needed. "
        "Rows of an open transaction are not shown yet.",
    )
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    list_ = commands.add_parser(
        "list",
        help="all of them, with the reasons",
        description="List the dead letters of a job in the order of its epochs, and count them by step and reason.",
    )
    _offer(list_)
    _offer_step(list_)
    list_.add_argument("--json", action="store_true", help="print a line of JSON for each dead letter")
    list_.set_defaults(run=run_list)

    show = commands.add_parser(
        "show", help="one of them, whole", description="Show a dead letter with all its facts, and the source's bytes."
    )
    _offer(show)
    show.add_argument("id", metavar="ID", help="its id, as `lockgate dead-letters list` shows it")
    show.set_defaults(run=run_show)

    replay = commands.add_parser(
        "replay",
        help="send them back into the job, once it is fixed",
        description="Send dead letters back: the running job, or its next run, processes each event once more, from "
        "the parser on. A dead letter is sent once. If something has processed the event already, a job that is "
        "declared exactly-once does not send it. Exit status 1 if something that you asked for was not sent.",
    )
    _offer(replay)
    which = replay.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--id", dest="ids", action="append", metavar="ID", help="this dead letter; may be given several times"
    )
    which.add_argument("--all", action="store_true", help="all that were not sent yet")
    _offer_step(replay)
    replay.set_defaults(run=run_replay)


def run_list(arguments: argparse.Namespace) -> int:
    """List the dead letters of a job."""
    store = _store(arguments)
    letters = _of_step(store, store.letters(), arguments.step)
    if arguments.json:
        for letter in letters:
            print(escape_json(json.dumps(_facts(store, letter))))
        return 0
    if not letters:
        print(f"job {store.job.name} has no dead letters" + (f" of step {arguments.step}" if arguments.step else ""))
        return 0
    titles = ("ID", "EPOCH", "STEP", "ATTEMPTS", "STANDING", "PLACE", "REASON")
    rows = [
        (
            letter.id,
            str(letter.epoch),
            letter.step,
            str(letter.attempts),
            store.standing(letter).value,
            letter.place,
            _short(letter.reason),
        )
        for letter in letters
    ]
    counts = Counter(f"{letter.step}: {_short(letter.reason)}" for letter in letters).most_common()
    print(*columns([titles, *rows]), "", sep="\n")
    print(*columns([(f"{count:,}", told) for told, count in counts], right=(0,), indent=4), sep="\n")
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Show one dead letter."""
    store = _store(arguments)
    (letter,) = store.find([arguments.id])
    facts = {
        "id": letter.id,
        "job": letter.job,
        "life": letter.life,
        "epoch": letter.epoch,
        "step": letter.step,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "standing": store.standing(letter).value,
        "place": letter.place,
        "timestamp": "none" if letter.timestamp is None else letter.timestamp.isoformat(),
        "the step saw": letter.shown,
        "key": _as_text(letter.key),
        **{f"header {key}": _as_text(value) for key, value in letter.headers},
        "value": _as_text(letter.value),
    }
    print(*columns((name, str(value)) for name, value in facts.items()), sep="\n")
    return 0


def run_replay(arguments: argparse.Namespace) -> int:
    """Send dead letters back into their job."""
    from lockgate.runtime.deadletters import Standing

    store = _store(arguments)
    asked = store.letters() if arguments.all else store.find(arguments.ids)
    letters = _of_step(store, asked, arguments.step)
    if len(letters) < len(asked) and not arguments.all:
        others = ", ".join(one.id for one in asked if one not in letters)
        raise Refused(f"--step {arguments.step} and --id do not fit: {others}", where=store.where, fix="omit --step")
    if arguments.all:
        passed = Counter(store.standing(letter) for letter in letters)
        letters = [one for one in letters if store.standing(one) not in (Standing.SENT, Standing.BEFORE_RESET)]
        for standing in (Standing.SENT, Standing.BEFORE_RESET):
            if passed[standing]:
                print(f"passed over: {_letters(passed[standing])} {standing.value}")
    sendings = store.send(letters)
    for one in sendings:
        told = "" if one.told is None else f": {escape(one.told)}"
        print(f"{one.letter.id}  {'sent' if one.is_sent else 'not sent'}{told}")
    sent = sum(one.is_sent for one in sendings)
    print(f"{_letters(sent)} sent back to job {store.job.name}, {len(sendings) - sent} not sent")
    if sent:
        print("the running job, or its next run, takes them in its next epoch")
    return 0 if sent == len(sendings) else 1


def _store(arguments: argparse.Namespace) -> DeadLetterStore:
    from lockgate.cli.jobfile import load_job
    from lockgate.runtime.deadletters import DeadLetterStore

    return DeadLetterStore(load_job(arguments.file, arguments.parameters), checkpoint=arguments.checkpoint)


def _offer(parser: argparse.ArgumentParser) -> None:
    offer_job(parser)
    parser.add_argument(
        "--checkpoint", metavar="PLACE", help="default: .lockgate/checkpoints/JOB; on this machine's disk"
    )


def _offer_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step", metavar="STEP", help="only those of this step, as `lockgate plan` shows it")


def _of_step(store: DeadLetterStore, letters: list[Letter], step: str | None) -> list[Letter]:
    """The dead letters of a step; Refused if neither the job nor one of its dead letters has this step."""
    if step is None:
        return letters
    found = [letter for letter in letters if letter.step == step]
    if not found and step not in store.steps:
        raise Refused(
            f"job {store.job.name!r} has no step {step!r}, and no dead letter of one",
            where=store.where,
            fix=f"dead letters come from {', '.join(map(repr, store.steps))}",
        )
    return found


def _facts(store: DeadLetterStore, letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "life": letter.life,
        "epoch": letter.epoch,
        "step": letter.step,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "standing": store.standing(letter).value,
        "source": letter.source,
        "part": letter.part,
        "at": letter.at,
        "child": letter.child,
        "shown": letter.shown,
        "key": _as_text(letter.key) if letter.key is not None else None,
        "value": _as_text(letter.value) if letter.value is not None else None,
        "headers": [[key, None if value is None else _as_text(value)] for key, value in letter.headers],
        "timestamp": None if letter.timestamp is None else letter.timestamp.isoformat(),
    }


def _short(text: str) -> str:
    line = escape(" ".join(text.split()))
    return line if len(line) <= _REASON_MAX else f"{line[: _REASON_MAX - 3]}..."


def _as_text(value: bytes | None) -> str:
    """Bytes as text if they are text, else as hex, of which only the start is shown."""
    if value is None:
        return "none"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return text if escape(text, keeps="\n\t") == text else f"0x{value.hex()}"


def _letters(count: int) -> str:
    return f"{count:,} dead letter" if count == 1 else f"{count:,} dead letters"
