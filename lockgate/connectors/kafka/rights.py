"""The rights that brokers may deny. The error names the right, the resource, and the command that grants it.

    code of the broker                      it denies something on
    TOPIC_AUTHORIZATION_FAILED              a topic, which need not exist: names are hidden without Describe
    GROUP_AUTHORIZATION_FAILED              a consumer group
    CLUSTER_AUTHORIZATION_FAILED            the cluster
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED   a transactional id

A retry is of no use, so a denial is never treated as a broker that does not answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, IntEnum

from lockgate.connectors.kafka.settings import ClientSettings
from lockgate.errors import Refused


class Operation(IntEnum):
    """An operation that may be denied, with Kafka's number."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    IDEMPOTENT_WRITE = 12

    @property
    def title(self) -> str:
        """As `kafka-acls.sh` writes it."""
        return "".join(part.capitalize() for part in self.name.split("_"))


class Kind(Enum):
    """A kind of resource: the code of a broker that denies, our name for it, and the option of `kafka-acls.sh`."""

    TOPIC = (29, "topic", "--topic")
    GROUP = (30, "consumer group", "--group")
    CLUSTER = (31, "the cluster", "--cluster")
    TRANSACTIONAL_ID = (53, "transactional id", "--transactional-id")

    @property
    def code(self) -> int:
        """The error code of a broker that denies the operation."""
        return self.value[0]


class Denied(Refused):
    """The brokers do not allow this client to do something."""


@dataclass(frozen=True)
class Wanted:
    """The right that a request needs."""

    operation: Operation
    kind: Kind
    name: str = ""


def refuse_denied(code: int, settings: ClientSettings, where: str, *wanted: Wanted) -> None:
    """Raise Denied if the code says that one of these rights is missing."""
    missing = [one for one in wanted if one.kind.code == code]
    if missing:
        operations = [one.operation for one in missing]
        raise denied(settings.servers, settings.user, operations, missing[0].kind, missing[0].name, where=where)


def denied(
    servers: str, user: str | None, operations: Collection[Operation], kind: Kind, name: str, *, where: str
) -> Denied:
    """The error that names the missing rights, the resource, and the command that grants them.

    >>> print(denied("k:9092", None, [Operation.WRITE], Kind.TOPIC, "counts", where="sink 'counts'"))
    the Kafka brokers at k:9092 deny Write on topic 'counts' to this client
      where: sink 'counts'
      fix:   grant it: kafka-acls.sh --bootstrap-server k:9092 --add --allow-principal User:NAME --operation Write \
--topic counts; docs/KAFKA_SECURITY.md lists all that a job needs
    """
    titles = [operation.title for operation in operations]
    on = kind.value[1] if kind is Kind.CLUSTER else f"{kind.value[1]} {name!r}"
    principal = f"User:{user or 'NAME'}"
    words = ["kafka-acls.sh", "--bootstrap-server", servers, "--add", "--allow-principal", principal]
    words += [word for title in titles for word in ("--operation", title)]
    words += [kind.value[2], *([] if kind is Kind.CLUSTER else [name])]
    return Denied(
        f"the Kafka brokers at {servers} deny {' and '.join(titles)} on {on} to"
        f" {f'user {user!r}' if user else 'this client'}",
        where=where,
        fix=f"grant it: {shlex.join(words)}; docs/KAFKA_SECURITY.md lists all that a job needs",
    )


@contextmanager
def located(where: str) -> Iterator[None]:
    """Add a place to a denial: connections are shared, and only the caller knows the step and the user's line."""
    try:
        yield
    except Denied as error:
        raise Denied(error.what, where=where, fix=error.fix) from None
