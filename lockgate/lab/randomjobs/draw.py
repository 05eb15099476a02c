"""Draw a job and its input, from a seed.

Most jobs make sense; some declare more than they reach, and some steps stand where the API refuses them. Graphs are
small, because a small counterexample is found as often as a large one, and is easier to read.

This is one story, and one class, because every choice depends on what was drawn before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.catalogue import ANY, Entry
from lockgate.lab.randomjobs.columns import columns_of, time_of
from lockgate.lab.randomjobs.drawevents import SENSORS, draw_events, draw_readings
from lockgate.lab.randomjobs.model import judge
from lockgate.lab.randomjobs.spec import (
    CHANGES,
    Call,
    Change,
    Column,
    Detect,
    EventTime,
    FanOut,
    FlatMap,
    Join,
    Made,
    Map,
    Merge,
    Output,
    Part,
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
    inputs_of,
)

_SIZES = (1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8)
_SYSTEMS = ("kafka",) * 8 + ("file",) * 3 + ("memory",) * 3 + ("mqtt", "sensors", "socket")
_SINKS = ("kafka",) * 6 + ("postgres",) * 4 + ("sqlite",) * 2 + ("file",) * 2 + ("monitor", "console", "memory")
_GUARANTEES = ("AT_MOST_ONCE", "AT_LEAST_ONCE", "EXACTLY_ONCE", "END_TO_END_EXACTLY_ONCE")

_CHANCE_OF_CHANCE = 0.2
"""How often a function or expression that is drawn is one that is not deterministic."""

_CHANCE_OF_NONSENSE = 0.03
"""How often a step is put where its kind does not fit."""


@dataclass(frozen=True)
class _Place:
    """A reference on which a step may stand, and what is known of its rows."""

    reference: str
    is_timed: bool = False
    is_ended: bool = False  # behind a window or a join: rows have no place in a source any more
    is_late: bool = False  # behind `.late`: SQL on single rows only


def draw(rng: Random, name: str = "random-job") -> Spec:
    """A job and its input."""
    return _Drawing(rng).draw(name)


class _Drawing:
    """One job, as it grows."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.steps: list[Step] = []
        self.sources: list[Source] = []
        self.places: list[_Place] = []
        self.numbers: dict[str, int] = {}
        self.mode = rng.choice(("MICRO_BATCH",) * 9 + ("REAL_TIME",))
        self.letters = rng.choice((None,) * 6 + ("kafka", "file", "memory")) if self.mode == "MICRO_BATCH" else None
        self.idle = 60 if rng.random() < 0.1 else None  # of all event times of a job, or of none
        # Without dead letters the first event that cannot be used ends the job, and shows nothing else.
        self.chance_of_letter = 0.06 if self.letters is not None else 0.002

    def draw(self, name: str) -> Spec:
        rng = self.rng
        for _ in range(rng.choice((1, 1, 1, 2))):
            self._add_source()
        for _ in range(rng.choice(_SIZES)):
            self._add_step()
        self._settle_late()
        self._take_late()
        if self.mode == "REAL_TIME" and rng.random() < 0.8:
            self.sources = [replace(source, system="kafka", change=None) for source in self.sources]
        spec = Spec(
            name=name,
            sources=tuple(self.sources),
            steps=tuple(self.steps),
            outputs=self._outputs(self.mode),
            guarantee="END_TO_END_EXACTLY_ONCE",
            mode=self.mode,
            dead_letters=self.letters,
        )
        return self._with_other_topics(self._with_clusters(self._declared(spec)))

    # Sources and their events

    def _add_source(self, suffix: str = "") -> None:
        """A source; one with the columns of another can be merged with it, one with a suffix can be joined."""
        rng = self.rng
        name = self._name("s")
        columns = (
            Column(f"id{suffix}", "BIGINT"),
            Column("k", "STRING"),
            Column(f"n{suffix}", "BIGINT"),
            Column(f"at{suffix}", "TIMESTAMP"),
        )
        system = rng.choice(_SYSTEMS)
        if system == "sensors" and not suffix:
            self.sources.append(Source(name, system, SENSORS, draw_readings(rng)))
            self.places.append(_Place(name))
            return
        system = "memory" if system == "sensors" else system
        events = draw_events(rng, len(self.sources) * 1000, self.chance_of_letter, is_text=system != "memory")
        is_changed = system == "file" and rng.random() < 0.1
        change = Change(rng.randrange(1, 3), rng.choice(CHANGES["file"])) if is_changed else None
        self.sources.append(Source(name, system, columns, events, change))
        self.places.append(_Place(name))

    def _with_clusters(self, spec: Spec) -> Spec:
        """With some topics in a second cluster, which commits after the first; it may not reach what is declared."""
        rng = self.rng
        if rng.random() > 0.15:
            return spec
        outputs = tuple(
            replace(output, sink=replace(output.sink, cluster=2))
            if output.sink.system == "kafka" and rng.random() < 0.5
            else output
            for output in spec.outputs
        )
        is_letters = spec.dead_letters == "kafka" and rng.random() < 0.5
        return replace(spec, outputs=outputs, letters_cluster=2 if is_letters else 1)

    def _with_other_topics(self, spec: Spec) -> Spec:
        """With a topic that is another one after it was read, in few jobs: such a job shows little else."""
        rng = self.rng
        topics = [source for source in spec.sources if source.system == "kafka"]
        if not topics or rng.random() > 0.04:
            return spec
        one = rng.choice(topics)
        changed = replace(one, change=Change(rng.randrange(1, 3), rng.choice(CHANGES["kafka"])))
        return replace(spec, sources=tuple(changed if source is one else source for source in spec.sources))

    # Steps

    def _add_step(self) -> None:
        rng = self.rng
        # Mostly go on from what came last, so that graphs are deep; at times branch off from what has a consumer.
        place = self.places[-1] if rng.random() < 0.6 else rng.choice(self.places)
        kinds: list[tuple[Callable[[_Place], None], int]] = [
            (self._where, 4),
            (self._select, 5),
            (self._split, 3),
            (self._merge, 3),
            (self._diamond, 4),
            (self._transform, 2),
        ]
        if "k" in self._columns(place) and (not place.is_late or self._is_nonsense()):
            kinds.append((self._table_join, 2))
        if not place.is_late or self._is_nonsense():
            kinds += [(self._map, 3), (self._flat_map, 2), (self._fan_out, 2), (self._join, 2)]
            if not place.is_timed or self._is_nonsense():
                kinds += [(self._event_time, 6), (self._processing_time, 1)]
            if not place.is_ended or self._is_nonsense():
                kinds += [(self._rolling, 4), (self._process, 4), (self._detect, 3), (self._window, 10)]
        step = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        step(place)

    def _is_nonsense(self) -> bool:
        return self.rng.random() < _CHANCE_OF_NONSENSE

    def _add(self, step: Step, *places: _Place) -> None:
        self.steps.append(step)
        self.places.extend(places)

    def _goes_on(self, place: _Place, step: Step) -> None:
        """A step whose rows are like those of its input."""
        self._add(step, replace(place, reference=step.name))

    def _where(self, place: _Place) -> None:
        table = catalogue.CONDITIONS
        if not place.is_late and self.rng.random() < 0.25:
            table = catalogue.PYTHON_CONDITIONS
        condition = self._call(table, place)
        if condition is not None:
            self._goes_on(place, Where(self._name("x"), place.reference, condition))

    def _select(self, place: _Place) -> None:
        self._goes_on(place, Select(self._name("x"), place.reference, self._kept(place), self._made(place)))

    def _map(self, place: _Place) -> None:
        made = self._made(place, catalogue.PYTHON)
        step = Map(self._name("x"), place.reference, self._kept(place), made, self._declared_as(made))
        self._goes_on(place, step)

    def _flat_map(self, place: _Place) -> None:
        call = self._call(catalogue.LISTS, place)
        if call is not None:
            made = Made(self._column(), call)
            declared = self._declared_as((made,))
            self._goes_on(place, FlatMap(self._name("x"), place.reference, self._kept(place), made, declared))

    def _transform(self, place: _Place) -> None:
        made = self._made(place)
        # Not always the truth: the plan cannot look inside, and Spark's own plan is asked when the job starts.
        declared = self._declared_as(made) or self.rng.random() < 0.5
        self._goes_on(place, Transform(self._name("x"), place.reference, self._kept(place), made, declared))

    def _fan_out(self, place: _Place) -> None:
        made = self._made(place, {name: one for name, one in catalogue.PYTHON.items() if not one.can_raise})
        if made:  # a function that raises gives a partial row there, which is not drawn
            self._goes_on(place, FanOut(self._name("x"), place.reference, made))

    def _split(self, place: _Place) -> None:
        names = self.rng.sample(("red", "blue", "green"), self.rng.choice((2, 2, 3)))
        calls = [self._call(catalogue.CONDITIONS, place) for _ in names]
        parts = tuple(Part(part, call) for part, call in zip(names, calls, strict=True) if call is not None)
        if parts:
            step = Split(self._name("x"), place.reference, parts)
            self._add(step, *(replace(place, reference=f"{step.name}.{part.name}") for part in parts))

    def _merge(self, place: _Place) -> None:
        columns = list(self._columns(place).items())
        alike = [
            other
            for other in self.places
            if other.reference != place.reference
            and other.is_timed == place.is_timed
            and list(self._columns(other).items()) == columns
        ]
        if alike:
            other = self.rng.choice(alike)
            ended = place.is_ended or other.is_ended
            step = Merge(self._name("x"), (place.reference, other.reference))
            self._add(step, replace(place, reference=step.name, is_ended=ended))

    def _diamond(self, place: _Place) -> None:
        """Two branches over one step, often one that is not deterministic, and often merged again."""
        before = len(self.places)
        if self.rng.random() < 0.6:
            self._select(place)
            place = self.places[-1]
        number = next((name for name, kind in reversed(self._columns(place).items()) if kind == "BIGINT"), None)
        if number is None:
            return
        ends = []
        for condition in ("small", "large"):
            step = Where(self._name("x"), place.reference, Call(condition, (number,)))
            self._goes_on(place, step)
            ends.append(step.name)
        if self.rng.random() < 0.5:
            self._goes_on(place, Merge(self._name("x"), (ends[0], ends[1])))
        assert len(self.places) > before

    def _join(self, place: _Place) -> None:
        """A join with another source, both with event time."""
        if place.is_ended or "k" not in self._columns(place):
            return
        if not place.is_timed:
            before = place
            self._event_time(place)
            place = self.places[-1]
            if place == before or not place.is_timed:
                return
        self._add_source(suffix=str(len(self.sources) + 1))
        self._event_time(self.places[-1])
        other = self.places[-1]
        if set(self._columns(other)) & set(self._columns(place)) == {"k"}:
            how = self.rng.choice(("inner", "inner", "left", "right", "full"))
            step = Join(self._name("x"), place.reference, other.reference, ("k",), self.rng.choice((0, 5, 20)), how)
            self._add(step, replace(place, reference=step.name, is_ended=True))

    def _table_join(self, place: _Place) -> None:
        how = self.rng.choice(("inner", "left"))
        self._goes_on(place, TableJoin(self._name("x"), place.reference, self._column(), how))

    def _event_time(self, place: _Place) -> None:
        times = [name for name, kind in self._columns(place).items() if kind == "TIMESTAMP"]
        if times:
            late = self.rng.choice(("DROP",) * 4 + ("LOG", "TO_SIDE_OUTPUT", "TO_SIDE_OUTPUT", "CORRECT", "CORRECT"))
            allowed = self.rng.choice((10, 60)) if late == "CORRECT" else None
            lateness = self.rng.choice((0, 5, 10, 30))
            ahead = self.rng.choice((30_500, 3_600_000)) if self.rng.random() < self.chance_of_letter + 0.03 else None
            column = self.rng.choice(times)
            step = EventTime(self._name("x"), place.reference, column, lateness, late, allowed, self.idle, ahead)
            self._add(step, replace(place, reference=step.name, is_timed=True))

    def _processing_time(self, place: _Place) -> None:
        step = ProcessingTime(self._name("x"), place.reference)
        self._add(step, replace(place, reference=step.name, is_timed=True))

    def _window(self, place: _Place) -> None:
        rng = self.rng
        if not place.is_timed and rng.random() < 0.6:
            self._event_time(place)
            place = self.places[-1] if self.places[-1].is_timed else place
        kinds = ["tumbling_count", "sliding_count", "until"]
        if place.is_timed or self._is_nonsense():
            kinds += ["tumbling", "sliding", "session"] * 3
        window = self._window_of(rng.choice(kinds), place)
        if _is_by_time(window) and rng.random() < 0.15:
            is_corrected = (time := self._time(place)) is not None and time.late == "CORRECT"
            triggers = ("every=2", "every='5 seconds'", *(("on_late=True",) * 4 if is_corrected else ()))
            window = replace(window, trigger=rng.choice(triggers))
        name, keys = self._name("x"), self._keys(place)
        step: WindowAggregate | WindowApply | None = None
        if rng.random() < 0.3:
            call = self._call(catalogue.OVER_ROWS, place)
            if call is not None:
                made = Made(self._column(), call)
                declared = self._declared_as((made,))
                step = WindowApply(name, place.reference, keys, window, made, declared)
        else:
            step = WindowAggregate(name, place.reference, keys, window, self._aggregates(place, window))
        if step is not None:
            self._add(step, _Place(step.name, is_timed=place.is_timed, is_ended=True))

    def _window_of(self, kind: str, place: _Place) -> Window:
        rng = self.rng
        if kind == "until":
            condition = self._call(catalogue.CONDITIONS, place)
            return Window("tumbling_count", count=3) if condition is None else Window("until", condition=condition)
        if kind == "tumbling_count":
            return Window(kind, count=rng.randrange(1, 5))
        if kind == "sliding_count":
            every = rng.randrange(1, 4)
            return Window(kind, count=every + rng.randrange(4), every_count=every)
        if kind == "sliding":
            every = rng.choice((5, 10))
            return Window(kind, size_seconds=every * rng.randrange(1, 4), every_seconds=every)
        return Window(kind, size_seconds=rng.choice((5, 10, 30)))

    def _rolling(self, place: _Place) -> None:
        keys = self._keys(place) or tuple(self._columns(place))[:1]
        self._goes_on(place, Rolling(self._name("x"), place.reference, keys, self._aggregates(place)))

    def _process(self, place: _Place) -> None:
        name = self._choice(catalogue.FUNCTIONS)
        number = self._one_of(place, "BIGINT")
        if number is not None:
            function = catalogue.FUNCTIONS[name]
            declared = function.is_deterministic and self.rng.random() < 0.95
            keys = tuple(key for key in self._keys(place) if key != function.column)
            step = Process(self._name("x"), place.reference, keys, Call(name, (number,)), declared)
            self._add(step, _Place(step.name, is_ended=True))

    def _detect(self, place: _Place) -> None:
        if not place.is_timed and self.rng.random() < 0.8:  # by the clock, the result is unknown
            self._event_time(place)
            place = self.places[-1]
        number = self._one_of(place, "BIGINT")
        if number is not None:
            name = self.rng.choice(sorted(catalogue.PATTERNS))
            step = Detect(self._name("x"), place.reference, self._keys(place), Call(name, (number,)))
            end = _Place(step.name, is_ended=True)
            sides = [replace(end, reference=f"{step.name}.timed_out")] if self.rng.random() < 0.3 else []
            self._add(step, end, *sides)

    # What steps are about

    def _so_far(self) -> Spec:
        return Spec("", tuple(self.sources), tuple(self.steps), (), "")

    def _columns(self, place: _Place) -> dict[str, str]:
        return columns_of(self._so_far(), place.reference)

    def _one_of(self, place: _Place, kind: str) -> str | None:
        names = [
            name
            for name, one in self._columns(place).items()
            if one == kind or (kind == ANY and one not in ("STRUCT", "ARRAY"))
        ]
        return self.rng.choice(names) if names else None

    def _call(self, table: dict[str, Entry], place: _Place) -> Call | None:
        """An entry, with columns of its types; None if there are none."""
        for _ in range(5):
            name = self._choice(table)
            columns = [self._one_of(place, kind) for kind in table[name].takes]
            if None not in columns:
                return Call(name, tuple(column for column in columns if column is not None))
        return None

    def _choice(self, table: Mapping[str, Entry] | Mapping[str, catalogue.Function]) -> str:
        is_chance = self.rng.random() < _CHANCE_OF_CHANCE
        is_fragile = self.rng.random() < 5 * self.chance_of_letter
        if is_fragile and (fragile := [name for name, one in table.items() if one.can_raise]):
            return self.rng.choice(fragile)
        names = [name for name, one in table.items() if one.is_deterministic is not is_chance and not one.can_raise]
        names = names or list(table)
        return self.rng.choices(names, [getattr(table[name], "weight", 1) for name in names])[0]

    def _made(self, place: _Place, table: dict[str, Entry] = catalogue.SQL) -> tuple[Made, ...]:
        calls = [self._call(table, place) for _ in range(self.rng.choice((0, 1, 1, 2)) or (table is not catalogue.SQL))]
        return tuple(Made(self._column(), call) for call in calls if call is not None)

    def _time(self, place: _Place) -> EventTime | None:
        return time_of(self._so_far(), place.reference)

    def _aggregates(self, place: _Place, window: Window | None = None) -> tuple[Made, ...]:
        is_native = window is not None and _is_by_time(window) and window.trigger is None
        table = catalogue.NATIVE_AGGREGATES if is_native else catalogue.AGGREGATES
        if self.rng.random() < 0.2:
            table = {name: table[name] for name in catalogue.IDEMPOTENT_AGGREGATES}
        calls = [self._call(table, place) for _ in range(self.rng.choice((1, 1, 2)))]
        made = [Made(self._column(), call) for call in calls if call is not None]
        return tuple(made) or (Made(self._column(), Call("count")),)

    def _declared_as(self, made: tuple[Made, ...]) -> bool:
        """What the user declares: the truth, at times less."""
        return all(catalogue.entry(one.call.entry).is_deterministic for one in made) and self.rng.random() < 0.95

    def _kept(self, place: _Place) -> tuple[str, ...]:
        """Most columns; those that make keys and times nearly always."""
        names = [name for name, kind in self._columns(place).items() if kind != "ARRAY"]
        kept = [
            name
            for name in names
            if self.rng.random() < (0.97 if name.startswith(("k", "at", "id", "window")) else 0.75)
        ]
        return tuple(kept or names[:1])

    def _keys(self, place: _Place) -> tuple[str, ...]:
        columns = self._columns(place)
        chance = self.rng.random()
        if chance < 0.15:
            return ()
        if "k" in columns and chance < 0.9:
            return ("k",)
        key = self._one_of(place, self.rng.choice(("STRING", "BIGINT")))
        return () if key is None or key in ("window_start", "window_end") else (key,)

    # Outputs

    def _settle_late(self) -> None:
        """Nearly always drop late events where nothing behind the event time has any."""
        spec = self._so_far()
        steps = [step for step in self.steps if isinstance(step, WindowAggregate | WindowApply | Detect)]
        by_time = [time_of(spec, step.input) for step in steps if isinstance(step, Detect) or _is_by_time(step.window)]
        for number, step in enumerate(self.steps):
            if isinstance(step, EventTime) and step not in by_time and not self._is_nonsense():
                self.steps[number] = replace(step, late="DROP", allowed_seconds=None)

    def _take_late(self) -> None:
        """Give late events an output where they are declared as one, nearly always."""
        spec = self._so_far()
        for step in list(self.steps):
            if isinstance(step, WindowAggregate | WindowApply | Detect):
                time = time_of(spec, step.input)
                is_wanted = time is not None and time.late in ("TO_SIDE_OUTPUT", "CORRECT")
                by_time = isinstance(step, Detect) or _is_by_time(step.window)
                if is_wanted and by_time and self.rng.random() < 0.9:
                    late = _Place(f"{step.name}.late", is_late=True)
                    self.places.append(late)
                    if self.rng.random() < 0.3:
                        self._where(late)

    def _outputs(self, mode: str) -> tuple[Output, ...]:
        rng = self.rng
        read = {reference for step in self.steps for reference in inputs_of(step)}
        ends = [place for place in self.places if place.reference not in read]
        inner = [place for place in self.places if place.reference in read]
        rng.shuffle(ends)
        late = [place for place in ends if place.is_late]
        chosen = [*late, *(place for place in ends if not place.is_late)][: max(len(late), 3)]
        if inner and (not chosen or rng.random() < 0.2):
            chosen.append(rng.choice(inner))
        systems: tuple[str, ...] = _SINKS
        if mode == "REAL_TIME" and rng.random() < 0.8:
            chosen, systems = chosen[:1], ("kafka",)
        return tuple(
            Output(f"out{number}", place.reference, self._sink(place, systems)) for number, place in enumerate(chosen)
        )

    def _sink(self, place: _Place, systems: tuple[str, ...]) -> Sink:
        rng = self.rng
        system = rng.choice(systems)
        columns = self._columns(place)
        plain = [name for name, kind in columns.items() if kind in ("BIGINT", "STRING", "TIMESTAMP")]
        numbers = [name for name, kind in columns.items() if kind == "BIGINT"]
        if system == "monitor" and not numbers:
            system = "console"
        if system == "monitor":
            latest = rng.choice([None, *plain])
            labels = tuple(name for name in ("k",) if name in columns)
            is_counter = latest is None and rng.random() < 0.4
            return Sink(system, labels, value=rng.choice(numbers), latest=latest, is_counter=is_counter)
        if system not in ("kafka", "postgres", "sqlite") or not plain or rng.random() < 0.4:
            return Sink(system)
        if system == "kafka":  # which has no bytes for a time as a key
            plain = [name for name in plain if columns[name] != "TIMESTAMP"]
        if not plain:
            return Sink(system)
        likely = [name for name in plain if name.startswith(("id", "window_start", "k"))] or plain
        key = tuple(sorted(rng.sample(likely, rng.randrange(1, min(2, len(likely)) + 1)), key=plain.index))
        deleted = self._call(catalogue.CONDITIONS, place) if rng.random() < 0.2 else None
        route = "k" if system == "kafka" and columns.get("k") == "STRING" and rng.random() < 0.05 else None
        return Sink(system, key, deleted, route=route)

    def _declared(self, spec: Spec) -> Spec:
        """With a guarantee: mostly what the job reaches, at times more or less."""
        rng = self.rng
        if rng.random() < 0.6:
            for name in reversed(_GUARANTEES):
                one = replace(spec, guarantee=name)
                if not judge(one).is_refused:
                    spec = one
                    break
        else:
            spec = replace(spec, guarantee=rng.choice((*_GUARANTEES, "END_TO_END_EXACTLY_ONCE")))
        lower = _GUARANTEES[: _GUARANTEES.index(spec.guarantee) + 1]
        outputs = tuple(
            replace(output, guarantee=rng.choice(lower)) if rng.random() < 0.15 else output for output in spec.outputs
        )
        return replace(spec, outputs=outputs)

    # Names

    def _name(self, prefix: str) -> str:
        self.numbers[prefix] = self.numbers.get(prefix, 0) + 1
        return f"{prefix}{self.numbers[prefix]}"

    def _column(self) -> str:
        return self._name("c")


def _is_by_time(window: Window) -> bool:
    return window.kind in ("tumbling", "sliding", "session")
