"""Everything that reads what others may have written, each as a function of bytes: the targets of the fuzzers.

A target ends with a value, or raises what its callers expect (`expected`): an error of ours, or the ValueError of a
decoder whose callers know where the content came from. Anything else is a fault: a traceback for a person, or a thread
of a driver that ends in silence.

`seeds` are inputs that lead far into a decoder. Files below `crashes/NAME` are inputs that were faults once.
"""

import contextlib
import hashlib
import io
import json
import os
import pickle
import re
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from lockgate.checkpoints.checkpoint import ACCEPTED, Checkpoint, as_offsets, next_epoch, parse_accepted
from lockgate.checkpoints.checksums import is_whole
from lockgate.checkpoints.logs import read_commit, read_offsets, read_source_log
from lockgate.checkpoints.marker import parse_marker
from lockgate.checkpoints.operators import parse_operator
from lockgate.checkpoints.savepoints import read_savepoint
from lockgate.checkpoints.stores import check_compressed, read_snapshot
from lockgate.checkpoints.tree import LocalTree
from lockgate.cli.jobfile import _convert
from lockgate.commit.ledger import Entry, Gap, entry_of
from lockgate.connectors.files.listing import may_overlap, names_below, plain_directory, plain_path, root_of
from lockgate.connectors.files.manifest import DataFile, Group, Manifest, manifest_of
from lockgate.connectors.files.store import directory_of
from lockgate.connectors.kafka.batches import last_committed, read_batches
from lockgate.connectors.kafka.codecs import Codec
from lockgate.connectors.kafka.jaas import read_login
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.wire import Fetched, Unanswered
from lockgate.connectors.postgres.address import conninfo_of, server_of
from lockgate.connectors.postgres.staging import staged_rows_of
from lockgate.dataflow.state import list_of, map_of, value
from lockgate.errors import LockgateError
from lockgate.guarantees import Guarantee
from lockgate.lab.prove.results import Results
from lockgate.lab.prove.settings import Settings
from lockgate.operators.contract import Clock, Outcome, StepFailed
from lockgate.operators.durationtext import read_duration
from lockgate.operators.encoding import PLAIN
from lockgate.operators.page import Groups, Page, read_states
from lockgate.operators.pagestore import Index
from lockgate.operators.pickled import read_pickled
from lockgate.operators.statejson import as_json, read_state
from lockgate.presenter.records import read_score, read_transaction
from lockgate.runtime.deadletters import _as_line, as_letter
from lockgate.runtime.deliverycounts import Tries
from lockgate.runtime.filelog import read_entries
from lockgate.runtime.filenotes import read_lines
from lockgate.runtime.initial import _read_copy
from lockgate.runtime.metrics.server import listen
from lockgate.runtime.sourcelist import _read_listed
from lockgate.runtime.topicids import _read_noted
from lockgate.secrets import check_reference, masked, resolve
from lockgate.serving.hosts import Hosts
from lockgate.serving.rpc import _NONSENSE, GONE
from lockgate.untrusted import Unreadable, read_json, read_object
from support.batches import seal, varint

CRASHES = Path(__file__).with_name("crashes")
WHERE = "fuzz"
WORDS_MAX = 100  # of one connection


@dataclass(frozen=True)
class Target:
    """One decoder."""

    name: str
    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    expected: tuple[type[BaseException], ...] = (LockgateError,)
    is_json: bool = False  # the content is JSON, so values of it are replaced too
    has_files: bool = False  # it writes the content to disk first, which costs a fuzzer time
    never_understood: bool = False  # its seeds need what only the other side knows

    def check(self, content: bytes) -> None:
        """Run it; what it raises beyond what is expected is a fault."""
        with contextlib.suppress(*self.expected):
            self.run(content)

    @property
    def crashes(self) -> list[bytes]:
        """What was a fault once."""
        return [file.read_bytes() for file in sorted((CRASHES / self.name).glob("*"))]


# ---- what is beside the decoders


