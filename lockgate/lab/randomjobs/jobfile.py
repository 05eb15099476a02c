"""A spec as the text of a job file, which `lockgate plan` and `lockgate run` take.

The only translation of specs into Lockgate: `build` runs this text, so a counterexample that is printed is the job that
was planned.
"""

from __future__ import annotations

import re

from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.columns import columns_of
from lockgate.lab.randomjobs.spec import (
    Call,
    Detect,
    EventTime,
    FanOut,
    FlatMap,
    Join,
    Made,
    Map,
    Merge,
    Output,
    Process,
    ProcessingTime,
    Rolling,
    Select,
    Sink,
    Source,
    Spec,
    Split,
    Step,
    TableJoin,
    Transform,
    Where,
    Window,
    WindowAggregate,
    WindowApply,
    changes,
    moment,
    read,
    used,
)

SOURCES = {
    "kafka": "KafkaSource",
    "file": "FileSource",
    "memory": "MemorySource",
    "mqtt": "MqttSource",
    "sensors": "SensorSource",
    "socket": "SocketSource",
}
"""The class of each system that a job may read from."""

SINKS = {
    "kafka": "KafkaSink",
    "postgres": "PostgresSink",
    "sqlite": "SqliteSink",
    "file": "FileSink",
    "monitor": "MonitorSink",
    "console": "ConsoleSink",
    "memory": "MemorySink",
}
"""The class of each system that a job may write to."""

_NAMES = (
    *(*SOURCES.values(), *SINKS.values(), "FileTable", "Guarantee", "Job", "Late", "Mode", "StatefulFunction"),
    *("list_of", "pattern", "stream", "table", "value", "windows"),
)


def job_text(spec: Spec) -> str:
    """The job file: what is used of the spec, and nothing else."""
    steps = used(spec)
    classes = [line for step in steps if isinstance(step, Process) for line in _class(spec, step)]
    lines = [f"{one.name} = {_source(one)}" for one in read(spec)]
    lines += [f"{step.name} = {_step(spec, step)}" for step in steps]
    ends = [f"    {_output(spec, output)}," for output in spec.outputs]
    ends += [f"    guarantee=Guarantee.{spec.guarantee},"]
    ends += [] if spec.mode == "MICRO_BATCH" else [f"    mode=Mode.{spec.mode},"]
    ends += [] if spec.dead_letters is None else [f"    dead_letters={_dead_letters(spec, spec.dead_letters)},"]
    body = [*lines, "return Job(", f'    "{spec.name}",', *ends, ")"]
    main = "\n".join([*classes, "def job() -> Job:", *(f"    {line}" for line in body)]) + "\n"
    return "\n".join([*_imports(main), "", "", main])


_CHANGED = {
    "append": "append to the first file of {0}",
    "overwrite": "overwrite the first file of {0}",
    "recreate": "delete and create again the topic {0}",
    "move": "point servers= at another cluster with a topic {0}",
}


def events_text(spec: Spec) -> str:
    """The events as text, for people: one line for each, in the order in which they are read."""
    lines = []
    for epoch in sorted({event.epoch for source in spec.sources for event in source.events}):
        for source in spec.sources:
            names = [column.name for column in source.columns]
            times = [column.type == "TIMESTAMP" for column in source.columns]
            for event in source.events:
                if event.epoch == epoch and event.text is not None:
                    lines.append(f"# epoch {epoch}: {source.name}, partition {event.partition}: {event.text}")
                elif event.epoch == epoch:
                    shown = [
                        moment(value).strftime("%H:%M:%S") if is_time and value is not None else repr(value)
                        for value, is_time in zip(event.values, times, strict=True)
                    ]
                    row = ", ".join(f"{name}={value}" for name, value in zip(names, shown, strict=True))
                    lines.append(f"# epoch {epoch}: {source.name}, partition {event.partition}: {row}")
    for name, change in changes(spec).items():
        lines.append(f"# before epoch {change.epoch}: {_CHANGED[change.how].format(name)}, which was read")
    return "\n".join(lines)


def _imports(main: str) -> list[str]:
    modules = [f"import {name}" for name in ("random", "uuid") if f"{name}." in main]
    names = sorted(name for name in _NAMES if re.search(rf"\b{name}[(.)]", main))
    return [*modules, *([""] if modules else []), f"from lockgate import {', '.join(names)}"]


def _source(source: Source) -> str:
    ddl = ", ".join(f"{column.name} {column.type}" for column in source.columns)
    made = {
        "sensors": "SensorSource()",
        "kafka": f'KafkaSource(topic="{source.name}", servers="localhost:9092", value="{ddl}")',
        "file": f'FileSource(path="{source.name}", value="{ddl}")',
        "memory": f'MemorySource([], value="{ddl}")',
        "mqtt": f'MqttSource(topic="{source.name}", host="localhost", value="{ddl}")',
        "socket": f'SocketSource(host="localhost", port=9999, value="{ddl}", format="json")',
    }
    return f'stream("{source.name}", {made[source.system]})'


