"""What to write instead of a step that a stream does not have.

`.where` on grouped events, `.to` on a window and `.aggregate` without a window are frequent slips. Python alone would
say "has no attribute". Type checkers do not see the hook that asks here, so they refuse these calls as well.
"""

from __future__ import annotations

from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob

_WINDOW = '.window(windows.tumbling("1 minute"))'
_AGGREGATE = '.aggregate(n="count(*)")'
_SINGLE = (
    "where",
    "filter",
    "select",
    "map",
    "flat_map",
    "transform",
    "split",
    "merge",
    "join",
    "fan_out",
    "event_time",
    "processing_time",
    "exchange",
)
"""Steps that take one event at a time, or whole streams."""

_FIXES = {
    "Stream": {
        "rolling": 'say by which columns the events are grouped: .key_by("ip").rolling(total="sum(amount)")',
        **dict.fromkeys(
            ("aggregate", "apply", "trigger"),
            f'say over which events: {_WINDOW}{_AGGREGATE}, after .key_by("ip") if there is a key',
        ),
    },
    "KeyedStream": {
        **{
            name: f"call .{name}(...) before .key_by(...), or on the result of .rolling(...), .process(...),"
            f" .detect(...) or {_WINDOW}{_AGGREGATE}"
            for name in _SINGLE
        },
        "to": f"call .to(...) on a result: {_WINDOW}{_AGGREGATE}.to(...); to write the events themselves, call it"
        " before .key_by(...)",
        "key_by": 'name all columns in one call: .key_by("ip", "url")',
        **dict.fromkeys(
            ("aggregate", "apply", "trigger"),
            f'say over which events: {_WINDOW}{_AGGREGATE}; for a result with every event: .rolling(n="count(*)")',
        ),
        "late": f"take .late from the result: {_WINDOW}{_AGGREGATE}.late",
        "timed_out": "take .timed_out from the stream that .detect(...) returns",
    },
    "WindowedStream": {
        **{name: f"call .{name}(...) before .window(...), or on the result of {_AGGREGATE}" for name in _SINGLE},
        **{name: f"call .{name}(...) before .window(...)" for name in ("key_by", "parallel")},
        **{
            name: f"call .{name}(...) in place of .window(...), or on the result of {_AGGREGATE}"
            for name in ("rolling", "process", "detect", "window")
        },
        "to": f"say what to write of each window: {_AGGREGATE}.to(...), or .apply(...).to(...)",
        "late": f"take .late from the result: {_AGGREGATE}.late",
        "timed_out": "take .timed_out from the stream that .detect(...) returns",
    },
}
_NOUNS = {
    "Stream": "a stream of single events",
    "KeyedStream": "a stream that is grouped by key",
    "WindowedStream": "a stream that is grouped by windows",
}


class NoSuchStep(BadJob, AttributeError):
    """A step that this kind of stream does not have; an AttributeError too, so that `hasattr` answers."""


def explain_missing(kind: type, name: str) -> AttributeError:
    """Return the error for an attribute that a stream does not have.

    Args:
        kind: the class of the stream.
        name: the attribute.
    """
    fix = _FIXES[kind.__name__].get(name)
    if fix is None:
        return AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    return NoSuchStep(f"{_NOUNS[kind.__name__]} has no .{name}", where=f"declared at {caller()}", fix=fix)
