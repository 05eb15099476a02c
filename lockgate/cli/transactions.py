"""The commands about Kafka transactions: list, show and abort.

An open transaction holds back every read_committed reader of its partitions, so one that is never ended is an outage of
all that is downstream. Kafka ends it by itself after its time-out; `abort` ends it now.

    Ongoing                       open: its end is not decided
    PrepareCommit, PrepareAbort   open: decided, its end is being written to every partition
    CompleteCommit, CompleteAbort, Empty   over; Kafka remembers the id for some days
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockgate.cli.target import connected, find_target, is_file, offer_kafka, offer_target, settings_without_job
from lockgate.columns import columns
from lockgate.errors import Failed, Refused
from lockgate.escaping import escape

if TYPE_CHECKING:
    from lockgate.connectors.kafka.settings import ClientSettings
    from lockgate.connectors.kafka.wire import Connection, TransactionView

PREFIX = "lockgate."
_NOT_FOUND = 105


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    group = subparsers.add_parser(
        "transactions",
        help="Kafka transactions that are open, and those that are stuck",
        description="Kafka transactions: an open one holds back every read_committed reader of its partitions.",
    )
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    list_ = commands.add_parser(
        "list",
        help="open and recently ended ones",
        description="List the transactions of all Lockgate jobs at a Kafka, open ones first. STUCK are those that are "
        "open longer than their time-out.",
    )
    list_.add_argument("job", metavar="FILE", nargs="?", help="a job's file, for its servers; or --servers")
    offer_kafka(list_)
    list_.add_argument("--all", action="store_true", help="also those of other programs")
    list_.add_argument("--json", action="store_true", help="print facts for programs")
    list_.set_defaults(run=run_list)

    show = commands.add_parser(
        "show",
        help="one of them, with the partitions that it holds back",
        description="Show the transaction of a job, or of a transactional id, and what it means for readers.",
    )
    offer_target(show)
    show.add_argument("--json", action="store_true", help="print facts for programs")
    show.set_defaults(run=run_show)

    abort = commands.add_parser(
        "abort",
        help="end an open one, so that readers continue",
        description="Abort the open transaction of a job. The command first says what that means, and does it only "
        "with --yes. Nothing is lost: the job's driver writes the epoch again.",
    )
    offer_target(abort)
    abort.add_argument("--yes", action="store_true", help="do it; without this, only say what would happen")
    abort.add_argument("--json", action="store_true", help="print facts for programs")
    abort.set_defaults(run=run_abort)


@dataclass(frozen=True)
class Look:
    """A transaction at one moment."""

    view: TransactionView
    now_ms: int

    @property
    def is_open(self) -> bool:
        """Does it hold readers back?"""
        return self.view.state == "Ongoing" or self.is_decided

    @property
    def is_decided(self) -> bool:
        """Is its end decided, so that no command can change it?"""
        from lockgate.connectors.kafka.transaction import DECIDED

        return self.view.state in DECIDED

    @property
    def age_ms(self) -> int | None:
        """How long it is open; None if it is not."""
        return max(0, self.now_ms - self.view.started_ms) if self.is_open and self.view.started_ms >= 0 else None

    @property
    def is_stuck(self) -> bool:
        """Should Kafka have ended it by now?"""
        return self.age_ms is not None and self.age_ms > self.view.timeout_ms

    @property
    def abort_command(self) -> str:
        """What a person can paste to end it; whoever may write to the cluster chooses the id."""
        return f"lockgate transactions abort {escape(shlex.quote(self.view.transactional_id))}"

    def as_facts(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "transactional_id": self.view.transactional_id,
            "state": self.view.state,
            "is_open": self.is_open,
            "is_stuck": self.is_stuck,
            "producer_id": self.view.producer.id,
            "producer_epoch": self.view.producer.epoch,
            "started_ms": self.view.started_ms if self.view.started_ms >= 0 else None,
            "age_ms": self.age_ms,
            "timeout_ms": self.view.timeout_ms,
            "partitions": [{"topic": topic, "partition": partition} for topic, partition in self.view.partitions],
        }

    def meaning(self) -> str:
        """The effect on readers."""
        if not self.is_open:
            return "No transaction is open: no reader is held back."
        if self.is_decided:
            end = "committed" if self.view.state == "PrepareCommit" else "aborted"
            return (
                f"It is decided and will be {end}; readers continue when its end is written to all partitions. If that"
                " takes long, a broker that leads one of them is down."
            )
        held = f"read_committed readers of {'this partition' if len(self.view.partitions) == 1 else 'these partitions'}"
        if self.is_stuck:
            return (
                f"It is STUCK: open longer than its time-out, and {held} wait. Kafka looks for such ones every few"
                f" seconds; if it stays: {self.abort_command}"
            )
        rest = self.view.timeout_ms - (self.age_ms or 0)
        return f"{held[0].upper()}{held[1:]} wait until it ends: by its driver, or by Kafka in {span(rest)} at most."


def run_list(arguments: argparse.Namespace) -> int:
    """List the transactions that the brokers know."""
    settings, where = _where(arguments)
    with connected(settings, where) as connection:
        looks = [
            found
            for name in _asked_ids(connection, arguments, where)
            if arguments.all or name.startswith(PREFIX)
            if (found := look(connection, name, where)) is not None
        ]
    looks.sort(key=lambda one: (not one.is_open, -(one.view.started_ms), one.view.transactional_id))
    if arguments.json:
        print(json.dumps({"servers": settings.servers, "transactions": [one.as_facts() for one in looks]}, indent=2))
        return 0
    for line in table(looks):
        print(line)
    stuck = [one for one in looks if one.is_stuck]
    count = sum(one.is_open for one in looks)
    print(f"{count} open, {len(stuck)} stuck, of {len(looks)} at {settings.servers}")
    if stuck:
        print(f"end one: {stuck[0].abort_command} --servers {shlex.quote(settings.servers)}")
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Show one transaction."""
    settings, where = _where(arguments)
    with connected(settings, where) as connection:
        found = find(connection, arguments, where)
    if arguments.json:
        print(json.dumps({**found.as_facts(), "says": found.meaning()}, indent=2))
        return 0
    for line in describe(found):
        print(line)
    print(found.meaning())
    return 0