@cache
def _folder() -> Path:
    """A place of this process for content that is read from a file."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    place = tempfile.TemporaryDirectory(dir=base, prefix="lockgate-fuzz-")
    _kept.append(place)
    return Path(place.name)


_kept: list[Any] = []


def _from_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def put_and_read(content: bytes) -> object:
        root = _folder() / name.replace("/", "-")
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
        return read(root)

    return put_and_read


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """Text as it comes from a command line, where bytes that are no UTF-8 are halves of pairs."""
    return lambda content: read(content.decode("utf-8", "surrogateescape"))


def _dump(facts: object) -> bytes:
    return json.dumps(facts).encode()


# ---- what is read from the state of a checkpoint


HELD: tuple[Any, ...] = (
    {"total": [1, 2.5, None, True, b"x"], 5: ("a", 1 << 70)},
    [
        datetime(2026, 1, 31, tzinfo=UTC),
        datetime(2026, 1, 31),
        date(2026, 1, 31),
        timedelta(seconds=1),
        Decimal("1.50"),
    ],
    {1, 2},
)


def _decode(content: bytes) -> object:
    value = PLAIN.decode(content)
    PLAIN.encode(value)
    return value


def _pages() -> tuple[bytes, ...]:
    """A page of this format, one of format 1, and one without keys."""
    page = Page(0)
    groups = Groups.of([(number, ("key", number), [()]) for number in range(3)])
    page.take(groups, lambda key, state, rows, clock: Outcome(HELD[key[1]], (), 7, None), Clock(0, 0, 0), [])
    page.settle()
    bodies = [pickle.dumps((("key", number), state), 5) for number, state in enumerate(HELD)]
    hashes, sizes = struct.pack("<3q", 0, 1, 2), struct.pack("<3I", *map(len, bodies))
    return page.content(), pickle.dumps([hashes, sizes, b"", b"".join(bodies)], 5), Page(0).content()


def _page(content: bytes) -> object:
    """All that is done with a page, whatever the steps of a job do with its states."""
    found = list(read_states(content))
    page = Page(0, content)
    page.wake(lambda key, state, rows, clock: Outcome(state, (), None, None), Clock(0, 10, 10), [])
    page.convert(lambda state: state, is_woken=True)
    page.settle()
    if len(page):
        for part in (*page.cut(64), *(dealt for _, dealt in page.dealt(2)), *page.parted(1), page.merged(page)):
            part.content()
    return found


def _indexes() -> tuple[bytes, ...]:
    index = Index(None)
    index.note(Page(5, _pages()[0]))
    index.declared = {"parts": {"a": "b"}, "states": {"s": {"kind": "value", "type": "INT", "ttl_us": None}}}
    old = {"format": 1, "clock": 3, "declared": None, "begins": [0, 5], "wakes": {5: (7, 8)}}
    return index.content(), pickle.dumps(old, 5)


def _index(content: bytes) -> object:
    index = Index(content)
    index.woken(Clock(0, 10, 10)), index.cell_of(3), index.content()
    return index


# ---- what is read from topics


def _read_piece(content: bytes) -> None:
    fetched = Fetched(0, high_watermark=99, last_stable_offset=99, records=content, aborted=((7, 0), (9, 3)))
    _, position = last_committed(fetched, key=b"ledger", below=50)
    if position < -1:
        raise AssertionError(position)
    for batch, _ in read_batches(fetched):
        if batch.last_offset < batch.base_offset:
            raise AssertionError(batch)
        for record in batch:
            if not batch.base_offset <= record.offset <= batch.last_offset:
                raise AssertionError(record)


def _read_packed(content: bytes) -> None:
    """Records whose checksum fits, so that a fuzzer gets behind it; the first bytes choose how they are packed."""
    kind, count, delta = (*content[:3], 0, 0, 0)[:3]
    _read_piece(seal(content[3:], codec=kind & 7, count=count, last_delta=delta))


def _unpack(content: bytes) -> None:
    codec = Codec(content[0] % len(Codec)) if content else Codec.NONE
    if len(codec.decompress(content[1:], bytes_max=1 << 20)) > 1 << 20:
        raise AssertionError("more than the limit")


RECORD = varint(6) + b"\0" + varint(0) * 2 + varint(-1) * 2 + varint(0)
RECORDS = varint(18) + b"\0" + varint(0) * 2 + varint(6) + b"ledger" + varint(3) + b"abc" + varint(0) + RECORD
ENTRY = Entry(
    run="r",
    query="q",
    epoch=7,
    digest="d",
    at="2026-01-01T00:00:00+00:00",
    staged={"files": '{"directory": "data/j/1", "files": 1, "digest": "d"}'},
    gaps=(Gap(topic="t", partition=0, start=1, end=2, epoch=3, at="2026-01-01T00:00:00+00:00"),),
)
LETTER = {
    "id": "0123456789abcdef",
    "job": "j",
    "life": "l",
    "epoch": 3,
    "step": "s",
    "reason": "r",
    "attempts": 1,
    "hindered": None,
    "source": "in",
    "part": "0",
    "at": 5,
    "child": "1.2",
    "shown": "x",
    "key": "aw==",
    "value": "dg==",
    "headers": '[{"key": "a", "value": "dg=="}]',
    "timestamp": "2026-01-01T00:00:00Z",
}


def _letter(content: bytes) -> object:
    return _as_line(as_letter(read_object(content)))


# ---- what is read from checkpoints and directories of files

MANIFEST = Manifest(
    sequence=1,
    entry=ENTRY,
    groups=(Group(kind="json", schema="a INT", partition_by=(), files=(DataFile("data/j/1/a.json", 5, 2),)),),
    row_bytes=2.5,
)
SAVEPOINT = {
    "format": 1,
    "job": "j",
    "epoch": 4,
    "query": "q",
    "digest": "d",
    "made": "2026-01-01",
    "offsets": {"in": {"0": 5}},
    "ledger": ENTRY.as_facts(),
    "versions": {"lockgate": "1"},
    "files": [{"name": "metadata", "bytes": 1, "sha256": "0"}],
}
OFFSETS = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":5,"conf":{"a":"2"}}\n{"in":{"0":10,"1":20}}\n{"row":5}\n-\n'
OPERATOR = {
    "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPySparkExec"},
    "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
    "operatorPropertiesJson": '{"stateVariables": [{"stateName": "totals_0123abcd"}]}',
}


def _zip(content: bytes = b'v1\n{"sstFiles":[{"dfsSstFileName":"1.sst","sizeBytes":3}],"numKeys":1}') -> bytes:
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", content)
    return packed.getvalue()


def _read_all_of_offsets(content: bytes) -> None:
    for offset in read_offsets(content).offsets:
        offset.places  # noqa: B018 - a property that may raise


def _next_epoch(root: Path) -> object:
    (root / "commits").mkdir(exist_ok=True)
    (root / "metadata").write_text('{"id": "q"}')
    checkpoint = Checkpoint(root=str(root))
    checkpoint.past()
    checkpoint.kafka_offsets(3)
    return next_epoch(checkpoint)


def _note(read: Callable[[Any], object]) -> Callable[[bytes], object]:
    """A note in a checkpoint, as `Checkpoint.read_note` reads it."""
    return _from_file(
        "described/note.json", lambda root: Checkpoint(root=str(root)).read_note("described/note.json", read)
    )


def _sums(content: bytes) -> object:
    return is_whole(content[4:], b"crc\0" + content)


def _block(body: bytes) -> bytes:
    return struct.pack("<8sBiiI", b"LZ4Block", 0x15, len(body), len(body), 0) + body


STATES = {
    "amount": value("DECIMAL(20, 2)"),
    "seen": list_of("TIMESTAMP"),
    "by_day": map_of("DATE", "STRUCT<a: BIGINT, b: ARRAY<DOUBLE>>"),
    "raw": value("BINARY"),
}
STATE = {
    "key": ["a", 5, 2.5, None],
    "state": {
        "amount": "1.50",
        "seen": ["2026-01-01T00:00:00Z"],
        "by_day": {"2026-01-01": {"a": 1, "b": [1, 2.5]}},
        "raw": "eA==",
        "own": {"x": 1e3},
    },
}


def _state(content: bytes) -> object:
    return json.dumps(as_json(read_state(content.decode(), STATES)))


def _begun(content: bytes) -> object:
    from lockgate.runtime import initial

    return list(initial._read_lines(content.decode().split("\n"), "place", _NODE, 4))


class _Node:
    where = WHERE


_NODE: Any = _Node()


# ---- what comes over the network


@contextlib.contextmanager
def _pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    with ours, theirs:
        yield ours, theirs


@cache
def _http() -> Any:
    from lockgate.serving.http import TEXT, HttpServer, Page

    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    server = HttpServer(
        listening,
        lambda request: Page(200, TEXT, request.path.encode()),
        name="fuzz",
        hosts=Hosts.of(listening),
        keeps=True,
    )
    _kept.append((listening, server))
    return server


def _ask_http(content: bytes) -> None:
    from lockgate.serving.acceptor import Client
    from lockgate.serving.http import _is_whole

    if not _is_whole(content):
        return
    with _pair() as (ours, theirs):
        client = Client(_http()._acceptor, theirs)
        client.said = content
        _http()._serve(client)
        theirs.shutdown(socket.SHUT_WR)
        ours.settimeout(10)
        answer = ours.makefile("rb").read(1 << 20)
    if b"could not be made" in answer:
        raise AssertionError(answer)


class _Said:
    """A connection that says these words, one after the other, and hangs up."""

    def __init__(self, *words: bytes) -> None:
        self.words = deque(words)
        self.heard: list[bytes] = []

    def recv_bytes(self, most: int | None = None) -> bytes:
        if not self.words:
            raise EOFError
        word = self.words.popleft()
        if most is not None and len(word) > most:
            raise OSError("bad message length")
        return word

    def send_bytes(self, word: bytes) -> None:
        self.heard.append(word)


def _ask_permits(content: bytes) -> None:
    from lockgate.commit.permits import Permits, PermitServer

    server = PermitServer.__new__(PermitServer)
    server._permits = Permits(new_name=lambda: "t")
    server._permits.open()
    server._converse(_Said(*content.split(b"\n", WORDS_MAX)))  # type: ignore[arg-type]


def _ask_tables(content: bytes) -> None:
    from lockgate.spark import tableserver

    with_serve: list[Any] = []
    real = tableserver.RpcServer.__init__
    try:
        tableserver.RpcServer.__init__ = lambda self, serve, **rest: with_serve.append(serve)  # type: ignore[method-assign,assignment]
        tableserver.TableServer(lambda table, snapshot: b"content", host="", bind="")
    finally:
        tableserver.RpcServer.__init__ = real  # type: ignore[method-assign]
    with_serve[0](_Said(content))


def _tell_crashes(content: bytes) -> None:
    import threading
    from collections import Counter

    from lockgate.spark.crashes import CrashRegistry

    registry = CrashRegistry.__new__(CrashRegistry)
    registry._job, registry._lock, registry._deaths, registry._seen, registry._tasks = (
        "j",
        threading.Lock(),
        Counter(),
        {},
        set(),
    )
    registry._try, registry._is_open, registry._noted = 0, True, ()
    registry._serve(_Said(b'{"task": 1}', *content.split(b"\n", WORDS_MAX)))  # type: ignore[arg-type]
    registry.summary()


def _call_server(content: bytes) -> None:
    """A stranger listens at the port of a driver that has gone, and says something."""
    import threading

    from lockgate.serving.rpc import HELLO, Address, call

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak() -> None:
            line, _ = listening.accept()
            with line, contextlib.suppress(OSError):
                line.settimeout(5)
                line.recv(len(HELLO))
                line.sendall(content)
                line.shutdown(socket.SHUT_WR)
                while line.recv(4096):
                    pass

        stranger = threading.Thread(target=speak)
        stranger.start()
        try:
            call(Address("127.0.0.1", listening.getsockname()[1], b"x" * 32), seconds=5).close()
        finally:
            stranger.join()


def _framed(*words: bytes) -> bytes:
    """As multiprocessing sends them."""
    return b"".join(struct.pack("!i", len(word)) + word for word in words)


def _mqtt(content: bytes) -> None:
    """Packets of a broker, read by the library and taken by our session, as on the thread of the network."""
    import threading

    from lockgate.connectors.mqtt.inbox import Inbox
    from lockgate.connectors.mqtt.session import Link, Session, _new_client

    link = Link("localhost", 1, "t", "c", None, None, is_kept=True, room=10, where=WHERE)
    session = Session.__new__(Session)
    session._link, session._inbox, session._guard = link, Inbox(), threading.Lock()
    session._failure, session._lock = None, None
    session._is_subscribed = session._is_away = session._has_warned = False
    session._dropped_count = 0
    client: Any = _new_client(link, client_id="c", is_kept=True)
    client.connect_async(link.host, link.port)  # where it looks again if it is told to
    session._client = client
    client.on_connect, client.on_disconnect = session._connected, session._disconnected
    client.on_subscribe, client.on_message = session._subscribed, session._received
    with _pair() as (ours, theirs):
        theirs.sendall(content)
        theirs.shutdown(socket.SHUT_WR)
        ours.setblocking(False)
        client._sock = ours
        while client._sock is not None and not client.loop_read():
            pass
        client._sock = None
    if session._failure is not None:
        raise session._failure


MQTT_SEEDS = (
    b"\x20\x02\x00\x00\x90\x03\x00\x01\x01",
    b"\x20\x02\x01\x00" + b"\x32\x08\x00\x01t\x00\x05abc" + b"\x30\x04\x00\x01tx",
    b"\x32\x05\x00\x01\xff\x00\x05",
    b"\x34\x06\x00\x01t\x00\x05x\x62\x02\x00\x05\x40\x02\x00\x01\xd0\x00\xe0\x00",
)


# ---- answers of brokers


class _Broker:
    """In the place of the library's connections: what is asked gets these bytes as its answer."""

    broker_version = (4, 0)

    class cluster:  # noqa: N801
        @staticmethod
        def broker_metadata(node: int) -> object:
            return object()

        @staticmethod
        def brokers() -> list[Any]:
            class One:
                node_id = 1

            return [One]

        @staticmethod
        async def refresh_metadata() -> None: ...

    def __init__(self, content: bytes) -> None:
        self.content = content

    def run(self, ask: Callable[[], Any]) -> Any:
        waiting = ask()
        if waiting is None:
            return None
        try:
            waiting.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waits")

    async def send(self, request: Any, node_id: int | None = None) -> Any:
        from kafka.errors import KafkaProtocolError

        response = _response_class(type(request).__name__)
        version = min(response.max_version, request.max_version or response.max_version)
        try:
            return response.decode(self.content, version=version)
        except Exception as error:
            raise KafkaProtocolError(str(error)) from error

    @staticmethod
    def least_loaded_node() -> int:
        return 1


