"""Name the right that brokers deny to Spark's own Kafka clients while a job runs.

Lockgate's client names it itself (connectors/kafka/rights.py). Java's client does not report its operation, and often
not even the topic. So this module asks the brokers again, as at the start of the job.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockgate.connectors.kafka.rights import Denied, Operation
from lockgate.connectors.kafka.settings import is_java_only
from lockgate.connectors.kafka.topics import exists
from lockgate.dataflow.locations import Topic
from lockgate.dataflow.steps import Read, Write
from lockgate.errors import LockgateError
from lockgate.planner.plan import Plan
from lockgate.throwables import Throwable

_DENIED = "org.apache.kafka.common.errors.TopicAuthorizationException"


def find_denial(raised: Sequence[Throwable], planned: Plan) -> Denied | None:
    """The right on a topic that a step of the job lacks now, if Kafka's client says that there is one."""
    if not any(one.kind == _DENIED for one in raised):
        return None
    for node in planned.logical.nodes:
        if isinstance(node.step, Read):
            topic, operation = node.step.source.location, Operation.READ
        elif isinstance(node.step, Write):
            topic, operation = node.step.sink.location, Operation.WRITE
        else:
            continue
        if not isinstance(topic, Topic) or topic.name is None or is_java_only(topic.client):
            continue
        try:
            exists(topic.servers, topic.name, operation, where=node.where, client=topic.client)
        except Denied as denied:
            return denied
        except LockgateError:  # the brokers do not answer any more
            continue
    return None
