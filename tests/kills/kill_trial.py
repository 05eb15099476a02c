"""One job of these tests on trial in the rig, and what came of it.

Events keep coming until every fault has struck. What has to come out is computed from the events in plain Python (see
kill_workloads.py), and is the promise that the checkers of the rig judge by.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from uuid import uuid4

from kills.kill_matrix import Case
from kills.kill_workloads import DEAD_LETTERS, PARTITIONS, Event, Workload
from lockgate.connectors.kafka.ledgertopic import ledger_topic
from lockgate.connectors.kafka.topics import create_topics
from lockgate.guarantees import Guarantee
from lockgate.lab.prove.verdict import Trial as Judged
from lockgate.lab.prove.verdict import judge
from lockgate.lab.rig import feed as feeding
from lockgate.lab.rig.drivers import Drivers, GiveUp
from lockgate.lab.rig.history import Committed, History, Position, Read
from lockgate.lab.rig.judge.findings import Outcome
from lockgate.lab.rig.judge.promises import Keeping, Promise, Row
from lockgate.lab.rig.readers.databases import PostgresRows
from lockgate.lab.rig.readers.files import Files
from lockgate.lab.rig.readers.group import Readers
from lockgate.lab.rig.readers.output import Output
from lockgate.lab.rig.readers.topics import Topics
from lockgate.lab.rig.trial import Trial
from lockgate.lab.rig.troubles.order import troubles_of
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Trouble
from lockgate.lab.services.postgres import Postgres
from lockgate.lab.services.spark import SparkCluster
from lockgate.lab.services.stack import Stack

ROWS_PER_EPOCH = 40
BACKLOG = 120
_QUIET_SECONDS = 120.0
"""How long no row may come before those that are missing are called lost."""


@dataclass(frozen=True)
class Result:
    """What came of a trial."""

    case: Case
    judged: Judged
    history: History
    gave_up: list[GiveUp]
    starts: int

    @property
    def holds(self) -> bool:
        """Was the guarantee kept, as far as it was promised?"""
        return self.judged.outcome is Outcome.HOLDS

    @property
    def kills(self) -> int:
        """How many faults killed something; what was only stopped woke up."""
        return sum(kind.startswith("kill") for kind, _ in self.judged.struck)

    def __str__(self) -> str:
        wrong = [f"{name}: {one.outcome.value}, {one.reason}" for name, one in self.judged.checks.items() if one.reason]
        told = f"{self.kills} kills, {self.starts} starts in {self.judged.seconds:.0f} s: {self.judged.outcome.value}"
        return "\n".join([told, *wrong])


def require(result: Result) -> None:
    """It holds, every fault of the case has struck as it has to, and the job never gave up by itself."""
    case = result.case
    assert result.holds, f"{result}; seed {case.seed}"
    assert result.judged.event_count > 0
    assert not result.gave_up, result.gave_up
    assert result.kills == case.kills
    assert len(result.judged.struck) == len(case.strikes)
    assert result.judged.aborted_row_count > 0 or not case.is_("aborts"), "no kill has hit an open transaction"
    assert result.starts == 1 or not case.is_("waits"), "the driver itself was to wait"


@dataclass
class KillTrial:
    """A job and its faults.

    Args:
        stack, postgres: services that may be killed.
        second: the servers of another Kafka, if the job writes to one.
        planted: lines for the end of the job file that break the protocol on purpose.
        topics: the reader of topics.
    """

    servers: str
    workload: Workload
    case: Case
    directory: Path
    cluster: SparkCluster | None = None
    stack: Stack | None = None
    postgres: Postgres | None = None
    second: str = ""
    planted: str = ""
    topics: type[Topics] = Topics
    say: Callable[[str], None] = print
    name: str = field(default_factory=lambda: f"kills-{uuid4().hex[:8]}")
    sent: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read, self.write = f"{self.name}-in", f"{self.name}-out"
        self._in_topic: list[list[Event]] = [[] for _ in range(PARTITIONS)]
        self._is_over = False  # are no more events wanted?
        self._seen: tuple[int, int] = (-1, -1)
        self._seen_at, self._is_missing = 0.0, True

    def run(self) -> Result:
        """From empty topics to a verdict."""
        with self.trial() as trial:
            trial.disturb(self.troubles(trial))
            self._finish(trial)
            history = trial.history()
        judged = self.judge(history, seconds=self.drivers.clock())
        return Result(self.case, judged, history, self.drivers.gave_up, len(self.drivers.all))

    def judge(self, history: History, *, seconds: float) -> Judged:
        """Compare what was observed with what had to come."""
        compared = History(tuple(self._compared(one) if isinstance(one, Read) else one for one in history.facts))
        promises, due = self.promises(), self.due(history)
        judged = judge(compared, promises, None, seed=self.case.seed, number=0, due=due, seconds=seconds)
        return replace(judged, event_count=len(self.sent))

    def troubles(self, trial: Trial) -> list[Trouble]:
        """What happens to the job."""
        return troubles_of(self.case.strikes, self.scene(trial), trial.note, stays_away=self.case.stays_away)

    def due(self, history: History) -> list[tuple[str, str]]:
        """The faults that have to strike."""
        return [one.named for one in self.case.strikes]

    # -- the job and its outputs ----------------------------------------------------------------------------------

    def trial(self) -> Trial:
        """The job in the rig, with topics of its own."""
        create_topics(self.servers, [self.read, *self._outputs.values()], partitions=PARTITIONS, where="test")
        if self.second:
            create_topics(self.second, [self.write], partitions=PARTITIONS, where="test")
        self.directory.mkdir(parents=True, exist_ok=True)
        job_file = self.directory / "job.py"
        job_file.write_text(self.workload.source() + self.planted)
        parameters = self.workload.parameters(servers=self.servers, name=self.name, read=self.read, write=self.write)
        others = {"dsn": self.postgres.dsn if self.postgres else "", "files": str(self._files), "second": self.second}
        is_tracked = self.workload.guarantee != "AT_MOST_ONCE"
        self.drivers = drivers = Drivers(
            job_file=job_file,
            parameters=parameters | (others if self.workload.others else {}),
            directory=self.directory,
            checkpoint=self.directory / "checkpoint" if is_tracked else None,
            labels={self.read: "in"},
            master=None if self.cluster is None else self.cluster.master,
            options=("--rows-per-epoch", str(ROWS_PER_EPOCH)),
        )
        feed = feeding.Feed(self.servers, self._events(), {"in": self.read})
        readers = Readers(tuple(self._readers()))
        return Trial(drivers, readers, feed, lambda driver: drivers.consumed() + BACKLOG, tell=self.tell)

    def scene(self, trial: Trial) -> Scene:
        """What faults find."""
        return Scene(
            self.name,
            trial.drivers,
            self.servers,
            random.Random(self.case.seed),
            sent=lambda: trial.feed.sent,
            topics=[*self._outputs.values()],
            stack=self.stack,
            postgres=self.postgres,
            cluster=self.cluster,
        )

    @property
    def _outputs(self) -> dict[str, str]:
        return {f"out{suffix}": self.write + suffix for suffix in self.workload.suffixes}

    @property
    def _files(self) -> Path:
        return self.directory / "files"

    def _readers(self) -> Iterator[Output]:
        ledger = ledger_topic(self.name) if self.guarantee is Guarantee.END_TO_END_EXACTLY_ONCE else None
        inputs = {self.read: "in"}
        if self._outputs:
            yield self.topics(self.servers, self._outputs, inputs=inputs, ledger=ledger)
        if self.second:
            yield self.topics(self.second, {"second": self.write}, inputs=inputs, ledger=ledger)
        if self.postgres is not None:
            yield PostgresRows("table", self.postgres.dsn, self.name, job=self.name)
            yield Files("files", self._files, "parquet", is_exact=True)

    def tell(self, text: str) -> None:
        """Show the progress."""
        self.say(f"{self.case}: {text}")

    # -- events, and what has to come of them -----------------------------------------------------------------------

    def _events(self) -> Iterator[feeding.Event]:
        for event in self.workload.make_events(random.Random(self.case.seed)):
            if self._is_over:
                break
            self.sent.append(event)
            yield self._placed(event)
        last = self.workload.finale()
        if last is not None:
            yield self._placed(last)

    def _placed(self, event: Event) -> feeding.Event:
        partition = self.workload.partition(event)
        self._in_topic[partition].append(event)  # one producer, in order: its place here is its offset
        return feeding.Event("in", partition, *self.workload.record(event))

    @cached_property
    def guarantee(self) -> Guarantee:
        """What the job declares."""
        return Guarantee[self.workload.guarantee]

    def promises(self) -> dict[str, Promise]:
        """What every output owes for all that was sent."""
        given = self.taken() if self.workload.has_late else self.sent
        rows: dict[str, list[Row]] = {f"out{suffix}": [] for suffix in self.workload.suffixes}
        for suffix, key, value in self.workload.expect(given):
            row = Row(None if key is None else key.encode(), self.workload.compared(value))
            rows.setdefault(f"out{suffix}", []).append(row)
        found = {}
        for label in (*self._outputs, *(["second"] if self.second else ())):
            owed = tuple(rows["out" if label == "second" else label])
            is_told = (
                self.workload.is_ordered and label != f"out{DEAD_LETTERS}"
            )  # a letter does not show the id of its event
            found[label] = Promise(self.guarantee, owed, is_ordered=is_told, tells_epochs=is_told)
        if self.postgres is not None:
            added = tuple(row._replace(key=None) for row in rows["out"])
            found["table"] = Promise(self.guarantee, added, keeping=Keeping.ADDED)
            found["files"] = Promise(self.guarantee, added, keeping=Keeping.ADDED, has_transactions=False)
        return found

    def taken(self) -> list[list[Event]]:
        """The events of every epoch; those that no epoch has taken yet are one more."""
        before, found = [0] * PARTITIONS, []
        noted = [
            {end.partition: end.offset for end in one.ends} for one in self.drivers.facts if isinstance(one, Committed)
        ]
        for ends in [*noted, {part: len(events) for part, events in enumerate(self._in_topic)}]:
            last = [ends.get(part, 0) for part in range(PARTITIONS)]
            parts = zip(self._in_topic, before, last, strict=True)
            found.append([event for events, first, end in parts for event in events[first:end]])
            before = last
        return found

    def _compared(self, read: Read) -> Read:
        """A row in the form in which it is compared, with the place of its event if it shows one."""
        row = json.loads(read.value or b"")
        place = self._positions.get(row.get("id")) if self.workload.is_ordered else None
        return replace(read, value=self.workload.compared(row), trace=None if place is None else (place,))

    @cached_property
    def _positions(self) -> dict[int, Position]:
        return {
            event["id"]: Position("in", partition, offset)
            for partition, events in enumerate(self._in_topic)
            for offset, event in enumerate(events)
        }

    def _finish(self, trial: Trial) -> None:
        """Send a few more events, so that rows come after the last fault; let the job finish its work, and stop it."""
        drivers, feed = trial.drivers, trial.feed
        total = feed.sent + 2 * ROWS_PER_EPOCH
        trial.limit = lambda driver: total
        trial.run(lambda: drivers.consumed() >= total)
        self._is_over = True
        feed.send(total + 1)
        trial.run(lambda: self._has_come(trial))
        drivers.stop()

    def _has_come(self, trial: Trial) -> bool:
        """Has everything come that has to come? What is missing after a long silence is lost."""
        seen = trial.readers.seen()
        now = len(seen), trial.drivers.epochs()
        if now != self._seen:
            self._seen, self._seen_at = now, time.monotonic()
            there = Counter((row.output, row.content) for row in map(self._compared, seen))
            owed = Counter((label, row.content) for label, one in self.promises().items() for row in one.rows or ())
            self._is_missing = bool(owed - there)
        return not self._is_missing or time.monotonic() - self._seen_at > _QUIET_SECONDS
