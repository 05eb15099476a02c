"""The ledger written by a person, beside its driver: for commands that mend, and for a new life.

Fence first, then read, then write: a driver that is alive could commit between a look and the write, and what the
person was told about doubled and lost rows would not be true any more. A driver that runs stops at its next epoch,
because the run id in the ledger is not its own.
"""

from __future__ import annotations

from lockgate.commit.ledger import Entry
from lockgate.commit.mending import moved, read_if_possible
from lockgate.errors import EpochFailed
from lockgate.kafka.ledgertopic import LedgerTopic, transactional_id
from lockgate.kafka.topics import refuse_old_broker, transaction_timeout_ms
from lockgate.kafka.transaction import Transactions
from lockgate.kafka.wire import Connection

_TRIES = 3


def replace_entry(ledger: LedgerTopic, transactions: Transactions, seen: Entry | None, entry: Entry) -> None:
    """Write an entry in place of the one that was seen; Failed where the ledger says something else by now."""
    for tries in range(1, _TRIES + 1):
        producer = transactions.begin()
        current = read_if_possible(ledger.read)
        if current == entry:
            break  # the end of the last try was unknown, and it is in
        if current != seen:
            raise moved(current, ledger.where)
        try:
            transactions.add(producer, [ledger.place])
            ledger.write(entry, producer)
            transactions.end(producer, is_commit=True)
        except EpochFailed:
            if tries == _TRIES:
                raise
        else:
            break
    transactions.wait_until_complete()


def open_transactions(connection: Connection, job: str, where: str) -> Transactions:
    """The transactions of a job, for somebody who writes beside its driver."""
    refuse_old_broker(connection, where=where)
    timeout_ms = transaction_timeout_ms(connection, where=where)
    return Transactions(connection, transactional_id(job), timeout_ms=timeout_ms, where=where)
