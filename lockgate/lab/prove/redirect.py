"""Move the user's job to a site of our own: a proof breaks things, and none of them may belong to the user.

Every endpoint moves itself (`relocate`) to a site that was made for the proof. The site has topics of its own Kafka,
tables of its own PostgreSQL, and paths below its directory.

Everything else is refused, with the step and the fix: an endpoint that cannot move would be read, written or killed
while it is in use. So is a class that does not define `relocate` itself. Two places of the user stay two places, and
what commits together still commits together. If a site cannot separate systems that the job separates, the job is
refused too, because the proof would be of another job. The proof does not see what the user's functions do by
themselves, but checks what it can see of them.

The job gets another name, and so another ledger, transactional id, consumer group and checkpoint. Guarantee, epochs,
tracking, steps and functions are the user's own, and Kafka's records are traced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

from lockgate.commit.resource import CommittingSink
from lockgate.connectors.files.filesystem import local_path
from lockgate.connectors.kafka.wire import hosts_of
from lockgate.connectors.postgres.address import server_of
from lockgate.dataflow.endpoints import Encoding, Sink, Source
from lockgate.dataflow.job import Job, is_job_name
from lockgate.dataflow.locations import Files, Location, ServerTable, SqliteTable, Topic
from lockgate.dataflow.origin import Origin
from lockgate.dataflow.rebuilding import rebuild
from lockgate.dataflow.relocation import Relocation
from lockgate.dataflow.steps import Process, Read, Step, Transform, Write
from lockgate.dataflow.table import ReadTable, TableRows
from lockgate.errors import Refused
from lockgate.planner.logical import LogicalGraph, Node, build_logical
from lockgate.planner.nondeterminism import expressions_of
from lockgate.planner.physical import is_exact
from lockgate.planner.sql import read_expression

_NAMED_PLACES = ("_topic", "_file")
"""Hidden columns that hold the name of a place, which is another one at a site."""

_DOORS = frozenset(
    (
        *("read", "readStream", "write", "writeStream", "writeTo", "saveAsTable", "insertInto", "table", "sql"),
        *("sparkSession", "SparkSession", "foreach", "foreachPartition", "foreachBatch", "toPandas", "collect"),
        *("open", "connect", "socket", "urlopen", "requests", "boto3", "psycopg", "kafka"),
    )
)
"""Names by which a function of a DataFrame would reach more than the frame that it is given."""


_NO_DSN = "postgresql://none"


@dataclass(frozen=True)
class Site:
    """The site of a job under proof. Nothing of it belongs to the user; all of it may be broken and deleted."""

    name: str  # of the job, and the beginning of the names of its topics; a run of its own has a name of its own
    servers: str  # of Kafka
    directory: Path  # for all that lies in files, the checkpoint too
    dsn: str | None = None  # of PostgreSQL; None where there is none
    transaction_timeout_ms: int | None = None  # of Kafka's transactions, if it must differ from the user's

    @property
    def checkpoint(self) -> Path:
        """Where the job keeps its checkpoint."""
        return self.directory / "checkpoint"

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "directory": str(self.directory)}

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> Site:
        """Read what `as_json` has written."""
        return cls(**{**plain, "directory": Path(plain["directory"])})

    def has(self, location: Location | None) -> bool:
        """Is this a place of the site, as far as it can be known?"""
        if isinstance(location, Topic):
            return location.servers == self.servers and str(location.name).startswith(f"{self.name}-")
        if isinstance(location, Files | SqliteTable):
            return self.directory in Path(location.path).parents
        return not isinstance(location, ServerTable) or location.dsn == (self.dsn or _NO_DSN)

    def label_of(self, location: Topic | Files) -> str:
        """What a topic or a directory is called in every run."""
        if isinstance(location, Topic):
            return str(location.name).removeprefix(f"{self.name}-")
        return Path(location.path).relative_to(self.directory).as_posix()

    def table(self, label: str) -> str:
        """A table of this run; PostgreSQL cuts long names off."""
        return f"{label.replace('-', '_')}_{hashlib.sha256(self.name.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Input:
    """A place that the job reads, once however many streams read it."""

    label: str  # "in-0": what events are addressed to
    streams: tuple[str, ...]  # by the names that the user gave
    location: Topic | Files  # at the site
    encodings: tuple[Encoding, ...]  # each stream may read columns of its own

    @property
    def place(self) -> str:
        """Its topic, or its directory."""
        return str(self.location.name) if isinstance(self.location, Topic) else self.location.path

    @property
    def is_topic(self) -> bool:
        """Is it a topic, and not a directory?"""
        return isinstance(self.location, Topic)


@dataclass(frozen=True)
class Result:
    """An output of the job, including dead letters, and the place of its rows."""

    name: str
    sink: Sink  # at the site
    is_exact: bool  # is it written in transactions?
    is_letters: bool = False


@dataclass(frozen=True)
class TablePlace:
    """A table that the job joins with, to be filled before it runs."""

    name: str
    rows: TableRows  # at the site


@dataclass(frozen=True)
class Redirected:
    """The job at its site."""

    job: Job
    site: Site
    inputs: tuple[Input, ...]
    results: tuple[Result, ...]
    tables: tuple[TablePlace, ...]


def redirect(job: Job, site: Site) -> Redirected:
    """The job with every endpoint at the site; Refused if one cannot be moved, or if the site belongs to the user."""
    if not is_job_name(site.name) or site.name == job.name:
        raise Refused(
            f"a proof of job {job.name!r} cannot be named {site.name!r}", where="proof", fix="give it another name"
        )
    graph = build_logical(job)
    move = _Move(site)
    steps: dict[int, Step] = {}
    for node in graph.nodes:
        _refuse_what_cannot_move(node)
        steps[id(node.step)] = move.step(node)
        _refuse_names_of_places(node)
    _refuse_merged_systems(graph, steps)
    _refuse_own_places(move, job)
    letters = {id(node.step.sink): steps[id(node.step)] for node in graph.nodes if isinstance(node.step, Write)}

    def dead_letter_sink(sink: Sink) -> Sink:
        written = letters[id(sink)]
        assert isinstance(written, Write)
        return written.sink

    moved = rebuild(job, name=site.name, exchange=lambda step: steps[id(step)], letters=dead_letter_sink)
    _refuse_leftovers(moved, move, job)
    return Redirected(
        job=moved,
        site=site,
        inputs=tuple(move.inputs.values()),
        results=tuple(_result(graph, node, steps[id(node.step)]) for node in graph.of_kind("sink")),
        tables=tuple(move.tables),
    )


def _result(graph: LogicalGraph, node: Node, step: Step) -> Result:
    assert isinstance(step, Write)
    is_letters = graph.node(node.inputs[0]).kind == "dead_letters"
    return Result(node.name, step.sink, is_exact(graph, node), is_letters)


# Moving


EndpointT = TypeVar("EndpointT", Source, Sink, TableRows)


@dataclass
class _Move(Relocation):
    """Maps every place of the user to one of the site, always to the same one."""

    site: Site
    inputs: dict[str, Input] = field(default_factory=dict)  # by their labels
    tables: list[TablePlace] = field(default_factory=list)
    clusters: list[set[str]] = field(default_factory=list)  # the user's, by their servers
    databases: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)
    """Texts that would lead to the user's places, wherever they occur."""
    _labels: dict[tuple[str, ...], str] = field(default_factory=dict)
    _kind: str = ""  # how labels begin
    _node: Node | None = None  # the step that moves

    is_traced = True

    def __post_init__(self) -> None:
        self.transaction_timeout_ms = self.site.transaction_timeout_ms

    def step(self, node: Node) -> Step:
        """A step with its endpoint at the site."""
        step, self._node = node.step, node
        if isinstance(step, Read):
            return replace(step, source=self._source(step.source, node))
        if isinstance(step, ReadTable):
            rows = self._moved(step.rows, TableRows.relocate, "table")
            self.tables.append(TablePlace(node.name, rows))
            return replace(step, rows=rows)
        if isinstance(step, Write):
            return replace(step, sink=self._moved(step.sink, Sink.relocate, "out"))
        return step

    def _moved(self, endpoint: EndpointT, refuse: Callable[[EndpointT, Relocation], EndpointT], kind: str) -> EndpointT:
        self._kind = kind
        # A subclass may use more than the class that it inherits from.
        moved: EndpointT = vars(type(endpoint)).get("relocate", refuse)(endpoint, self)
        stays = moved is endpoint and moved.location is not None  # a console has no location, and may stay
        if stays or (isinstance(endpoint, Source | Sink) and endpoint.places & moved.places):
            raise self.refusal(
                "has not moved, and a proof must not touch your system",
                fix="let its `relocate` use the places that it gets",
            )
        if not self.site.has(moved.location):
            raise self.refusal(
                f"has moved to {moved.location}, which is not a place of the proof",
                fix="let its `relocate` use the places that it gets",
            )
        return moved

    def _source(self, source: Source, node: Node) -> Source:
        moved = self._moved(source, Source.relocate, "in")
        location, encoding = moved.location, moved.encoding
        if not isinstance(location, Topic | Files) or encoding is None:
            raise self.refusal(
                f"reads a {type(source).__name__}, whose events a proof cannot make",
                fix="let its `location` name a topic or a directory, and its `encoding` the columns of an event",
            )
        label = self.site.label_of(location)
        known = self.inputs.get(label, Input(label, (), location, ()))
        self.inputs[label] = Input(label, (*known.streams, node.name), location, (*known.encodings, encoding))
        return moved

    def topic(self, servers: str, name: str) -> tuple[str, str]:
        self.addresses |= {server.strip() for server in servers.split(",")}
        label = self._label((f"cluster {_same_hosts(self.clusters, hosts_of(servers))}", name))
        return self.site.servers, f"{self.site.name}-{label}"

    def path(self, path: str) -> str:
        local = local_path(path)
        self.paths.add(path)
        # A relative path may be any word.
        self.addresses |= {path} if path.startswith("/") or ":" in path else set()
        return str(self.site.directory / self._label((path if local is None else str(local),)))

    def table(self, dsn: str, table: str) -> tuple[str, str]:
        database = server_of(dsn, "proof")
        self.addresses.add(dsn)
        self.databases.add(database)
        # If the site has no PostgreSQL, the job is refused when all is looked at.
        return self.site.dsn or _NO_DSN, self.site.table(self._label((database, table)))

    def refusal(self, what: str, *, fix: str) -> Refused:
        assert self._node is not None
        return Refused(f"{self._node.kind} {self._node.name!r} {what}", where=self._node.where, fix=fix)

    def _label(self, place: tuple[str, ...]) -> str:
        """What the site calls a place; one that is written and read, by two steps, is one place."""
        if place not in self._labels:
            number = sum(label.startswith(self._kind) for label in self._labels.values())
            self._labels[place] = f"{self._kind}-{number}"
        return self._labels[place]


