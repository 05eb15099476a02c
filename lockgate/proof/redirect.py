"""The author's job at a place of our own: a proof breaks things, and nothing that it breaks may be the author's.

Every endpoint is replaced by one of the same kind at a site that was made for the proof:

    KafkaSource, KafkaSink       topics of the site's Kafka; of the client's settings those about writing
    FileSource, FileSink         directories of the site
    PostgresSink, PostgresTable  tables of the site's PostgreSQL; a sink's is made from its rows
    SqliteSink                   a file of the site for every file of the author's
    FileTable                    a file of the site
    MonitorSink                  a free port of this machine
    ConsoleSink                  as it is: it prints, and touches nothing

Everything else is refused, with the step and the cure: an endpoint that cannot be replaced would be read, written or
killed while it is in use. Two places of the author's stay two places, and what commits together goes on to; where a
site cannot keep systems apart that the job keeps apart, the job is refused too, because another job would be proven.
Whatever the author's functions do by themselves is out of sight; what can be seen of them is looked at.

The name of the job is another one, so its ledger, transactional id, consumer group and checkpoint are others. Its
guarantee, epochs, tracking, steps and functions are the author's own, and Kafka's records are traced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from lockgate.dataflow.endpoints import Sink, Source
from lockgate.dataflow.job import Job, is_job_name
from lockgate.dataflow.origin import Origin
from lockgate.dataflow.rebuilding import rebuild
from lockgate.dataflow.steps import Process, Read, Step, Transform, Write
from lockgate.dataflow.table import FileTable, PostgresTable, ReadTable, TableRows
from lockgate.errors import Refused
from lockgate.files.system import is_known, local_path
from lockgate.kafka.wire import hosts_of
from lockgate.planner.chance import expressions_of
from lockgate.planner.logical import LogicalGraph, Node, build_logical
from lockgate.planner.physical import is_exact
from lockgate.planner.sql import read_expression
from lockgate.postgres.address import server_of
from lockgate.sinks.console import ConsoleSink
from lockgate.sinks.files import FileSink
from lockgate.sinks.kafka import KafkaSink
from lockgate.sinks.monitor import MonitorSink
from lockgate.sinks.postgres import PostgresSink
from lockgate.sinks.sqlite import SqliteSink
from lockgate.sources.files import FileSource
from lockgate.sources.kafka import KafkaSource

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


@dataclass(frozen=True)
class Site:
    """Where a job runs under proof. Nothing of it is the author's, and all of it may be broken and deleted."""

    name: str  # of the job, and the beginning of the names of its topics; a run of its own has a name of its own
    servers: str  # of Kafka
    directory: Path  # for all that lies in files, the checkpoint too
    dsn: str | None = None  # of PostgreSQL; None where there is none
    transaction_timeout_ms: int | None = None  # of Kafka's transactions, where it is not to be the author's

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

    def table(self, label: str) -> str:
        """A table of this run; PostgreSQL cuts long names off."""
        return f"{label.replace('-', '_')}_{hashlib.sha256(self.name.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Input:
    """A place that the job reads, once however many streams read it."""

    label: str  # "in-0": what events are addressed to
    streams: tuple[str, ...]  # as the author calls them
    sources: tuple[KafkaSource | FileSource, ...]  # at the site; each stream may read columns of its own

    @property
    def place(self) -> str:
        """Its topic, or its directory."""
        source = self.sources[0]
        return source.topic if isinstance(source, KafkaSource) else source.path

    @property
    def is_topic(self) -> bool:
        """Is it a topic, and not a directory?"""
        return isinstance(self.sources[0], KafkaSource)


@dataclass(frozen=True)
class Result:
    """An output of the job, dead letters among them, and where its rows are found."""

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
    """The job with every endpoint at the site; Refused where one cannot be, or where the site is the author's."""
    if not is_job_name(site.name) or site.name == job.name:
        raise Refused(f"a proof of job {job.name!r} cannot be named {site.name!r}", where="proof", fix="name it anew")
    graph = build_logical(job)
    _refuse_what_cannot_move(graph)
    _refuse_merged_systems(graph)
    move = _Move(site)
    steps = {id(node.step): move.step(node) for node in graph.nodes}
    _refuse_own_places(move, job)
    letters = {id(node.step.sink): steps[id(node.step)] for node in graph.nodes if isinstance(node.step, Write)}

    def letter_sink(sink: Sink) -> Sink:
        written = letters[id(sink)]
        assert isinstance(written, Write)
        return written.sink

    moved = rebuild(job, name=site.name, exchange=lambda step: steps[id(step)], letters=letter_sink)
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