def _response_class(request: str) -> Any:
    from kafka.protocol import admin, consumer, metadata, producer
    from kafka.protocol.producer import transaction

    name = request.replace("Request", "Response")
    return next(getattr(one, name) for one in (admin, consumer, metadata, producer, transaction) if hasattr(one, name))


def _broker_answers(content: bytes) -> None:
    from lockgate.connectors.kafka.wire import Connection, Producer

    connection = Connection.__new__(Connection)
    connection.settings = read_settings("localhost:1", {}, where=WHERE)
    connection._manager = _Broker(content[1:])
    connection._leaders = {}
    producer = Producer(1, 2)
    asks: list[Callable[[], object]] = [
        lambda: connection.fetch(("t", 0), 0, leader=1),
        lambda: connection.shapes(["t"], is_fresh=True),
        lambda: connection.require_rights("t"),
        lambda: connection.configs(topics=["t"]),
        lambda: connection.configs(broker=True),
        lambda: connection.create_topic("t"),
        lambda: connection.end_offset(("t", 0), leader=1),
        lambda: connection.cluster_id(),
        lambda: connection.coordinator_of("i"),
        lambda: connection.init_producer("i", 5),
        lambda: connection.add_partitions("i", producer, [("t", 0)]),
        lambda: connection.add_group("i", producer, "g"),
        lambda: connection.commit_offsets("i", producer, "g", {("t", 0): 1}),
        lambda: connection.end_transaction("i", producer, is_commit=True),
        lambda: connection.describe_transaction("i"),
        lambda: connection.list_transactions(),
        lambda: connection.topic_names(),
    ]
    connection._coordinators = {(1, "i"): 1, (0, "g"): 1} if content[:1] != b"\x08" else {}
    asks[(content[0] if content else 0) % len(asks)]()