def _same_hosts(known: list[set[str]], hosts: frozenset[str]) -> int:
    """The number of a cluster: two lists of servers with one in common name the same."""
    for number, cluster in enumerate(known):
        if cluster & hosts:
            cluster |= hosts
            return number
    known.append(set(hosts))
    return len(known) - 1


# What is refused


def _refuse_names_of_places(node: Node) -> None:
    for sql in expressions_of(node):
        facts = read_expression(sql)
        named = sorted({name.lower() for name in facts.columns} & {*_NAMED_PLACES}) if facts is not None else ()
        if named:
            raise Refused(
                f"{node.kind} {node.name!r} goes by {named[0]} in {sql!r}, and under proof its source has another name",
                where=node.where,
                fix="add a column to each source that names it, by a select, before they are merged",
            )


def _refuse_what_cannot_move(node: Node) -> None:
    told = _hindrance(node)
    if told is not None:
        what, fix = told
        raise Refused(f"{node.kind} {node.name!r} {what}", where=node.where, fix=fix)


def _hindrance(node: Node) -> tuple[str, str] | None:
    """Why a step that is no endpoint cannot be moved, and the fix; None if it can."""
    step = node.step
    if isinstance(step, Process) and step.initial is not None:
        return (
            "begins with states from a file of yours, which a proof does not touch",
            "prove the job without initial=, e.g. by a parameter of job()",
        )
    if isinstance(step, Transform):
        doors = sorted(set(_names_in(step.function)) & _DOORS)
        if doors:
            return (
                f"is a function that may reach more than its frame: it uses {', '.join(doors)}",
                "read and write by sources and sinks of the job, which a proof can put elsewhere",
            )
        if not _can_be_looked_at(step.function):
            return "is a function that cannot be looked into", "write it in Python: def or lambda"
    return None


