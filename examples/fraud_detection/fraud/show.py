"""The show of fraud detection: run all parts, send payments, stop and kill one analyser, continue to answer.

    driver 1     amount, velocity, place: three real-time queries in one JVM
    driver 2     blacklist, alone, because it is stopped (SIGSTOP) and killed (SIGKILL)
    driver 3     the results, exactly-once into PostgreSQL; no answer waits for it, so it runs at a low priority
    presenter    answers within the deadline
    sender       payments at an even rate

    warm-up      until every analyser scores and the JVMs have compiled hot code; not measured
    undisturbed  scores are timed
    results      the job of the table starts, and uses the remaining cores; with two cores all else is slower now. When
                 it has rows, scores are timed once more
    stopped      blacklist stands still; then it continues
    killed       blacklist is killed, and restarted
    afterwards   until the table has every payment

The measurements are read from the topics at the end (measured.py). The processes of a show end with it, however it
ends. If a show was killed, the next one finds its processes by their marks and ends them. It also deletes the topics
and the table of that show.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fraud.measured import Measured, Phase, Stamps
from fraud.topics import ANALYSERS, Topics
from lockgate.connectors.kafka.topics import delete_topics, existing_topics
from lockgate.connectors.postgres.connect import connect
from lockgate.errors import Failed, LockgateError
from lockgate.escaping import tell
from lockgate.lab.demo.broker import borrow_services
from lockgate.lab.services.directorylock import locked_directory
from lockgate.lab.services.processes import Mark
from lockgate.lab.services.stack import Stack, default_root
from lockgate.presenter.presenter import check_library

DISTURBED = "blacklist"
"""The analyser that is stopped and killed."""

_DRIVERS = (("amount", "velocity", "place"), (DISTURBED,))
_PROCESSES = (*(parts[0] for parts in _DRIVERS), "results", "presenter", "sender")
_DSN = "LOCKGATE_DEMO_DSN"
_WHERE = "the topics and tables of the show"
_DATABASE_PATIENCE = timedelta(seconds=5)
_OLD_TOPIC = re.compile(r"fraud-\d{8}-\d{6}-.+")
_OLD_TABLE = r"^fraud_\d{8}_\d{6}_(results|letters)$"
_OUR_ERROR = re.compile(r"^\S.*\n  where: .*\n  fix: .*", re.MULTILINE)
_PATIENCE = timedelta(minutes=5)
_KILL_LIMIT = timedelta(seconds=20)
_LOOK_SECONDS = 0.2
_LOW_PRIORITY = 8


@dataclass(frozen=True)
class Settings:
    """The size of the show. Seconds."""

    rate: int = 1000  # payments a second
    deadline_ms: int = 20
    warm_up: float = 90.0
    undisturbed: float = 130.0  # longer than two epochs
    beside: float = 30.0
    stopped: float = 15.0
    killed: float = 15.0  # before it is restarted
    partitions: int = 1  # each needs a slot of every analyser


def show(
    file: Path,
    stack: Stack,
    *,
    settings: Settings,
    now: datetime,
    tell: Callable[[str], None],
    home: Path | None = None,
) -> Measured:
    """Run all parts of the job file, disturb one, and report the measurements; stops what it started.

    Args:
        now: names the topics, the jobs and the table.
        home: where checkpoints and logs stay; by default beside the services.
    """
    check_library()
    home = (home or stack.root.parent / "fraud").absolute()
    with contextlib.ExitStack() as ends:
        ends.enter_context(locked_directory(home, what="the show runs here already", fix="wait for its end"))
        _end_processes(home)
        for left in home.iterdir():  # of an earlier show
            if left.is_dir():
                shutil.rmtree(left)
            elif left.name != "lock":
                left.unlink()
        ends.enter_context(borrow_services(stack, tell, postgres=True))
        status = stack.status()
        servers, dsn = status.kafka.servers or "", status.postgres.dsn or ""
        _forget_old(servers, dsn)
        topics = Topics(servers, f"fraud-{now:%Y%m%d-%H%M%S}-")
        stage = _Stage(file, home, topics, dsn, settings, tell)
        ends.callback(stage.tidy)
        topics.make(settings.partitions)
        ends.callback(stage.end)
        phases = stage.play()
        stage.finish()
        return Measured(stage.stamps(phases), stage.table(), timed=2)


def main_show(file: Path) -> None:
    """The show as a command: progress goes to standard error, measurements to standard output."""
    parser = argparse.ArgumentParser(
        description=ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    arguments = parser.parse_args()
    stack = Stack(default_root())
    measured = show(file, stack, settings=Settings(), now=datetime.now(), tell=tell)
    print(json.dumps(measured.facts(), indent=2) if arguments.json else measured.text())


def _mark_of(home: Path, name: str) -> Mark:
    """The mark of a process: it depends only on the directory, so that a later show finds the processes."""
    return Mark("LOCKGATE_FRAUD", hashlib.sha256(f"{home} {name}".encode()).hexdigest()[:16])


def _end_processes(home: Path) -> None:
    """Kill all processes that a show has started here, known or unknown."""
    for name in _PROCESSES:
        _mark_of(home, name).kill(_KILL_LIMIT)


def _forget_old(servers: str, dsn: str) -> None:
    """Delete topics and tables of killed shows: our own services have no others with these names."""
    old = [name for name in existing_topics(servers, where=_WHERE) if _OLD_TOPIC.fullmatch(name)]
    if old:
        delete_topics(servers, old, where=_WHERE)
    _drop_tables(dsn, _OLD_TABLE)


def _drop_tables(dsn: str, pattern: str) -> None:
    from psycopg import sql

    with connect(dsn, where=_WHERE, name="lockgate demo", patience=_DATABASE_PATIENCE) as connection:
        found = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename ~ %s"
        for (table,) in connection.execute(found, [pattern]).fetchall():
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(table)))


def _last_words(told: str) -> str:
    """Why a process died: the last error of ours, with place and fix, or the last line."""
    ours = _OUR_ERROR.findall(told)
    if ours:
        return str(ours[-1])
    lines = told.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


class _Stage:
    """The processes of a show."""

    def __init__(
        self, file: Path, home: Path, topics: Topics, dsn: str, settings: Settings, tell: Callable[[str], None]
    ) -> None:
        self._file, self._home, self._topics, self._dsn = file, home, topics, dsn
        self._settings, self._tell = settings, tell
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # The phases

    def play(self) -> list[Phase]:
        """Run everything up to the end of sending; returns the times of the phases."""
        settings = self._settings
        self._start_presenter()
        for parts in _DRIVERS:
            self._start_driver(parts)
        self._tell(f"sending {settings.rate:,} payments a second")
        self._start_sender()
        self._await_scores(ANALYSERS)
        self._tell(f"all analysers score; warming up for {settings.warm_up:.0f} s")
        self._pass(settings.warm_up)
        self._tell(f"scores are timed for {settings.undisturbed:.0f} s")
        phases = [self._phase("undisturbed", lambda: self._pass(settings.undisturbed))]
        self._start_driver(("results",))
        self._await(lambda: self.table()["rows"] > 0, "the table has payments")
        self._step_back("results")
        self._tell(f"scores are timed once more, beside the table's job, for {settings.beside:.0f} s")
        phases.append(self._phase("results beside", lambda: self._pass(settings.beside)))
        phases.append(self._phase(f"{DISTURBED} stopped", self._stop_one))
        self._await_scores((DISTURBED,))
        phases.append(self._phase(f"{DISTURBED} killed", self._kill_one))
        self._await_scores((DISTURBED,))
        return phases

    def finish(self) -> None:
        """Stop sending, and wait until the presenter has answered all and the table has every payment."""
        self._tell("no more payments; waiting for the table")
        self._ask_to_end("sender")
        sent = self._topics.counts([self._topics.payments])[self._topics.payments]
        self._await(lambda: self.table()["rows"] >= sent, "the table has every payment")
        self._ask_to_end("presenter")

    def _stop_one(self) -> None:
        self._tell(f"SIGSTOP {DISTURBED}")
        self._signal(DISTURBED, signal.SIGSTOP)
        self._pass(self._settings.stopped)
        self._signal(DISTURBED, signal.SIGCONT)
        self._tell(f"SIGCONT {DISTURBED}")

    def _kill_one(self) -> None:
        self._tell(f"SIGKILL {DISTURBED}")
        self._mark(DISTURBED).kill(_KILL_LIMIT)
        self._processes.pop(DISTURBED).wait()
        self._pass(self._settings.killed)
        self._tell(f"starting {DISTURBED} again")
        self._start_driver((DISTURBED,))

    def _phase(self, name: str, act: Callable[[], None]) -> Phase:
        begin = _now_ms()
        act()
        return Phase(name, begin, _now_ms())

    # The measurements

    def stamps(self, phases: Sequence[Phase]) -> Stamps:
        """The measurements from the topics and the checkpoints."""
        return Stamps(
            arrivals=self._topics.arrivals(),
            scores={analyser: self._topics.first_scores(analyser) for analyser in ANALYSERS},
            answers=self._topics.answers(),
            epoch_ends={analyser: self._epoch_ends(analyser) for analyser in ANALYSERS},
            phases=phases,
            deadline_ms=self._settings.deadline_ms,
        )

    def _epoch_ends(self, analyser: str) -> list[int]:
        """When the epochs of an analyser were committed: Spark writes a file for each."""
        commits = self._home / analyser / "commits"
        return sorted(round(one.stat().st_mtime * 1000) for one in commits.glob("[0-9]*"))

    def table(self) -> dict[str, int]:
        """How many payments are in the result store, and how many with all scores."""
        import psycopg
        from psycopg import sql

        query = sql.SQL("SELECT count(card), count(*) FILTER (WHERE NOT is_partial) FROM {}").format(
            sql.Identifier(self._topics.table)
        )
        with connect(self._dsn, where=_WHERE, name="lockgate demo", patience=_DATABASE_PATIENCE) as connection:
            try:
                row = connection.execute(query).fetchone()
            except psycopg.errors.UndefinedTable:  # the job creates it with its first rows
                row = None
        return {"rows": row[0], "whole": row[1]} if row else {"rows": 0, "whole": 0}

    def tidy(self) -> None:
        """Delete everything from the services; if they do not answer, the next show does it."""
        import psycopg

        try:
            _drop_tables(self._dsn, f"^{self._topics.table.removesuffix('results')}(results|letters)$")
            delete_topics(self._topics.servers, self._topics.names, where=_WHERE)
        except (LockgateError, psycopg.Error) as error:
            self._tell(f"the topics and the table of this show remain: {error}")

    # The processes

    def _start_presenter(self) -> None:
        topics = self._topics
        words = ["--servers", topics.servers, "--transactions", topics.payments, "--results", topics.results]
        words += [word for name, topic in topics.scores.items() for word in ("--score", f"{name}={topic}")]
        words += ["--deadline", f"{self._settings.deadline_ms} ms", "--json"]
        self._start("presenter", ["lockgate.cli.main", "present", *words])
        out = self._home / "presenter.out"
        self._await(lambda: b"address" in out.read_bytes(), "the presenter reads")
        address = json.loads(out.read_bytes().splitlines()[0])["address"]
        self._tell(f"the presenter answers at {address}/transactions/ID")

    def _start_driver(self, parts: Sequence[str]) -> None:
        name = parts[0]
        words = [word for part in parts for word in ("--part", part)]
        parameters = {"servers": self._topics.servers, "prefix": self._topics.prefix, "dsn": f"env:{_DSN}"}
        words += [word for item in parameters.items() for word in ("-p", "=".join(item))]
        module = ["fraud.driver", str(self._file), *words, "--home", str(self._home)]
        self._start(name, module)
        out = self._home / f"{name}.out"
        self._await(lambda: out.read_bytes().count(b"started ") == len(parts), f"{', '.join(parts)} started")
        self._tell(f"started {', '.join(parts)}")

    def _step_back(self, name: str) -> None:
        """Lower the priority: Linux divides the cores by session first, and a JVM has a session of its own.

        Only after the start: Spark gives a Python worker ten seconds to start.
        """
        for process in self._mark(name).carriers():
            with contextlib.suppress(OSError):  # it has ended, or the system has no such groups
                if os.getsid(process.pid) != os.getsid(0):
                    Path(f"/proc/{process.pid}/autogroup").write_text(str(_LOW_PRIORITY))

    def _start_sender(self) -> None:
        words = [
            "--servers",
            self._topics.servers,
            "--topic",
            self._topics.payments,
            "--rate",
            str(self._settings.rate),
        ]
        self._start("sender", ["fraud.sender", *words])

    def _start(self, name: str, module: Sequence[str]) -> None:
        mark = self._mark(name)
        places = [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(places), mark.name: mark.value}
        environ[_DSN] = self._dsn  # no command line holds a password
        command = [sys.executable, "-m", *module]
        with (self._home / f"{name}.out").open("wb") as out, (self._home / f"{name}.err").open("ab") as err:
            self._processes[name] = subprocess.Popen(command, env=environ, cwd=self._home, stdout=out, stderr=err)

    def _mark(self, name: str) -> Mark:
        return _mark_of(self._home, name)

    def _signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to all processes of a part: Python, the JVM and their children."""
        for process in self._mark(name).carriers():
            process.send_signal(number)

    def _ask_to_end(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        if process.wait(_PATIENCE.total_seconds()) != 0:
            raise self._failed(name)

    def end(self) -> None:
        """Kill all processes, also those that were just starting or stopping."""
        _end_processes(self._home)
        for process in self._processes.values():
            process.wait()

    # Waiting

    def _await_scores(self, analysers: Sequence[str]) -> None:
        """Wait until each of these has scored a new payment, so that it has caught up."""
        now = datetime.now(UTC)
        names = [self._topics.scores[analyser] for analyser in analysers]
        self._await(
            lambda: all((newest := self._topics.newest(name)) is not None and newest > now for name in names),
            f"{', '.join(analysers)} score",
        )

    def _pass(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, _LOOK_SECONDS))

    def _await(self, is_there: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + _PATIENCE.total_seconds()
        while not is_there():
            self._check()
            if time.monotonic() > ends:
                raise Failed(f"waited in vain until {what}", where=f"the show, logs in {self._home}", fix="look there")
            time.sleep(_LOOK_SECONDS)

    def _check(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise self._failed(name)

    def _failed(self, name: str) -> Failed:
        told = (self._home / f"{name}.err").read_text(errors="replace")
        return Failed(
            f"{name} has ended:\n{textwrap.indent(_last_words(told), '    | ')}",
            where=str(self._home / f"{name}.err"),
            fix="read its last lines; Spark's logs are beside them",
        )


def _now_ms() -> int:
    return round(time.time() * 1000)
