"""The only access to the Kafka client library: connections, and each request of the protocol as one typed call.

The library keeps the connections, handles TLS and SASL, and encodes the messages. It has no call for one transaction
under one producer id that several processes share; for that we use its protocol classes. The library is an extra,
imported at its first use. If it is missing, the error has the fix.

A call returns the broker's answer, with its error code, or raises Unanswered: then it is unknown whether the request
took effect. If the broker denies a right, the call raises Denied, and the request had no effect. This module retries
nothing, because only the caller knows which request may be repeated.

This is one story, although it is long: it has one method for each request, and a simulated broker replaces all of them
at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from lockgate.commit.permits import Place
from lockgate.connectors.kafka.client import is_refusal
from lockgate.connectors.kafka.errorcodes import MOVED, Code
from lockgate.connectors.kafka.rights import Kind, Operation, Wanted, denied, refuse_denied
from lockgate.connectors.kafka.settings import ClientSettings
from lockgate.errors import BadMachine, Refused, Unreachable

OLDEST = (3, 6)
"""The first broker that verifies, before it appends, that a partition is part of the open transaction."""


class Unanswered(Exception):
    """No answer came: it is unknown whether the request took effect."""


P = ParamSpec("P")
R = TypeVar("R")


def _understood(ask: Callable[P, R]) -> Callable[P, R]:
    """Let a call raise Unanswered if its answer lacks expected fields: then it does not come from a broker.

    Without TLS, any server at the address can send a message of the right form without useful content.
    """

    @wraps(ask)
    def ask_and_read(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return ask(*arguments, **named)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise Unanswered(f"the answer cannot be used ({type(error).__name__}: {error})") from error

    return ask_and_read


class NoBroker(Unreachable):
    """No broker answers at the servers of a cluster."""


class Clock(Protocol):
    """What waiting needs; Python's own `time` module has it."""

    def time(self) -> float:
        """Seconds since 1970."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""


@dataclass(frozen=True)
class Producer:
    """A producer id and its epoch, new for each transaction."""

    id: int
    epoch: int


@dataclass(frozen=True)
class TopicShape:
    """A topic in the cluster's metadata: the broker that leads each partition (-1 for none), and its replication."""

    name: str
    leaders: tuple[int, ...]
    replication: int
    id: str  # a topic that is re-created under the same name has another id

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.leaders)


@dataclass(frozen=True)
class Fetched:
    """A piece of a partition, with what a reader needs to distinguish committed records from others."""

    code: int
    high_watermark: int
    last_stable_offset: int
    records: bytes
    aborted: tuple[tuple[int, int], ...]  # producer id, first offset


@dataclass(frozen=True)
class TransactionView:
    """A transaction as its coordinator sees it."""

    transactional_id: str
    state: str
    producer: Producer
    timeout_ms: int
    started_ms: int  # negative if no transaction is open
    partitions: tuple[Place, ...]