def run_abort(arguments: argparse.Namespace) -> int:
    """Say what an abort means; do it with --yes."""
    from lockgate.connectors.kafka.topics import transaction_timeout_ms
    from lockgate.connectors.kafka.transaction import Transactions

    settings, where = _where(arguments)
    with connected(settings, where) as connection:
        found = find(connection, arguments, where)
        name = found.view.transactional_id
        if not name.startswith(PREFIX):
            raise Refused(
                f"transactional id {name!r} is not one of Lockgate's, and its program may not survive being fenced",
                where=where,
                fix="stop that program, or use Kafka's own tool: kafka-transactions.sh",
            )
        if found.is_decided:
            raise Refused(
                f"the transaction of {name!r} is decided already ({found.view.state}); no command can change that",
                where=where,
                fix="bring back the brokers that lead its partitions; `lockgate transactions show` lists them",
            )
        after = found
        if not arguments.json:
            for line in describe(found):
                print(line)
        if found.is_open:
            says = (
                f"Then its {len(found.view.partitions)} partitions are free for readers, and none of its rows becomes"
                " visible. A driver of this job that runs is fenced for this epoch and repeats it by itself; one that"
                " is dead repeats it at its next start. Nothing is lost."
            )
        else:
            says = "No transaction is open: there is nothing to abort."
        if not arguments.json:
            print(says)
        if arguments.yes and found.is_open:
            timeout_ms = transaction_timeout_ms(connection, where=where)
            transactions = Transactions(connection, name, timeout_ms=timeout_ms, where=where)
            transactions.begin()
            transactions.wait_until_complete()
            after = look(connection, name, where) or found
            # A driver that runs may have begun the next one by now; ours is recognised by its start.
            if after.is_open and after.view.started_ms == found.view.started_ms:
                raise Failed(
                    f"the transaction of {name!r} is still open", where=where, fix="look at the brokers, and try again"
                )
    is_done = arguments.yes and found.is_open
    if arguments.json:
        print(json.dumps({"before": found.as_facts(), "after": after.as_facts(), "aborted": is_done}, indent=2))
    elif found.is_open:
        print("aborted" if is_done else "nothing was done; add --yes")
    return 0