_SYSTEMS = {Topic: "Kafka clusters", ServerTable: "databases"}
"""What sinks commit in, by the kind of their location."""


def _refuse_merged_systems(graph: LogicalGraph, steps: Mapping[int, Step]) -> None:
    """What commits in two systems of the user must not commit in one step at the site."""
    before, after = _Systems(), _Systems()
    first: dict[str, tuple[Node, str]] = {}  # by the system at the site
    for node in graph.nodes:
        if not isinstance(node.step, Write) or not is_exact(graph, node):
            continue
        moved = steps[id(node.step)]
        assert isinstance(moved, Write)
        old, new = before.name(node.step.sink), after.name(moved.sink)
        other, place = first.setdefault(new, (node, old))
        if old != place:
            kind = _SYSTEMS.get(type(node.step.sink.location), "systems")
            raise Refused(
                f"sinks {other.name!r} and {node.name!r} commit in two {kind}, one after the other, and a proof has"
                " one, in which they would commit together",
                where=f"{other.where}; {node.where}",
                fix="prove the job with both in one"
                + (", or declare a lower guarantee for one of them" if node.step.sink.commits_at else ""),
            )


class _Systems:
    """The systems in which sinks commit, each by one name."""

    def __init__(self) -> None:
        self._clusters: list[set[str]] = []

    def name(self, sink: Sink) -> str:
        """The same for sinks that commit together."""
        if isinstance(sink, CommittingSink):
            return sink.resource
        return f"cluster {_same_hosts(self._clusters, sink.commits_at)}"