BROKER_SEEDS = tuple(bytes([kind, *(1 if at % 5 == 4 else 0 for at in range(120))]) for kind in range(17))


# ---- what people and job files say


def _parameters(content: bytes) -> None:
    from typing import Literal

    text = content.decode("utf-8", "surrogateescape")
    for kind in (int, float, bool, timedelta, datetime, Path, int | None, Literal["a", 5]):
        with contextlib.suppress(LockgateError):
            _convert(text, kind, "p", "job.py")


def _settings(text: str) -> object:
    pairs = [line.partition("=") for line in text.split("\n")]
    return read_settings("h:1", {name: rest for name, _, rest in pairs}, where=WHERE)


def _dsn(text: str) -> None:
    with contextlib.suppress(LockgateError):
        server_of(text, WHERE)
    conninfo_of(text, WHERE)


def _paths(text: str) -> None:
    one, _, two = text[:200].partition("\n")
    plain_path(one), plain_directory(one), root_of(one), names_below(one).match(two)
    may_overlap(one, two)


SETTINGS = Settings(
    job="j",
    guarantee=Guarantee.EXACTLY_ONCE,
    file="f.py",
    parameters={},
    options={},
    workload="w",
    job_digest="d",
    versions={},
)


def _results(root: Path) -> object:
    return Results(root / "results.jsonl", SETTINGS).verdict()


