"""State of a key as the user declares and uses it: a value, a list, a map.

A declaration in a class is only a description. The code that runs the class binds each state to a `Scope`, which holds
the data of the key in hand. Then the same object reads and writes that data:

    declared    total = value("BIGINT", ttl="1 hour")      the same for every key, forever
    bound       self.total.set(3)                          the state of the key whose row is processed

Time to live counts in processing time from the last write: of a value, of each element of a list, of each key of a map.
Processing time does not change within an epoch. So expired data is removed once, before the first row of the epoch, and
no read has to check.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lockgate.operators.contract import StepFailed
from lockgate.operators.statetypes import Convert, Type, converter


class Scope:
    """The data of the key in hand: for each state, by its place, what it holds and when that was written, or None."""

    __slots__ = ("values", "wall", "written")

    def __init__(self, places: int) -> None:
        self.values: list[Any] = [None] * places
        self.written: list[Any] = [None] * places
        self.wall = 0


class _Nowhere(Scope):
    """The scope of a state that was declared and not bound."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):  # tools that inspect a module ask each of its objects for these
            return object.__getattribute__(self, name)
        raise RuntimeError("state belongs to a key: use it in process, on_timer, get_state and init_state only")


_NOWHERE = object.__new__(_Nowhere)


class State(ABC):
    """What is kept for each key under one name."""

    kind: ClassVar[str]

    def __init__(self, kept: Type, ttl_us: int | None, where: str) -> None:
        self.type = kept
        self.ttl_us = ttl_us
        self.where = where
        self._name, self._place = "", 0
        self._scope: Scope = _NOWHERE
        self._exact = kept.exact
        self._convert = converter(kept)
        # Values that have parts are returned as a copy: only the methods of a state change it.
        self._copy: Convert | None = self._convert if kept.inner else None

    def bound(self, name: str, place: int, scope: Scope) -> State:
        """The same state, bound to data."""
        made = type(self)(*self._arguments())
        made._name, made._place, made._scope = name, place, scope
        return made

    def declaration(self) -> dict[str, Any]:
        """What is declared, as plain data, to be stored beside the state."""
        return {"kind": self.kind, "type": str(self.type), "ttl_us": self.ttl_us}

    def clear(self) -> None:
        """Forget everything."""
        self._scope.values[self._place] = self._scope.written[self._place] = None

    @property
    def is_plain(self) -> bool:
        """May an epoch begin and end without looking at this state?"""
        return self.ttl_us is None and self.kind == "value"

    @abstractmethod
    def begin(self) -> None:
        """Before an epoch: remove what has expired, and copy what may be changed."""

    @abstractmethod
    def end(self) -> int | None:
        """After an epoch: when the next thing expires."""

    @abstractmethod
    def as_data(self) -> Any:
        """Everything in it as plain data, None if there is nothing."""

    @abstractmethod
    def take_data(self, data: Any) -> None:
        """Hold this data and nothing else."""

    def _fitting(self, value: Any) -> Any:
        try:
            return self._convert(value)
        except ValueError as error:
            raise StepFailed(f"state {self._name!r} holds {self.type}: {error}") from None

    def __reduce__(self) -> Any:
        return type(self), self._arguments()  # bound states, with all their data, are never sent to workers

    def _arguments(self) -> tuple[Any, ...]:
        return self.type, self.ttl_us, self.where


class ValueState(State):
    """One value, or none."""

    kind = "value"

    def get(self) -> Any:
        """The value, or None."""
        value = self._scope.values[self._place]
        return value if self._copy is None or value is None else self._copy(value)

    def set(self, value: Any) -> None:
        """Keep a value; None forgets it."""
        scope = self._scope
        if value is None:
            self.clear()
            return
        scope.values[self._place] = value if type(value) is self._exact else self._fitting(value)
        if self.ttl_us is not None:
            scope.written[self._place] = scope.wall

    def begin(self) -> None:
        scope, place = self._scope, self._place
        if self.ttl_us is None or scope.values[place] is None:
            return
        if scope.written[place] is None:
            scope.written[place] = scope.wall
        if scope.written[place] + self.ttl_us <= scope.wall:
            self.clear()

    def end(self) -> int | None:
        written = self._scope.written[self._place]
        return None if written is None or self.ttl_us is None else int(written) + self.ttl_us

    def as_data(self) -> Any:
        return self.get()

    def take_data(self, data: Any) -> None:
        self.set(data)