@dataclass
class _Move:
    """Gives every place of the author's one of the site's, the same one whenever it is asked for."""

    site: Site
    inputs: dict[tuple[str, ...], Input] = field(default_factory=dict)
    tables: list[TablePlace] = field(default_factory=list)
    clusters: list[set[str]] = field(default_factory=list)  # the author's, by their servers
    databases: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)
    """Texts that would lead to the author's places, wherever they are found."""
    _labels: dict[tuple[str, ...], str] = field(default_factory=dict)

    def step(self, node: Node) -> Step:
        step = node.step
        if isinstance(step, Read):
            return replace(step, source=self._source(step.source, node))
        if isinstance(step, ReadTable):
            rows = self._table(step.rows)
            self.tables.append(TablePlace(node.name, rows))
            return replace(step, rows=rows)
        if isinstance(step, Write):
            return replace(step, sink=self._sink(step.sink))
        return step

    def _source(self, source: Source, node: Node) -> Source:
        moved: KafkaSource | FileSource
        if isinstance(source, KafkaSource):
            place = self._topic(source.servers, source.topic)
            label = self._label("in", place)
            moved = replace(source, topic=f"{self.site.name}-{label}", servers=self.site.servers, client={})
        else:
            assert isinstance(source, FileSource)
            place = self._path(source.path)
            label = self._label("in", place)
            moved = replace(source, path=str(self.site.directory / label), archive=None, delete=False)
        known = self.inputs.get(place, Input(label, (), ()))
        self.inputs[place] = Input(label, (*known.streams, node.name), (*known.sources, moved))
        return moved

    def _table(self, rows: TableRows) -> TableRows:
        if isinstance(rows, FileTable):
            label = self._label("table", self._path(rows.path))
            return replace(rows, path=str(self.site.directory / label))
        assert isinstance(rows, PostgresTable)
        label = self._label("table", (self._database(rows.dsn), rows.table))
        return replace(rows, table=self.site.table(label), dsn=self._own_dsn)

    def _sink(self, sink: Sink) -> Sink:
        if isinstance(sink, KafkaSink):
            assert sink.topic is not None
            label = self._label("out", self._topic(sink.servers, sink.topic))
            moved = sink.moved(topic=f"{self.site.name}-{label}", servers=self.site.servers).traced()
            limit = self.site.transaction_timeout_ms
            return moved if limit is None else moved.with_client({"transaction.timeout.ms": str(limit)})
        if isinstance(sink, FileSink):
            return replace(sink, path=str(self.site.directory / self._label("out", self._path(sink.path))))
        if isinstance(sink, SqliteSink):
            label = self._label("out", self._path(sink.path))
            path = str(self.site.directory / f"{label}.db")
            return SqliteSink(table=sink.table, path=path, key=sink.key or None, deleted=sink.deleted)
        if isinstance(sink, PostgresSink):
            label = self._label("out", (self._database(sink.dsn), sink.table))
            # The author's table is not looked at, so there is nothing to make ours from but the rows.
            return PostgresSink(
                table=self.site.table(label), dsn=self._own_dsn, key=sink.key or None, deleted=sink.deleted, create=True
            )
        if isinstance(sink, MonitorSink):
            return MonitorSink(
                metric=sink.metric,
                value=sink.value,
                kind=sink.kind,
                labels=sink.labels,
                latest=sink.latest,
                label_sets_max=sink.label_sets_max,
            )
        assert isinstance(sink, ConsoleSink)
        return sink

    @property
    def _own_dsn(self) -> str:
        return self.site.dsn or "postgresql://none"  # where there is none, the job is refused when all is looked at

    def _label(self, kind: str, place: tuple[str, ...]) -> str:
        """What the site calls a place; one that is written and read, by two steps, is one place."""
        if place not in self._labels:
            number = sum(label.startswith(kind) for label in self._labels.values())
            self._labels[place] = f"{kind}-{number}"
        return self._labels[place]

    def _topic(self, servers: str, topic: str) -> tuple[str, ...]:
        self.addresses |= {server.strip() for server in servers.split(",")}
        return (f"cluster {_same_cluster(self.clusters, servers)}", topic)

    def _path(self, path: str) -> tuple[str, ...]:
        local = local_path(path)
        self.paths.add(path)
        # A relative path may be any word.
        self.addresses |= {path} if path.startswith("/") or ":" in path else set()
        return (path if local is None else str(local),)

    def _database(self, dsn: str) -> str:
        self.addresses.add(dsn)
        self.databases.add(server_of(dsn, "proof"))
        return server_of(dsn, "proof")


