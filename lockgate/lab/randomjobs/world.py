"""The outside of a trial: what each sink of a random job does with an epoch that comes twice, without its system.

The commits are those of the product: coordinator, ledger entries, claims, followers. Only the systems are models:

    sink, as it is declared                 what becomes of an epoch
    in transactions                         staged, then published together with the ledger: a `Resource`
    an upsert by key, without transactions  each row replaces what stands under its key, whenever it comes
    a gauge with `latest`                   each row replaces what stands under its labels, unless that is later
    any other                               each row is added, also when it comes a second time

The driver dies at one of the points that `World.reach` passes. From then on every call of that driver fails, whatever
it tries, until `revive`: a driver that is dead repairs nothing. What a system had taken before stays.

    point                   where
    before                  nothing of the epoch is computed
    computed                the tasks have computed, the sink has nothing
    half                    a sink without transactions has half of the rows
    staged                  the rows are staged, nothing is decided
    done                    the sink has its rows, or the ledger has moved; Spark has not logged the epoch

The product compares the ids of topics with those that it noted. `Brokers` answers for the brokers.

A driver that `sleeps` is not dead but slow: what it had in hand when another driver took over, an upsert or the end of
a transaction, it carries out in the end (`wake`), after whatever came later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockgate.commit.ledger import Entry
from lockgate.commit.resource import CommittingSink, Opening, Resource
from lockgate.connectors.kafka.rights import Operation
from lockgate.connectors.kafka.wire import TopicShape
from lockgate.dataflow.deletes import DELETED
from lockgate.dataflow.endpoints import Sink, SinkAbility
from lockgate.dataflow.locations import Metric
from lockgate.errors import Moved
from lockgate.guarantees import Delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GAUGE_REFUSES = "a gauge takes no row"
"""What a gauge says of a row of which it cannot say whether it is the last one."""

Rows = Sequence[Mapping[str, Any]]


@dataclass
class Brokers:
    """The ids of the topics that a job reads, and of their cluster, as brokers give them."""

    cluster: int = 1
    topics: dict[str, int] = field(default_factory=dict)

    def recreate(self, topic: str) -> None:
        """Delete a topic, and create it again."""
        self.topics[topic] = self.topics.get(topic, 0) + 1

    def move(self) -> None:
        """Put another cluster in the place of this one, with topics of the same names."""
        self.cluster += 1

    # What the product asks of a connection

    def shapes(
        self, topics: Iterable[str], *, is_fresh: bool = False, needs: Operation = Operation.DESCRIBE
    ) -> dict[str, TopicShape]:
        """All topics exist."""
        return {name: TopicShape(name, (0,), 1, f"{name}-{self.cluster}-{self.topics.get(name, 0)}") for name in topics}

    def cluster_id(self) -> str:
        """The id of the cluster."""
        return f"cluster-{self.cluster}"


class Died(RuntimeError):
    """The driver is dead: nothing that it tries has an effect."""


@dataclass(eq=False)
class Table:
    """What a reader of one output sees."""

    key: tuple[str, ...] = ()  # rows replace each other by it, in a keyed table
    latest: str | None = None  # the column that decides which row of a key is the last one
    is_keyed: bool = False  # a gauge without labels has one row
    rows: list[dict[str, Any]] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)  # all that ever was visible, in order

    def apply(self, rows: Rows) -> None:
        """Take rows, one after the other."""
        for given in rows:
            row = dict(given)
            is_deleted = self.is_keyed and bool(row.pop(DELETED, False))  # a topic has it: a record without a value
            if self.latest is not None and row[self.latest] is None:
                raise ValueError(f"{GAUGE_REFUSES} whose {self.latest} is null")
            old = next((one for one in self.rows if self.is_keyed and self._key_of(one) == self._key_of(row)), None)
            if old is not None and self.latest is not None and row[self.latest] < old[self.latest]:
                continue
            if old is not None:
                self.rows.remove(old)
            if not is_deleted:
                self.rows.append(row)
                self.seen.append(row)

    def _key_of(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)


@dataclass(eq=False)
class World:
    """All systems of one trial, and the driver that may die."""

    tables: dict[str, Table] = field(default_factory=dict)
    ledgers: dict[str, Entry] = field(default_factory=dict)
    staged: dict[str, tuple[str, dict[str, Rows]]] = field(default_factory=dict)  # by name: resource, rows by output
    points_left: int | None = None  # how many points the driver passes before it dies; None: it lives
    sleeps: bool = False  # does what it has in hand when it dies happen later?
    died_at: str | None = None
    names_made: int = 0
    brokers: Brokers = field(default_factory=Brokers)
    _asleep: list[Callable[[], None]] = field(default_factory=list)

    def reach(self, point: str) -> None:
        """Pass a point, or die there."""
        if self.died_at is None and self.points_left is not None:
            self.points_left -= 1
            if self.points_left < 0:
                self.died_at = point
        if self.died_at is not None:
            raise Died(f"the driver is dead: {self.died_at}")

    def revive(self) -> None:
        """Let a new driver come, which lives."""
        self.points_left = self.died_at = None

    def wake(self) -> None:
        """Let the drivers that slept carry out what they had in hand, as far as a ledger does not stop them."""
        for act in self._asleep:
            with suppress(Moved):
                act()
        self._asleep.clear()

    def act(self, point: str, effect: Callable[[], None]) -> None:
        """One statement of a driver; one that sleeps at this point carries it out when it wakes."""
        try:
            self.reach(point)
        except Died:
            if self.sleeps:
                self.sleeps = False
                self._asleep.append(effect)
            raise
        effect()
        self.reach("done")

    def add(self, table: Table, rows: Rows) -> None:
        """Rows one after the other, in two halves."""
        self.reach("computed")
        table.apply(rows[: len(rows) // 2])
        self.reach("half")
        table.apply(rows[len(rows) // 2 :])
        self.reach("done")


@dataclass(frozen=True)
class StandIn(CommittingSink):
    """Stands in the place of a sink of a random job; to the planner it is the same sink."""

    sink: Sink
    output: str
    world: World
    is_exact: bool  # is it written in transactions, as the job is declared?

    @property
    def ability(self) -> SinkAbility:
        said = self.sink.ability
        if self.is_exact or said.delivery is not Delivery.TRANSACTIONAL:
            return said
        return SinkAbility(delivery=said.otherwise, reason=said.reason, cure=said.cure)

    @property
    def resource(self) -> str:
        if isinstance(self.sink, CommittingSink):
            return self.sink.resource
        return ", ".join(sorted(self.sink.commits_at)) or self.output

    @property
    def fitness(self) -> int:
        return self.sink.fitness if isinstance(self.sink, CommittingSink) else 10  # Kafka decides

    @property
    def commits_at(self) -> frozenset[str]:
        return self.sink.commits_at

    def columns_needed(self) -> Sequence[str]:
        return self.sink.columns_needed()

    def expressions(self) -> Sequence[str]:
        return self.sink.expressions()

    def prepare(self, rows: DataFrame) -> DataFrame:
        return self.sink.prepare(rows)

    def check_rows(self, rows: DataFrame, where: str) -> None:
        if self.sink.checks_rows_alone:
            self.sink.check_rows(rows, where)

    def write(self, rows: DataFrame, epoch: int) -> None:
        self.world.reach("before")
        table, taken = self.world.tables[self.output], collect(rows)
        if table.is_keyed:
            self.world.act("computed", lambda: table.apply(taken))
        else:
            self.world.add(table, taken)

    def open(self, opening: Opening) -> Resource:
        return ModelResource(self.world, self.resource, opening.where)

    def new_table(self) -> Table:
        """What a reader of the output sees at first."""
        location = self.sink.location
        if isinstance(location, Metric):
            return Table(location.labels, location.latest, is_keyed=location.is_replaced)
        key = () if location is None else location.replaced_by
        return Table(key, is_keyed=bool(key))


class ModelResource(Resource):
    """A system that can hold an epoch back and show it in one step together with its ledger."""

    def __init__(self, world: World, name: str, where: str) -> None:
        self.where = where
        self._world = world
        self._name = name

    def read(self) -> Entry | None:
        self._world.reach("before")
        return self._world.ledgers.get(self._name)

    def stage(self, rows: Mapping[str, DataFrame], epoch: int) -> str:
        self._world.reach("before")
        taken: dict[str, Rows] = {output: collect(frame) for output, frame in rows.items()}
        self._world.reach("computed")
        self._world.names_made += 1
        name = f"{self._name}, epoch {epoch}, {self._world.names_made}"
        self._world.staged[name] = (self._name, taken)
        self._world.reach("staged")
        return name

    def publish(self, staged: str | None, entry: Entry, *, after: Entry | None) -> None:
        def show() -> None:
            if self._world.ledgers.get(self._name) != after:
                raise Moved("the ledger has moved", where=self.where, fix="look again")
            if staged is not None:
                for output, rows in self._world.staged.pop(staged)[1].items():
                    self._world.tables[output].apply(rows)
            self._world.ledgers[self._name] = entry

        self._world.act("before" if staged is None else "staged", show)

    def leftovers(self) -> Collection[str]:
        self._world.reach("before")
        return [name for name, (resource, _) in self._world.staged.items() if resource == self._name]

    def remove(self, leftovers: Collection[str]) -> None:
        for name in leftovers:
            self._world.staged.pop(name, None)


def collect(rows: DataFrame) -> list[dict[str, Any]]:
    """The rows of an epoch, in the driver."""
    return list(rows.toArrow().to_pylist(maps_as_pydicts="lossy"))