def _step(spec: Spec, step: Step) -> str:
    """The expression that makes a step."""
    match step:
        case Merge():
            first, *others = map(_reference, step.inputs)
            return f"{first}.merge({', '.join(others)})"
        case Join():
            on = ", ".join(f'"{name}"' for name in step.on)
            how = "" if step.how == "inner" else f', how="{step.how}"'
            within = f'within="{step.within_seconds} seconds"'
            return (
                f'{_reference(step.left)}.join({_reference(step.right)}, on=[{on}], {within}{how}, name="{step.name}")'
            )
    given = _reference(step.input)
    names = columns_of(spec, step.input)
    match step:
        case Where(condition=Call(entry=entry)) if entry in catalogue.PYTHON_CONDITIONS:
            chance = "" if catalogue.entry(entry).is_deterministic else ", deterministic=False"
            return f"{given}.where(lambda row: {_text(step.condition)}{chance})"
        case Where():
            return f'{given}.where("{_text(step.condition)}")'
        case Select():
            return f"{given}.select({', '.join([*_quoted(step.keep), *_sql(step.made)])})"
        case Map():
            values = [f'"{name}": row.{name}' for name in step.keep]
            values += [f'"{one.column}": {_text(one.call)}' for one in step.made]
            types = {**{name: names[name] for name in step.keep}, **_types(step.made)}
            return f'{given}.map(lambda row: {{{", ".join(values)}}}, "{_ddl(types)}"{_chance(step.deterministic)})'
        case FlatMap():
            values = [*(f"row.{name}" for name in step.keep), "item"]
            types = {**{name: names[name] for name in step.keep}, **_types((step.made,))}
            rows = f"[{_tuple(values)} for item in {_text(step.made.call)}]"
            return f'{given}.flat_map(lambda row: {rows}, "{_ddl(types)}"{_chance(step.deterministic)})'
        case Transform():
            made = [f'"{_text(one.call)} AS {one.column}"' for one in step.made]
            chosen = _quoted([*step.keep, *(one.column for one in step.made)])
            every = ", ".join(['"*"', *made])
            function = f"lambda frame: frame.selectExpr({every})"
            return f"{given}.transform({function}{_chance(step.deterministic)}).select({', '.join(chosen)})"
        case FanOut():
            functions = [f"{one.column}=lambda row: {_text(one.call)}" for one in step.made]
            return f'{given}.fan_out(deadline="30 seconds", schema="{_ddl(_types(step.made))}", {", ".join(functions)})'
        case Split():
            parts = [f'{part.name}="{_text(part.condition)}"' for part in step.parts]
            return f"{given}.split({', '.join(parts)})"
        case EventTime():
            late = "" if step.late == "DROP" else f", late=Late.{step.late}"
            allowed = "" if step.allowed_seconds is None else f', allowed="{step.allowed_seconds} seconds"'
            clocks = "" if step.idle_seconds is None else f', idle="{step.idle_seconds} seconds"'
            clocks += "" if step.max_ahead_ms is None else f', max_ahead="{step.max_ahead_ms} milliseconds"'
            lateness = f'lateness="{step.lateness_seconds} seconds"'
            return f'{given}.event_time("{step.column}", {lateness}{late}{allowed}{clocks})'
        case TableJoin():
            rows = f'FileTable(path="{step.name}.csv", format="csv", schema="k STRING, {step.column} STRING")'
            kind = "" if step.how == "inner" else f', how="{step.how}"'
            return f'{given}.join(table("{step.name}", {rows}, refresh="1 day"), on="k"{kind}, name="{step.name}_join")'
        case ProcessingTime():
            return f"{given}.processing_time()"
        case WindowAggregate():
            return f"{_windowed(step, step.window)}.aggregate({', '.join(_sql(step.made))})"
        case WindowApply():
            function = f"lambda key, rows: [({_text(step.made.call)},)]"
            chance = _chance(step.deterministic)
            return f'{_windowed(step, step.window)}.apply({function}, "{_ddl(_types((step.made,)))}"{chance})'
        case Rolling():
            return f'{_keyed(step)}.rolling(name="{step.name}", {", ".join(_sql(step.made))})'
        case Process():
            return f'{_keyed(step)}.process({_class_name(step)}(), name="{step.name}"{_chance(step.deterministic)})'
        case Detect():
            return f'{_keyed(step)}.detect({_pattern(step.pattern)}, name="{step.name}")'
    raise TypeError(step)