def look(connection: Connection, transactional_id: str, where: str) -> Look | None:
    """The coordinator's view now; None if it does not know the id."""
    from lockgate.connectors.kafka.errorcodes import RETRIABLE, name_of
    from lockgate.connectors.kafka.topics import asked
    from lockgate.connectors.kafka.wire import Unanswered

    def ask() -> tuple[int, TransactionView]:
        code, view = connection.describe_transaction(transactional_id)
        if code in RETRIABLE:
            raise Unanswered(name_of(code))
        return code, view

    code, view = asked(ask, where)
    if code == _NOT_FOUND:
        return None
    if code:
        raise Failed(
            f"Kafka does not describe {transactional_id!r}: {name_of(code)}",
            where=where,
            fix="look at the broker's log",
        )
    return Look(view=view, now_ms=int(time.time() * 1000))


def find(connection: Connection, arguments: argparse.Namespace, where: str) -> Look:
    """The transaction of a job's file, of a transactional id, or of a job's name."""
    from lockgate.connectors.kafka.ledgertopic import transactional_id

    if is_file(arguments.job):
        names = [transactional_id(find_target(arguments).job)]
    else:
        names = [arguments.job, transactional_id(arguments.job)]
    for name in names:
        found = look(connection, name, where)
        if found is not None:
            return found
    raise Failed(
        f"Kafka knows no transaction of {' or '.join(map(repr, names))}",
        where=f"{connection.settings.servers}, {where}",
        fix="`lockgate transactions list` shows those that it knows; it forgets an id that is unused for some days",
    )


def table(looks: list[Look]) -> list[str]:
    """Transactions as lines with columns."""
    if not looks:
        return []
    rows = [("ID", "STATE", "PRODUCER", "OPEN FOR", "TIME-OUT", "PARTITIONS", "")]
    rows += [
        (
            one.view.transactional_id,
            one.view.state,
            f"{one.view.producer.id}/{one.view.producer.epoch}",
            "-" if one.age_ms is None else span(one.age_ms),
            span(one.view.timeout_ms),
            str(len(one.view.partitions)),
            "STUCK" if one.is_stuck else "",
        )
        for one in looks
    ]
    return columns(rows)


def describe(found: Look) -> list[str]:
    """A transaction in lines."""
    view = found.view
    age = "" if found.age_ms is None else f", open for {span(found.age_ms)}{' STUCK' if found.is_stuck else ''}"
    return [
        f"id          {escape(view.transactional_id)}",
        f"state       {view.state}{age}",
        f"producer    id {view.producer.id}, epoch {view.producer.epoch}",
        f"time-out    {span(view.timeout_ms)}",
        "partitions  " + (", ".join(f"{topic}-{partition}" for topic, partition in view.partitions) or "none"),
    ]


def span(milliseconds: int) -> str:
    """A duration for people.

    >>> span(4200), span(600_000), span(5_400_000)
    ('4.2 s', '10 min', '1.5 h')
    """
    for unit, size in (("h", 3_600_000), ("min", 60_000)):
        if milliseconds >= size:
            return f"{milliseconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{milliseconds / 1000:.1f}".removesuffix(".0") + " s"


def _where(arguments: argparse.Namespace) -> tuple[ClientSettings, str]:
    """The Kafka that the arguments mean."""
    if arguments.job is not None and is_file(arguments.job):
        target = find_target(arguments)
        return target.settings, target.where
    return settings_without_job(arguments), "command line" if arguments.job is None else f"job or id {arguments.job!r}"


def _asked_ids(connection: Connection, arguments: argparse.Namespace, where: str) -> tuple[str, ...]:
    """The ids that the brokers show. They hide ids that this client may not see, so a job file's id is asked for."""
    from lockgate.connectors.kafka.ledgertopic import transactional_id
    from lockgate.connectors.kafka.topics import asked

    is_named = arguments.job is not None and is_file(arguments.job)
    own = (transactional_id(find_target(arguments).job),) if is_named else ()
    return tuple(dict.fromkeys([*asked(connection.list_transactions, where), *own]))