def _refuse_own_places(move: _Move, job: Job) -> None:
    """The site is ours only if it is not among the user's places."""
    site = move.site
    where, fix = f"job {job.name!r}, declared at {job.origin}", "give the proof services and a directory of its own"
    if any(hosts_of(site.servers) & cluster for cluster in move.clusters):
        raise Refused(f"the proof would run on the job's own Kafka, {site.servers}", where=where, fix=fix)
    if move.databases and site.dsn is None:
        raise Refused("the job needs PostgreSQL, and the proof has none", where=where, fix="give the proof one")
    if site.dsn is not None and server_of(site.dsn, where) in move.databases:
        raise Refused("the proof would run on the job's own PostgreSQL", where=where, fix=fix)
    home = site.directory.resolve()
    for path in filter(None, map(local_path, move.paths)):
        if path == home or home in path.parents or path in home.parents:
            raise Refused(f"the proof's directory {home} and the job's {path} overlap", where=where, fix=fix)


def _refuse_leftovers(moved: Job, move: _Move, job: Job) -> None:
    """Check whether anything of the moved job still leads to the user's places: a function may hold an address, too."""
    ours = {move.site.servers, move.site.dsn}
    theirs = sorted(move.addresses)
    for path, text in texts_in(moved):
        if text not in ours and any(one in text for one in theirs):
            raise Refused(
                f"something of job {job.name!r} still leads to a place of yours, and a proof must not use it",
                where=f"{path}, declared at {job.origin}",
                fix="let functions take what they need from their row, and name servers and paths in endpoints alone",
            )


# Looking into things


def texts_in(thing: object) -> Iterator[tuple[str, str]]:
    """Every text that can be reached from a thing, with the way there; what functions hold is looked at too."""
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [(type(thing).__name__, thing)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, str):
            yield path, one
        elif isinstance(one, bytes):
            yield path, one.decode(errors="replace")
        elif id(one) not in seen and not isinstance(one, Origin | type):
            seen.add(id(one))
            waiting += [(f"{path}.{name}", inner) for name, inner in _parts(one)]


def _parts(thing: object) -> Iterator[tuple[str, object]]:
    if isinstance(thing, Mapping):
        for key, value in thing.items():
            yield "keys", key
            yield str(key), value
    elif isinstance(thing, Sequence | set | frozenset):
        for number, one in enumerate(thing):
            yield str(number), one
    elif isinstance(thing, FunctionType):
        for number, cell in enumerate(thing.__closure__ or ()):
            try:
                yield f"closure-{number}", cell.cell_contents
            except ValueError:  # a function that speaks of itself before it is there
                continue
        yield "defaults", thing.__defaults__ or ()
        yield "defaults", thing.__kwdefaults__ or {}
        yield "code", _constants(thing.__code__)
        yield "globals", {name: thing.__globals__[name] for name in _plain_globals(thing)}
    elif is_dataclass(thing):
        for one in fields(thing):
            yield one.name, getattr(thing, one.name, None)
    elif hasattr(thing, "__func__"):
        yield "function", thing.__func__
        yield "self", getattr(thing, "__self__", None)
    elif hasattr(thing, "__dict__") and not isinstance(thing, type):
        yield from vars(thing).items()
        yield from ((name, one) for name, one in vars(type(thing)).items() if isinstance(one, FunctionType))


def _plain_globals(function: FunctionType) -> list[str]:
    """The names of a module that a function uses and that hold plain values or functions of that module."""
    return [
        name
        for name in _code_names(function.__code__)
        if isinstance(one := function.__globals__.get(name), str | bytes | tuple | list | dict)
        or (isinstance(one, FunctionType) and one.__module__ == function.__module__)
    ]


def _constants(code: CodeType) -> list[object]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return [*(one for one in code.co_consts if isinstance(one, str | bytes | tuple)), *map(_constants, inner)]


def _code_names(code: CodeType) -> list[str]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return [*code.co_names, *(name for one in inner for name in _code_names(one))]


def _can_be_looked_at(function: Callable[..., Any]) -> bool:
    return isinstance(function, FunctionType)


def _names_in(function: object, seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """Every name that a function, and those of its module that it calls, use."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    yield from _code_names(function.__code__)
    held = [cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell)]
    held += [function.__globals__[name] for name in _plain_globals(function)]
    for one in held:
        if type(one).__name__ in ("DataFrame", "SparkSession"):
            yield "SparkSession"
        yield from _names_in(one, seen | {id(function)})


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it raises where there is nothing yet
    except ValueError:
        return True
    return False