def _stack(root: Path) -> object:
    from lockgate.lab.services.stack import Stack

    return Stack(root)._read()


def _jars(root: Path) -> object:
    from lockgate.provision.jars import JarSet

    class Here(JarSet):
        directory = root  # type: ignore[assignment]

    return Here("fuzz", (), None)._check()


def _environment(text: str) -> object:
    os.environ["LOCKGATE_FUZZ"] = text.replace("\0", "") or "x"
    return resolve("env:LOCKGATE_FUZZ", login="fuzz", where=WHERE), masked(text), check_reference(text, where=WHERE)


def _listen(text: str) -> None:
    # The part before a port would be looked up in the network.
    listen(f"127.0.0.1:{text}" if not text.isdecimal() else "0").close()


LOGIN = b"org.apache.kafka.common.security.plain.PlainLoginModule required username=\"a\" password='b\\101';"
VALUES = (ValueError,)
DOORS = (*GONE, *_NONSENSE)
HTTP_GET = b"GET /metrics?a=b HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n"

TARGETS: tuple[Target, ...] = (
    Target("json", read_json, (b'{"a": [1, 2.5, "x", null, true]}',), VALUES, is_json=True),
    # Topics.
    Target("batches", _read_piece, (seal(RECORD), seal(RECORDS, count=2, last_delta=1) * 2), VALUES),
    Target(
        "records",
        _read_packed,
        (
            b"\0\1\0" + RECORD,
            b"\0\2\1" + RECORDS,
            *(bytes([codec.value, 2, 1]) + codec.compress(RECORDS) for codec in Codec),
        ),
        VALUES,
    ),
    Target("codecs", _unpack, tuple(bytes([codec.value]) + codec.compress(b"abc" * 100) for codec in Codec), VALUES),
    Target("ledger", lambda content: entry_of(content, WHERE), (ENTRY.to_bytes(),), is_json=True),
    Target("letters", _letter, (_dump(LETTER),), VALUES, is_json=True),
    Target("transactions", read_transaction, (b'{"id": "t1"}', b'{"id": 7}'), VALUES, is_json=True),
    Target("scores", read_score, (b'{"id": "t1", "score": 0.5}',), VALUES, is_json=True),
    # Directories.
    Target("manifests", lambda content: manifest_of(content, "j", WHERE), (MANIFEST.to_bytes(),), is_json=True),
    Target(
        "staged-files",
        _text(directory_of),
        (b'{"directory": "data/j/1", "files": 1, "digest": "d"}',),
        is_json=True,
    ),
    Target(
        "staged-rows",
        lambda content: staged_rows_of(read_json(content), WHERE, job="j"),
        (
            b'{"schema": "s", "table": ["s", "t"], "columns": ["a"], "key": [], "deleted": false,'
            b' "writes": {"lockgate_staging_%s_0_0": 5}}' % hashlib.sha256(b"j\ns\nt").hexdigest()[:12].encode(),
        ),
        (LockgateError, ValueError),
        is_json=True,
    ),
    Target("markers", parse_marker, (b'{"job": "j", "made": "2026-01-31", "format": 1}',), VALUES, is_json=True),
    Target(
        "savepoints",
        _from_file("savepoint.json", lambda root: read_savepoint(LocalTree(root))),
        (_dump(SAVEPOINT),),
        is_json=True,
        has_files=True,
        never_understood=True,
    ),
    Target(
        "accepted",
        parse_accepted,
        (b"[]", _dump([{"epoch": 1, "digest": "d", "moved": "d", "gaps": [gap.as_facts() for gap in ENTRY.gaps]}])),
        VALUES,
        is_json=True,
    ),
    Target(
        "accepted-gaps",
        _from_file(ACCEPTED, lambda root: Checkpoint(root=str(root)).gaps()),
        (b"[]",),
        is_json=True,
        has_files=True,
    ),
    Target(
        "queries",
        _from_file("metadata", lambda root: Checkpoint(root=str(root)).query()),
        (b'{"id": "q"}',),
        is_json=True,
        has_files=True,
    ),
    Target("offsets", _read_all_of_offsets, (OFFSETS,), VALUES),
    Target("next-epoch", _from_file("offsets/3", _next_epoch), (OFFSETS,), has_files=True),
    Target("kafka-offsets", _text(as_offsets), (b'{"in":{"0":10,"1":20}}',), is_json=True),
    Target("commits", read_commit, (b'v1\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a"]]}}',), VALUES),
    Target("source-logs", read_source_log, (b'\0v1\n{"in":{"0":5}}\n[1]',), VALUES),
    Target("operators", lambda content: parse_operator(content, 0), (b"v1\n" + _dump(OPERATOR),), VALUES),
    Target("snapshots", read_snapshot, (_zip(),), VALUES),
    Target("changes", check_compressed, (_block(b"abc") + _block(b""),), VALUES),
    Target("checksums", _sums, (struct.pack(">i", 512) + bytes(8),)),
    Target("topic-ids", _note(_read_noted), (b'{"read t 0": "c/1", "read t": ["c/1"]}',), is_json=True, has_files=True),
    Target("source-lists", _note(_read_listed), (b'[{"source": "a", "reads": "b"}]',), is_json=True, has_files=True),
    Target("file-lists", read_lines, (b'{"path": "/a", "bytes": 1, "modified_ms": 2, "epoch": 3}\n',), VALUES),
    Target(
        "file-logs", read_entries, (b'v1\n{"path":"file:///in/a%20b","timestamp":5,"batchId":1}',), (LockgateError,)
    ),
    Target(
        "tries",
        _from_file("tries.json", lambda root: Tries(root).begin(5)),
        (b'{"epoch": 5, "processed": 1, "delivered": 1}',),
        is_json=True,
        has_files=True,
    ),
    Target("encoded", _decode, tuple(map(PLAIN.encode, HELD)), (Unreadable,)),
    Target("pickles", read_pickled, tuple(pickle.dumps(one, 5) for one in HELD), (Unreadable,)),
    Target("pages", _page, _pages(), (Unreadable, StepFailed)),
    Target("page-indexes", _index, _indexes()),
    Target("states", _state, (_dump(STATE),), VALUES, is_json=True),
    Target("initial-states", _begun, (_dump(STATE), _dump(STATE) + b"\n\n" + _dump(STATE)), (*VALUES, LockgateError)),
    Target("initial-copies", _text(_read_copy), (b'[["a", null], "{}"]',), VALUES, is_json=True),
    # The network.
    Target("http", _ask_http, (HTTP_GET, HTTP_GET.replace(b"1.1", b"1.0"), b"GET / HTTP/0.9\r\n\r\n"), (OSError,)),
    Target(
        "permits",
        _ask_permits,
        (
            b'{"kind": "permit", "try": "t", "task": 1, "attempt": 2, "partitions": [["a", 0]]}',
            b'{"kind": "failure", "try": "t", "error": "e"}',
        ),
        DOORS,
        never_understood=True,
    ),
    Target("tables", _ask_tables, (b'{"table": "a", "snapshot": "b"}',), DOORS, is_json=True),
    Target(
        "crashes",
        _tell_crashes,
        (b'{"step": "s", "place": {"source": "a", "part": "b", "at": 1}, "shown": "x", "identity": "i"}',),
        DOORS,
    ),
    Target(
        "doors",
        _call_server,
        (_framed(b"#CHALLENGE#" + bytes(20), b"#WELCOME#", bytes(16)),),
        DOORS,
        never_understood=True,
    ),
    Target("mqtt", _mqtt, MQTT_SEEDS, (LockgateError, OSError)),
    Target("brokers", _broker_answers, BROKER_SEEDS, (LockgateError, Unanswered)),
    Target("hosts", _text(Hosts(80, frozenset({"localhost"})).admits), (b"localhost:80", b"[::1]:80"), ()),
    # People.
    Target("durations", _text(read_duration), (b"1 minute 30 seconds", b"5ms"), VALUES),
    Target("parameters", _parameters, (b"5", b"1 hour", b"2026-01-01T00:00:00Z", b"true"), ()),
    Target("dsns", _text(_dsn), (b"postgresql://u:p@h:5432/db?sslmode=require", b"host=h dbname=d password='x'")),
    Target("references", _text(_environment), (b"env:A", b"file:/a", b"postgresql://ada:x@h/db")),
    Target(
        "kafka-settings",
        _text(_settings),
        (
            b"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=" + LOGIN,
            b"batch.size=5\nrequest.timeout.ms=100\ncompression.type=gzip",
        ),
    ),
    Target(
        "logins",
        _text(lambda text: read_login(text, "PLAIN", WHERE)),
        (b"org.apache.kafka.common.security.plain.PlainLoginModule required username=\"a\" password='b\\101';",),
    ),
    Target(
        "paths", _text(_paths), (b"/in/20*/{a,b}/x?\n/in/2026/a", b"file:///in/[a-z]\nhdfs://h:9000/in"), (re.error,)
    ),
    Target("places", _text(_listen), (b"0", b"99999")),
    Target(
        "results",
        _from_file("results.jsonl", _results),
        (_dump({"digest": SETTINGS.digest, "settings": SETTINGS.as_json()}) + b"\n",),
        has_files=True,
    ),
    Target(
        "jars",
        _from_file("manifest.json", _jars),
        (b'{"jars": {}}', b'{"jars": {"a.jar": {"sha256": "0"}}}'),
        is_json=True,
        has_files=True,
    ),
    Target(
        "services",
        _from_file("state.json", _stack),
        (
            _dump(
                {
                    "cluster_id": "c",
                    "nodes": [{"id": 1, "port": 2, "controller_port": 3}],
                    "postgres_port": 1,
                    "postgres_password": "p",
                    "postgres_wanted": False,
                }
            ),
        ),
        is_json=True,
        has_files=True,
    ),
)
BY_NAME = {target.name: target for target in TARGETS}


def _planted(content: bytes) -> None:
    """A decoder with a fault that chance does not find, and a fuzzer that sees which lines are reached does."""
    if content[:1] == b"B":  # noqa: SIM102 - each line is one step of the way
        if content[1:2] == b"A":  # noqa: SIM102
            if content[2:3] == b"D":  # noqa: SIM102
                if content[3:4] == b"!":
                    raise AssertionError("planted")


BY_NAME["planted"] = Target("planted", _planted, (b"good",))