def _same_cluster(known: list[set[str]], servers: str) -> int:
    """The number of a cluster: two lists of servers with one in common name the same."""
    hosts = hosts_of(servers)
    for number, cluster in enumerate(known):
        if cluster & hosts:
            cluster |= hosts
            return number
    known.append(set(hosts))
    return len(known) - 1


# What is refused


def _refuse_what_cannot_move(graph: LogicalGraph) -> None:
    for node in graph.nodes:
        told = _hindrance(node)
        if told is not None:
            what, fix = told
            raise Refused(f"{node.kind} {node.name!r} {what}", where=node.where, fix=fix)
        for sql in expressions_of(node):
            facts = read_expression(sql)
            named = sorted({name.lower() for name in facts.columns} & {*_NAMED_PLACES}) if facts is not None else ()
            if named:
                raise Refused(
                    f"{node.kind} {node.name!r} goes by {named[0]} in {sql!r}, and under proof its source has another"
                    " name",
                    where=node.where,
                    fix="tell sources apart by a column that a select adds to each of them, before they are merged",
                )


def _hindrance(node: Node) -> tuple[str, str] | None:
    """Why a step cannot be moved, and the cure; None where it can."""
    step = node.step
    if isinstance(step, Read):
        return _source_hindrance(step.source)
    if isinstance(step, ReadTable) and type(step.rows) not in (FileTable, PostgresTable):
        kind = type(step.rows).__name__
        return f"reads a {kind}, which a proof cannot put elsewhere", "read a FileTable or a PostgresTable"
    if isinstance(step, Write):
        return _sink_hindrance(step.sink)
    if isinstance(step, Process) and step.initial is not None:
        return (
            "begins with states out of a file of the author's, which a proof leaves alone",
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


def _source_hindrance(source: Source) -> tuple[str, str] | None:
    kind = type(source)
    if kind is KafkaSource:
        return None
    if kind is FileSource:
        return None
    told = f"reads a {kind.__name__}, which a proof cannot put elsewhere"
    return told, "read the same columns by KafkaSource(...) or FileSource(...), and prove that job"


def _sink_hindrance(sink: Sink) -> tuple[str, str] | None:
    kind = type(sink)
    if kind is KafkaSink:
        assert isinstance(sink, KafkaSink)
        if sink.topic is None:
            told = f"writes into topics that its column {sink.route!r} names, and nobody knows all of them before"
            return told, "give the sink one topic=, and prove that job"
        return None
    if kind is FileSink:
        assert isinstance(sink, FileSink)
        if not is_known(sink.path):
            told = f"writes to {sink.path}, of which nobody has shown that it puts files in place only once"
            return told, "write to a local disk or to HDFS; what is proven on a disk says nothing of another store"
        return None
    if kind in (PostgresSink, SqliteSink, MonitorSink, ConsoleSink):
        return None
    told = f"writes into a {kind.__name__}, which a proof cannot put elsewhere"
    return told, "write into a KafkaSink, FileSink, PostgresSink or SqliteSink, and prove that job"


def _refuse_merged_systems(graph: LogicalGraph) -> None:
    """A site has one Kafka and one PostgreSQL: what commits in two of them would commit in one step there."""
    clusters: list[set[str]] = []
    known: dict[str, tuple[Node, object]] = {}
    for node in graph.nodes:
        sink = node.step.sink if isinstance(node.step, Write) and is_exact(graph, node) else None
        if isinstance(sink, KafkaSink):
            system, name = "Kafka clusters", str(_same_cluster(clusters, sink.servers))
        elif isinstance(sink, PostgresSink):
            system, name = "databases", sink.resource
        else:
            continue
        first, place = known.setdefault(system, (node, name))
        if name != place:
            raise Refused(
                f"sinks {first.name!r} and {node.name!r} commit in two {system}, one after the other, and a proof has"
                " one, in which they would commit together",
                where=f"{first.where}; {node.where}",
                fix="prove the job with both in one"
                + (", or declare a lower guarantee for one of them" if isinstance(sink, KafkaSink) else ""),
            )


def _refuse_own_places(move: _Move, job: Job) -> None:
    """The site is ours only if it is nowhere among the author's places."""
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
    """Look whether anything of the moved job still leads to the author's: a function may hold an address, too."""
    ours = {move.site.servers, move.site.dsn}
    theirs = sorted(move.addresses)
    for path, text in texts_in(moved):
        if text not in ours and any(one in text for one in theirs):
            raise Refused(
                f"something of job {job.name!r} still leads to a place of the author's, and a proof must not go there",
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
