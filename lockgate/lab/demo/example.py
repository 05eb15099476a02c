"""The common part of the examples: make places, send events, run the job to the end, read the rows.

    with in_topics("requests", "counts", servers=servers) as tryout:
        tryout.send("requests", make_requests(count=5000, seed=7))
        tryout.run(job(**tryout.places))
        print(terminal.table(tryout.rows("counts")))

    in_topics         topics of a real Kafka: the one that is named, otherwise the one of `lockgate up`, otherwise one
                      that is started here and stopped again
    in_directories    directories; nothing else is needed

The Kafka may have other users: names of topics and of the job contain the time, so that no job of the same name is
disturbed. At the end the topics are deleted, with the topic of the job's ledger.

A try is the same each time: events go to partitions in turn, and the size of epochs follows from the number of epochs.
So the printed result of an example can be compared. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

from lockgate.connectors.files.reading import read_files
from lockgate.connectors.kafka.ledgertopic import ledger_topic
from lockgate.connectors.kafka.topics import create_topics, delete_topics
from lockgate.dataflow.job import Job
from lockgate.dataflow.rebuilding import rebuild
from lockgate.errors import Failed, LockgateError, Refused
from lockgate.escaping import tell
from lockgate.lab.services.home import home
from lockgate.runtime.options import Options
from lockgate.runtime.running import Run
from lockgate.runtime.starting import launch
from lockgate.stopping import stoppable
from lockgate.unexpectederrors import report_unexpected

Row = dict[str, Any]

PARTITIONS = 2
_WHERE = "the topics of this example"
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_TURNS_PER_SECOND = 10
_OPTIONS = {
    "servers": ("HOST:PORT", "a Kafka of yours; otherwise the one of `lockgate up`, or one for the time of this run"),
    "directory": ("DIRECTORY", "where events and results stay; by default they are removed at the end"),
    "live": ("", "continue with new events, and show them on a page that updates until Ctrl-C"),
}


def run_main(main: Callable[..., None]) -> NoReturn:
    """Run a script's `main` with the words of its command line; a refusal or failure prints one clear paragraph.

    A `main` without parameters reads the command line itself.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot draw a bar shows a question mark
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all services that were started are stopped
    arguments = vars(_parser(main).parse_args()) if inspect.signature(main).parameters else {}
    try:
        main(**arguments)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        sys.exit(2)
    except LockgateError as failure:
        print(failure, file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        print(_of_the_system(error), file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except Exception as surprise:  # noqa: BLE001 - the last handler: no raw traceback is printed
        report_unexpected(surprise, fix="report it with that file")
        sys.exit(1)
    sys.exit(0)


def _of_the_system(error: OSError) -> Failed:
    """An error of the operating system as one of ours."""
    return Failed(
        error.strerror or str(error) or type(error).__name__,
        where=str(error.filename or sys.argv[0]),
        fix="make it possible, or choose another place; then run it again",
    )


def _parser(main: Callable[..., None]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=main.__globals__["__doc__"], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, parameter in inspect.signature(main).parameters.items():
        if name in _OPTIONS:
            metavar, told = _OPTIONS[name]
            if parameter.default is False:
                parser.add_argument(f"--{name}", action="store_true", help=told)
            else:
                kind = Path if name == "directory" else str
                parser.add_argument(name, nargs="?", type=kind, metavar=metavar, help=told)
    return parser


class Tryout(ABC):
    """One try of a job, at a place of its own.

    Attributes:
        places: the parameters of job() that say where it reads and writes.
    """

    def __init__(self, places: Mapping[str, str], checkpoints: Path, epochs: int) -> None:
        self.places = dict(places)
        self._checkpoints, self._epochs = checkpoints, epochs

    @abstractmethod
    def send(self, name: str, events: Iterable[Mapping[str, Any]]) -> None:
        """Write events to one of the places, in their order."""

    @abstractmethod
    def rows(self, name: str) -> list[Row]:
        """The rows at one of the places: plain Python, times in UTC, in no particular order."""

    @property
    @abstractmethod
    def _rows_per_epoch(self) -> int:
        """How many rows an epoch takes, so that there are as many epochs as requested."""

    def run(self, job: Job) -> Run:
        """Run a job to the end of what was sent, and print its progress and its guarantee."""
        done = self._run(job, until_caught_up=True)
        done.wait(lambda progress: tell(progress.line()))
        print(f"{job.name}: declared {done.plan.declared.label}, reached {done.plan.reached.label}\n")
        return done

    def _run(self, job: Job, *, until_caught_up: bool) -> Run:
        options = Options(
            checkpoint=str(self._checkpoints / job.name),
            until_caught_up=until_caught_up,
            rows_per_epoch=self._rows_per_epoch if until_caught_up else None,
            log_file=home() / "logs" / f"{job.name}.spark.log",
        )
        return launch(self._named(job), options, job_file=Path(job.origin.file))

    def _named(self, job: Job) -> Job:
        """The job with the name that it has here."""
        return job


# Directories


@contextlib.contextmanager
def in_directories(*names: str, directory: Path | None = None, epochs: int = 3) -> Iterator[Tryout]:
    """A try with directories of these names, below `directory`, or below one that is removed at the end."""
    with contextlib.ExitStack() as ends:
        if directory is None:
            directory = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="lockgate-example-")))
        there = [str(directory / name) for name in (*names, "checkpoints") if (directory / name).exists()]
        if there:
            raise Refused(
                f"{directory} has events and results already",
                where=", ".join(there),
                fix="choose another directory, or remove these",
            )
        yield _InDirectories({name: str(directory / name) for name in names}, directory / "checkpoints", epochs)


