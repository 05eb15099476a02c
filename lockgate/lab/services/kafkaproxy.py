"""Proxies in front of all brokers of a Kafka cluster, which can also lose the reply to one kind of request.

A broker advertises its address and those of the others, and would lead clients past a proxy. So each broker has a
second listener, which advertises the address of the proxy (`Detour`); no reply is rewritten. Clients with the `servers`
of this proxy stay behind it, also for brokers that they find later. Clients with the cluster's own `servers`, such as
an independent reader, never use it.

    request   length, api key, api version, correlation id, ...       the api key names its kind
    reply     length, correlation id, ...                             the correlation id names its request
"""

import enum
import struct
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from types import TracebackType

from lockgate.lab.services.frames import Frames
from lockgate.lab.services.kafka import KafkaCluster
from lockgate.lab.services.lostreplies import LostReplies, LostReply
from lockgate.lab.services.pipes import Direction, NotUnderstood, Ruling
from lockgate.lab.services.proxy import NetworkFault, Proxy

_REQUEST_BYTES_MAX = 100 * 2**20
"""Brokers take no larger one; what claims to be larger is encrypted, or not Kafka at all."""
_REPLY_BYTES_MAX = 2**31 - 1


class Api(enum.IntEnum):
    """The kinds of requests that decide about a job, by Kafka's numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_TRANSACTIONS = 65


class KafkaProxy:
    """A proxy in front of every broker of a cluster that was started with detours; safe to use from any thread.

    The verbs are for all brokers; `brokers[2].cut()` is for one.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self.servers = cluster.proxied_servers
        """The addresses to give to clients whose network is to fail."""
        self._lost = LostReplies()
        self._requests: list[Counter[int]] = []
        brokers: dict[int, Proxy] = {}
        with ExitStack() as opened:
            for id, detour in cluster.detours.items():
                # One each, for each has one thread that counts.
                seen: Counter[int] = Counter()
                self._requests.append(seen)
                proxy = Proxy(detour.port, port=detour.proxy_port, inspect=partial(_Inspector, self._lost, seen))
                brokers[id] = opened.enter_context(proxy)
            self._close = opened.pop_all().close
        self.brokers: Mapping[int, Proxy] = brokers

    def __enter__(self) -> "KafkaProxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def requests(self) -> Counter[int]:
        """How many requests of each kind clients have sent so far."""
        return sum((seen.copy() for seen in self._requests), Counter[int]())

    def lose_reply(self, api: Api, *, skip: int = 0) -> LostReply:
        """Lose the reply to the next request of this kind, to any broker, and reset the connection it came by."""
        return self._lost.arm(api, skip=skip)

    def cut(self, direction: Direction = Direction.BOTH) -> None:
        """Let nothing through in this direction, also no new connection."""
        for proxy in self.brokers.values():
            proxy.cut(direction)

    def delay(self, by: timedelta, direction: Direction = Direction.BOTH) -> None:
        """Hold up every piece that goes this way."""
        for proxy in self.brokers.values():
            proxy.delay(by, direction)

    def lose_replies(self) -> None:
        """Swallow what brokers say from now on, and reset each connection on which one has said something."""
        for proxy in self.brokers.values():
            proxy.lose_replies()

    def refuse(self) -> None:
        """Let no new connection in."""
        for proxy in self.brokers.values():
            proxy.refuse()

    def reset(self) -> int:
        """Reset every present connection, at both ends; how many there were."""
        return sum(proxy.reset() for proxy in self.brokers.values())

    def heal(self, *faults: NetworkFault) -> None:
        """Take these faults away, or all of them, and with all the replies that are still to be lost."""
        if not faults:
            self._lost.disarm()
        for proxy in self.brokers.values():
            proxy.heal(*faults)

    def close(self) -> None:
        """Reset what is connected, stop listening, end the threads."""
        self._close()


class _Inspector:
    """Inspects one connection: the requests, and which of them are answered."""

    def __init__(self, lost: LostReplies, seen: Counter[int]) -> None:
        self._lost = lost
        self._seen = seen
        self._requests = Frames(4, partial(_measure, wanted=8, limit=_REQUEST_BYTES_MAX))
        self._replies = Frames(4, partial(_measure, wanted=4, limit=_REPLY_BYTES_MAX))
        self._doomed: dict[int, LostReply] = {}  # by correlation id

    def request(self, data: bytes) -> None:
        """Count requests, and note those whose reply is to be lost."""
        for _, message in self._requests.feed(data):
            api, _, correlation = struct.unpack_from(">hhi", message, 4)
            self._seen[api] += 1
            lost = self._lost.claim(api)
            if lost is not None:
                self._doomed[correlation] = lost

    def reply(self, data: bytes) -> Ruling:
        """Let replies pass up to the first that is to be lost."""
        for start, message in self._replies.feed(data):
            (correlation,) = struct.unpack_from(">i", message, 4)
            lost = self._doomed.pop(correlation, None)
            if lost is not None and self._lost.strike(lost):
                return Ruling(start, is_reset=True)
        return Ruling(len(data))

    def close(self) -> None:
        """Leave replies that did not come to another connection."""
        for lost in self._doomed.values():
            self._lost.give_back(lost)


def _measure(head: bytes, *, wanted: int, limit: int) -> tuple[int, int]:
    (length,) = struct.unpack(">i", head)
    if not wanted <= length <= limit:
        raise NotUnderstood
    return length, wanted
