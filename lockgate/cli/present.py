"""The command that answers for transactions: present."""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
import threading
from types import FrameType
from typing import Any

from lockgate.columns import columns


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command of this group."""
    present = subparsers.add_parser(
        "present",
        help="answer for a transaction within its deadline, with the scores that have arrived",
        description="Read transactions and the scores that several jobs give them, each from its topic; answer each "
        "transaction as soon as it has all scores, and at its deadline with those that have arrived. Answers go to the "
        "result topic, by the transaction's id, and to clients that ask for GET /transactions/ID. Transactions are "
        "JSON with an `id`, scores with `id` and `score`. Runs until Ctrl-C or SIGTERM, and prints its counts.",
        epilog="example: lockgate present --servers localhost:9092 --transactions transactions "
        "--score amount=scores-amount --score place=scores-place --results results --listen 9500",
    )
    present.add_argument("--servers", required=True, metavar="HOST:PORT", help="Kafka")
    present.add_argument("--transactions", required=True, metavar="TOPIC", help="the topic of the transactions")
    present.add_argument(
        "--score",
        required=True,
        action="append",
        metavar="NAME=TOPIC",
        help="an analyser, and the topic of its scores; once for each",
    )
    present.add_argument("--results", required=True, metavar="TOPIC", help="the topic of the answers")
    present.add_argument(
        "--deadline", default="20 ms", metavar="TIME", help="from the arrival of a transaction; default: %(default)s"
    )
    present.add_argument(
        "--listen",
        default="0",
        metavar="[HOST:]PORT",
        help="the address of /transactions/ID, /figures, /metrics and /health; default: a free port of this machine",
    )
    present.add_argument(
        "--client",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the Kafka client, as for TLS or a password, by its name in librdkafka; once for each",
    )
    present.add_argument("--json", action="store_true", help="print the facts as JSON, a line at the start and the end")
    present.set_defaults(run=run_present)


def run_present(arguments: argparse.Namespace) -> int:
    """Answer until Ctrl-C or SIGTERM."""
    from lockgate.dataflow.duration import as_duration
    from lockgate.errors import BadJob, Failed, Refused
    from lockgate.escaping import escape
    from lockgate.presenter.answering import Answering, AnswerSource
    from lockgate.presenter.figures import METRICS
    from lockgate.presenter.gathering import Limits
    from lockgate.presenter.presenter import Places, Presenter
    from lockgate.runtime.metrics.prometheus import check_prometheus, page_of
    from lockgate.runtime.metrics.server import address_of, host_in, listen

    scores = scores_of(arguments.score, arguments.transactions)
    places = Places(
        servers=arguments.servers,
        transactions=arguments.transactions,
        scores=scores,
        results=results_of(arguments.results, {arguments.transactions, *scores.values()}),
        client=client_of(arguments.client),
    )
    try:
        limits = Limits.of(as_duration(arguments.deadline, of="--deadline").total_seconds())
    except BadJob as error:
        raise Refused(error.what, where="command line", fix=error.fix) from None
    check_prometheus()
    presenter = Presenter(places, limits, tell=lambda line: print(escape(line), file=sys.stderr, flush=True))
    is_over = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        is_over.set()
        signal.signal(number, signal.default_int_handler)  # a second signal ends it at once

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    # A full garbage collection takes longer than the deadline of a transaction, and our objects have no cycles.
    gc.set_threshold(5_000, 10, 1_000_000)
    listening = listen(arguments.listen, option="--listen")
    address = address_of(listening)

    def announce() -> None:
        tell({"address": address} if arguments.json else f"answers at {address}/transactions/ID; Ctrl-C ends it")

    source = AnswerSource(
        ask=presenter.ask,
        asked=presenter.tally.note_question,
        facts=presenter.tally.facts,
        metrics=page_of("presenter", presenter.tally.figures, METRICS),
        trouble=presenter.trouble,
    )
    answering = Answering(listening, source, called=host_in(arguments.listen))

    def conclude() -> None:
        facts = presenter.tally.facts()
        tell(facts if arguments.json else summary(facts))

    try:
        presenter.run(is_over, ready=announce)
    except Failed:
        conclude()
        raise
    finally:
        answering.stop()
    conclude()
    return 0


def scores_of(words: list[str], transactions: str) -> dict[str, str]:
    """The topic of each analyser, from NAME=TOPIC."""
    from lockgate.errors import Refused

    scores: dict[str, str] = {}
    for word in words:
        name, _, topic = word.partition("=")
        is_new = name not in scores and topic not in {*scores.values(), transactions}
        if not (name and topic and is_new):
            raise Refused(
                f"{word!r} names no analyser with a topic of its own",
                where="--score",
                fix="one for each analyser: --score amount=scores-amount --score place=scores-place",
            )
        scores[name] = topic
    return scores


def results_of(topic: str, read: set[str]) -> str:
    """The topic of the answers."""
    from lockgate.errors import Refused

    if topic in read:
        raise Refused(
            f"topic {topic!r} is one that the presenter reads: it would read its own answers as input",
            where="--results",
            fix="a topic that only the presenter writes to: --results results",
        )
    return topic


def client_of(words: list[str]) -> dict[str, str]:
    """Settings of the Kafka client, from NAME=VALUE."""
    from lockgate.connectors.kafka.allowlist import PRESENTING, check_client
    from lockgate.errors import Refused
    from lockgate.presenter.presenter import OWN_SETTINGS, UNUSABLE_SETTINGS

    settings: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        fix = "once for each: --client security.protocol=SASL_SSL --client sasl.mechanism=PLAIN"
        # The text after the name may be a password, and is not shown.
        if not (name and sign):
            what = f"{name!r} is no setting with a value"
        elif name in ("bootstrap.servers", "metadata.broker.list"):
            what, fix = f"{name!r} is the presenter's own", "--servers HOST:PORT"
        elif name in OWN_SETTINGS:
            what, fix = f"{name!r} is the presenter's own", "omit it"
        elif name in UNUSABLE_SETTINGS:
            what, fix = f"{name!r} is not for a presenter: {UNUSABLE_SETTINGS[name]}", "omit it"
        elif name in settings:
            what = f"{name!r} is set twice"
        else:
            settings[name] = value
            continue
        raise Refused(what, where="--client", fix=fix)
    check_client(settings, PRESENTING, where="--client")
    return settings


def summary(facts: dict[str, Any]) -> str:
    """The counts, for people."""
    in_part = (
        f"{facts['partial']:,} in part{_share(facts['partial_share'])}, {facts['replaced']:,} of them replaced later"
    )
    missed = f"{facts['missed_deadlines']:,} after the deadline{_share(facts['missed_share'])}"
    lines = [f"{facts['transactions']:,} transactions: {facts['full']:,} answered in full, {in_part}; {missed}"]
    rows = {"answer": facts["answer"], "full answer": facts["full_answer"]}
    rows |= {f"score of {name}": told for name, told in facts["score_written"].items()}
    times = (
        (name, f"p50 {told['ms_p50']} ms, p99 {told['ms_p99']} ms, p99.9 {told['ms_p999']} ms")
        for name, told in rows.items()
        if told["count"]
    )
    return "\n".join([*lines, *columns(times, indent=2)])


def _share(share: float | None) -> str:
    return "" if share is None else f" ({share:.1%})"


def tell(what: str | dict[str, Any]) -> None:
    """Print a line for the reader of the output."""
    print(what if isinstance(what, str) else json.dumps(what), file=sys.stdout, flush=True)