class _InDirectories(Tryout):
    _rows_per_epoch = 1  # of files

    def send(self, name: str, events: Iterable[Mapping[str, Any]]) -> None:
        lines = [json.dumps(event) for event in events]
        per_file = -(-len(lines) // self._epochs)
        directory = Path(self.places[name])
        directory.mkdir(parents=True)
        for number in range(0, len(lines), per_file):
            path = directory / f"{number:06}.json"
            path.write_text("\n".join(lines[number : number + per_file]))
            os.utime(path, (number, number))  # Spark reads the oldest file first

    def rows(self, name: str) -> list[Row]:
        from pyspark.sql import SparkSession

        found = read_files(SparkSession.active(), self.places[name]).collect()
        return [_in_utc(row.asDict(recursive=True)) for row in found]


def _in_utc(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _in_utc(one) for name, one in value.items()}
    return value.astimezone(UTC) if isinstance(value, datetime) else value


# Topics


@contextlib.contextmanager
def kafka_at(servers: str | None) -> Iterator[str]:
    """The servers of a Kafka: the named ones, or of one that runs here, or of one that is started now."""
    if servers is not None:
        if not all(server.strip() for server in servers.split(",")):
            raise Refused(
                f"{servers!r} names no Kafka", where="command line", fix="give HOST:PORT, or nothing to find one"
            )
        yield servers
        return
    # Only here, so that an example of files needs no package for local services.
    from lockgate.lab.demo.broker import borrow_services
    from lockgate.lab.services.stack import Stack, default_root

    stack = Stack(default_root())
    with borrow_services(stack, tell) as is_left_running:
        found = stack.status().kafka.servers
        assert found is not None
        tell(f"Kafka at {found}" + ("" if is_left_running else ", for the time of this run"))
        yield found


@contextlib.contextmanager
def in_topics(*names: str, servers: str | None = None, epochs: int = 3) -> Iterator[Topics]:
    """A try with topics for these names, in a Kafka that is named, runs here, or is started now."""
    with contextlib.ExitStack() as ends:
        servers = ends.enter_context(kafka_at(servers))
        checkpoints = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="lockgate-example-")))
        moment = f"{datetime.now():%Y%m%d-%H%M%S-%f}"
        topics = {name: f"{name}-{moment}" for name in names}
        create_topics(servers, list(topics.values()), partitions=PARTITIONS, where=_WHERE)
        tryout = Topics({"servers": servers, **topics}, checkpoints, epochs, moment)
        ends.callback(_delete, servers, tryout.topics)
        ends.enter_context(tryout.ends)
        yield tryout


def _delete(servers: str, topics: Collection[str]) -> None:
    """Delete the topics; a user without the right to delete still has the result."""
    try:
        delete_topics(servers, topics, where=_WHERE)
    except LockgateError as error:
        tell(f"these topics remain: {', '.join(topics)}\n{error}")