class Connection:
    """The connections of this process to one cluster; safe to share between threads."""

    clock: Clock = time  # retries and their deadlines use it

    def __init__(self, settings: ClientSettings, *, where: str) -> None:
        try:
            from kafka import KafkaAdminClient
            from kafka.errors import KafkaError
        except ImportError:
            raise BadMachine(
                "the Kafka client library is not installed", where=where, fix="pip install 'lockgate[kafka]'"
            ) from None
        # Our errors report what it logs, with the fix. To see its log anyway, give the logger a handler.
        logging.getLogger("kafka").addHandler(logging.NullHandler())
        self.settings = settings
        arguments: dict[str, Any] = {
            # Writers limit what is in flight per partition; a limit of the connection would refuse allowed requests.
            "max_in_flight_requests_per_connection": 10_000,
            "reconnect_backoff_max_ms": 1_000,
            **settings.client_arguments(where=where),
        }
        try:
            self.admin = KafkaAdminClient(**arguments)
        except (KafkaError, OSError, ValueError) as error:
            if is_refusal(error):
                raise Refused(
                    f"the Kafka broker at {settings.servers} does not let us in: {type(error).__name__}: {error}",
                    where=where,
                    fix="correct the user, the password or the certificates in client=",
                ) from None
            raise NoBroker(
                f"no Kafka broker answers at {settings.servers} ({type(error).__name__})",
                where=where,
                fix="check the address and that the broker is up; `lockgate up` starts one, `lockgate status` names it",
            ) from None
        self._manager = self.admin._manager
        self._leaders: dict[str, TopicShape] = {}
        self._coordinators: dict[tuple[int, str], int] = {}

    def close(self) -> None:
        """Close all connections."""
        self.admin.close()

    @property
    def broker_version(self) -> tuple[int, ...]:
        """The version of the first broker that answered, as its protocol shows it."""
        return tuple(self._manager.broker_version or ())

    # ---- asking

    def ask(self, request: Any, *, node: int | None = None) -> Any:
        """Send a request and wait for its answer."""
        from kafka.errors import KafkaError

        async def send() -> Any:
            return await self._manager.send(request, node_id=node)

        try:
            return self._manager.run(send)
        except (KafkaError, OSError, RuntimeError) as error:
            raise Unanswered(f"{type(error).__name__}: {error}") from error

    def post(self, request: Any, *, node: int, done: Callable[[Any, BaseException | None], None]) -> None:
        """Send a request; `done` is called with the answer or the error, in the thread of the connections."""

        async def send() -> None:
            try:
                answer = await self._manager.send(request, node_id=node)
            except Exception as error:  # noqa: BLE001 - whatever it is, the waiting thread must receive it
                done(None, error)
            else:
                done(answer, None)

        self._manager.call_soon(send)

    def ask_coordinator(self, request: Any, wanted: Wanted) -> Any:
        """Send a request to the coordinator of the transactional id or the group in `wanted`."""
        key = (1 if wanted.kind is Kind.TRANSACTIONAL_ID else 0, wanted.name)
        node = self._coordinators.get(key)
        if node is None:
            node = self._coordinators[key] = self._find_coordinator(key, wanted)
        try:
            answer = self.ask(request, node=node)
        except Unanswered:
            self._coordinators.pop(key, None)
            raise
        if {*_codes(answer)} & MOVED:
            self._coordinators.pop(key, None)
        return answer

    @_understood
    def coordinator_of(self, transactional_id: str) -> int:
        """The broker that coordinates a transactional id now."""
        return self._find_coordinator((1, transactional_id), _describing(transactional_id))

    def _find_coordinator(self, of: tuple[int, str], wanted: Wanted) -> int:
        from kafka.protocol.metadata import FindCoordinatorRequest

        kind, key = of
        answer = self.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key], min_version=4))
        found = answer.coordinators[0]
        self._refuse_denied(found.error_code, wanted)
        if found.error_code or found.node_id < 0:
            raise Unanswered(f"no coordinator yet for {key!r} ({found.error_code})")
        # The broker may have joined after the list of brokers was read; the library connects by number only.
        if self._manager.cluster.broker_metadata(found.node_id) is None:
            self._refresh_brokers()
        return int(found.node_id)

    def _refresh_brokers(self) -> None:
        try:
            self._manager.run(self._manager.cluster.refresh_metadata)
        except Exception as error:
            raise Unanswered(f"{type(error).__name__}: {error}") from error

    def _refuse_denied(self, code: int, *wanted: Wanted) -> None:
        refuse_denied(code, self.settings, self._where, *wanted)

    @property
    def _where(self) -> str:
        return f"Kafka at {self.settings.servers}"

    @_understood
    def cluster_id(self) -> str:
        """The id of the cluster, the same at all its addresses."""
        from kafka.protocol.metadata import MetadataRequest

        return str(self.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False, max_version=12)).cluster_id)

    # ---- topics

    @_understood
    def shapes(
        self, topics: Iterable[str], *, is_fresh: bool = False, needs: Operation = Operation.DESCRIBE
    ) -> dict[str, TopicShape]:
        """Those of the topics that exist; a request never creates one. They are remembered, unless `is_fresh`.

        Args:
            needs: the right that a denial names; it includes the right to describe.
        """
        wanted = list(topics)
        unknown = [name for name in wanted if is_fresh or name not in self._leaders]
        if unknown:
            for name in unknown:
                self._leaders.pop(name, None)
            self._leaders.update(self._look_up(unknown, needs))
        return {name: self._leaders[name] for name in wanted if name in self._leaders}

    def _look_up(self, topics: Sequence[str] | None, needs: Operation) -> dict[str, TopicShape]:
        from kafka.protocol.metadata import MetadataRequest

        named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        answer = self.ask(MetadataRequest(topics=named, allow_auto_topic_creation=False, max_version=12))
        known = {broker.node_id for broker in answer.brokers}
        if any(self._manager.cluster.broker_metadata(node) is None for node in known):
            self._refresh_brokers()
        shapes = {}
        for topic in answer.topics:
            self._refuse_denied(topic.error_code, Wanted(needs, Kind.TOPIC, topic.name))
            if topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION or not topic.partitions:
                continue
            if topic.error_code not in (Code.NONE, Code.LEADER_NOT_AVAILABLE):
                from kafka.errors import for_code

                raise Unanswered(f"topic {topic.name!r}: {for_code(topic.error_code).__name__}")
            leaders = {one.partition_index: one.leader_id for one in topic.partitions}
            shapes[topic.name] = TopicShape(
                name=topic.name,
                leaders=tuple(leaders.get(index, -1) for index in range(max(leaders) + 1)),
                replication=min(len(one.replica_nodes) for one in topic.partitions),
                id=str(topic.topic_id),
            )
        return shapes

    @_understood
    def require_rights(self, topic: str, *operations: Operation) -> bool:
        """Raise Denied if one of these operations is not allowed on a topic; does the topic exist?

        If a broker does not report which operations it allows, we assume all: it denies them when they are requested.
        """
        from kafka.protocol.metadata import MetadataRequest

        answer = self.ask(
            MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=True,
                min_version=8,
                max_version=12,
            )
        )
        found = answer.topics[0]
        self._refuse_denied(found.error_code, *(Wanted(one, Kind.TOPIC, topic) for one in operations))
        if found.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        if found.error_code not in (Code.NONE, Code.LEADER_NOT_AVAILABLE):
            raise Unanswered(f"topic {topic!r}: code {found.error_code}")
        allowed = found.authorized_operations  # their numbers; None if the broker does not report them
        missing = [one for one in operations if allowed is not None and one not in allowed]
        if missing:
            raise denied(self.settings.servers, self.settings.user, missing, Kind.TOPIC, topic, where=self._where)
        return True

    @_understood
    def topic_names(self) -> frozenset[str]:
        """The names of all topics."""
        return frozenset(self._look_up(None, Operation.DESCRIBE))

    @_understood
    def configs(self, *, topics: Iterable[str] = (), broker: bool = False) -> dict[str, dict[str, str]]:
        """The effective settings of topics, by name, or of one broker (under the name "")."""
        from kafka.protocol.admin import DescribeConfigsRequest

        resource = DescribeConfigsRequest.DescribeConfigsResource
        node = self._manager.least_loaded_node() if broker else None
        resources = [resource(resource_type=2, resource_name=name, configuration_keys=None) for name in topics]
        if broker:
            resources = [resource(resource_type=4, resource_name=str(node), configuration_keys=None)]
        answer = self.ask(DescribeConfigsRequest(resources=resources, max_version=4), node=node)
        found = {}
        for result in answer.results:
            if not result.error_code:
                name = "" if broker else result.resource_name
                found[name] = {config.name: config.value for config in result.configs if config.value is not None}
        return found

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics, with their records."""
        from kafka.errors import KafkaError

        wanted = sorted(names)
        try:
            if wanted:
                self.admin.delete_topics(wanted)
        except KafkaError as error:
            self._refuse_denied(error.errno or 0, Wanted(Operation.DELETE, Kind.TOPIC, ", ".join(wanted)))
            raise Unanswered(f"{type(error).__name__}: {error}") from error

    @_understood
    def create_topic(
        self, name: str, *, partitions: int = -1, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> int:
        """Create a topic, and return the answer's code, which may say that the topic exists."""
        from kafka.protocol.admin import CreateTopicsRequest

        topic = CreateTopicsRequest.CreatableTopic
        answer = self.ask(
            CreateTopicsRequest(
                topics=[
                    topic(
                        name=name,
                        num_partitions=partitions,
                        replication_factor=replication,
                        assignments=[],
                        configs=[
                            topic.CreatableTopicConfig(name=key, value=text) for key, text in (configs or {}).items()
                        ],
                    )
                ],
                timeout_ms=20_000,
                validate_only=False,
                max_version=6,
            )
        )
        code = int(answer.topics[0].error_code)
        create = Operation.CREATE
        self._refuse_denied(code, Wanted(create, Kind.TOPIC, name), Wanted(create, Kind.CLUSTER))
        return code

    # ---- transactions: the driver's side

    @_understood
    def init_producer(self, transactional_id: str, timeout_ms: int) -> tuple[int, Producer]:
        """Fence older writers, end their open transactions, and get a new (producer id, epoch)."""
        from kafka.protocol.producer.transaction import InitProducerIdRequest

        answer = self.ask_coordinator(
            InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
                max_version=4,
            ),
            _writing(transactional_id),
        )
        self._refuse_denied(
            answer.error_code, _writing(transactional_id), Wanted(Operation.IDEMPOTENT_WRITE, Kind.CLUSTER)
        )
        return int(answer.error_code), Producer(id=int(answer.producer_id), epoch=int(answer.producer_epoch))

    @_understood
    def add_partitions(self, transactional_id: str, producer: Producer, places: Iterable[Place]) -> dict[Place, int]:
        """Make partitions part of the transaction, and return the code of each."""
        from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest as Request

        answer = self.ask_coordinator(
            Request(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer.id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=[
                    Request.AddPartitionsToTxnTopic(name=name, partitions=partitions)
                    for name, partitions in _by_topic(places).items()
                ],
                max_version=3,
            ),
            _writing(transactional_id),
        )
        codes = {
            (topic.name, partition.partition_index): int(partition.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for partition in topic.results_by_partition
        }
        for (topic, _), code in codes.items():
            self._refuse_denied(code, _writing(transactional_id), Wanted(Operation.WRITE, Kind.TOPIC, topic))
        return codes

    @_understood
    def add_group(self, transactional_id: str, producer: Producer, group: str) -> int:
        """Make a consumer group's offsets part of the transaction."""
        from kafka.protocol.producer.transaction import AddOffsetsToTxnRequest

        answer = self.ask_coordinator(
            AddOffsetsToTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                group_id=group,
                max_version=3,
            ),
            _writing(transactional_id),
        )
        self._refuse_denied(answer.error_code, _writing(transactional_id), _reading(group))
        return int(answer.error_code)

    @_understood
    def commit_offsets(
        self, transactional_id: str, producer: Producer, group: str, offsets: Mapping[Place, int]
    ) -> dict[Place, int]:
        """Write a consumer group's offsets in the transaction, and return the code of each."""
        from kafka.protocol.producer.transaction import TxnOffsetCommitRequest as Request

        topic = Request.TxnOffsetCommitRequestTopic
        answer = self.ask_coordinator(
            Request(
                transactional_id=transactional_id,
                group_id=group,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=[
                    topic(
                        name=name,
                        partitions=[
                            topic.TxnOffsetCommitRequestPartition(
                                partition_index=partition,
                                committed_offset=offsets[name, partition],
                                committed_leader_epoch=-1,
                                committed_metadata="",
                            )
                            for partition in partitions
                        ],
                    )
                    for name, partitions in _by_topic(offsets).items()
                ],
                max_version=3,
            ),
            _reading(group),
        )
        codes = {
            (one.name, partition.partition_index): int(partition.error_code)
            for one in answer.topics
            for partition in one.partitions
        }
        for (name, _), code in codes.items():
            read = Wanted(Operation.READ, Kind.TOPIC, name)
            self._refuse_denied(code, _writing(transactional_id), _reading(group), read)
        return codes

    def has_group_offsets(self, group: str) -> bool:
        """Has a consumer group committed offsets?"""
        from kafka.errors import KafkaError

        try:
            return bool(self.admin.list_group_offsets({group: None}).get(group))
        except KafkaError as error:
            self._refuse_denied(error.errno or 0, Wanted(Operation.DESCRIBE, Kind.GROUP, group))
            raise Unanswered(f"{type(error).__name__}: {error}") from error

    @_understood
    def end_transaction(self, transactional_id: str, producer: Producer, *, is_commit: bool) -> int:
        """Commit or abort. Always with the same version of the request: Kafka recognizes a retry by it."""
        from kafka.protocol.producer.transaction import EndTxnRequest

        answer = self.ask_coordinator(
            EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                committed=is_commit,
                max_version=4,
            ),
            _writing(transactional_id),
        )
        self._refuse_denied(answer.error_code, _writing(transactional_id))
        return int(answer.error_code)

    @_understood
    def describe_transaction(self, transactional_id: str) -> tuple[int, TransactionView]:
        """The coordinator's state of a transactional id."""
        from kafka.protocol.admin import DescribeTransactionsRequest

        answer = self.ask_coordinator(
            DescribeTransactionsRequest(transactional_ids=[transactional_id]), _describing(transactional_id)
        )
        state = answer.transaction_states[0]
        self._refuse_denied(state.error_code, _describing(transactional_id))
        view = TransactionView(
            transactional_id=state.transactional_id,
            state=str(state.transaction_state),
            producer=Producer(id=int(state.producer_id), epoch=int(state.producer_epoch)),
            timeout_ms=int(state.transaction_timeout_ms),
            started_ms=int(state.transaction_start_time_ms),
            partitions=tuple(
                sorted((topic.topic, int(partition)) for topic in state.topics for partition in topic.partitions)
            ),
        )
        return int(state.error_code), view

    @_understood
    def list_transactions(self) -> tuple[str, ...]:
        """Every transactional id that the brokers know. Each broker coordinates some, so we ask all of them."""
        from kafka.protocol.admin import ListTransactionsRequest

        self._refresh_brokers()
        found: set[str] = set()
        for broker in self._manager.cluster.brokers():
            request = ListTransactionsRequest(state_filters=[], producer_id_filters=[], max_version=0)
            answer = self.ask(request, node=broker.node_id)
            if answer.error_code:  # a coordinator that has just started first reads its log
                raise Unanswered(f"broker {broker.node_id} cannot list transactions: code {answer.error_code}")
            found.update(str(state.transactional_id) for state in answer.transaction_states)
        return tuple(sorted(found))

    # ---- partitions

    def produce_request(self, transactional_id: str, place: Place, batch: bytes) -> Any:
        """A request that appends one record batch to a partition, in a transaction."""
        from kafka.protocol.producer.produce import ProduceRequest

        data = ProduceRequest.TopicProduceData
        return ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=self.settings.request_timeout_ms,
            topic_data=[data(name=place[0], partition_data=[data.PartitionProduceData(index=place[1], records=batch)])],
            max_version=11,
        )

    @_understood
    def fetch(self, place: Place, offset: int, *, leader: int, max_bytes: int = 1 << 20) -> Fetched:
        """The records of a partition from an offset on, as a read_committed reader gets them."""
        from kafka.protocol.consumer.fetch import FetchRequest

        topic = FetchRequest.FetchTopic
        answer = self.ask(
            FetchRequest(
                replica_id=-1,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=max_bytes,
                isolation_level=1,
                session_id=0,
                session_epoch=-1,
                topics=[
                    topic(
                        topic=place[0],
                        partitions=[
                            topic.FetchPartition(
                                partition=place[1],
                                current_leader_epoch=-1,
                                fetch_offset=offset,
                                last_fetched_epoch=-1,
                                log_start_offset=-1,
                                partition_max_bytes=max_bytes,
                            )
                        ],
                    )
                ],
                forgotten_topics_data=[],
                rack_id="",
                max_version=12,
            ),
            node=leader,
        )
        if answer.error_code:
            raise Unanswered(f"fetch from {place}: code {answer.error_code}")
        part = answer.responses[0].partitions[0]
        self._refuse_denied(part.error_code, Wanted(Operation.READ, Kind.TOPIC, place[0]))
        return Fetched(
            code=int(part.error_code),
            high_watermark=int(part.high_watermark),
            last_stable_offset=int(part.last_stable_offset),
            records=bytes(part.records or b""),
            aborted=tuple((int(one.producer_id), int(one.first_offset)) for one in part.aborted_transactions or ()),
        )

    @_understood
    def end_offset(self, place: Place, *, leader: int) -> tuple[int, int]:
        """The code, and the high watermark: the offset after the last record that all replicas have."""
        return self._offsets([place], -1, leader)[place]

    @_understood
    def start_offset(self, place: Place, *, leader: int) -> tuple[int, int]:
        """The code, and the offset of the first record that is left."""
        return self._offsets([place], -2, leader)[place]

    @_understood
    def start_offsets(self, places: Iterable[Place], *, leader: int) -> dict[Place, tuple[int, int]]:
        """The same for several partitions of one leader, in one request."""
        return self._offsets(places, -2, leader)

    def _offsets(self, places: Iterable[Place], which: int, leader: int) -> dict[Place, tuple[int, int]]:
        from kafka.protocol.consumer import ListOffsetsRequest

        topic = ListOffsetsRequest.ListOffsetsTopic
        part = topic.ListOffsetsPartition
        answer = self.ask(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=[
                    topic(
                        name=name,
                        partitions=[
                            part(partition_index=number, current_leader_epoch=-1, timestamp=which) for number in numbers
                        ],
                    )
                    for name, numbers in _by_topic(places).items()
                ],
                max_version=7,
            ),
            node=leader,
        )
        for one in answer.topics:
            for told in one.partitions:
                self._refuse_denied(told.error_code, Wanted(Operation.DESCRIBE, Kind.TOPIC, one.name))
        return {
            (one.name, told.partition_index): (int(told.error_code), int(told.offset))
            for one in answer.topics
            for told in one.partitions
        }