class ListState(State):
    """Values in the order in which they were added."""

    kind = "list"

    def get(self) -> list[Any]:
        """All values, as a list that belongs to the caller."""
        values = self._scope.values[self._place] or ()
        return list(values) if self._copy is None else [None if one is None else self._copy(one) for one in values]

    def append(self, value: Any) -> None:
        """Add a value at the end."""
        fitting = None if value is None else self._fitting(value)
        scope, place = self._scope, self._place
        if scope.values[place] is None:
            scope.values[place], scope.written[place] = [], None if self.ttl_us is None else []
        scope.values[place].append(fitting)
        if self.ttl_us is not None:
            scope.written[place].append(scope.wall)

    def extend(self, values: Iterable[Any]) -> None:
        """Add values at the end."""
        for value in values:
            self.append(value)

    def set(self, values: Iterable[Any]) -> None:
        """Keep these values and no others."""
        made = list(values)  # they may come from this very state
        self.clear()
        self.extend(made)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self._scope.values[self._place] or ())

    def begin(self) -> None:
        scope, place = self._scope, self._place
        if scope.values[place] is None:
            return
        if self.ttl_us is None:
            scope.values[place] = list(scope.values[place])
            return
        oldest = scope.wall - self.ttl_us
        written = scope.written[place] or [scope.wall] * len(scope.values[place])
        kept = [(one, at) for one, at in zip(scope.values[place], written, strict=True) if at > oldest]
        scope.values[place], scope.written[place] = [one for one, _ in kept], [at for _, at in kept]

    def end(self) -> int | None:
        if not self._scope.values[self._place]:
            self.clear()
            return None
        return None if self.ttl_us is None else min(self._scope.written[self._place]) + self.ttl_us

    def as_data(self) -> Any:
        return self.get() or None

    def take_data(self, data: Any) -> None:
        self.set(data)


class MapState(State):
    """Values by key, in the order in which their keys were first set."""

    kind = "map"

    def __init__(self, key_type: Type, kept: Type, ttl_us: int | None, where: str) -> None:
        super().__init__(kept, ttl_us, where)
        self.key_type = key_type
        self._exact_key = key_type.exact
        self._convert_key = converter(key_type)

    def declaration(self) -> dict[str, Any]:
        return {**super().declaration(), "key": str(self.key_type)}

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or the default."""
        value = self._held.get(self._fitting_key(key), default)
        return value if self._copy is None or value is default or value is None else self._copy(value)

    def set(self, key: Any, value: Any) -> None:
        """Keep a value under a key."""
        key = self._fitting_key(key)
        fitting = None if value is None else self._fitting(value)
        scope, place = self._scope, self._place
        if scope.values[place] is None:
            scope.values[place], scope.written[place] = {}, None if self.ttl_us is None else {}
        scope.values[place][key] = fitting
        if self.ttl_us is not None:
            scope.written[place][key] = scope.wall

    def remove(self, key: Any) -> None:
        """Forget a key, if it is there."""
        key = self._fitting_key(key)
        self._held.pop(key, None)
        if self.ttl_us is not None:
            (self._scope.written[self._place] or {}).pop(key, None)

    def items(self) -> list[tuple[Any, Any]]:
        """All keys with their values; the caller may change the map while it iterates."""
        return [(key, self.get(key)) for key in self]

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._held))

    def __contains__(self, key: Any) -> bool:
        return self._fitting_key(key) in self._held

    def __len__(self) -> int:
        return len(self._held)

    def begin(self) -> None:
        scope, place = self._scope, self._place
        if scope.values[place] is None:
            return
        held = as_dict(scope.values[place])
        if self.ttl_us is None:
            scope.values[place] = held
            return
        oldest = scope.wall - self.ttl_us
        written = as_dict(scope.written[place] or dict.fromkeys(held, scope.wall))
        scope.written[place] = {key: at for key, at in written.items() if at > oldest}
        scope.values[place] = {key: one for key, one in held.items() if key in scope.written[place]}

    def end(self) -> int | None:
        scope, place = self._scope, self._place
        held, written = scope.values[place], scope.written[place]
        if not held:
            self.clear()
            return None
        if self.key_type.name != "STRING":
            scope.values[place] = _as_lists(held)
            scope.written[place] = None if self.ttl_us is None else _as_lists(written)
        return None if self.ttl_us is None else min(written.values()) + self.ttl_us

    def as_data(self) -> Any:
        return dict(self.items()) or None

    def take_data(self, data: Any) -> None:
        self.clear()
        for key, value in data.items():
            self.set(key, value)

    @property
    def _held(self) -> dict[Any, Any]:
        held: dict[Any, Any] | None = self._scope.values[self._place]
        return {} if held is None else held

    def _fitting_key(self, key: Any) -> Any:
        if type(key) is self._exact_key:
            return key
        try:
            return self._convert_key(key)
        except ValueError as error:
            raise StepFailed(f"state {self._name!r} has keys of {self.key_type}: {error}") from None

    def _arguments(self) -> tuple[Any, ...]:
        return self.key_type, *super()._arguments()


def _as_lists(held: dict[Any, Any]) -> list[list[Any]]:
    """A map as it is kept if its keys are no text: lists are encoded several times as fast as such a dict."""
    return [[*held], [*held.values()]]


def as_dict(kept: Any) -> dict[Any, Any]:
    """A copy of a map that was kept."""
    return dict(zip(*kept, strict=True)) if type(kept) is list else dict(kept)


def as_kept(values: list[Any], written: list[Any], event: Sequence[Any], wall: Sequence[Any]) -> list[Any] | None:
    """The state of a key as it is kept: only the values if there is no more, None if there is nothing."""
    nothing = [None] * len(values)
    if event or wall or written != nothing:
        return [values, written, event, wall]
    return None if values == nothing else [values]


def states_of(function: object) -> Mapping[str, State]:
    """The states that an object declares, in its class, in the classes above or in itself, ordered by name.

    A key's state has the same order, so it does not depend on the place of a declaration in its class.
    """
    members: dict[str, Any] = {}
    for above in reversed(type(function).__mro__):
        members.update(vars(above))
    members.update(vars(function))
    return {name: found for name, found in sorted(members.items()) if isinstance(found, State)}
