"""Keyed state, as a user declares it: a class with states, a schema and a function of an event.

    class Bubbles(StatefulFunction):
        schema = "team STRING, bubbles BIGINT"
        total = value("BIGINT", ttl="1 day")

        def process(self, row, context):
            self.total.set((self.total.get() or 0) + 1)
            yield {"team": row.team, "bubbles": self.total.get()}

What has no meaning is refused at the line that wrote it: a state at its own line, a class at its `.process`. Nothing is
checked when the class is created, because workers create it again, piece by piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from lockgate.dataflow.duration import Duration, as_duration
from lockgate.dataflow.origin import caller
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.errors import BadJob
from lockgate.operators.keyedstate import ListState, MapState, State, ValueState, states_of
from lockgate.operators.process import Context, ProcessOperator, StatefulFunction, Timer
from lockgate.operators.rows import Given
from lockgate.operators.statetypes import Type, read_type

__all__ = [
    "Context",
    "StatefulFunction",
    "Timer",
    "check_function",
    "check_travels",
    "list_of",
    "make_operator",
    "map_of",
    "value",
]

_OWN_NAMES = frozenset(name for name in dir(StatefulFunction) if not name.startswith("__"))


def value(type: str, *, ttl: Duration | None = None) -> ValueState:
    """Declare a state that holds one value for each key.

    Args:
        type: the type of the value, as Spark writes it.
        ttl: forget the value when it was not set for this long.

    >>> class Count(StatefulFunction):
    ...     schema = "n BIGINT"
    ...     n = value("BIGINT", ttl="1d")
    ...     def process(self, row, context):
    ...         self.n.set((self.n.get() or 0) + 1)
    ...         yield (self.n.get(),)
    """
    where = f"declared at {caller()}"
    return ValueState(_type(type, where), _ttl_us(ttl), where)


def list_of(type: str, *, ttl: Duration | None = None) -> ListState:
    """Declare a state that holds a list for each key.

    Args:
        type: the type of an element, as Spark writes it.
        ttl: forget an element this long after it was added.

    >>> class Recent(StatefulFunction):
    ...     schema = "amounts ARRAY<DOUBLE>"
    ...     amounts = list_of("DOUBLE", ttl="5m")
    ...     def process(self, row, context):
    ...         self.amounts.append(row.amount)
    ...         yield (self.amounts.get(),)
    """
    where = f"declared at {caller()}"
    return ListState(_type(type, where), _ttl_us(ttl), where)


def map_of(key_type: str, type: str, *, ttl: Duration | None = None) -> MapState:
    """Declare a state that holds a map for each key.

    Args:
        key_type: the type of the map's keys, as Spark writes it.
        type: the type of its values.
        ttl: forget an entry when it was not set for this long.

    >>> class PerUrl(StatefulFunction):
    ...     schema = "url STRING, n BIGINT"
    ...     counts = map_of("STRING", "BIGINT", ttl="1d")
    ...     def process(self, row, context):
    ...         self.counts.set(row.url, self.counts.get(row.url, 0) + 1)
    ...         yield row.url, self.counts.get(row.url)
    """
    where = f"declared at {caller()}"
    key = _type(key_type, where)
    if key.inner:
        raise _refusal(f"the keys of a map cannot be {key}", where, fix='map_of("STRING", "BIGINT")')
    return MapState(key, _type(type, where), _ttl_us(ttl), where)


def check_function(function: object) -> Schema:
    """What a stateful function gives; refused, with the user's line, if it cannot run."""
    where = f"declared at {caller()}"
    if not isinstance(function, StatefulFunction):
        made = " The class was given: call it." if isinstance(function, type) else ""
        raise _refusal(f"process takes a StatefulFunction, not {function!r}.{made}", where, fix=".process(Bubbles())")
    name = type(function).__name__
    _check_states(function, name)
    if type(function).process is StatefulFunction.process:
        raise _refusal(f"{name} has no process method", where, fix="write def process(self, row, context): ...")
    if not isinstance(function.schema, str) or not function.schema.strip():
        fix = 'say what it gives: schema = "team STRING, bubbles BIGINT"'
        raise _refusal(f"{name} has no schema", where, fix=fix)
    return parse_ddl(function.schema, where)


def check_travels(function: object, where: str) -> None:
    """Refuse code of the user that cannot be sent to workers, because of what it holds."""
    from pyspark import cloudpickle

    try:
        cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise _refusal(
            f"{getattr(function, '__qualname__', type(function).__name__)} cannot be sent to the workers:"
            f" {type(error).__name__}: {error}",
            where,
            fix="let it hold plain values only, and open files, locks and clients where they are used",
        ) from error


def make_operator(
    function: StatefulFunction, *, keys: Sequence[str], columns: Sequence[str], event_time: str | None = None
) -> ProcessOperator:
    """What runs a function over a stream of these columns; `event_time` as in `ProcessOperator`."""
    gives = [Given(column.name, column.type or "", column.is_nullable) for column in check_function(function).columns]
    return ProcessOperator(function, gives=gives, keys=keys, columns=columns, event_time=event_time)


def _check_states(function: StatefulFunction, name: str) -> None:
    states = states_of(function)
    names: dict[int, str] = {}
    for state_name, state in states.items():
        if state_name in _OWN_NAMES:
            fix = f"give it another name than {', '.join(sorted(_OWN_NAMES))}"
            raise _refusal(f"{name} has a state named {state_name!r}, which is taken", state.where, fix)
        other = names.setdefault(id(state), state_name)
        if other != state_name:
            fix = "declare each of them with a call of its own"
            raise _refusal(f"{name} has one state under two names, {other!r} and {state_name!r}", state.where, fix)
    for above in type(function).__mro__:
        for state_name, state in vars(above).items():
            last = states.get(state_name)
            if isinstance(state, State) and last is not None and last is not state:
                fix = "give one of them another name: methods of both classes would use the same one"
                raise _refusal(f"{name} has two states named {state_name!r}, one {state.where}", last.where, fix)


def _type(text: object, where: str) -> Type:
    fix = (
        "use STRING, BIGINT, INT, DOUBLE, FLOAT, BOOLEAN, TIMESTAMP, DATE, BINARY, DECIMAL(p, s),"
        ' ARRAY<...>, MAP<..., ...> or STRUCT<name: ...>, as in value("BIGINT")'
    )
    if not isinstance(text, str):
        raise _refusal(f"the type of a state is written as text, not {text!r}", where, fix)
    try:
        columns = parse_ddl(f"state {text}", where).columns
        return read_type(", ".join(column.type or "" for column in columns))
    except BadJob as error:
        raise _refusal(f"the type of a state cannot be read: {text!r}", where, fix) from error
    except ValueError as error:
        raise _refusal(f"the type of a state cannot be {text!r}: {error}", where, fix) from None


def _ttl_us(ttl: Duration | None) -> int | None:
    if ttl is None:
        return None
    return as_duration(ttl, of="the time to live of a state") // timedelta(microseconds=1)


def _refusal(what: str, where: str, fix: str) -> BadJob:
    return BadJob(what, where=where, fix=fix)