class Topics(Tryout):
    """A try with topics, which can also run live.

    Attributes:
        topics: all topics that were created, including those of ledgers.
        ends: closes what must end with the try, however it ends.
    """

    def __init__(self, places: Mapping[str, str], checkpoints: Path, epochs: int, moment: str) -> None:
        super().__init__(places, checkpoints, epochs)
        self.topics = [topic for name, topic in places.items() if name != "servers"]
        self.ends = contextlib.ExitStack()
        self._moment, self._sent_most = moment, 1

    def _named(self, job: Job) -> Job:
        # With its own name it would fence a driver that runs elsewhere, and find its ledger.
        name = f"{job.name}-{self._moment}"
        if ledger_topic(name) not in self.topics:
            self.topics.append(ledger_topic(name))
        return rebuild(job, name=name, exchange=lambda step: step, letters=lambda sink: sink)

    @property
    def _rows_per_epoch(self) -> int:
        return -(-self._sent_most // self._epochs)

    def send(self, name: str, events: Iterable[Mapping[str, Any]]) -> None:
        count = 0
        with self._sender(name) as put:
            for event in events:
                put(event)
                count += 1
        self._sent_most = max(self._sent_most, count)

    def rows(self, name: str) -> list[Row]:
        from lockgate.lab.rig.readers.topics import read_records  # a job that only runs does not need it

        records = read_records(self.places["servers"], [self.places[name]])
        return [_row(record.value) for record in records]

    def live(
        self, job: Job, into: str, events: Iterable[Mapping[str, Any]], *, per_second: int, output: str
    ) -> Iterator[Row]:
        """The rows of an output as they arrive, while the job runs and events are sent at their pace.

        After the last row it waits until the user ends it.
        """
        from lockgate.lab.rig.readers.topics import read_records

        is_over = threading.Event()
        with contextlib.ExitStack() as ends:
            threads = ends.enter_context(ThreadPoolExecutor(max_workers=1, thread_name_prefix="lockgate-example"))
            running = self._run(job, until_caught_up=False)
            # Ctrl-C in the middle of a call to Spark would break the connection over which the job is stopped.
            go_on = ends.enter_context(stoppable())
            # A caller that is interrupted while it has a row does not return here.
            self.ends.callback(running.stop)
            self.ends.callback(is_over.set)
            sending = threads.submit(self._send_slowly, into, events, per_second, is_over)

            def is_complete() -> bool:
                go_on()
                running.wait(timeout=0)  # raises if the job has failed
                if not sending.done():
                    return False
                sending.result()
                running.stop()
                self._run(job, until_caught_up=True).wait()
                return True

            try:
                records = read_records(self.places["servers"], [self.places[output]], is_over=is_complete)
                yield from (_row(record.value) for record in records)
                tell("all events have arrived; Ctrl-C ends it")
                while not is_over.wait(1 / _TURNS_PER_SECOND):
                    go_on()
            finally:
                is_over.set()
                running.stop()

    def _send_slowly(
        self, name: str, events: Iterable[Mapping[str, Any]], per_second: int, is_over: threading.Event
    ) -> None:
        began = time.monotonic()
        with self._sender(name) as put:
            for number, event in enumerate(events):
                if number % max(1, per_second // _TURNS_PER_SECOND) == 0:
                    is_over.wait(max(0.0, began + number / per_second - time.monotonic()))
                if is_over.is_set():
                    return
                put(event)

    @contextlib.contextmanager
    def _sender(self, name: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.places["servers"].split(","), linger_ms=20)
        sent: list[Any] = []

        def put(event: Mapping[str, Any]) -> None:
            value = json.dumps(event).encode()
            sent.append(producer.send(self.places[name], value, partition=len(sent) % PARTITIONS))

        try:
            yield put
            for one in sent:
                one.get(timeout=60)  # raises if the broker did not accept it
        finally:
            producer.close()


def _row(value: bytes) -> Row:
    row: Row = json.loads(value, parse_float=Decimal)
    return {name: _as_moment(one) for name, one in row.items()}


def _as_moment(value: Any) -> Any:
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        return datetime.fromisoformat(value)
    return value
