"""Spark's note beside the state of an operator: its name, and what it keeps.

state/0/_metadata/v2/7       valid since epoch 7; after a rescaling, or a change of its state, it has several
state/0/_metadata/metadata   of older operators: one for all epochs
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from lockgate.untrusted import read_object

Read = Callable[[str], bytes | None]

_STEP = re.compile(r"(.+)_[0-9a-f]{8}")  # the name that our steps give their state: see spark/keyed.state_name
_BY_KEY = (
    *("symmetricHashJoin", "sessionWindowStateStoreSaveExec", "dedupe", "dedupeWithinWatermark"),
    *("transformWithStateExec", "transformWithStateInPySparkExec"),
)


@dataclass(frozen=True)
class Operator:
    """An operator with state, according to the note beside its state."""

    id: int
    name: str  # Spark's name; empty if it cannot be read
    partitions: int | None
    stores: tuple[str, ...]
    states: tuple[str, ...]  # the names of its states, if it has several
    steps: tuple[str, ...] = ()  # our steps that keep their state there, nearly by the names in the job

    @property
    def has_families(self) -> bool:
        """Does it keep several kinds of rows in one store? Then the first version already has a snapshot."""
        return self.name.startswith("transformWithState")

    @property
    def is_by_key(self) -> bool:
        """Does Spark always partition it by key? Others may take all rows together, and then have one partition."""
        return self.name in _BY_KEY


def operator_file(names: Collection[str], number: int) -> str | None:
    """The newest file with Spark's note about an operator."""
    second = [
        name
        for name in names
        if name.startswith(f"state/{number}/_metadata/v2/") and name.rpartition("/")[2].isdecimal()
    ]
    if second:
        return max(second, key=lambda name: int(name.rpartition("/")[2]))
    first = f"state/{number}/_metadata/metadata"
    return first if first in names else None


def parse_operator(content: bytes, number: int) -> Operator:
    """An operator from Spark's note; ValueError if the note cannot be read."""
    try:
        told = read_object(content.decode().split("\n", 1)[1])
        infos = told["stateStoreInfo"]
        own = read_object(told.get("operatorPropertiesJson") or "{}")
        states = tuple(str(one["stateName"]) for one in own.get("stateVariables", ()))
        return Operator(
            id=number,
            name=str(told["operatorInfo"]["operatorName"]),
            partitions=max((int(one["numPartitions"]) for one in infos), default=None),
            stores=tuple(str(one["storeName"]) for one in infos),
            states=states,
            steps=tuple(found[1] for one in states if (found := _STEP.fullmatch(one))),
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"it does not name the operator ({type(error).__name__}: {error})") from None


def read_operator(read: Read, names: Collection[str], number: int) -> Operator:
    """An operator, as far as its file can be read."""
    file = operator_file(names, number)
    content = None if file is None else read(file)
    try:
        return parse_operator(content or b"", number)
    except ValueError:
        return Operator(id=number, name="", partitions=None, stores=(), states=())
