"""What happens to state when the code that keeps it changes.

State is stored with its declarations. A start compares them with those of the code. Then every state that is read is
converted, or the job is refused before it runs. State is never read as something else:

    a new state                                        starts empty
    a state that is no longer declared                 is forgotten, and the run says so
    INT -> BIGINT, FLOAT -> DOUBLE, also inside        is kept
    a struct with more fields than before              is kept, the new fields are null
    another time to live                               counts from the last write; from now, if there was none
    anything else                                      is refused

This holds for functions with state, whose states the user declares one by one. Lockgate defines what other steps keep
(aggregates, windows, patterns), and refuses every change of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockgate.errors import BadJob
from lockgate.operators.keyedstate import as_dict, as_kept
from lockgate.operators.statetypes import Convert, Type, read_type

_WIDER = {"INT": "BIGINT", "FLOAT": "DOUBLE"}

Declarations = Mapping[str, Mapping[str, Any]]

Declared = Mapping[str, Any]
"""What the state of a step is made of, as plain data: {"parts": what may not change, as texts by name, "states": the
declarations of a function with state}."""


@dataclass(frozen=True)
class Evolution:
    """How stored state becomes state of the new code: call it with the state of a key."""

    before: tuple[str, ...]  # the names of the states, in their order in the state of a key
    after: tuple[str, ...]
    changed: Mapping[str, Convert]  # by name of the state, for those whose data changes
    undated: frozenset[str]  # states that no longer expire
    forgotten: tuple[str, ...]
    is_redated: bool = False  # does any state expire at another time than planned?

    @property
    def is_needed(self) -> bool:
        """Is there anything to convert?"""
        return self.before != self.after or bool(self.changed or self.undated)

    def __call__(self, state: Sequence[Any] | None) -> list[Any] | None:
        if state is None:
            return None
        held, written, event, wall = state if len(state) > 1 else (*state, (None,) * len(self.before), [], [])
        values = dict(zip(self.before, held, strict=True))
        for name, convert in self.changed.items():
            values[name] = _nullable(convert)(values[name])
        dates = {name: at for name, at in zip(self.before, written, strict=True) if name not in self.undated}
        values_now, dates_now = ([kept.get(name) for name in self.after] for kept in (values, dates))
        return as_kept(values_now, dates_now, event, wall)


def adapt(old: Declared, new: Declared, *, where: str) -> Evolution:
    """How a step that declares `new` reads state kept as `old`; refused if it cannot."""
    before, after = old["parts"], new["parts"]
    changes = [
        f"{name} was {before.get(name, 'nothing')}, and is {after.get(name, 'nothing')} now"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    if changes:
        raise BadJob(
            f"the state in the checkpoint is that of another step: {'; '.join(changes)}",
            where=where,
            fix="bring the step back to what it was; or give it another name=, under which it starts with empty state;"
            " or start over with everything: lockgate run --new-life",
        )
    return evolve(old["states"], new["states"], where=where)


def evolve(old: Declarations, new: Declarations, *, where: str) -> Evolution:
    """How code that declares `new` reads state declared as `old`; refused if that could go wrong."""
    changed: dict[str, Convert] = {}
    undated: set[str] = set()
    is_redated = False
    for name in sorted(old.keys() & new.keys()):
        before, after = old[name], new[name]
        value = _widen(read_type(before["type"]), read_type(after["type"])) if _has_keys_of(before, after) else None
        if value is None:
            raise BadJob(
                f"state {name!r} was kept as {_declaration_text(before)}, and is declared as {_declaration_text(after)}"
                " now",
                where=where,
                fix="declare it as it was, or declare the new one under another name, which starts empty; a type may"
                " become wider (INT to BIGINT, FLOAT to DOUBLE, more fields in a struct) and change in no other way",
            )
        if value is not _same:
            changed[name] = _inside(after["kind"], value)
        if before["ttl_us"] is not None and after["ttl_us"] is None:
            undated.add(name)
        is_redated = is_redated or before["ttl_us"] != after["ttl_us"]
    forgotten = tuple(sorted(old.keys() - new.keys()))
    return Evolution(
        before=tuple(sorted(old)),
        after=tuple(sorted(new)),
        changed=changed,
        undated=frozenset(undated),
        forgotten=forgotten,
        is_redated=is_redated,
    )


def _has_keys_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Is it the same kind of state, with the same keys or wider ones? Keys are plain: a wider one is the same data."""
    if before["kind"] != after["kind"]:
        return False
    return before["kind"] != "map" or _widen(read_type(before["key"]), read_type(after["key"])) is not None


def _widen(old: Type, new: Type) -> Convert | None:
    """What converts a value of the old type to the new one; None if no conversion is safe."""
    if _WIDER.get(old.name) == new.name:
        return _same
    if old.name != new.name or old.digits != new.digits:
        return None
    if old.name == "STRUCT":
        return _widen_struct(old, new)
    inner = [_widen(one, other) for one, other in zip(old.inner, new.inner, strict=True)]
    if None in inner:
        return None
    if old.inner and inner[-1] is not None and inner[-1] is not _same:
        return _inside("list" if old.name == "ARRAY" else "map", inner[-1])
    return _same


def _widen_struct(old: Type, new: Type) -> Convert | None:
    before = dict(zip(old.fields, old.inner, strict=True))
    fields: dict[str, Convert] = {}
    for field, after in zip(new.fields, new.inner, strict=True):
        convert = _widen(before[field], after) if field in before else _same
        if convert is None:
            return None
        fields[field] = _nullable(convert)
    if not before.keys() <= fields.keys():
        return None
    if old == new:
        return _same
    return lambda value: {field: convert(value.get(field)) for field, convert in fields.items()}


def _inside(kind: str, convert: Convert) -> Convert:
    """The same conversion for everything in a list or a map."""
    each = _nullable(convert)
    if kind == "list":
        return lambda values: [each(value) for value in values]
    if kind == "map":
        return lambda held: {key: each(value) for key, value in as_dict(held).items()}
    return convert


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _declaration_text(declaration: Mapping[str, Any]) -> str:
    kind, kept = declaration["kind"], declaration["type"]
    return f"a map of {declaration['key']} to {kept}" if kind == "map" else f"a {kind} of {kept}"
