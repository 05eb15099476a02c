"""A driver without a JVM: one epoch into the table `orders`, committed as the driver of a job does it.

orders DSN    prints the error that ended it; its environment may arm faults
"""

from __future__ import annotations

import sys

from lockgate.commit.causes import find_cause
from lockgate.commit.coordinator import Coordinator, Outcome, Work
from lockgate.commit.followers import Followers
from lockgate.commit.lastresource import LastResource
from lockgate.commit.permits import Permits
from lockgate.commit.protocol import Epoch
from lockgate.connectors.postgres import store
from lockgate.connectors.postgres.sink import PostgresSink
from lockgate.errors import LockgateError
from support.arrow_rows import open_sinks, rows_of

EPOCH = Epoch(number=0, digest="d0", previous_digest=None, query="query")


def drive(dsn: str) -> Outcome:
    """Claim the job `job` and commit its epoch 0, with three rows."""
    rows = rows_of([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], [{"id": 3, "name": "c"}])
    resource = open_sinks(out=PostgresSink(table="orders", dsn=dsn))
    last = LastResource(resource)
    followers = Followers("job", {})
    coordinator = Coordinator("job", transactions=last, ledger=last, permits=Permits(), followers=followers)

    def write(producer: None, name: str, is_exchanging: bool) -> tuple[tuple[()], int]:
        last.stage({"out": rows}, EPOCH.number)
        return (), 0

    try:
        return coordinator.commit(
            EPOCH,
            Work(
                write=write,
                skip=lambda: None,
                check=lambda: None,
                cause_of=lambda error: find_cause(error)[0],
                stage=lambda: followers.stage({}, EPOCH.number),
                can_repeat=True,
            ),
        )
    finally:
        resource.close()


if __name__ == "__main__":
    store.encode = lambda rows, fits: rows
    try:
        drive(sys.argv[1])
    except LockgateError as error:
        sys.exit(str(error))