_shared: dict[ClientSettings, Connection] = {}
_sharing = threading.Lock()


def connect(settings: ClientSettings, *, where: str) -> Connection:
    """This process's connection to a cluster: opened once, and kept between epochs, in drivers and in workers."""
    with _sharing:
        connection = _shared.get(settings)
        if connection is None:
            connection = _shared[settings] = Connection(settings, where=where)
        return connection


def disconnect_all() -> None:
    """Close every shared connection of this process."""
    with _sharing:
        for connection in _shared.values():
            connection.close()
        _shared.clear()


def name_topic(servers: str, topic: str) -> frozenset[tuple[str, str]]:
    """The topic at each of its servers, so that two lists of servers with a common one name the same topic."""
    return frozenset((host, f"topic {topic!r}") for host in hosts_of(servers))


def hosts_of(servers: str) -> frozenset[str]:
    """The servers of a list, each by one name."""
    return frozenset(server.strip().lower().replace("localhost:", "127.0.0.1:") for server in servers.split(","))


def _writing(transactional_id: str) -> Wanted:
    return Wanted(Operation.WRITE, Kind.TRANSACTIONAL_ID, transactional_id)


def _describing(transactional_id: str) -> Wanted:
    return Wanted(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, transactional_id)


def _reading(group: str) -> Wanted:
    return Wanted(Operation.READ, Kind.GROUP, group)


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in places:
        grouped.setdefault(topic, []).append(partition)
    return grouped


def _codes(answer: Any) -> Iterable[int]:
    """Every error code of an answer from a coordinator, in any of its places."""
    yield int(getattr(answer, "error_code", 0) or 0)
    for topic in getattr(answer, "results_by_topic_v3_and_below", None) or ():
        yield from (int(one.partition_error_code) for one in topic.results_by_partition)
    for topic in getattr(answer, "topics", None) or ():
        yield from (int(getattr(one, "error_code", 0) or 0) for one in topic.partitions)
    for state in getattr(answer, "transaction_states", None) or ():
        yield int(state.error_code)