def _windowed(step: WindowAggregate | WindowApply, window: Window) -> str:
    size, every = f'"{window.size_seconds} seconds"', f'"{window.every_seconds} seconds"'
    made = {
        "tumbling": f"tumbling({size})",
        "sliding": f"sliding({size}, every={every})",
        "session": f"session(gap={size})",
        "tumbling_count": f"tumbling_count({window.count})",
        "sliding_count": f"sliding_count({window.count}, every={window.every_count})",
        "until": "" if window.condition is None else f'until("{_text(window.condition)}")',
    }
    trigger = "" if window.trigger is None else f".trigger({window.trigger})"
    return f'{_keyed(step)}.window(windows.{made[window.kind]}, name="{step.name}"){trigger}'


def _keyed(step: WindowAggregate | WindowApply | Rolling | Process | Detect) -> str:
    given = _reference(step.input)
    return f"{given}.key_by({', '.join(_quoted(step.keys))})" if step.keys else given


def _pattern(call: Call) -> str:
    pattern = catalogue.PATTERNS[call.entry]
    text = "pattern"
    for stage in pattern.stages:
        text += f'.{stage.how}("{stage.name}", "{_text(Call(stage.condition, call.columns))}")'
        text += "" if stage.times is None else f".times({stage.times})"
    text += "" if pattern.within_seconds is None else f'.within("{pattern.within_seconds} seconds")'
    return text + ("" if pattern.skip == "PAST_LAST" else f".after_match(pattern.Skip.{pattern.skip})")


def _class(spec: Spec, step: Process) -> list[str]:
    function = catalogue.FUNCTIONS[step.function.entry]
    names = columns_of(spec, step.input)
    schema = {**{name: names[name] for name in step.keys}, function.column: function.type}
    values = _tuple([*(f"row.{name}" for name in step.keys), "one"])
    body = function.body.format(*step.function.columns).splitlines()
    return [
        f"class {_class_name(step)}(StatefulFunction):",
        f'    schema = "{_ddl(schema)}"',
        f"    {function.state.replace(chr(39), chr(34))}",
        "",
        "    def process(self, row, context):",
        *(f"        {line}" for line in body),
        f"        return [{values} for one in out]",
        *_timer(step, function),
        "",
        "",
    ]


def _timer(step: Process, function: catalogue.Function) -> list[str]:
    if not function.timer:
        return []
    values = _tuple([*(f"context.key.{name}" for name in step.keys), "one"])
    body = [*function.timer.splitlines(), f"return [{values} for one in out]"]
    return ["", "    def on_timer(self, timer, context):", *(f"        {line}" for line in body)]


def _class_name(step: Process) -> str:
    return step.name.capitalize()


def _output(spec: Spec, output: Output) -> str:
    lower = "" if output.guarantee is None else f", guarantee=Guarantee.{output.guarantee}"
    return f'{_reference(output.input)}.to("{output.name}", {_sink(output.name, output.sink)}{lower})'


def _sink(name: str, sink: Sink) -> str:
    key = f", key=[{', '.join(_quoted(sink.key))}]" if sink.key else ""
    key += "" if sink.deleted is None else f', deleted="{_text(sink.deleted)}"'
    labels = f", labels=[{', '.join(_quoted(sink.key))}]" if sink.key else ""
    labels += "" if sink.latest is None else f', latest="{sink.latest}"'
    topic = f'topic="{name}"' if sink.route is None else f'route="{sink.route}"'
    metric = f'metric="{name}_total", kind="counter"' if sink.is_counter else f'metric="{name}"'
    return {
        "kafka": f'KafkaSink({topic}, servers="{_servers(sink.cluster)}"{key})',
        "postgres": f'PostgresSink(table="{name}", dsn="postgresql://localhost/results"{key})',
        "sqlite": f'SqliteSink(table="{name}", path="results.db"{key})',
        "file": f'FileSink("{name}")',
        "monitor": f'MonitorSink({metric}, value="{sink.value}"{labels})',
        "console": "ConsoleSink()",
        "memory": "MemorySink()",
    }[sink.system]


def _servers(cluster: int) -> str:
    return "localhost:9092" if cluster == 1 else f"cluster-{cluster}:9092"


def _dead_letters(spec: Spec, system: str) -> str:
    return _sink("letters", Sink(system, cluster=spec.letters_cluster))


def _reference(reference: str) -> str:
    name, _, side = reference.partition(".")
    return f"{name}.{side}" if side in ("late", "timed_out") else f'{name}["{side}"]' if side else name


def _text(call: Call) -> str:
    return catalogue.entry(call.entry).text.format(*call.columns)


def _sql(made: tuple[Made, ...]) -> list[str]:
    return [f'{one.column}="{_text(one.call)}"' for one in made]


def _types(made: tuple[Made, ...]) -> dict[str, str]:
    return {one.column: catalogue.entry(one.call.entry).type for one in made}


def _ddl(types: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def _tuple(values: list[str]) -> str:
    return f"({', '.join(values)}{',' if len(values) == 1 else ''})"


def _quoted(names: tuple[str, ...] | list[str]) -> list[str]:
    return [f'"{name}"' for name in names]


def _chance(is_deterministic: bool) -> str:
    return "" if is_deterministic else ", deterministic=False"
